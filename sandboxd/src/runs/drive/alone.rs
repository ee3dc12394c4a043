//! Runs share the sandbox; a restart has it to itself. What is there when it comes is ended, what comes later waits for it.

use super::{Runs, lock};
use crate::{
    runs::{
        run::{Run, Stop},
        table::{Table, refusal},
    },
    workspace,
};
use sandboxd_protocol::{ErrorBody, ErrorCode};
use std::{ffi::OsStr, io, os::unix::ffi::OsStrExt as _, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

/// How long `POST /reset` may take to empty the workspace.
const EMPTIED_WITHIN: Duration = Duration::from_mins(2);

/// A run's place in the sandbox.
pub(super) enum Place<'a> {
    Shared { _with: RwLockReadGuard<'a, ()> },
    Alone { _in: RwLockWriteGuard<'a, ()> },
}

/// Runs that were told to end, and may not have yet.
pub(super) struct Ending(Vec<Arc<Run>>);

impl Runs {
    /// Tells everything that runs or waits to end.
    pub(super) fn end_all(&self, table: &Table) -> Ending {
        self.repl.doom();
        let live = table.live();
        for run in &live {
            run.request_stop(Stop::Reset);
        }
        Ending(live)
    }

    /// Waits for a place; for a run that restarts also until it is alone in an empty workspace, which may take as long as it may run.
    /// `None` when the run was ended before, and is over.
    pub(super) async fn place(&self, run: &Arc<Run>, ended: Option<Ending>, limit: Duration) -> Option<Place<'_>> {
        let place = async {
            match ended {
                Some(ended) => Ok(Place::Alone { _in: self.alone(ended, limit).await? }),
                None => Ok(Place::Shared { _with: self.place.read().await }),
            }
        };
        let place = tokio::select! {
            biased;
            stop = run.stop_requested(self.settings.abandoned_after) => {
                self.stop_waiting(run, stop);
                return None;
            }
            place = place => place,
        };
        place.map_err(|why| self.refuse(run, why)).ok()
    }

    /// Ends everything, and empties the workspace.
    pub(crate) async fn reset(&self) -> Result<(), ErrorBody> {
        let ended = self.end_all(&lock(&self.table));
        self.alone(ended, EMPTIED_WITHIN).await.map(drop)
    }

    async fn alone(&self, ended: Ending, limit: Duration) -> Result<RwLockWriteGuard<'_, ()>, ErrorBody> {
        // What comes in the meantime waits behind it.
        let (alone, ()) = tokio::join!(self.place.write(), self.over(ended));
        let failed = |why: &str| {
            let message = format!("everything was ended, but the workspace cannot be emptied: {why}");
            Err(refusal(ErrorCode::Unavailable, message))
        };
        let folder = PathBuf::from(OsStr::from_bytes(self.settings.workspace.as_bytes()));
        let emptied = self.worker.ask(move |given_up| workspace::empty(&folder, given_up));
        match tokio::time::timeout(limit, emptied).await {
            Ok(Ok(Ok(()))) => Ok(alone),
            Ok(Ok(Err(e))) => failed(&io::Error::from(e).to_string()),
            Ok(Err(_)) => failed("nobody does it"),
            Err(_) => failed("it takes too long; what is left may be removed the next time"),
        }
    }

    /// Waits until all of it is over, and kills the interpreter and what earlier runs left in the background.
    async fn over(&self, Ending(ended): Ending) {
        for run in ended {
            run.over().await;
        }
        self.repl.end_doomed(&self.shims).await;
        let lingering = std::mem::take(&mut *lock(&self.lingering));
        for shim in lingering.into_values() {
            self.shims.kill(&shim).await;
        }
    }
}
