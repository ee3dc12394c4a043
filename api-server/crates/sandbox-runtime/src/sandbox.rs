//! What the server uses: all sandboxes, and one of them.

use crate::{
    AcquireError, Acquired, ContainerSpec, FileBody, FileError, FileStat, Half, OutputFile, RunError, RunOutcome,
    RunRequest, Runtime,
    stream::{
        ConnectError, Connection, Streams, files,
        run::{self, RunFailure},
    },
};
use bytes::Bytes;
use futures_util::Stream;
use std::{fmt, io, sync::Arc};
use tokio::{
    task::JoinHandle,
    time::{Duration, Instant, interval_at, sleep},
};

/// How long a request waits for a sandbox that was stopped since it was acquired.
const WAKE: Duration = Duration::from_mins(2);
/// How often a request that was certainly not taken looks for another start of its sandbox.
const ATTEMPTS: u32 = 4;
/// Pause before the second attempt; doubled for each further one.
const PAUSE: Duration = Duration::from_millis(200);

/// All sandboxes of this server: one per process, cheap to clone.
#[derive(Clone)]
pub struct Sandboxes(Arc<Shared>);

struct Shared {
    runtime: Arc<dyn Runtime>,
    streams: Arc<Streams>,
}

impl Sandboxes {
    /// All sandboxes of this runtime.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        let streams = Streams::new(runtime.clone());
        Self(Arc::new(Shared { runtime, streams }))
    }

    /// Whether it exists and is this owner's; marks it as used. Never waits for it to start.
    pub async fn find(&self, spec: &ContainerSpec) -> Result<bool, AcquireError> {
        self.0.runtime.find(spec).await
    }

    /// A sandbox that is ready to run commands: made when absent, waited for at most `deadline`.
    pub async fn acquire(&self, spec: &ContainerSpec, deadline: Duration) -> Result<Sandbox, AcquireError> {
        let acquired = self.0.runtime.acquire(spec, deadline).await?;
        Ok(Sandbox { shared: self.0.clone(), spec: spec.clone(), idle_timeout: acquired.idle_timeout })
    }

    /// What is not ready, as sentences; empty when all is well.
    pub async fn problems(&self) -> Vec<String> {
        self.0.runtime.problems().await
    }

    /// What this machine or cluster cannot limit, as sentences. No reason not to be ready.
    pub fn limitations(&self) -> Vec<String> {
        self.0.runtime.limitations()
    }

    /// Ends open streams and, on the local runtime, all sandboxes.
    pub async fn shut_down(&self) {
        self.0.streams.close().await;
        self.0.runtime.shut_down().await;
    }
}

impl fmt::Debug for Sandboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandboxes").finish_non_exhaustive()
    }
}

/// A sandbox that can be used. Kept awake while a request is under way, and woken when it was stopped in between.
/// Requests are not put in order here: `sandboxd` does that. Cheap to clone.
#[derive(Clone)]
pub struct Sandbox {
    shared: Arc<Shared>,
    spec: ContainerSpec,
    idle_timeout: Duration,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Unused for this long it is stopped (its files stay); zero: never.
    pub fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }

    /// Runs to the end. Dropping the future cancels the run (`DELETE /runs/{id}`).
    pub async fn run(&self, id: &str, request: &RunRequest) -> Result<RunOutcome, RunError> {
        let _awake = self.awake();
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            pause_before(attempt).await;
            let acquired = self.acquired().await.map_err(|e| RunError::Unavailable(e.to_string()))?;
            match Box::pin(run::run(&self.shared.streams, &acquired.instance, id, request)).await {
                Ok(outcome) => return Ok(outcome),
                Err(RunFailure::Elsewhere(why)) => {
                    self.shared.runtime.forget(&acquired.instance);
                    last = why;
                }
                Err(RunFailure::NotRun(why)) => return Err(RunError::Unavailable(why)),
                Err(RunFailure::TooMany) => return Err(RunError::TooManyRequests),
                Err(RunFailure::Unknown(why)) => return Err(RunError::Unknown(why)),
            }
        }
        Err(RunError::Unavailable(last))
    }

    /// Writes a file, replaced atomically; `path` as code in the sandbox sees it.
    pub async fn write_file(
        &self,
        path: &str,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<FileStat, FileError> {
        let _awake = self.awake();
        Box::pin(files::write(&self.files().await?, path, body)).await
    }

    /// Reads a file; `path` as code in the sandbox sees it, or that of an [`OutputFile`].
    pub async fn read_file(&self, path: &str) -> Result<FileBody, FileError> {
        self.repeatable(|connection| async move { files::read(&connection, path, self.awake()).await }).await
    }

    /// Moves the run's output folder out of reach of the sandbox and lists its regular files. Repeat-safe.
    pub async fn seal(&self, run: &str) -> Result<Vec<OutputFile>, FileError> {
        let _awake = self.awake();
        self.repeatable(|connection| async move { files::seal(&connection, run).await }).await
    }

    /// Forgets a sealed output folder.
    pub async fn discard_sealed(&self, run: &str) -> Result<(), FileError> {
        let _awake = self.awake();
        self.repeatable(|connection| async move { files::discard(&connection, run).await }).await
    }

    /// A call that changes nothing when it is sent again: sent once more when its connection was lost under it.
    async fn repeatable<T, F>(&self, call: impl Fn(Arc<Connection>) -> F) -> Result<T, FileError>
    where
        F: Future<Output = Result<T, FileError>>,
    {
        match call(self.files().await?).await {
            Err(FileError::Unavailable(_)) => {
                pause_before(1).await;
                call(self.files().await?).await
            }
            done => done,
        }
    }

    /// The start that is ready now. Costs nothing while it was used a moment ago.
    async fn acquired(&self) -> Result<Acquired, AcquireError> {
        self.shared.runtime.acquire(&self.spec, WAKE).await
    }

    async fn files(&self) -> Result<Arc<Connection>, FileError> {
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            pause_before(attempt).await;
            let acquired = self.acquired().await.map_err(|e| FileError::Unavailable(e.to_string()))?;
            match self.shared.streams.get(&acquired.instance, Half::Files).await {
                Ok(connection) => return Ok(connection),
                Err(e @ ConnectError::Gone(_)) => {
                    self.shared.runtime.forget(&acquired.instance);
                    last = e.to_string();
                }
                // No reason to disturb the other half.
                Err(e @ ConnectError::Failed(_)) => last = e.to_string(),
                Err(e @ (ConnectError::Denied(_) | ConnectError::Broken(_))) => {
                    return Err(FileError::Unavailable(e.to_string()));
                }
            }
        }
        Err(FileError::Unavailable(last))
    }

    /// Marks the sandbox as used each quarter of its idle timeout until the guard is dropped.
    fn awake(&self) -> Option<Awake> {
        let quarter = self.idle_timeout / 4;
        if quarter.is_zero() {
            return None;
        }
        let (runtime, spec) = (self.shared.runtime.clone(), self.spec.clone());
        Some(Awake(tokio::spawn(async move {
            let mut ticks = interval_at(Instant::now() + quarter, quarter);
            loop {
                ticks.tick().await;
                if let Err(error) = runtime.find(&spec).await {
                    tracing::warn!(sandbox.name = %spec.name, %error, "could not mark a sandbox as used");
                }
            }
        })))
    }
}

async fn pause_before(attempt: u32) {
    if attempt > 0 {
        sleep(PAUSE * 2_u32.pow(attempt - 1)).await;
    }
}

struct Awake(JoinHandle<()>);

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.abort();
    }
}
