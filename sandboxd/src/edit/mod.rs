//! Edits of files, as the model's editor asks for them: one after another.
//!
//! Code in the sandbox can change every file and folder at any time: what decides is what was opened, never its name.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod path;
mod search;
mod show;
mod store;
mod text;

pub(crate) use path::Mounts;

use crate::worker::Worker;
use path::Place;
use sandboxd_protocol::{Edit, EditOutcome, EditRefusal};
use std::{ffi::CString, sync::Arc};
use store::Opened;
use text::Change;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

/// Does edits.
#[derive(Debug)]
pub(crate) struct Editor {
    mounts: Arc<Mounts>,
    worker: Arc<Worker>,
    turn: Semaphore,
}

impl Editor {
    pub(crate) fn new(mounts: Mounts, worker: Arc<Worker>) -> Self {
        Self { mounts: Arc::new(mounts), worker, turn: Semaphore::new(1) }
    }

    /// Waits until the edits before are done. In order of asking.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turn.acquire().await.ok()
    }

    /// Begins an edit. It is finished also when nobody waits for it.
    pub(crate) fn begin(&self, edit: Edit, variables: Vec<CString>) -> oneshot::Receiver<EditOutcome> {
        let mounts = Arc::clone(&self.mounts);
        self.worker.ask(move |_| perform(&mounts, &edit, &variables))
    }
}

fn perform(mounts: &Mounts, edit: &Edit, variables: &[CString]) -> EditOutcome {
    let place = |path: &str| mounts.place(path, variables);
    let outcome = match edit {
        Edit::View { path, view_range } => place(path).and_then(|place| show::view(&place, *view_range)),
        Edit::Create { path, file_text } => place(path).and_then(|place| create(&place, file_text)),
        Edit::StrReplace { path, old_str, new_str } => {
            place(path).and_then(|place| change(&place, |text| text::replace(text, old_str, new_str)))
        }
        Edit::Insert { path, insert_line, insert_text } => {
            place(path).and_then(|place| change(&place, |text| text::insert(text, *insert_line, insert_text)))
        }
    };
    outcome.unwrap_or_else(|why| EditOutcome::Refused { why })
}

fn create(place: &Place<'_>, text: &str) -> Result<EditOutcome, EditRefusal> {
    place.writable()?;
    place.check_size(text.len() as u64)?;
    Ok(EditOutcome::Created { is_file_update: place.create(text.as_bytes())? })
}

fn change(
    place: &Place<'_>,
    edit: impl FnOnce(&[u8]) -> Result<Change, EditRefusal>,
) -> Result<EditOutcome, EditRefusal> {
    place.writable()?;
    let Opened::File(file, stat) = place.open()? else {
        return Err(EditRefusal::IsFolder { path: place.asked.clone() });
    };
    let Change { content, outcome } = edit(&place.read(file, &stat)?)?;
    place.check_size(content.len() as u64)?;
    place.replace(&content, &stat)?;
    Ok(outcome)
}
