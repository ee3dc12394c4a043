//! A sandbox without walls: the real `sandboxd` behind a socket of a folder, to which one can connect again as one can in a pod.

use sandbox_runtime::{AcquireError, Acquired, ByteStream, ContainerSpec, Half, InstanceId, OpenError, Runtime, Start};
use std::{
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::net::UnixStream;

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
        let mut pauses = tokio::time::interval(Duration::from_millis(5));
        // It makes its socket a moment after its start.
        for _ in 0..2000 {
            if *instance != self.instance() {
                return Err(OpenError::Gone("it was killed".to_owned()));
            }
            if let Ok(stream) = UnixStream::connect(self.folder.path().join("socket")).await {
                return Ok(Box::new(stream));
            }
            pauses.tick().await;
        }
        Err(OpenError::Failed("it does not listen".to_owned()))
    }

    fn forget(&self, _instance: &InstanceId) {}

    /// It keeps its word; a call that says otherwise fails.
    async fn replace(&self, _instance: &InstanceId) {}

    async fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    async fn shut_down(&self) {}
}
