//! Drives a run from its turn to its end.

use crate::{
    names::RunId,
    process::{
        shim::{self, REPORT_LEN, Report},
        table::{Shim, Shims},
    },
    runs::{
        command::{self, Shell},
        output::OutputParent,
        run::{BodyDigest, Channel, Follower, Phase, Run, Stop},
        table::{Admission, Table, draining, refusal},
    },
    sys::{FIRST_FREE_FD, Spawn},
};
use rustix::{
    fd::{AsRawFd as _, OwnedFd},
    fs::MemfdFlags,
    io::{fcntl_dupfd_cloexec, ioctl_fionread},
    pipe::{PipeFlags, pipe_with},
};
use sandboxd_protocol::{ErrorBody, ErrorCode, Exit, RUNNING_RUNS, RunKind, RunRequest, State};
use std::{
    collections::BTreeMap,
    collections::HashMap,
    convert::Infallible,
    ffi::CString,
    io::{self, Write as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{io::AsyncReadExt as _, net::unix::pipe, sync::Semaphore, time::Instant};

/// Largest output that a request may ask to be kept of each stream, in bytes: it is all in memory.
const MAX_OUTPUT: u64 = 8 * 1024 * 1024;
/// Runs whose background processes live on. More are refused: each holds a process and two pipes.
const MAX_LINGERING: usize = 128;
/// Bytes read from a pipe at a time.
const READ: usize = 64 * 1024;
/// Longest time limit of a run that is counted: beyond it the timer would overflow.
const MAX_TIMEOUT: Duration = Duration::from_hours(30 * 24);

/// What all runs share.
#[derive(Debug)]
pub(crate) struct Runs {
    pub(crate) settings: Settings,
    shims: Arc<Shims>,
    table: Mutex<Table>,
    /// Shims of runs that ended while something that they started lives on.
    lingering: Mutex<HashMap<RunId, Arc<Shim>>>,
    turns: Semaphore,
    null: OwnedFd,
}

/// How runs are made.
#[derive(Debug)]
pub(crate) struct Settings {
    /// This program.
    pub(crate) program: CString,
    /// Working directory of every command.
    pub(crate) workspace: String,
    /// `$INPUT_DIR`.
    pub(crate) input: String,
    /// The container's own variables.
    pub(crate) environment: BTreeMap<String, String>,
    /// Parent of the `$OUTPUT_DIR` folders.
    pub(crate) output: OutputParent,
    /// A run that nobody follows for this long is killed.
    pub(crate) abandoned_after: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The streams of a started run.
struct Started {
    shim: Arc<Shim>,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    report: pipe::Receiver,
}

/// Why a started run is over.
enum End {
    Reported(Report),
    ShimLost,
    TimedOut,
    Stopped(Stop),
}

impl Runs {
    pub(crate) fn new(settings: Settings, shims: Arc<Shims>) -> io::Result<Self> {
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        Ok(Self {
            settings,
            shims,
            table: Mutex::default(),
            lingering: Mutex::default(),
            turns: Semaphore::new(RUNNING_RUNS),
            null: fcntl_dupfd_cloexec(&null, FIRST_FREE_FD)?,
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
        if self.shims.count() >= MAX_LINGERING {
            let message = "too many earlier commands left processes running in the background";
            return Err(refusal(ErrorCode::TooManyRequests, message));
        }
        let shell = Shell::find(|path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok())?;
        let RunRequest { run: RunKind::Bash { command }, env, limits } = request;
        let handover = command::handover(shell, &self.settings.workspace, &command)?;
        let output = self.settings.output.folder(&id);
        let env =
            command::environment(&self.settings.environment, &env, &self.settings.input, &output.to_string_lossy())?;
        let kept = usize::try_from(limits.output_bytes.min(MAX_OUTPUT)).unwrap_or(0);
        let run = Arc::new(Run::new(id, body, kept, Instant::now()));
        let follower = run.follow(0, 0);
        table.insert(Arc::clone(&run));
        drop(table);
        let timeout = Duration::from_millis(limits.timeout_ms).min(MAX_TIMEOUT);
        tokio::spawn(Arc::clone(self).drive(run, handover, env, timeout));
        Ok(follower)
    }

    /// Joins a run.
    pub(crate) fn get(&self, id: &RunId, stdout: u64, stderr: u64) -> Result<Follower, ErrorBody> {
        Ok(lock(&self.table).find(id, Instant::now())?.follow(stdout, stderr))
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

    async fn drive(self: Arc<Self>, run: Arc<Run>, handover: command::Handover, env: Vec<CString>, timeout: Duration) {
        let turn = tokio::select! {
            biased;
            stop = run.stop_requested(self.settings.abandoned_after) => return self.stop_waiting(&run, stop),
            turn = self.turns.acquire() => turn.ok(),
        };
        let started = match self.start(&run.id, &handover, &env) {
            Ok(started) => started,
            Err(why) => {
                self.settings.output.finish(&run.id);
                return self.refuse(&run, why);
            }
        };
        drop((handover, env));
        run.set_running();
        let deadline = Instant::now() + timeout;
        let Started { shim, mut stdout, mut stderr, mut report } = started;
        let end = tokio::select! {
            never = pump(&mut stdout, &run, Channel::Stdout) => match never {},
            never = pump(&mut stderr, &run, Channel::Stderr) => match never {},
            report = read_report(&mut report) => report.map_or(End::ShimLost, End::Reported),
            stop = run.stop_requested(self.settings.abandoned_after) => End::Stopped(stop),
            () = tokio::time::sleep_until(deadline) => End::TimedOut,
        };
        match end {
            End::Reported(_) => {}
            End::ShimLost => self.shims.kill_orphans().await,
            End::TimedOut | End::Stopped(_) => self.shims.kill(&shim).await,
        }
        let stdout = read_rest(stdout, &run, Channel::Stdout);
        let stderr = read_rest(stderr, &run, Channel::Stderr);
        if let End::Reported(Report::NotStarted(error)) = end {
            let reason = io::Error::from_raw_os_error(error);
            run.push(Channel::Stderr, format!("sandboxd: the shell could not be started: {reason}\n").as_bytes());
        }
        let outputs = self.settings.output.finish(&run.id);
        self.finish(&run, &Exit { outputs, ..exit(&end) });
        drop(turn);
        self.linger(&run.id, &shim, [stdout, stderr]);
    }

    fn stop_waiting(&self, run: &Run, stop: Stop) {
        match stop {
            Stop::Draining => self.refuse(run, draining()),
            Stop::Cancelled | Stop::Abandoned => self.finish(run, &exit(&End::Stopped(stop))),
        }
    }

    /// In this order: whoever is told of the refusal may send the id again.
    fn refuse(&self, run: &Run, why: ErrorBody) {
        lock(&self.table).withdraw(&run.id);
        run.refuse(why);
    }

    fn finish(&self, run: &Run, exit: &Exit) {
        run.end(exit);
        lock(&self.table).finish(&run.id, Instant::now());
    }

    /// Keeps reading what processes in the background write, so that none of them blocks or dies of a closed pipe.
    fn linger(self: &Arc<Self>, id: &RunId, shim: &Arc<Shim>, rest: [Option<pipe::Receiver>; 2]) {
        for receiver in rest.into_iter().flatten() {
            tokio::spawn(discard(receiver));
        }
        let mut lingering = lock(&self.lingering);
        lingering.retain(|_, shim| !shim.is_gone());
        if !shim.is_gone() {
            lingering.insert(id.clone(), Arc::clone(shim));
        }
    }

    fn start(&self, id: &RunId, handover: &command::Handover, env: &[CString]) -> Result<Started, ErrorBody> {
        let failed = |what: &str, e: &io::Error| refusal(ErrorCode::Unavailable, format!("cannot {what}: {e}"));
        self.settings.output.create(id).map_err(|e| failed("make the output folder", &e))?;
        self.launch(handover, env).map_err(|e| match e.raw_os_error() {
            Some(libc::E2BIG) => refusal(ErrorCode::BadRequest, "the environment of the command is too long"),
            _ => failed("start the command", &e),
        })
    }

    fn launch(&self, handover: &command::Handover, env: &[CString]) -> io::Result<Started> {
        let [stdout, stderr, report] = [new_pipe()?, new_pipe()?, new_pipe()?];
        let script = handover.script.as_deref().map(script_file).transpose()?;
        let mut descriptors = vec![
            (self.null.as_raw_fd(), 0),
            (stdout.1.as_raw_fd(), 1),
            (stderr.1.as_raw_fd(), 2),
            (report.1.as_raw_fd(), shim::REPORT_FD),
        ];
        descriptors.extend(script.as_ref().map(|script| (script.as_raw_fd(), shim::SCRIPT_FD)));
        let program = &self.settings.program;
        let what = Spawn { program, args: &handover.args, env, descriptors: &descriptors, own_session: false };
        let receiver = |end: OwnedFd| pipe::Receiver::from_owned_fd(end);
        let (out, err, rep) = (receiver(stdout.0)?, receiver(stderr.0)?, receiver(report.0)?);
        Ok(Started { shim: self.shims.start(&what)?, stdout: Some(out), stderr: Some(err), report: rep })
    }
}

/// A pipe whose writing end has a number that no placement in the child overwrites.
fn new_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((read, fcntl_dupfd_cloexec(&write, FIRST_FREE_FD)?))
}

fn script_file(text: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(c"command", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(fcntl_dupfd_cloexec(&file, FIRST_FREE_FD)?);
    file.write_all(text)?;
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

async fn read_report(report: &mut pipe::Receiver) -> Option<Report> {
    let mut bytes = [0; REPORT_LEN];
    report.read_exact(&mut bytes).await.ok()?;
    Report::decode(bytes)
}

/// Reads for ever; after the end of the stream it waits for ever. Loses nothing when it is dropped while it waits.
async fn pump(receiver: &mut Option<pipe::Receiver>, run: &Run, channel: Channel) -> Infallible {
    let mut buffer = vec![0; READ];
    while let Some(open) = receiver {
        if open.readable().await.is_err() {
            break;
        }
        match open.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => run.push(channel, buffer.get(..n).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    *receiver = None;
    std::future::pending().await
}

/// Takes what is in the pipe now, and no more: a process in the background may write for ever. Returns the pipe unless it is at
/// its end.
fn read_rest(receiver: Option<pipe::Receiver>, run: &Run, channel: Channel) -> Option<pipe::Receiver> {
    let receiver = receiver?;
    let mut left = usize::try_from(ioctl_fionread(&receiver).unwrap_or(0)).unwrap_or(0);
    let mut buffer = vec![0; READ.min(left.max(1))];
    loop {
        // One byte past the last tells whether the pipe is at its end; it was written after the run ended, and is dropped.
        let room = buffer.len().min(left.max(1));
        // Not by the receiver: it may believe that nothing is there until the runtime has looked again.
        match rustix::io::read(&receiver, buffer.get_mut(..room).unwrap_or_default()) {
            Ok(0) => return None,
            Ok(_) if left == 0 => return Some(receiver),
            Ok(n) => {
                run.push(channel, buffer.get(..n).unwrap_or_default());
                left = left.saturating_sub(n);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Some(receiver),
        }
    }
}

async fn discard(receiver: pipe::Receiver) {
    let mut buffer = vec![0; READ];
    loop {
        if receiver.readable().await.is_err() {
            return;
        }
        match receiver.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// How a run ended, without what its output tells.
fn exit(end: &End) -> Exit {
    let killed = Exit { code: 128 + libc::SIGKILL, signal: Some(libc::SIGKILL), ..Exit::default() };
    match *end {
        End::Reported(Report::Exited(code)) => Exit { code, ..Exit::default() },
        End::Reported(Report::Signalled(n)) => Exit { code: 128 + n, signal: Some(n), ..Exit::default() },
        End::Reported(Report::NotStarted(_)) => Exit { code: 126, ..Exit::default() },
        // As `timeout` does.
        End::TimedOut => Exit { code: 124, timed_out: true, ..killed },
        End::Stopped(Stop::Cancelled) => Exit { cancelled: true, ..killed },
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
