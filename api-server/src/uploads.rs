//! How many uploads go on at a time: each holds some memory and a place on the disk.

use crate::failure::Failure;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use wire::{ApiError, ErrorType};

/// Uploads at a time, of all and of one workspace, so that none shuts the others out. Each holds up to six megabytes.
const AT_ONCE: usize = 40;
const AT_ONCE_OF_ONE: usize = 16;

/// The uploads of each workspace that go on.
#[derive(Clone, Default)]
pub struct Uploads(Arc<Mutex<HashMap<String, usize>>>);

/// The right to one upload, until it is dropped.
pub struct Slot {
    uploads: Uploads,
    workspace: String,
}

impl Uploads {
    fn running(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an upload, or answers 429.
    pub fn begin(&self, workspace: &str) -> Result<Slot, Failure> {
        let mut running = self.running();
        let own = running.get(workspace).copied().unwrap_or_default();
        if own >= AT_ONCE_OF_ONE || running.values().sum::<usize>() >= AT_ONCE {
            let message = "Too many uploads go on at the same time; try again in a moment.";
            return Err(ApiError::new(ErrorType::RateLimit, message).into());
        }
        running.insert(workspace.to_owned(), own + 1);
        drop(running);
        Ok(Slot { uploads: self.clone(), workspace: workspace.to_owned() })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut running = self.uploads.running();
        match running.get_mut(&self.workspace) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(running.remove(&self.workspace)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_are_bounded_for_each_workspace_and_for_all() {
        let uploads = Uploads::default();
        let begin =
            |workspace: &str, count| -> Vec<Slot> { (0..count).map_while(|_| uploads.begin(workspace).ok()).collect() };
        let own = begin("own", 100);
        assert_eq!(own.len(), AT_ONCE_OF_ONE);
        let others: Vec<_> = (0..9).flat_map(|n| begin(&format!("other-{n}"), 10)).collect();
        assert_eq!(own.len() + others.len(), AT_ONCE);
        drop(own);
        assert_eq!(begin("own", 100).len(), AT_ONCE_OF_ONE);
        drop(others);
        assert!(uploads.running().is_empty());
    }
}
