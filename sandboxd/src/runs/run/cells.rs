//! What a run has more when it is a cell: calls, results, and times in which it waits.

use super::{Phase, Run};
use crate::repl::message::NewCall;
use sandboxd_protocol::{CallResult, ErrorBody, WaitingCell};
use std::collections::BTreeSet;
use tokio::time::Instant;

impl Run {
    /// Notes calls that the cell makes, and those that it no longer waits for.
    pub(crate) fn add_calls(
        &self,
        offered: &BTreeSet<String>,
        calls: Vec<NewCall>,
        closed: &[u32],
    ) -> Result<(), &'static str> {
        let any = !calls.is_empty();
        let mut log = self.log();
        log.calls.close(closed);
        let added = log.calls.add(offered, calls);
        drop(log);
        if any {
            self.changed.notify_waiters();
        }
        added
    }

    /// Takes results of calls; the driver gives them to the cell.
    pub(crate) fn answer(&self, results: Vec<CallResult>) -> Result<(), ErrorBody> {
        self.log().calls.answer(results)?;
        self.answered.notify_one();
        Ok(())
    }

    /// Waits for results that the cell has not got. For the driver only.
    pub(crate) async fn answers(&self) -> Vec<CallResult> {
        loop {
            let answers = self.log().calls.take_answers();
            if !answers.is_empty() {
                return answers;
            }
            self.answered.notified().await;
        }
    }

    /// Whether calls of it have no result yet.
    pub(crate) fn has_pending_calls(&self) -> bool {
        self.log().calls.is_any_pending()
    }

    /// Notes whether the cell does nothing but wait for results. Until it goes on it is not abandoned. For the driver only.
    pub(crate) fn set_waiting(&self, waiting: bool, now: Instant) {
        let mut log = self.log();
        if log.waiting && !waiting && log.followers == 0 {
            log.unfollowed_since = Some(now);
        }
        log.waiting = waiting;
    }

    /// The cell and its open calls, if it is one that has not ended and waits for results.
    pub(crate) fn waiting_cell(&self) -> Option<WaitingCell> {
        let log = self.log();
        let is_open = matches!(log.phase, Phase::Running) && log.waiting;
        is_open.then(|| WaitingCell { run: self.id.as_str().to_owned(), calls: log.calls.pending_calls() })
    }
}
