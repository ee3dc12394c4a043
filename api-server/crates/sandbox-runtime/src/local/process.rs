//! Processes of local sandboxes.
//!
//! `--die-with-parent` watches the *thread* that started a process, so all are started from one thread that lives as long as
//! the runtime. Threads of an async runtime come and go.

use super::seccomp;
use std::{
    ffi::OsString,
    io,
    net::Shutdown,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError, mpsc},
};
use tokio::{
    io::AsyncReadExt,
    net::UnixStream,
    process::{Child, ChildStderr, Command},
    runtime::Handle,
    sync::{oneshot, watch},
    time::{Duration, timeout},
};
use tokio_util::sync::CancellationToken;

/// Most that is kept of what a process says on stderr, in bytes.
const SAID: usize = 4096;
/// Time in which a process without its connection ends.
const ENDS_BY_ITSELF: Duration = Duration::from_secs(2);
/// Time for the end of a killed process.
const END: Duration = Duration::from_secs(5);

/// Makes the arguments of `bwrap`, given the number of the seccomp filter's descriptor.
pub(super) type Arguments = Box<dyn FnOnce(i32) -> Vec<OsString> + Send>;

struct Job {
    arguments: Arguments,
    stdin: Stdio,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// Starts processes.
#[derive(Debug)]
pub(super) struct Spawner {
    jobs: mpsc::Sender<Job>,
}

impl Spawner {
    /// Starts the thread. It ends with the spawner, and every process that it started with it.
    pub(super) fn start(bwrap: PathBuf, program: Vec<u8>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let runtime = Handle::current();
        std::thread::Builder::new().name("sandbox-spawner".to_owned()).spawn(move || {
            let _context = runtime.enter();
            for job in queue {
                // A reply that nobody takes is a child that is killed when it is dropped.
                let _ = job.reply.send(spawn(&bwrap, &program, job.arguments, job.stdin));
            }
        })?;
        Ok(Self { jobs })
    }

    pub(super) async fn spawn(&self, arguments: Arguments, stdin: Stdio) -> io::Result<Child> {
        let (reply, child) = oneshot::channel();
        let over = || io::Error::other("the thread that starts sandboxes has ended");
        self.jobs.send(Job { arguments, stdin, reply }).map_err(|_| over())?;
        child.await.map_err(|_| over())?
    }
}

fn spawn(bwrap: &PathBuf, program: &[u8], arguments: Arguments, stdin: Stdio) -> io::Result<Child> {
    // The one descriptor that is left open over the exec. Another child of this process that is started at this very moment
    // may inherit it too, which gives away nothing; the connection goes as stdin, so that it cannot be inherited that way.
    let filter = seccomp::inheritable(program)?;
    Command::new(bwrap)
        .args(arguments(filter.as_raw_fd()))
        .env_clear()
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

/// One running half. Killed when it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    /// Our end of its only connection, until it is handed out.
    connection: Mutex<Option<StdUnixStream>>,
    stop: CancellationToken,
    ended: watch::Receiver<bool>,
}

impl Process {
    /// Starts `sandboxd` with a connection as its stdin.
    pub(super) async fn start(spawner: &Spawner, label: String, arguments: Arguments) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let line = ours.try_clone()?;
        let child = spawner.spawn(arguments, Stdio::from(OwnedFd::from(theirs))).await?;
        let stop = CancellationToken::new();
        let (end, ended) = watch::channel(false);
        tokio::spawn(follow(child, line, label, stop.clone(), end));
        Ok(Self { connection: Mutex::new(Some(ours)), stop, ended })
    }

    /// The connection, the first time. There is no second one: `sandboxd` ends when its connection does.
    pub(super) fn take_connection(&self) -> Option<io::Result<UnixStream>> {
        if self.has_ended() {
            return None;
        }
        let taken = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.map(UnixStream::from_std)
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Kills it and waits until it is gone.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        let mut ended = self.ended.clone();
        let _ = timeout(END, ended.wait_for(|ended| *ended)).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Waits for the end of a process, and ends it when told: `sandboxd` goes with its connection, and the namespace with
/// `sandboxd`. Only then is `bwrap` killed: before it has set up its child, the child would outlive it.
async fn follow(
    mut child: Child,
    connection: StdUnixStream,
    label: String,
    stop: CancellationToken,
    end: watch::Sender<bool>,
) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let reader = child.stderr.take().map(|stderr| tokio::spawn(listen(stderr, said.clone())));
    let status = tokio::select! {
        status = child.wait() => status,
        () = stop.cancelled() => {
            // Both fail only when it has ended by itself.
            let _ = connection.shutdown(Shutdown::Both);
            if let Ok(status) = timeout(ENDS_BY_ITSELF, child.wait()).await {
                status
            } else {
                let _ = child.start_kill();
                child.wait().await
            }
        }
    };
    if let Some(mut reader) = reader
        && timeout(END, &mut reader).await.is_err()
    {
        reader.abort();
    }
    if !stop.is_cancelled() {
        let said = String::from_utf8_lossy(&said.lock().unwrap_or_else(PoisonError::into_inner)).trim().to_owned();
        tracing::info!(sandbox.half = %label, ?status, said, "a half of a sandbox ended by itself");
    }
    let _ = end.send(true);
}

/// Keeps the beginning of what is said, and reads on, so that nobody blocks on a full pipe.
async fn listen(mut stderr: ChildStderr, said: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 1024];
    while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        let room = SAID.saturating_sub(said.len()).min(length);
        said.extend_from_slice(&buffer[..room]);
    }
}
