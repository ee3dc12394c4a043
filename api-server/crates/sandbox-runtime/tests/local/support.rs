//! A runtime with folders of its own, and what this machine sees of it.

use futures_util::TryStreamExt;
use sandbox_runtime::{
    ContainerKey, ContainerKind, ContainerSpec, FileBody, Limits, RunKind, RunRequest, Sandbox, Sandboxes,
    local::{LocalConfig, LocalError, LocalLimits, LocalRuntime},
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// For everything that must happen soon.
pub const DEADLINE: Duration = Duration::from_secs(30);

pub fn sandboxd() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../target/sandboxd/x86_64-unknown-linux-gnu/sandboxd/sandboxd");
    let path = std::env::var_os("SANDBOXD_BIN").map_or(built, PathBuf::from);
    assert!(path.is_file(), "{} is missing: run `sandboxd/build` first, or set SANDBOXD_BIN", path.display());
    path
}

pub fn config(data_dir: &Path, idle_timeout: Duration) -> LocalConfig {
    let limits = LocalLimits { home: 8 << 20, shm: 1 << 20 };
    let (sandboxd, bwrap) = (sandboxd(), "bwrap".into());
    LocalConfig { data_dir: data_dir.to_owned(), sandboxd, bwrap, image: None, idle_timeout, limits }
}

pub struct Host {
    pub sandboxes: Sandboxes,
    pub data: tempfile::TempDir,
}

/// A `bwrap` of ours.
pub struct Process {
    pub pid: u32,
    pub half: &'static str,
}

impl Host {
    pub async fn start() -> Self {
        Self::start_with(Duration::from_mins(10)).await
    }

    pub async fn start_with(idle_timeout: Duration) -> Self {
        let data = tempfile::tempdir().unwrap();
        let sandboxes = open(data.path(), idle_timeout).await.unwrap();
        Self { sandboxes, data }
    }

    pub async fn sandbox(&self, id: &str) -> Sandbox {
        self.sandboxes.acquire(&spec(id, None), DEADLINE).await.unwrap()
    }

    pub fn claim(&self, id: &str) -> PathBuf {
        self.data.path().join("sandboxes").join(spec(id, None).name.as_str()).join("claim")
    }

    /// Goes on with a run in `box` until its command has made the file `started`; the run must not end before.
    pub async fn wait_until_started(&self, running: impl Future<Output: std::fmt::Debug>) {
        tokio::select! {
            outcome = running => panic!("{outcome:?}"),
            () = until(|| self.claim("box").join("workspace/started").exists()) => {}
        }
    }

    /// The outermost processes of all sandboxes: those whose command line names our folder.
    pub fn processes(&self) -> Vec<Process> {
        processes(self.data.path())
    }

    pub fn kill(&self, half: &str) {
        for process in self.processes().into_iter().filter(|process| process.half == half) {
            let status = std::process::Command::new("kill").args(["-KILL", &process.pid.to_string()]).status();
            assert!(status.unwrap().success());
        }
    }

    pub async fn stop(self) {
        self.sandboxes.shut_down().await;
        let left = self.processes();
        let lines = left.iter().map(|process| fs::read_to_string(format!("/proc/{}/stat", process.pid)));
        assert!(left.is_empty(), "processes were left behind: {:?}", lines.collect::<Vec<_>>());
    }
}

pub async fn open(data: &Path, idle_timeout: Duration) -> Result<Sandboxes, LocalError> {
    Ok(Sandboxes::new(Arc::new(LocalRuntime::new(config(data, idle_timeout)).await?)))
}

pub fn spec(id: &str, lifetime: Option<Duration>) -> ContainerSpec {
    let key = ContainerKey { kind: ContainerKind::Explicit, workspace: "acme", user: Some("ann"), id };
    ContainerSpec { name: key.name(), owner: key.owner(), lifetime }
}

/// The outermost `bwrap` of each half over this folder: its parent is no `bwrap` itself.
pub fn processes(data: &Path) -> Vec<Process> {
    let is_ours = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains(data.to_str().unwrap()).then_some(line)
    };
    pids()
        .into_iter()
        .filter_map(|pid| {
            let line = is_ours(pid)?;
            is_ours(parent(pid)?).is_none().then(|| {
                let half = if line.contains("\0files\0") { "files" } else { "main" };
                Process { pid, half }
            })
        })
        .collect()
}

pub fn pids() -> Vec<u32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).collect()
}

/// Parent of a process that is not a zombie.
pub fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    if fields.next()? == "Z" {
        return None;
    }
    fields.next()?.parse().ok()
}

pub fn bash(command: &str) -> RunRequest {
    let run = RunKind::Bash { command: command.to_owned(), restart: false };
    let limits = Limits { timeout_ms: 60_000, output_bytes: 1 << 20 };
    RunRequest { run, env: BTreeMap::new(), limits }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub async fn read(sandbox: &Sandbox, path: &str) -> Vec<u8> {
    collect(sandbox.read_file(path).await.unwrap()).await
}

pub async fn collect(file: FileBody) -> Vec<u8> {
    let append = |mut all: Vec<u8>, data: bytes::Bytes| async move {
        all.extend_from_slice(&data);
        Ok(all)
    };
    file.body.try_fold(Vec::new(), append).await.unwrap()
}

/// Waits for something that nobody announces.
pub async fn until(condition: impl Fn() -> bool) {
    let waited = tokio::time::timeout(DEADLINE, async {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        while !condition() {
            ticks.tick().await;
        }
    });
    waited.await.expect("did not happen in time");
}
