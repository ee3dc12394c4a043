//! What a watch has shown so far: which objects became Ready, when, and which are suspended.

use anyhow::{Context as _, bail};
use futures_util::StreamExt as _;
use kube::{
    Api, ResourceExt as _,
    core::{NotUsed, Object},
    runtime::{WatchStreamExt as _, watcher, watcher::Event},
};
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{sync::watch, task::JoinHandle};

/// An object of which only metadata and status are read.
pub type Slim = Object<NotUsed, Value>;

/// Where an object stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// A command can run, or the containers run.
    pub ready: bool,
    /// No pod; the files are kept.
    pub suspended: bool,
}

/// Sums over all objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The first list is complete, and the watch runs.
    pub listed: bool,
    /// Objects that have been Ready at some time.
    pub were_ready: usize,
    /// Objects that are suspended now, and were Ready before.
    pub suspended: usize,
}

/// The sums' source. Time is passed in.
#[derive(Default)]
struct Board {
    ready: HashMap<String, Instant>,
    suspended: HashSet<String>,
    listed: bool,
}

impl Board {
    fn saw(&mut self, name: &str, standing: Standing, now: Instant) {
        if standing.ready {
            self.ready.entry(name.to_owned()).or_insert(now);
        }
        if standing.suspended && self.ready.contains_key(name) {
            self.suspended.insert(name.to_owned());
        } else {
            self.suspended.remove(name);
        }
    }

    fn counts(&self) -> Counts {
        Counts { listed: self.listed, were_ready: self.ready.len(), suspended: self.suspended.len() }
    }
}

/// Reads the status of a Sandbox.
pub fn sandbox_standing(sandbox: &Slim) -> Standing {
    let phase = sandbox.status.as_ref().and_then(|status| status["phase"].as_str());
    Standing { ready: phase == Some("Ready"), suspended: phase == Some("Suspended") }
}

/// Reads the status of a pod, as the operator does it.
pub fn pod_standing(pod: &Slim) -> Standing {
    let status = pod.status.as_ref();
    let holds = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    let ready = status.is_some_and(|status| {
        status["phase"] == "Running" && status["conditions"].as_array().into_iter().flatten().any(holds)
    });
    Standing { ready: ready && pod.metadata.deletion_timestamp.is_none(), suspended: false }
}

/// A watch that fills a board; it ends when this is dropped.
pub struct Sight {
    board: Arc<Mutex<Board>>,
    counts: watch::Receiver<Counts>,
    task: JoinHandle<()>,
}

impl Drop for Sight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sight {
    /// Watches, and returns when the first list is there.
    pub async fn open(api: Api<Slim>, read: fn(&Slim) -> Standing) -> anyhow::Result<Self> {
        let board = Arc::new(Mutex::new(Board::default()));
        let (sender, counts) = watch::channel(Counts::default());
        let task = tokio::spawn(fill(api, read, Arc::clone(&board), sender));
        let sight = Self { board, counts, task };
        let mut counts = sight.counts.clone();
        tokio::time::timeout(Duration::from_mins(1), counts.wait_for(|counts| counts.listed))
            .await
            .context("no first list within a minute")??;
        Ok(sight)
    }

    /// When the object was first seen Ready.
    pub fn ready_at(&self, name: &str) -> Option<Instant> {
        lock(&self.board).ready.get(name).copied()
    }

    /// The sums now.
    pub fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    /// Waits until a sum is `goal`; fails when it does not grow for as long as `stall`.
    pub async fn reaches(&self, goal: usize, stall: Duration, sum: fn(&Counts) -> usize) -> anyhow::Result<()> {
        let mut counts = self.counts.clone();
        loop {
            let now = sum(&counts.borrow_and_update());
            if now >= goal {
                return Ok(());
            }
            match tokio::time::timeout(stall, counts.wait_for(|counts| sum(counts) > now)).await {
                Ok(grown) => drop(grown.context("the watch ended")?),
                Err(_) => bail!("{now} of {goal}, and no progress for {} s", stall.as_secs()),
            }
        }
    }
}

fn lock(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn fill(api: Api<Slim>, read: fn(&Slim) -> Standing, board: Arc<Mutex<Board>>, sender: watch::Sender<Counts>) {
    let mut events = watcher(api, watcher::Config::default().page_size(500)).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let now = Instant::now();
        let counts = {
            let mut board = lock(&board);
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    board.saw(&object.name_any(), read(&object), now);
                }
                Ok(Event::Delete(object)) => {
                    board.suspended.remove(&object.name_any());
                }
                Ok(Event::Init) => board.suspended.clear(),
                Ok(Event::InitDone) => board.listed = true,
                Err(error) => tracing::warn!(%error, "a watch was interrupted; it goes on after a pause"),
            }
            board.counts()
        };
        sender.send_if_modified(|old| std::mem::replace(old, counts) != counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_ready_counts_and_only_those_that_were_ready_count_as_suspended() {
        let mut board = Board::default();
        let start = Instant::now();
        let (ready, suspended) =
            (Standing { ready: true, suspended: false }, Standing { ready: false, suspended: true });
        board.saw("a", ready, start);
        board.saw("a", ready, start + Duration::from_secs(1));
        board.saw("a", suspended, start + Duration::from_secs(2));
        board.saw("b", suspended, start);
        assert_eq!(board.ready["a"], start);
        assert_eq!(board.counts(), Counts { listed: false, were_ready: 1, suspended: 1 });
        board.saw("a", ready, start + Duration::from_secs(3));
        assert_eq!(board.counts().suspended, 0);
    }

    #[test]
    fn a_pod_is_ready_when_it_runs_and_is_not_deleted() {
        let pod = |deleted: Option<&str>, phase: &str, ready: &str| -> Standing {
            let value = json!({
                "metadata": {"name": "p", "deletionTimestamp": deleted},
                "spec": {"containers": []},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
            });
            pod_standing(&serde_json::from_value(value).unwrap())
        };
        assert!(pod(None, "Running", "True").ready);
        assert!(!pod(None, "Running", "False").ready);
        assert!(!pod(None, "Pending", "True").ready);
        assert!(!pod(Some("2026-01-01T00:00:00Z"), "Running", "True").ready);
    }

    #[test]
    fn a_sandbox_stands_as_its_phase_says() {
        let at = |phase: &str| {
            let value = json!({"metadata": {"name": "s"}, "spec": {}, "status": {"phase": phase}});
            sandbox_standing(&serde_json::from_value(value).unwrap())
        };
        assert!(at("Ready").ready && at("Suspended").suspended);
        assert_eq!(at("Starting"), Standing::default());
    }
}
