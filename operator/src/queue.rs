//! What is to be looked at, and when. It is fair: under any load, what is due longest comes next.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::Hash,
    time::Duration,
};
use tokio::time::Instant;

/// First wait after a failure, doubled with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Longest wait after a failure.
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// Keys with the moment at which each is due; one that is put in again stays due at the earlier moment. A key that is being looked at is
/// not given out a second time before that has ended.
#[derive(Debug)]
pub struct Queue<K> {
    due: HashMap<K, Instant>,
    /// All that are due and not being looked at.
    order: BTreeSet<(Instant, K)>,
    running: HashSet<K>,
    failures: HashMap<K, u32>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { due: HashMap::new(), order: BTreeSet::new(), running: HashSet::new(), failures: HashMap::new() }
    }
}

impl<K: Ord + Hash + Clone> Queue<K> {
    /// Puts a key in.
    pub fn push(&mut self, key: K, at: Instant) {
        let before = self.due.get(&key).copied();
        let at = before.map_or(at, |before| at.min(before));
        self.due.insert(key.clone(), at);
        if !self.running.contains(&key) {
            if let Some(before) = before {
                self.order.remove(&(before, key.clone()));
            }
            self.order.insert((at, key));
        }
    }

    /// When the next one is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Takes out the key that is due longest, if one is due. [`Self::done`] or [`Self::failed`] is to follow.
    pub fn pop(&mut self, now: Instant) -> Option<K> {
        self.next_due().filter(|due| *due <= now)?;
        let (_, key) = self.order.pop_first()?;
        self.due.remove(&key);
        self.running.insert(key.clone());
        Some(key)
    }

    /// It was looked at: again at that moment, if there is one.
    pub fn done(&mut self, key: K, again: Option<Instant>) {
        self.failures.remove(&key);
        self.settle(key, again);
    }

    /// Looking at it failed: again after a pause, which is returned. News of it shortens the pause.
    pub fn failed(&mut self, key: K, now: Instant) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let wait = FIRST_RETRY.saturating_mul(1 << (*failures).min(16)).min(LONGEST_RETRY);
        *failures = failures.saturating_add(1);
        self.settle(key, Some(now + wait));
        wait
    }

    fn settle(&mut self, key: K, again: Option<Instant>) {
        self.running.remove(&key);
        // It may have been put in meanwhile.
        if let Some(at) = self.due.remove(&key).into_iter().chain(again).min() {
            self.push(key, at);
        }
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
        queue.done("c", None);
        assert_eq!(queue.pop(now), None);
        assert_eq!(queue.pop(now + SECOND * 2), Some("b"));
        assert_eq!(queue.pop(now + SECOND * 2), Some("a"));
        assert_eq!(queue.next_due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_being_looked_at_is_not_given_out_again_before_the_end() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.push("a", now);
        assert_eq!(queue.pop(now), Some("a"));
        queue.push("a", now + SECOND);
        queue.push("a", now);
        assert_eq!((queue.pop(now), queue.next_due()), (None, None));
        queue.done("a", Some(now + SECOND));
        assert_eq!((queue.pop(now), queue.pop(now + SECOND * 2)), (Some("a"), None));
        queue.done("a", None);
        assert_eq!(queue.next_due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever_among_many_who_come_back_at_once() {
        let mut now = Instant::now();
        let mut queue = Queue::default();
        (0..100).for_each(|key| queue.push(key, now));
        let mut turns = [0; 100];
        for _ in 0..1000 {
            now += Duration::from_millis(1);
            let key = queue.pop(now).unwrap();
            turns[key] += 1;
            queue.done(key, Some(now));
        }
        assert_eq!(turns, [10; 100]);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_and_longer_until_it_works() {
        let now = Instant::now();
        let mut queue = Queue::default();
        let waits: Vec<u64> = (0..9).map(|_| u64::try_from(queue.failed("a", now).as_millis()).unwrap()).collect();
        assert_eq!(queue.next_due(), Some(now + FIRST_RETRY), "put in by the first, and no later");
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
        queue.done("a", Some(now + SECOND));
        assert_eq!(queue.failed("a", now), FIRST_RETRY);
    }
}
