//! The one thread that may wait for the disk, so that nobody else has to: what it is asked for is done in order.

use std::{fmt, io, sync::mpsc};
use tokio::sync::oneshot;

/// Stack of the thread. Nothing here recurses.
const STACK: usize = 512 * 1024;

type Job = Box<dyn FnOnce() + Send>;

/// Whether nobody waits for a job any more.
pub(crate) struct GivenUp<'a>(&'a dyn Fn() -> bool);

impl<'a> GivenUp<'a> {
    pub(crate) fn new(is_true: &'a dyn Fn() -> bool) -> Self {
        Self(is_true)
    }

    pub(crate) fn is_true(&self) -> bool {
        (self.0)()
    }
}

/// Does jobs on a thread that is there from the start: later a fork bomb may leave no room for one.
pub(crate) struct Worker(mpsc::Sender<Job>);

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl Worker {
    pub(crate) fn start() -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<Job>();
        let work = move || waiting.into_iter().for_each(|job| job());
        std::thread::Builder::new().name("worker".to_owned()).stack_size(STACK).spawn(work)?;
        Ok(Self(jobs))
    }

    /// Has a job done. It is begun also when nobody waits for it.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&GivenUp<'_>) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (answer, outcome) = oneshot::channel();
        let job = move || {
            let done = job(&GivenUp::new(&|| answer.is_closed()));
            // Whoever waited may be gone.
            let _ = answer.send(done);
        };
        // Without the thread the job is dropped, and its receiver says so.
        let _ = self.0.send(Box::new(job));
        outcome
    }
}
