//! What is to be looked at, and when.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    time::Duration,
};
use tokio::time::Instant;

/// First wait after a failure, doubled with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Longest wait after a failure.
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// Keys with the moment at which each is due; one that is put in again stays due at the earlier moment.
#[derive(Debug)]
pub struct Queue<K> {
    due: BTreeMap<K, Instant>,
    failures: HashMap<K, u32>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { due: BTreeMap::new(), failures: HashMap::new() }
    }
}

impl<K: Ord + Hash + Clone> Queue<K> {
    /// Puts a key in.
    pub fn push(&mut self, key: K, at: Instant) {
        self.due.entry(key).and_modify(|due| *due = at.min(*due)).or_insert(at);
    }

    /// When the next one is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    /// Takes out the key that is due longest, if one is due.
    pub fn pop(&mut self, now: Instant) -> Option<K> {
        let (key, _) = self.due.iter().filter(|(_, due)| **due <= now).min_by_key(|(_, due)| **due)?;
        let key = key.clone();
        self.due.remove(&key);
        Some(key)
    }

    /// It was looked at: again at that moment, if there is one.
    pub fn done(&mut self, key: K, again: Option<Instant>) {
        self.failures.remove(&key);
        if let Some(again) = again {
            self.push(key, again);
        }
    }

    /// Looking at it failed: again after a pause, which is returned. News of it does not shorten the pause of others.
    pub fn failed(&mut self, key: K, now: Instant) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let wait = FIRST_RETRY.saturating_mul(1 << (*failures).min(16)).min(LONGEST_RETRY);
        *failures = failures.saturating_add(1);
        self.push(key, now + wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn what_is_due_longest_comes_first_and_each_once() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.push("b", now + SECOND);
        queue.push("a", now + SECOND * 2);
        queue.push("c", now + SECOND * 3);
        queue.push("c", now);
        queue.push("b", now + SECOND * 9);
        assert_eq!(queue.next_due(), Some(now));
        assert_eq!(queue.pop(now), Some("c"));
        assert_eq!(queue.pop(now), None);
        assert_eq!(queue.pop(now + SECOND * 2), Some("b"));
        assert_eq!(queue.pop(now + SECOND * 2), Some("a"));
        assert_eq!(queue.next_due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_and_longer_until_it_works() {
        let now = Instant::now();
        let mut queue = Queue::default();
        let waits: Vec<u64> = (0..9).map(|_| u64::try_from(queue.failed("a", now).as_millis()).unwrap()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
        queue.done("a", Some(now + SECOND));
        assert_eq!(queue.failed("a", now), FIRST_RETRY);
    }
}
