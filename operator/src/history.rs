//! Back-off between starts: how often a pod was made, and what went wrong. Kept in memory, since losing it only means one start
//! that comes early.

use crate::trouble::Trouble;
use jiff::{SignedDuration, Timestamp};

/// First wait between two starts.
const FIRST_WAIT: SignedDuration = SignedDuration::from_secs(5);
/// Longest wait: a quota that has room again is noticed within it.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(120);
/// Starts longer ago than this do not count: that pod lived.
const FORGET_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// The starts of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    attempts: u32,
    last: Option<Timestamp>,
    activity: Option<String>,
    /// Why the last pod ended or could not be made; cleared when one is made.
    pub trouble: Option<Trouble>,
}

impl History {
    /// With one more start.
    #[must_use]
    pub fn started(&self, now: Timestamp, activity: Option<&String>) -> Self {
        Self {
            attempts: if self.forgotten(now) { 1 } else { self.attempts.saturating_add(1) },
            last: Some(now),
            activity: activity.cloned(),
            trouble: self.trouble.clone(),
        }
    }

    /// With what went wrong.
    #[must_use]
    pub fn failed(&self, trouble: Trouble) -> Self {
        Self { trouble: Some(trouble), ..self.clone() }
    }

    /// How much longer the next start has to wait. New activity shortens the wait to the first one, so that whoever has just
    /// corrected something need not wait for long.
    pub fn wait(&self, now: Timestamp, activity: Option<&String>) -> Option<SignedDuration> {
        let last = self.last.filter(|_| !self.forgotten(now))?;
        let doublings = self.attempts.saturating_sub(1).min(16);
        let wait = FIRST_WAIT.checked_mul(1 << doublings).unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT);
        let wait = if activity == self.activity.as_ref() { wait } else { FIRST_WAIT };
        let left = wait - now.duration_since(last);
        left.is_positive().then_some(left)
    }

    fn forgotten(&self, now: Timestamp) -> bool {
        self.last.is_none_or(|last| now.duration_since(last) > FORGET_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::time;

    fn waits(starts: u32) -> History {
        (0..starts).fold(History::default(), |history, _| history.started(time(0), None))
    }

    #[test]
    fn waits_double_up_to_two_minutes() {
        let seconds = |starts| waits(starts).wait(time(0), None).map_or(0, |wait| wait.as_secs());
        assert_eq!([0, 1, 2, 3, 5, 6, 40].map(seconds), [0, 5, 10, 20, 80, 120, 120]);
    }

    #[test]
    fn new_activity_shortens_the_wait() {
        let token = "new".to_owned();
        assert_eq!(waits(9).wait(time(1), Some(&token)), Some(SignedDuration::from_secs(4)));
        assert_eq!(waits(9).wait(time(5), Some(&token)), None);
    }

    #[test]
    fn a_start_long_ago_does_not_count() {
        assert_eq!(waits(9).wait(time(601), None), None);
        assert_eq!(waits(9).started(time(601), None).wait(time(601), None), Some(FIRST_WAIT));
    }
}
