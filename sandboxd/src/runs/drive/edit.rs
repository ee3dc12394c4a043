//! Drives an edit. It waits for the edits before it and for no command.

use super::{End, Runs, exit};
use crate::runs::run::{Channel, Run, Stop};
use sandboxd_protocol::{Edit, Exit};
use std::{ffi::CString, sync::Arc, time::Duration};

/// How long an edit under way may take after its end was asked for: a disk that hangs must not keep its run.
const LAST_CALL: Duration = Duration::from_secs(2);

impl Runs {
    pub(super) async fn edit(&self, run: &Arc<Run>, edit: Edit, variables: Vec<CString>, timeout: Duration) {
        let turn = tokio::select! {
            biased;
            stop = run.stop_requested(self.settings.abandoned_after) => return self.stop_waiting(run, stop),
            turn = self.editor.turn() => turn,
        };
        run.set_running();
        let outcome = self.editor.begin(edit, variables);
        let ended = tokio::select! {
            biased;
            outcome = outcome => outcome.map_err(|_| End::ShimLost),
            stop = self.overdue(run) => Err(End::Stopped(stop)),
            () = tokio::time::sleep(timeout) => Err(End::TimedOut),
        };
        match ended {
            Ok(outcome) => {
                // Texts, numbers and flags always serialise; nothing at all would be refused by the reader.
                run.push(Channel::Stdout, &serde_json::to_vec(&outcome).unwrap_or_default());
                self.finish(run, &Exit::default());
            }
            Err(end) => self.finish(run, &exit(&end)),
        }
        drop(turn);
    }

    async fn overdue(&self, run: &Run) -> Stop {
        let stop = run.stop_requested(self.settings.abandoned_after).await;
        tokio::time::sleep(LAST_CALL).await;
        stop
    }
}
