//! A sandbox without walls: the real `sandboxd` behind `attach`, as in a pod.

use sandbox_runtime::{AcquireError, Acquired, ByteStream, ContainerSpec, Half, InstanceId, OpenError, Runtime, Start};
use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

pub struct Listening {
    folder: tempfile::TempDir,
    running: Mutex<(Child, usize)>,
}

fn sandboxd() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../target/sandboxd/x86_64-unknown-linux-gnu/sandboxd/sandboxd");
    let path = std::env::var_os("SANDBOXD_BIN").map_or(built, PathBuf::from);
    assert!(path.is_file(), "{} is missing: run `sandboxd/build` first, or set SANDBOXD_BIN", path.display());
    path
}

fn spawn(folder: &Path) -> Child {
    let socket = folder.join("socket");
    let _ = std::fs::remove_file(&socket);
    let mut command = Command::new(sandboxd());
    command.args(["serve", "--half", "main", "--socket"]).arg(socket).arg("--claim").arg(folder);
    command.env_clear().env("PATH", "/usr/bin:/bin").spawn().unwrap()
}

impl Listening {
    pub fn start() -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        for name in sandboxd_protocol::layout::claim_folders() {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let running = Mutex::new((spawn(folder.path()), 0));
        Arc::new(Self { folder, running })
    }

    /// Kills it; another one takes its place at once.
    pub fn kill(&self) {
        let mut running = self.running.lock().unwrap();
        running.0.kill().unwrap();
        running.0.wait().unwrap();
        *running = (spawn(self.folder.path()), running.1 + 1);
    }

    fn instance(&self) -> InstanceId {
        InstanceId { name: "listening".to_owned(), uid: self.running.lock().unwrap().1.to_string() }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut running = self.running.lock().unwrap();
        let _ = running.0.kill();
        let _ = running.0.wait();
    }
}

#[async_trait::async_trait]
impl Runtime for Listening {
    async fn find(&self, _spec: &ContainerSpec) -> Result<bool, AcquireError> {
        Ok(true)
    }

    async fn acquire(&self, _spec: &ContainerSpec, _deadline: Duration) -> Result<Acquired, AcquireError> {
        Ok(Acquired { instance: self.instance(), idle_timeout: Duration::ZERO, start: Start::Ready })
    }

    async fn open(&self, instance: &InstanceId, _half: Half) -> Result<Box<dyn ByteStream>, OpenError> {
        if *instance != self.instance() {
            return Err(OpenError::Gone("it was killed".to_owned()));
        }
        let server = self.running.lock().unwrap().0.id().to_string();
        let mut command = tokio::process::Command::new(sandboxd());
        command.arg("attach").arg("--socket").arg(self.folder.path().join("socket")).args(["--server-pid", &server]);
        let mut attach = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let stream = tokio::io::join(attach.stdout.take().unwrap(), attach.stdin.take().unwrap());
        tokio::spawn(async move { attach.wait().await });
        Ok(Box::new(stream))
    }

    fn forget(&self, _instance: &InstanceId) {}

    /// It keeps its word; a call that says otherwise fails.
    async fn replace(&self, _instance: &InstanceId) {}

    async fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    async fn shut_down(&self) {}
}
