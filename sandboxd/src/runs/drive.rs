//! Drives a run from its turn to its end.

mod alone;
mod edit;
mod shell;

use crate::{
    edit::{Editor, Mounts},
    limits::Cgroup,
    names::RunId,
    process::{
        shim::Report,
        table::{Shim, Shims},
    },
    repl::{self, Repl},
    runs::{
        command::{self, Shell},
        output::OutputParent,
        run::{BodyDigest, Follower, Phase, Run, Stop},
        table::{Admission, Table, draining, refusal},
    },
    worker::Worker,
};
use alone::Ending;
use sandboxd_protocol::{CallResult, Edit, ErrorBody, ErrorCode, Exit, RUNNING_RUNS, RunKind, RunRequest, State};
use std::{
    collections::BTreeMap,
    collections::HashMap,
    ffi::CString,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{RwLock, Semaphore, SemaphorePermit},
    time::Instant,
};

/// Largest output that a request may ask to be kept of each stream, in bytes: it is all in memory.
const MAX_OUTPUT: u64 = 8 * 1024 * 1024;
/// Runs whose background processes live on. More are refused: each holds a process and two pipes.
const MAX_LINGERING: usize = 128;
/// Bytes of a finished result from which on it lies on the disk.
const KEPT_IN_MEMORY: usize = 64 * 1024;
/// Longest time limit of a run that is counted: beyond it the timer would overflow.
const MAX_TIMEOUT: Duration = Duration::from_hours(30 * 24);

/// Exit code of what SIGKILL ended.
const KILLED: i32 = 128 + libc::SIGKILL;

/// What all runs share.
#[derive(Debug)]
pub(crate) struct Runs {
    pub(crate) settings: Settings,
    pub(crate) shims: Arc<Shims>,
    pub(crate) repl: Repl,
    table: Mutex<Table>,
    /// Shims of runs that ended while something that they started lives on.
    lingering: Mutex<HashMap<RunId, Arc<Shim>>>,
    /// Shared by runs from before their turn to their end; one that restarts is alone.
    place: RwLock<()>,
    turns: Semaphore,
    editor: Editor,
    worker: Arc<Worker>,
}

/// How runs are made.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Working directory of every command.
    pub(crate) workspace: CString,
    /// `$INPUT_DIR`.
    pub(crate) input: String,
    /// The container's own variables.
    pub(crate) environment: BTreeMap<String, String>,
    /// Parent of the `$OUTPUT_DIR` folders.
    pub(crate) output: OutputParent,
    /// Where long results lie, in files without a name.
    pub(crate) results: PathBuf,
    /// A run that nobody follows for this long is killed.
    pub(crate) abandoned_after: Duration,
    /// A call of a cell without a result for this long ends in an exception there.
    pub(crate) call_timeout: Duration,
    /// Tells whether memory ran out.
    pub(crate) cgroup: Cgroup,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a run does at its turn.
enum Work {
    Command { handover: command::Handover, env: Vec<CString> },
    Edit { edit: Edit, env: Vec<CString> },
    Cell(repl::Work),
}

/// Why a started run is over.
enum End {
    Reported(Report),
    ShimLost,
    TimedOut,
    Stopped(Stop),
}

impl Runs {
    pub(crate) fn new(settings: Settings, mounts: Mounts, shims: Arc<Shims>) -> io::Result<Self> {
        let worker = Arc::new(Worker::start()?);
        Ok(Self {
            settings,
            shims,
            repl: Repl::new(),
            table: Mutex::default(),
            lingering: Mutex::default(),
            place: RwLock::default(),
            turns: Semaphore::new(RUNNING_RUNS),
            editor: Editor::new(mounts, Arc::clone(&worker)),
            worker,
        })
    }

    /// Makes the run, or joins the one that exists.
    pub(crate) fn put(
        self: &Arc<Self>,
        id: RunId,
        body: BodyDigest,
        request: impl FnOnce() -> Result<RunRequest, ErrorBody>,
    ) -> Result<Follower, ErrorBody> {
        let mut table = lock(&self.table);
        if let Admission::Join(run) = table.admit(&id, &body, Instant::now())? {
            return Ok(run.follow(0, 0));
        }
        let request = request()?;
        let restart = matches!(request.run, RunKind::Bash { restart: true, .. });
        if !restart && self.shims.count() >= MAX_LINGERING {
            let message = "too many earlier commands left processes running in the background";
            return Err(refusal(ErrorCode::TooManyRequests, message));
        }
        let RunRequest { run, env, limits } = request;
        let work = self.prepare(&id, run, &env)?;
        // Before it is among them, and nothing that comes later.
        let ended = restart.then(|| self.end_all(&table));
        let kept = usize::try_from(limits.output_bytes.min(MAX_OUTPUT)).unwrap_or(0);
        let run = Arc::new(Run::new(id, body, kept, Instant::now()));
        let follower = run.follow(0, 0);
        table.insert(Arc::clone(&run));
        drop(table);
        let timeout = Duration::from_millis(limits.timeout_ms).min(MAX_TIMEOUT);
        tokio::spawn(Arc::clone(self).drive(run, work, ended, timeout));
        Ok(follower)
    }

    /// Checks what is asked for, as far as that can be done before its turn.
    fn prepare(&self, id: &RunId, run: RunKind, requested: &BTreeMap<String, String>) -> Result<Work, ErrorBody> {
        let Settings { environment, input, output, .. } = &self.settings;
        let output = output.folder(id).to_string_lossy().into_owned();
        let env = command::environment(environment, requested, input, &output)?;
        match run {
            RunKind::Bash { command, .. } => {
                let shell = Shell::find(|path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok())?;
                let handover = command::handover(shell, &command)?;
                Ok(Work::Command { handover, env })
            }
            RunKind::Edit(edit) => Ok(Work::Edit { edit, env }),
            RunKind::Cell { code, tools } => {
                let env = command::environment(environment, &BTreeMap::new(), input, &output)?;
                Ok(Work::Cell(repl::Work::prepare(code, tools, requested, env, output)?))
            }
        }
    }

    /// Joins a run.
    pub(crate) fn get(&self, id: &RunId, stdout: u64, stderr: u64) -> Result<Follower, ErrorBody> {
        Ok(lock(&self.table).find(id, Instant::now())?.follow(stdout, stderr))
    }

    /// Takes results of the client's tools for a cell.
    pub(crate) fn answer(&self, id: &RunId, results: Vec<CallResult>) -> Result<(), ErrorBody> {
        lock(&self.table).find(id, Instant::now())?.answer(results)
    }

    /// Kills everything that a run started, also what lives on after it ended. Returns when it has ended.
    pub(crate) async fn cancel(&self, id: &RunId) -> Result<(), ErrorBody> {
        let run = lock(&self.table).find(id, Instant::now())?;
        run.request_stop(Stop::Cancelled);
        run.over().await;
        let lingering = lock(&self.lingering).remove(id);
        if let Some(shim) = lingering {
            self.shims.kill(&shim).await;
        }
        Ok(())
    }

    pub(crate) fn state(&self) -> State {
        lock(&self.table).state(Instant::now())
    }

    /// Refuses what is new or waits, kills what runs, and returns when all of it is over.
    pub(crate) async fn drain(&self) {
        let live = lock(&self.table).drain();
        for run in &live {
            run.request_stop(Stop::Draining);
        }
        for run in live {
            run.over().await;
        }
    }

    /// `ended`: what a run that restarts has ended.
    async fn drive(self: Arc<Self>, run: Arc<Run>, work: Work, ended: Option<Ending>, timeout: Duration) {
        let Some(_place) = self.place(&run, ended, timeout).await else { return };
        match work {
            Work::Command { handover, env } => {
                if let Some(turn) = self.turn(&run).await {
                    self.command(&run, handover, env, timeout, turn).await;
                }
            }
            Work::Edit { edit, env } => self.edit(&run, edit, env, timeout).await,
            // Cells have a turn of their own.
            Work::Cell(work) => self.cell(&run, work, timeout).await,
        }
    }

    /// Waits for the run's turn; `None` when it was stopped before, and is over.
    async fn turn(&self, run: &Arc<Run>) -> Option<SemaphorePermit<'_>> {
        tokio::select! {
            biased;
            stop = run.stop_requested(self.settings.abandoned_after) => {
                self.stop_waiting(run, stop);
                None
            }
            turn = self.turns.acquire() => turn.ok(),
        }
    }

    /// Ends a run that had not had its turn.
    pub(crate) fn stop_waiting(&self, run: &Arc<Run>, stop: Stop) {
        match stop {
            Stop::Draining => self.refuse(run, draining()),
            Stop::Cancelled | Stop::Abandoned | Stop::Reset => self.finish(run, &exit(&End::Stopped(stop))),
        }
    }

    /// In this order: whoever is told of the refusal may send the id again.
    pub(crate) fn refuse(&self, run: &Run, why: ErrorBody) {
        lock(&self.table).withdraw(&run.id);
        run.refuse(why);
    }

    /// Ends a run that has an output folder: what it left there is counted, and an empty folder goes when the end was told.
    pub(crate) fn finish_with_outputs(&self, run: &Arc<Run>, exit: &Exit) {
        let outputs = self.settings.output.count(&run.id);
        self.finish(run, &Exit { outputs, ..exit.clone() });
        if outputs == 0 {
            let (output, id) = (self.settings.output.clone(), run.id.clone());
            // Nobody waits for it.
            drop(self.worker.ask(move |_| output.tidy(&id)));
        }
    }

    pub(crate) fn finish(&self, run: &Arc<Run>, exit: &Exit) {
        run.end(exit);
        lock(&self.table).finish(&run.id, Instant::now());
        if run.kept_bytes() > KEPT_IN_MEMORY {
            let (run, folder) = (Arc::clone(run), self.settings.results.clone());
            // A result that finds no room on the disk stays where it is.
            drop(self.worker.ask(move |_| run.move_to(&folder)));
        }
    }
}

/// How a run ended, without what its output tells.
fn exit(end: &End) -> Exit {
    let killed = Exit { code: KILLED, signal: Some(libc::SIGKILL), ..Exit::default() };
    match *end {
        End::Reported(Report::Exited(code)) => Exit { code, ..Exit::default() },
        End::Reported(Report::Signalled(n)) => Exit { code: 128 + n, signal: Some(n), ..Exit::default() },
        End::Reported(Report::NotStarted(_)) => Exit { code: 126, ..Exit::default() },
        // As `timeout` does.
        End::TimedOut => Exit { code: 124, timed_out: true, ..killed },
        End::Stopped(Stop::Cancelled | Stop::Reset) => Exit { cancelled: true, ..killed },
        End::Stopped(Stop::Abandoned) => Exit { abandoned: true, ..killed },
        End::Stopped(Stop::Draining) | End::ShimLost => killed,
    }
}

/// The refusal of a follower whose run could not be started.
pub(crate) fn refused(phase: Phase) -> Result<(), ErrorBody> {
    match phase {
        Phase::Refused(why) => Err(why),
        Phase::Waiting | Phase::Running | Phase::Ended(_) => Ok(()),
    }
}
