//! The shims that live. One lock orders starting, signalling and reaping, so that no signal reaches a reused process id.

use crate::{
    process::tree,
    sys::{self, Spawn},
};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};
use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// Time that a killed tree may take to die. Only a process stuck in the kernel needs more.
const KILL_LIMIT: Duration = Duration::from_secs(3);
/// Time between two looks at a tree that is being killed.
const KILL_ROUND: Duration = Duration::from_millis(5);

/// One shim: the root of everything that its run started.
#[derive(Debug)]
pub(crate) struct Shim {
    pid: Pid,
    gone: AtomicBool,
    reaped: Notify,
}

impl Shim {
    /// Whether the shim was reaped. It ends by itself when nothing beneath it is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
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

/// Every shim that was started and not reaped.
#[derive(Debug, Default)]
pub(crate) struct Shims {
    living: Mutex<HashMap<i32, Arc<Shim>>>,
}

impl Shims {
    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Arc<Shim>>> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many live.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Starts one. The lock is held, so that the reaper meets it only when it is in the table.
    pub(crate) fn start(&self, what: &Spawn<'_>) -> io::Result<Arc<Shim>> {
        let mut living = self.lock();
        let pid = sys::spawn(what)?;
        let shim = Arc::new(Shim { pid, gone: AtomicBool::new(false), reaped: Notify::new() });
        living.insert(pid.as_raw_nonzero().get(), Arc::clone(&shim));
        Ok(shim)
    }

    /// Reaps every child that has ended, ours or an orphan.
    pub(crate) fn reap(&self) {
        let mut living = self.lock();
        while let Ok(Some((pid, _status))) = wait(WaitOptions::NOHANG) {
            if let Some(shim) = living.remove(&pid.as_raw_nonzero().get()) {
                shim.gone.store(true, Ordering::Release);
                shim.reaped.notify_waiters();
            }
        }
    }

    fn signal(&self, shim: &Shim, signal: Signal) {
        let _living = self.lock();
        if !shim.is_gone() {
            // It may have ended and wait to be reaped; then the signal does nothing.
            let _ = kill_process(shim.pid, signal);
        }
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
        let living = self.lock();
        let spared: Vec<i32> = living.keys().copied().collect();
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
