//! Sandboxes on this machine: `sandboxd` under bubblewrap, on folders of ours.
//!
//! Each sandbox is two processes over the same folders, one for each half, each connected by an inherited socketpair. Code in
//! the sandbox cannot replace such a connection, as it could a socket in a folder; and there is nothing to connect to from
//! outside. The price is that there is one connection for a process's life. When that of `main` is cut, its processes are gone
//! with it, so a run that was lost with its stream is "unknown" at once, and the next use starts the sandbox anew: the same
//! honest answer that another start gives on Kubernetes. `files` keeps nothing in memory and is simply started again.

mod bwrap;
mod check;
mod claims;
mod host;
mod process;
mod seccomp;

use crate::{
    AcquireError, Acquired, ByteStream, ContainerName, ContainerSpec, Half, Installed, InstanceId, OpenError, Runtime,
    Slow, Start, UnavailableReason,
};
use bwrap::Paths;
use claims::{Claims, Record};
use host::Host;
use jiff::Timestamp;
use process::{Process, Spawner};
use rustix::fs::{FlockOperation, flock};
use sandboxd_protocol::layout;
use std::{
    collections::HashMap,
    fs::File,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Duration, Instant, interval, timeout},
};

/// How often expired folders are looked for.
const SWEEP: Duration = Duration::from_mins(1);

/// Bounds of every local sandbox, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct LocalLimits {
    /// Size of `/home/agent`, in memory.
    pub home: u64,
    /// Size of `/dev/shm`, in memory.
    pub shm: u64,
}

impl Default for LocalLimits {
    fn default() -> Self {
        Self { home: 512 << 20, shm: 64 << 20 }
    }
}

/// Settings of the local runtime.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// Folder of the claims; made when absent. One process at a time.
    pub data_dir: PathBuf,
    /// The static binary `sandboxd`.
    pub sandboxd: PathBuf,
    /// The program `bwrap`: a path, or a name to be found on `$PATH`.
    pub bwrap: PathBuf,
    /// Root file system of an image that was unpacked; `None`: sandboxes have this machine's own programs.
    pub image: Option<PathBuf>,
    /// Unused for this long a sandbox is stopped; zero: never.
    pub idle_timeout: Duration,
    /// Bounds of every sandbox.
    pub limits: LocalLimits,
}

/// Why the local runtime refuses to start, as sentences for the person who started it.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// There is no bubblewrap.
    #[error("{0:?} was not found: install bubblewrap 0.8 or newer (Debian, Ubuntu: `apt-get install bubblewrap`)")]
    NoBubblewrap(PathBuf),
    /// There is no `sandboxd`.
    #[error("the sandboxd binary {0:?} was not found: build it with `sandboxd/build`, or name it")]
    NoSandboxd(PathBuf),
    /// There is no image.
    #[error(
        "the image's root file system {0:?} has no folder `usr`: unpack one with `make sandbox-rootfs`, or name none"
    )]
    NoImage(PathBuf),
    /// A sandbox does not start here.
    #[error("{0}")]
    NoIsolation(String),
    /// Another process uses the data folder.
    #[error("another server uses the data folder {0:?}: stop it, or choose another folder")]
    InUse(PathBuf),
    /// The data folder cannot be used.
    #[error("cannot use the data folder {path:?}: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// The machine refused something basic.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

/// Sandboxes on this machine. They end with it, and with its process.
#[derive(Debug)]
pub struct LocalRuntime(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: LocalConfig,
    host: Host,
    etc: PathBuf,
    claims: Arc<Claims>,
    spawner: Spawner,
    /// Under whose lock a sandbox is made, started and deleted.
    locks: Mutex<HashMap<ContainerName, Arc<AsyncMutex<()>>>>,
    running: Mutex<HashMap<ContainerName, Arc<Running>>>,
    starts: AtomicU64,
    is_stopping: AtomicBool,
    has_python: bool,
    installed: Installed,
    /// Held as long as the folder is ours.
    _lock: File,
}

/// A started sandbox.
#[derive(Debug)]
struct Running {
    instance: InstanceId,
    record: Record,
    main: Process,
    /// Started again when it has ended.
    files: AsyncMutex<Process>,
    last_used: Mutex<Instant>,
}

impl Running {
    fn touch(&self) {
        *lock(&self.last_used) = Instant::now();
    }

    fn is_idle(&self, idle_timeout: Duration) -> bool {
        !idle_timeout.is_zero() && lock(&self.last_used).elapsed() >= idle_timeout
    }

    async fn stop(&self) {
        self.main.stop().await;
        self.files.lock().await.stop().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LocalRuntime {
    /// Checks that sandboxes work here, once, and starts none.
    pub async fn new(config: LocalConfig) -> Result<Self, LocalError> {
        let bwrap = check::find_program(&config.bwrap, std::env::var_os("PATH").as_deref())
            .ok_or_else(|| LocalError::NoBubblewrap(config.bwrap.clone()))?;
        let sandboxd = config.sandboxd.canonicalize().map_err(|_| LocalError::NoSandboxd(config.sandboxd.clone()))?;
        let image = match &config.image {
            Some(path) if path.join("usr").is_dir() => Some(path.canonicalize()?),
            Some(path) => return Err(LocalError::NoImage(path.clone())),
            None => None,
        };
        let folder_error = |source| LocalError::Folder { path: config.data_dir.clone(), source };
        std::fs::create_dir_all(&config.data_dir).map_err(folder_error)?;
        let data_dir = config.data_dir.canonicalize().map_err(folder_error)?;
        let lock_file = File::create(data_dir.join("lock")).map_err(folder_error)?;
        flock(&lock_file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| LocalError::InUse(config.data_dir.clone()))?;
        let etc = data_dir.join("etc");
        bwrap::write_etc(&etc).map_err(folder_error)?;
        let opened = data_dir.clone();
        let claims = blocking(move || Claims::open(&opened)).await.map_err(folder_error)?;
        let mut inner = Inner {
            host: Host::look(image.as_deref())?,
            etc,
            claims: Arc::new(claims),
            spawner: Spawner::start(bwrap, seccomp::program()?)?,
            locks: Mutex::default(),
            running: Mutex::default(),
            starts: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            has_python: false,
            installed: Installed::default(),
            _lock: lock_file,
            config: LocalConfig { data_dir, sandboxd, image, ..config },
        };
        let installed = check::try_out(&inner).await?;
        (inner.has_python, inner.installed) = (installed.is_some(), installed.unwrap_or_default());
        let inner = Arc::new(inner);
        tokio::spawn(keep_house(Arc::downgrade(&inner), inner.config.idle_timeout));
        Ok(Self(inner))
    }
}

/// Runs file work where it may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn runtime_error(what: &str, error: &io::Error) -> AcquireError {
    AcquireError::unavailable(UnavailableReason::Runtime, format!("{what}: {error}"))
}

impl Inner {
    fn lock_of(&self, name: &ContainerName) -> Arc<AsyncMutex<()>> {
        let mut locks = lock(&self.locks);
        if let Some(lock) = locks.get(name) {
            return lock.clone();
        }
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        locks.entry(name.clone()).or_default().clone()
    }

    /// The running sandbox, marked as used.
    fn running(&self, spec: &ContainerSpec) -> Result<Option<Arc<Running>>, AcquireError> {
        let running = lock(&self.running);
        let Some(found) = running.get(&spec.name).filter(|found| !found.main.has_ended()) else { return Ok(None) };
        usable(&found.record, spec)?;
        found.touch();
        Ok(Some(found.clone()))
    }

    async fn record(&self, name: &ContainerName) -> Result<Option<Record>, AcquireError> {
        let (claims, name) = (self.claims.clone(), name.clone());
        blocking(move || claims.read(&name))
            .await
            .map_err(|e| AcquireError::unavailable(UnavailableReason::WorkspaceLost, format!("unreadable record: {e}")))
    }

    async fn acquire(&self, spec: &ContainerSpec) -> Result<(Arc<Running>, Start), AcquireError> {
        if let Some(running) = self.running(spec)? {
            return Ok((running, Start::Reused));
        }
        let lock_of_name = self.lock_of(&spec.name);
        let _turn = lock_of_name.lock().await;
        if let Some(running) = self.running(spec)? {
            return Ok((running, Start::Reused));
        }
        let (record, start) = if let Some(record) = self.record(&spec.name).await? {
            (record, Start::Woken)
        } else {
            let record = Record::new(spec, Timestamp::now());
            let (claims, name, written) = (self.claims.clone(), spec.name.clone(), record.clone());
            blocking(move || claims.create(&name, &written))
                .await
                .map_err(|e| runtime_error("cannot make the folders", &e))?;
            (record, Start::Created)
        };
        usable(&record, spec)?;
        let started = self.start(&spec.name, record).await.map_err(|e| runtime_error("cannot start a sandbox", &e))?;
        let started = Arc::new(started);
        let mut running = lock(&self.running);
        // Under the lock that the end of everything takes: nothing is started past it.
        if self.is_stopping.load(Ordering::Acquire) {
            return Err(AcquireError::unavailable(UnavailableReason::Runtime, "the server is stopping"));
        }
        running.insert(spec.name.clone(), started.clone());
        Ok((started, start))
    }

    async fn start(&self, name: &ContainerName, record: Record) -> io::Result<Running> {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        let (main, files) = tokio::try_join!(self.half(name, Half::Main), self.half(name, Half::Files))?;
        Ok(Running {
            instance: InstanceId { name: name.as_str().to_owned(), uid: format!("start-{number}") },
            record,
            main,
            files: AsyncMutex::new(files),
            last_used: Mutex::new(Instant::now()),
        })
    }

    async fn half(&self, name: &ContainerName, half: Half) -> io::Result<Process> {
        let claim = self.claims.claim(name);
        let command: Vec<&str> = [layout::BINARY, "serve", "--half", half.as_str(), "--connection-fd", "0"]
            .into_iter()
            .chain(
                match half {
                    Half::Main => [].as_slice(),
                    Half::Files => ["--claim", layout::CLAIM].as_slice(),
                }
                .iter()
                .copied(),
            )
            .collect();
        Process::start(&self.spawner, format!("{name} {}", half.as_str()), self.arguments(half, claim, &command)).await
    }

    fn arguments(&self, half: Half, claim: PathBuf, command: &[&str]) -> process::Arguments {
        let (host, etc, sandboxd) = (self.host.clone(), self.etc.clone(), self.config.sandboxd.clone());
        let (limits, command) = (self.config.limits, command.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        Box::new(move |seccomp| {
            let paths = Paths { claim: &claim, etc: &etc, sandboxd: &sandboxd };
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            bwrap::arguments(half, &host, paths, limits, seccomp, &command)
        })
    }

    fn take(&self, name: &str, is_it: impl Fn(&Running) -> bool) -> Option<Arc<Running>> {
        let mut running = lock(&self.running);
        let key =
            running.iter().find(|(key, found)| key.as_str() == name && is_it(found)).map(|(key, _)| key.clone())?;
        running.remove(&key)
    }

    fn named(&self, instance: &InstanceId) -> Option<Arc<Running>> {
        lock(&self.running).values().find(|running| running.instance == *instance).cloned()
    }

    async fn stop_idle(&self) {
        let idle: Vec<String> = lock(&self.running)
            .values()
            .filter(|running| running.is_idle(self.config.idle_timeout) || running.main.has_ended())
            .map(|running| running.instance.name.clone())
            .collect();
        for name in idle {
            // Looked at again under the lock of the map: a use in between keeps it.
            let is_it = |running: &Running| running.is_idle(self.config.idle_timeout) || running.main.has_ended();
            if let Some(running) = self.take(&name, is_it) {
                running.stop().await;
            }
        }
    }

    async fn delete_expired(&self) -> io::Result<()> {
        let claims = self.claims.clone();
        for name in blocking(move || claims.expired(Timestamp::now())).await? {
            let lock_of_name = self.lock_of(&ContainerName::of_folder(&name));
            let _turn = lock_of_name.lock().await;
            if let Some(running) = self.take(&name, |_| true) {
                running.stop().await;
            }
            let claims = self.claims.clone();
            blocking(move || claims.remove(&name)).await?;
        }
        Ok(())
    }
}

/// Whether a sandbox with this record may be used as `spec` asks.
fn usable(record: &Record, spec: &ContainerSpec) -> Result<(), AcquireError> {
    if record.owner != spec.owner.as_str() {
        return Err(AcquireError::NotFound);
    }
    if record.is_expired(Timestamp::now()) {
        return Err(AcquireError::Expired);
    }
    Ok(())
}

/// Stops what is idle and deletes what has expired, until the runtime is gone.
async fn keep_house(inner: Weak<Inner>, idle_timeout: Duration) {
    let pause = (idle_timeout / 4).clamp(Duration::from_millis(50), Duration::from_secs(5));
    let mut ticks = interval(pause);
    let mut swept: Option<Instant> = None;
    loop {
        ticks.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        inner.stop_idle().await;
        if swept.is_none_or(|at| at.elapsed() >= SWEEP) {
            swept = Some(Instant::now());
            if let Err(error) = inner.delete_expired().await {
                tracing::warn!(%error, "could not delete expired sandboxes");
            }
        }
    }
}

#[async_trait::async_trait]
impl Runtime for LocalRuntime {
    async fn find(&self, spec: &ContainerSpec) -> Result<bool, AcquireError> {
        let found = match self.0.running(spec) {
            Ok(Some(_)) => return Ok(true),
            Ok(None) => match self.0.record(&spec.name).await? {
                Some(record) => usable(&record, spec).map(|()| true),
                None => Ok(false),
            },
            Err(error) => Err(error),
        };
        match found {
            // Another owner's is as good as none.
            Err(AcquireError::NotFound) => Ok(false),
            other => other,
        }
    }

    async fn acquire(&self, spec: &ContainerSpec, deadline: Duration) -> Result<Acquired, AcquireError> {
        let acquired = timeout(deadline, self.0.acquire(spec)).await;
        let (running, start) = acquired.map_err(|_| AcquireError::TimedOut(Slow::Start))??;
        Ok(Acquired { instance: running.instance.clone(), idle_timeout: self.0.config.idle_timeout, start })
    }

    async fn open(&self, instance: &InstanceId, half: Half) -> Result<Box<dyn ByteStream>, OpenError> {
        let running = self.0.named(instance).ok_or_else(|| OpenError::Gone("it was stopped".to_owned()))?;
        let failed = |e: io::Error| OpenError::Failed(e.to_string());
        let connection = match half {
            Half::Main => match running.main.take_connection() {
                Some(connection) => connection.map_err(failed)?,
                None => return Err(OpenError::Gone("its only connection was cut".to_owned())),
            },
            Half::Files => {
                let mut files = running.files.lock().await;
                let mut connection = files.take_connection();
                if connection.is_none() {
                    *files = self.0.half(&ContainerName::of_folder(&instance.name), half).await.map_err(failed)?;
                    connection = files.take_connection();
                }
                connection.ok_or_else(|| OpenError::Failed("it ended at once".to_owned()))?.map_err(failed)?
            }
        };
        Ok(Box::new(connection))
    }

    /// A stream is a process here: closing it would end everything that runs.
    fn stream_idle(&self) -> Option<Duration> {
        None
    }

    fn forget(&self, instance: &InstanceId) {
        // Dropped, hence killed: only asked when `main` takes no requests.
        self.0.take(&instance.name, |running| running.instance == *instance);
    }

    async fn replace(&self, instance: &InstanceId) {
        if let Some(running) = self.0.take(&instance.name, |running| running.instance == *instance) {
            running.stop().await;
        }
    }

    async fn problems(&self) -> Vec<String> {
        let LocalConfig { data_dir, sandboxd, image, .. } = &self.0.config;
        [(Some(data_dir), "the data folder"), (Some(sandboxd), "the sandboxd binary"), (image.as_ref(), "the image")]
            .into_iter()
            .filter_map(|(path, what)| Some((path?, what)))
            .filter(|(path, _)| !path.exists())
            .map(|(path, what)| format!("{what} {} is gone", path.display()))
            .collect()
    }

    async fn installed(&self) -> Installed {
        self.0.installed.clone()
    }

    fn has_python(&self) -> bool {
        self.0.has_python
    }

    fn limitations(&self) -> Vec<String> {
        check::limitations(rustix::process::geteuid().is_root(), &self.0.installed.absent)
    }

    async fn shut_down(&self) {
        let all = {
            let mut running = lock(&self.0.running);
            self.0.is_stopping.store(true, Ordering::Release);
            std::mem::take(&mut *running)
        };
        futures_util::future::join_all(all.values().map(|running| running.stop())).await;
    }
}
