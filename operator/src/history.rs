//! What is remembered of one sandbox: how often a pod was made and what went wrong, and since when its activity has been the same. Kept
//! in memory, since losing it only means one start that comes early, or one suspension that comes late.

use crate::trouble::Trouble;
use crds::Quantity;
use jiff::SignedDuration;

/// First wait between two starts.
const FIRST_WAIT: SignedDuration = SignedDuration::from_secs(5);
/// Longest wait: a quota that has room again is noticed within it.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(120);
/// Starts longer ago than this do not count: that pod lived.
const FORGET_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// What is remembered of one sandbox. Times are those of the monotonic clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    attempts: u32,
    last: Option<SignedDuration>,
    activity: Option<String>,
    /// Why the last pod ended or could not be made; cleared when one is made.
    pub trouble: Option<Trouble>,
    /// Since when the activity has been the same.
    pub sight: Option<Sight>,
    /// The size that the workspace cannot have, and why.
    pub resize_refused: Option<(Quantity, Trouble)>,
}

/// An activity token, and since when this process has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    activity: Option<String>,
    /// When it was first seen.
    pub seen: SignedDuration,
    /// When the sandbox was first seen Ready with it. A pod that is replaced after that starts no new count.
    pub ready: Option<SignedDuration>,
}

impl History {
    /// With one more start.
    #[must_use]
    pub fn started(&self, now: SignedDuration, activity: Option<&String>) -> Self {
        Self {
            attempts: if self.forgotten(now) { 1 } else { self.attempts.saturating_add(1) },
            last: Some(now),
            activity: activity.cloned(),
            ..self.clone()
        }
    }

    /// With what went wrong.
    #[must_use]
    pub fn failed(&self, trouble: Trouble) -> Self {
        Self { trouble: Some(trouble), ..self.clone() }
    }

    /// With what is seen now.
    #[must_use]
    pub fn sighted(&self, now: SignedDuration, activity: Option<&String>, ready: bool) -> Self {
        let same = self.sight.as_ref().filter(|sight| sight.activity.as_ref() == activity);
        let (seen, known) = same.map_or((now, None), |sight| (sight.seen, sight.ready));
        let sight = Sight { activity: activity.cloned(), seen, ready: known.or_else(|| ready.then_some(now)) };
        Self { sight: Some(sight), ..self.clone() }
    }

    /// Of a sandbox without a pod, and none to come: the next start is the first one.
    #[must_use]
    pub fn rested(&self) -> Self {
        Self { resize_refused: self.resize_refused.clone(), ..Self::default() }
    }

    /// How much longer the next start has to wait. New activity shortens the wait to the first one, so that whoever has just
    /// corrected something need not wait for long.
    pub fn wait(&self, now: SignedDuration, activity: Option<&String>) -> Option<SignedDuration> {
        let last = self.last.filter(|_| !self.forgotten(now))?;
        let doublings = self.attempts.saturating_sub(1).min(16);
        let wait = FIRST_WAIT.checked_mul(1 << doublings).unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT);
        let wait = if activity == self.activity.as_ref() { wait } else { FIRST_WAIT };
        let left = wait.saturating_sub(now.saturating_sub(last));
        left.is_positive().then_some(left)
    }

    fn forgotten(&self, now: SignedDuration) -> bool {
        self.last.is_none_or(|last| now.saturating_sub(last) > FORGET_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: i64) -> SignedDuration {
        SignedDuration::from_secs(seconds)
    }

    fn waits(starts: u32) -> History {
        (0..starts).fold(History::default(), |history, _| history.started(at(0), None))
    }

    #[test]
    fn waits_double_up_to_two_minutes() {
        let seconds = |starts| waits(starts).wait(at(0), None).map_or(0, |wait| wait.as_secs());
        assert_eq!([0, 1, 2, 3, 5, 6, 40].map(seconds), [0, 5, 10, 20, 80, 120, 120]);
    }

    #[test]
    fn new_activity_shortens_the_wait() {
        let token = "new".to_owned();
        assert_eq!(waits(9).wait(at(1), Some(&token)), Some(at(4)));
        assert_eq!(waits(9).wait(at(5), Some(&token)), None);
    }

    #[test]
    fn a_start_long_ago_does_not_count() {
        assert_eq!(waits(9).wait(at(601), None), None);
        assert_eq!(waits(9).started(at(601), None).wait(at(601), None), Some(FIRST_WAIT));
    }

    #[test]
    fn the_count_begins_again_with_each_new_token_and_with_nothing_else() {
        let (first, second) = ("first".to_owned(), "second".to_owned());
        let sight = |history: &History| history.sight.clone().map(|sight| (sight.seen, sight.ready));
        let seen = History::default().sighted(at(1), Some(&first), false);
        assert_eq!(sight(&seen), Some((at(1), None)));
        let ready = seen.sighted(at(5), Some(&first), true).sighted(at(9), Some(&first), false);
        assert_eq!(sight(&ready), Some((at(1), Some(at(5)))));
        assert_eq!(sight(&ready.sighted(at(20), Some(&second), true)), Some((at(20), Some(at(20)))));
    }
}
