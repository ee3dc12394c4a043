//! The shims that live. One lock orders starting, signalling and reaping, so that no signal reaches a reused process id.

use crate::{
    process::{
        shim::{self, Work},
        tree,
    },
    sys::{self, Spawn},
};
use rustix::{
    io::fcntl_dupfd_cloexec,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, wait},
};
use std::{
    collections::HashMap,
    ffi::CString,
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// Time that a killed tree may take to die. Only a process stuck in the kernel needs more.
const KILL_LIMIT: Duration = Duration::from_secs(3);
/// Time between two looks at a tree that is being killed.
const KILL_ROUND: Duration = Duration::from_millis(5);

/// What the container is short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Memory,
    Processes,
}

/// One shim: the root of everything that its run started.
#[derive(Debug)]
pub(crate) struct Shim {
    pid: Pid,
    gone: AtomicBool,
    /// Nothing that it started is asked to do anything.
    resting: AtomicBool,
    /// Its processes were killed for this.
    killed_for: OnceLock<Want>,
    reaped: Notify,
}

impl Shim {
    /// Whether the shim was reaped. It ends by itself when nothing beneath it is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// For what its processes were killed, if they were.
    pub(crate) fn killed_for(&self) -> Option<Want> {
        self.killed_for.get().copied()
    }

    async fn gone_within(&self, limit: Duration) -> bool {
        let reaped = self.reaped.notified();
        if !self.is_gone() {
            // Whether it was woken or the time is over: the flag tells.
            let _ = tokio::time::timeout(limit, reaped).await;
        }
        self.is_gone()
    }
}

/// A shim that waits for work.
#[derive(Debug)]
struct Idle {
    pid: Pid,
    /// Where its work goes; it ends when this is closed.
    socket: OwnedFd,
}

#[derive(Debug, Default)]
struct Table {
    /// Those that have work.
    living: HashMap<i32, Arc<Shim>>,
    idle: Option<Idle>,
    /// Those who may soon have work.
    clients: usize,
}

/// Somebody who may soon have work: as long as there is one, a shim is kept waiting.
#[derive(Debug)]
pub(crate) struct Client(Arc<Shims>);

impl Client {
    pub(crate) fn new(shims: Arc<Shims>) -> Self {
        shims.lock().clients += 1;
        shims.prepare();
        Self(shims)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut table = self.0.lock();
        table.clients = table.clients.saturating_sub(1);
        if table.clients == 0 {
            table.idle = None;
        }
    }
}

/// Every shim that was started and not reaped.
#[derive(Debug)]
pub(crate) struct Shims {
    /// This program.
    program: CString,
    null: OwnedFd,
    table: Mutex<Table>,
    started: Notify,
}

impl Shims {
    pub(crate) fn new(program: CString) -> io::Result<Self> {
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        let null = fcntl_dupfd_cloexec(&null, sys::FIRST_FREE_FD)?;
        Ok(Self { program, null, table: Mutex::default(), started: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many have work.
    pub(crate) fn count(&self) -> usize {
        self.lock().living.len()
    }

    /// Nothing to be read, and nobody to be written to.
    pub(crate) fn null(&self) -> &OwnedFd {
        &self.null
    }

    fn start_idle(&self) -> io::Result<Idle> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let theirs = fcntl_dupfd_cloexec(&theirs, sys::FIRST_FREE_FD)?;
        let null = self.null.as_raw_fd();
        let pid = sys::spawn(&Spawn {
            program: &self.program,
            args: &[c"sandboxd".into(), CString::new(shim::SUBCOMMAND)?],
            env: &[],
            descriptors: &[(null, 0), (null, 1), (null, 2), (theirs.as_raw_fd(), shim::WORK_FD)],
            own_session: false,
        })?;
        Ok(Idle { pid, socket: ours })
    }

    /// Starts the shim that waits for the next work, if anybody may have some. Without it the next run only starts later.
    pub(crate) fn prepare(&self) {
        let mut table = self.lock();
        if table.clients > 0 && table.idle.is_none() {
            table.idle = self.start_idle().ok();
        }
    }

    /// Gives work to the shim that waits, or to a new one. The lock is held, so that the reaper meets it only when it is in the table.
    pub(crate) fn start(&self, work: &Work<'_>) -> io::Result<Arc<Shim>> {
        let mut table = self.lock();
        let handed = |idle: Idle| work.hand_over(idle.socket.as_fd()).map(|()| idle.pid);
        let pid = match table.idle.take().map(handed) {
            Some(Ok(pid)) => pid,
            // Code of the same user may have killed it while it waited.
            Some(Err(_)) | None => handed(self.start_idle()?)?,
        };
        // Or stopped it. It may have ended since: then the signal does nothing.
        let _ = kill_process(pid, Signal::CONT);
        let shim = Arc::new(Shim {
            pid,
            gone: AtomicBool::new(false),
            resting: AtomicBool::new(false),
            killed_for: OnceLock::new(),
            reaped: Notify::new(),
        });
        table.living.insert(pid.as_raw_nonzero().get(), Arc::clone(&shim));
        self.started.notify_waiters();
        Ok(shim)
    }

    /// Whether any has work and does not rest.
    pub(crate) fn are_busy(&self) -> bool {
        self.lock().living.values().any(|shim| !shim.resting.load(Ordering::Relaxed))
    }

    /// Waits until they are busy.
    pub(crate) async fn until_busy(&self) {
        loop {
            let started = self.started.notified();
            if self.are_busy() {
                return;
            }
            started.await;
        }
    }

    /// Notes whether everything beneath a shim only waits.
    pub(crate) fn set_resting(&self, shim: &Shim, resting: bool) {
        shim.resting.store(resting, Ordering::Relaxed);
        self.started.notify_waiters();
    }

    /// The process ids of those that live.
    pub(crate) fn roots(&self) -> Vec<i32> {
        self.lock().living.keys().copied().collect()
    }

    /// Kills what a snapshot shows beneath a shim, and notes why. The shim itself tells its end. Whether anything was killed.
    pub(crate) fn kill_for(&self, want: Want, root: i32, all: &[tree::Process]) -> bool {
        let table = self.lock();
        let Some(shim) = table.living.get(&root) else { return false };
        shim.killed_for.get_or_init(|| want);
        tree::kill_all(&tree::descendants(all, root)) > 0
    }

    /// Reaps every child that has ended, ours or an orphan.
    pub(crate) fn reap(&self) {
        let mut table = self.lock();
        while let Ok(Some((pid, _status))) = wait(WaitOptions::NOHANG) {
            table.idle.take_if(|idle| idle.pid == pid);
            if let Some(shim) = table.living.remove(&pid.as_raw_nonzero().get()) {
                shim.gone.store(true, Ordering::Release);
                shim.reaped.notify_waiters();
            }
        }
    }

    fn signal(&self, shim: &Shim, signal: Signal) {
        let _table = self.lock();
        if !shim.is_gone() {
            // It may have ended and wait to be reaped; then the signal does nothing.
            let _ = kill_process(shim.pid, signal);
        }
    }

    /// Sends SIGINT to a child of the shim, or to its process group; to nobody else, whatever number is given.
    pub(crate) fn interrupt(&self, shim: &Shim, child: Pid, group: bool) {
        let _table = self.lock();
        let parent = tree::process(child.as_raw_nonzero().get()).map(|process| process.parent);
        if shim.is_gone() || parent != Some(shim.pid.as_raw_nonzero().get()) {
            return;
        }
        // One that has ended in the meantime needs no signal.
        let _ = if group { kill_process_group(child, Signal::INT) } else { kill_process(child, Signal::INT) };
    }

    /// Kills everything that a shim's run started, until the shim itself has ended. Bounded by [`KILL_LIMIT`].
    ///
    /// Runs on the caller's thread and starts none: a fork bomb may have left no room for a thread.
    pub(crate) async fn kill(&self, shim: &Shim) {
        let end = Instant::now() + KILL_LIMIT;
        while !shim.is_gone() && Instant::now() < end {
            tree::kill_all(&tree::descendants(&tree::snapshot(), shim.pid.as_raw_nonzero().get()));
            // Code of the same user may have stopped the shim, and then nobody would reap the dead.
            self.signal(shim, Signal::CONT);
            shim.gone_within(KILL_ROUND).await;
        }
        if !shim.is_gone() {
            self.signal(shim, Signal::KILL);
            self.kill_orphans().await;
        }
    }

    /// Kills the processes that a killed shim left to us: children of ours that are no shim. Bounded by [`KILL_LIMIT`].
    pub(crate) async fn kill_orphans(&self) {
        let end = Instant::now() + KILL_LIMIT;
        // One snapshot may miss a process that moves in the meantime.
        let mut clean = 0;
        while clean < 2 && Instant::now() < end {
            if self.kill_orphans_once() == 0 {
                clean += 1;
            } else {
                clean = 0;
                tokio::time::sleep(KILL_ROUND).await;
            }
        }
    }

    fn kill_orphans_once(&self) -> usize {
        // Under the lock no shim is started that the snapshot would show as an orphan.
        let table = self.lock();
        let idle = table.idle.iter().map(|idle| idle.pid.as_raw_nonzero().get());
        let spared: Vec<i32> = table.living.keys().copied().chain(idle).collect();
        let orphans = tree::orphans(&tree::snapshot(), getpid().as_raw_nonzero().get(), &spared);
        tree::kill_all(&orphans)
    }

    /// Kills everything beneath this process, a bounded number of times; for its end. PID 1 needs none of it: the kernel
    /// kills what is left.
    pub(crate) fn kill_everything(&self) {
        for _ in 0..100 {
            let killed = tree::kill_all(&tree::descendants(&tree::snapshot(), getpid().as_raw_nonzero().get()));
            self.reap();
            if killed == 0 {
                return;
            }
        }
    }
}
