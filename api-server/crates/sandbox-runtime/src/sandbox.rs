//! What the server uses: all sandboxes, and one of them.

use crate::{
    AcquireError, Acquired, CellStep, ContainerSpec, FileBody, FileError, FileRange, FileStat, Half, Installed,
    InstanceId, OutputFile, Resume, RunError, RunOutcome, RunRequest, Runtime, Slow, TreeDeleted, TreePage, TreeQuery,
    UnavailableReason, WriteIf,
    metrics::Metrics,
    stream::{
        ConnectError, Connection, Streams,
        cell::{self, Expected},
        files,
        run::{self, RunFailure},
    },
};
use bytes::Bytes;
use futures_util::Stream;
use prometheus_client::registry::Registry;
use sandboxd_protocol::MAX_RUN_BODY;
use std::{fmt, io, sync::Arc};
use tokio::{
    task::JoinHandle,
    time::{Duration, Instant, interval_at, sleep, timeout},
};

/// How long a request waits for a sandbox that was stopped since it was acquired.
const WAKE: Duration = Duration::from_mins(2);
/// How often a request that was certainly not taken looks for another start of its sandbox: longer than a container takes to
/// come back, and than its kubelet takes to say that it went.
const ATTEMPTS: u32 = 9;
/// Pause before the second attempt; doubled for each further one up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Time to write a last mark after a use.
const LAST_MARK: Duration = Duration::from_mins(1);

/// All sandboxes of this server: one per process, cheap to clone.
#[derive(Clone)]
pub struct Sandboxes(Arc<Shared>);

struct Shared {
    runtime: Arc<dyn Runtime>,
    streams: Arc<Streams>,
    metrics: Metrics,
}

impl Shared {
    async fn acquire(&self, spec: &ContainerSpec, deadline: Duration) -> Result<Acquired, AcquireError> {
        let began = Instant::now();
        let acquired = self.runtime.acquire(spec, deadline).await;
        self.metrics.acquired(acquired.as_ref().map(|acquired| acquired.start), began.elapsed());
        acquired
    }
}

impl Sandboxes {
    /// All sandboxes of this runtime.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        let streams = Streams::new(runtime.clone());
        Self(Arc::new(Shared { runtime, streams, metrics: Metrics::new() }))
    }

    /// Adds what is counted here to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.0.metrics.register(registry);
    }

    /// Brings up to date what is not counted but looked at.
    pub fn refresh_metrics(&self) {
        self.0.metrics.set_streams_open(self.0.streams.open_count());
    }

    /// Whether it exists and is this owner's; marks it as used. Never waits for it to start.
    pub async fn find(&self, spec: &ContainerSpec) -> Result<bool, AcquireError> {
        self.0.runtime.find(spec).await
    }

    /// A sandbox that is ready to run commands: made when absent, waited for at most `deadline`.
    pub async fn acquire(&self, spec: &ContainerSpec, deadline: Duration) -> Result<Sandbox, AcquireError> {
        let acquired = self.0.acquire(spec, deadline).await?;
        Ok(Sandbox { shared: self.0.clone(), spec: spec.clone(), idle_timeout: acquired.idle_timeout })
    }

    /// What is not ready, as sentences; empty when all is well.
    pub async fn problems(&self) -> Vec<String> {
        self.0.runtime.problems().await
    }

    /// What the sandboxes' image offers, as far as can be told.
    pub async fn installed(&self) -> Installed {
        self.0.runtime.installed().await
    }

    /// Whether sandboxes have Python, as far as can be told.
    pub fn has_python(&self) -> bool {
        self.0.runtime.has_python()
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
        let streams = &self.shared.streams;
        self.used(|instance| async move { run::run(streams, &instance, id, request).await }).await
    }

    /// Runs a cell to its end, or to its first calls of the client's tools; then it waits, and is not cancelled. Dropping the
    /// future before that cancels it.
    pub async fn cell(&self, id: &str, request: &RunRequest) -> Result<CellStep, RunError> {
        let streams = &self.shared.streams;
        let start = |instance| async move { run::start(streams, &instance, id, request, Expected::of(request)).await };
        self.used(start).await
    }

    /// Goes on with a cell that waits, to its next calls or its end. The same results again change nothing. Dropping the future
    /// cancels nothing: the cell goes on for a while, and can be resumed again.
    pub async fn resume(&self, id: &str, resume: &Resume) -> Result<CellStep, RunError> {
        let streams = &self.shared.streams;
        self.used(|instance| async move { cell::resume(streams, &instance, id, resume).await }).await
    }

    /// One use that has a result or an error that counts; the sandbox is kept awake meanwhile.
    async fn used<T, F>(&self, go: impl Fn(InstanceId) -> F) -> Result<T, RunError>
    where
        F: Future<Output = Result<T, RunFailure>>,
    {
        let _awake = self.awake();
        let outcome = Box::pin(self.somewhere(go)).await;
        if let Err(error) = &outcome {
            self.shared.metrics.no_result(error);
        }
        outcome
    }

    /// In the start that is ready, or in a later one as long as none has taken it.
    async fn somewhere<T, F>(&self, go: impl Fn(InstanceId) -> F) -> Result<T, RunError>
    where
        F: Future<Output = Result<T, RunFailure>>,
    {
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            pause_before(attempt).await;
            let acquired = self.acquired().await?;
            match Box::pin(go(acquired.instance.clone())).await {
                Ok(outcome) => return Ok(outcome),
                Err(RunFailure::Elsewhere(why)) => {
                    self.leave(&acquired.instance, attempt).await;
                    last = why;
                }
                Err(RunFailure::NotRun(why)) => return Err(RunError::Unavailable(why)),
                Err(RunFailure::NotInImage(why)) => return Err(RunError::NotInImage(why)),
                Err(RunFailure::Denied(why)) => {
                    return Err(AcquireError::unavailable(UnavailableReason::Denied, why).into());
                }
                Err(RunFailure::TooMany) => return Err(RunError::TooManyRequests),
                Err(RunFailure::TooLarge) => return Err(RunError::TooLarge { limit: MAX_RUN_BODY }),
                Err(RunFailure::Unknown(why)) => return Err(self.lost(&acquired.instance, why).await),
            }
        }
        Err(RunError::Unavailable(last))
    }

    /// The next acquire looks again; a start that none of our attempts could use is to be replaced.
    async fn leave(&self, instance: &InstanceId, attempt: u32) {
        if attempt + 1 == ATTEMPTS {
            self.shared.runtime.replace(instance).await;
        } else {
            self.shared.runtime.forget(instance);
        }
    }

    /// A run whose outcome is unknown; says why where that can be found out.
    async fn lost(&self, instance: &InstanceId, why: String) -> RunError {
        match self.shared.runtime.loss(instance).await {
            Some(loss) => {
                // The next use looks before it relies on it.
                self.shared.runtime.forget(instance);
                RunError::Lost(loss)
            }
            None => RunError::Unknown(why),
        }
    }

    /// Writes a file, replaced atomically; `path` as code in the sandbox sees it, of any bytes.
    pub async fn write_file(
        &self,
        path: &(impl AsRef<[u8]> + Sync + ?Sized),
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<FileStat, FileError> {
        self.write_file_if(path, &WriteIf::Always, body).await
    }

    /// The same, as long as the condition holds.
    pub async fn write_file_if(
        &self,
        path: &(impl AsRef<[u8]> + Sync + ?Sized),
        condition: &WriteIf,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<FileStat, FileError> {
        let _awake = self.awake();
        Box::pin(files::write(&self.files().await?, path.as_ref(), condition, None, body)).await
    }

    /// Writes a file that counts as last changed at a time of the caller's, in milliseconds since 1970: where code cannot write, its
    /// size and time then tell which content is there.
    pub async fn write_file_of(
        &self,
        path: &(impl AsRef<[u8]> + Sync + ?Sized),
        modified_ms: u64,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<FileStat, FileError> {
        let _awake = self.awake();
        let connection = self.files().await?;
        Box::pin(files::write(&connection, path.as_ref(), &WriteIf::Always, Some(modified_ms), body)).await
    }

    /// Reads a file; `path` as code in the sandbox sees it, or that of an [`OutputFile`].
    pub async fn read_file(&self, path: &(impl AsRef<[u8]> + Sync + ?Sized)) -> Result<FileBody, FileError> {
        let path = path.as_ref();
        self.repeatable(|connection| async move { files::read(&connection, path, None, self.awake()).await }).await
    }

    /// Reads a part of a file as long as it is the one that the range's entity tag names.
    pub async fn read_range(
        &self,
        path: &(impl AsRef<[u8]> + Sync + ?Sized),
        range: &FileRange,
    ) -> Result<FileBody, FileError> {
        let (path, range) = (path.as_ref(), || Some(range.clone()));
        self.repeatable(|connection| async move { files::read(&connection, path, range(), self.awake()).await }).await
    }

    /// Size, entity tag and age of a file.
    pub async fn stat_file(&self, path: &(impl AsRef<[u8]> + Sync + ?Sized)) -> Result<FileStat, FileError> {
        let _awake = self.awake();
        let path = path.as_ref();
        self.repeatable(|connection| async move { files::stat(&connection, path).await }).await
    }

    /// Removes a file; a link is removed itself.
    pub async fn delete_file(&self, path: &(impl AsRef<[u8]> + Sync + ?Sized)) -> Result<(), FileError> {
        let _awake = self.awake();
        // Not repeated: the second time it would be missing.
        files::delete(&self.files().await?, path.as_ref()).await
    }

    /// One page of the regular files beneath a folder, in the order of their paths' bytes.
    pub async fn list_files(&self, query: &TreeQuery<'_>) -> Result<TreePage, FileError> {
        let _awake = self.awake();
        self.repeatable(|connection| async move { files::list(&connection, query).await }).await
    }

    /// Removes the files beneath a folder whose paths begin with a prefix, as many as one call may, and the folders that are empty then.
    pub async fn delete_files(&self, root: &str, prefix: &str) -> Result<TreeDeleted, FileError> {
        let _awake = self.awake();
        // Not repeated: the files of a lost answer would not be counted.
        files::delete_tree(&self.files().await?, root, prefix).await
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
        self.shared.acquire(&self.spec, WAKE).await
    }

    async fn files(&self) -> Result<Arc<Connection>, FileError> {
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            pause_before(attempt).await;
            let acquired = self.acquired().await?;
            match self.shared.streams.get(&acquired.instance, Half::Files).await {
                Ok(connection) => return Ok(connection),
                Err(e @ (ConnectError::Gone(_) | ConnectError::Broken(_))) => {
                    self.leave(&acquired.instance, attempt).await;
                    last = e.to_string();
                }
                // No reason to disturb the other half.
                Err(e @ ConnectError::Failed(_)) => last = e.to_string(),
                Err(ConnectError::Denied(why)) => {
                    return Err(AcquireError::unavailable(UnavailableReason::Denied, why).into());
                }
            }
        }
        Err(FileError::Unavailable(last))
    }

    /// Marks the sandbox as used each quarter of its idle timeout until the guard is dropped, and then once more.
    fn awake(&self) -> Option<Awake> {
        let quarter = self.idle_timeout / 4;
        if quarter.is_zero() {
            return None;
        }
        let (runtime, spec) = (self.shared.runtime.clone(), self.spec.clone());
        let marking = tokio::spawn(async move {
            let mut ticks = interval_at(Instant::now() + quarter, quarter);
            loop {
                ticks.tick().await;
                // Not by `mark`: many uses at a time need one mark.
                noted(&spec, runtime.find(&spec).await.map(drop));
            }
        });
        let last = (self.shared.runtime.clone(), self.spec.clone());
        Some(Awake { marking, last: Some(last), began: Instant::now(), quarter })
    }
}

fn noted(spec: &ContainerSpec, marked: Result<(), AcquireError>) {
    if let Err(error) = marked {
        tracing::warn!(sandbox.name = %spec.name, %error, "could not mark a sandbox as used");
    }
}

async fn pause_before(attempt: u32) {
    if attempt > 0 {
        sleep((PAUSE * 2_u32.pow(attempt - 1)).min(LONGEST_PAUSE)).await;
    }
}

/// Keeps a sandbox awake during one use.
struct Awake {
    marking: JoinHandle<()>,
    last: Option<(Arc<dyn Runtime>, ContainerSpec)>,
    began: Instant,
    quarter: Duration,
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.marking.abort();
        let long = self.began.elapsed() > self.quarter;
        // So that the idle time of a long use counts from its end.
        let (true, Some((runtime, spec)), Ok(handle)) = (long, self.last.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        handle.spawn(async move {
            let marked = timeout(LAST_MARK, runtime.mark(&spec)).await;
            noted(&spec, marked.unwrap_or(Err(AcquireError::TimedOut(Slow::Start))));
        });
    }
}
