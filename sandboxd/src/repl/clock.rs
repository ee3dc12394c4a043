//! The clock of a cell: it stands still while the cell waits for results. Pure; time is passed in.

use std::time::Duration;
use tokio::time::Instant;

/// How the clock stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running { since: Instant },
    Waiting { since: Instant },
}

/// What is due when the clock rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// The time is used up.
    Limit,
    /// It stood still for as long as it may, and goes on.
    WaitOver,
    /// Nothing yet.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    limit: Duration,
    used: Duration,
    /// How long it may stand still until a result comes.
    max_wait: Duration,
    waited: Duration,
    state: State,
}

impl Clock {
    pub(crate) fn new(limit: Duration, max_wait: Duration, now: Instant) -> Self {
        let state = State::Running { since: now };
        Self { limit, used: Duration::ZERO, max_wait, waited: Duration::ZERO, state }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// When it rings.
    pub(crate) fn rings_at(&self) -> Instant {
        match self.state {
            State::Running { since } => since + self.limit.saturating_sub(self.used),
            State::Waiting { since } => since + self.max_wait.saturating_sub(self.waited),
        }
    }

    /// Stands still, unless it has done so for long enough.
    pub(crate) fn pause(&mut self, now: Instant) {
        if let State::Running { since } = self.state
            && self.waited < self.max_wait
        {
            self.used += now.saturating_duration_since(since);
            self.state = State::Waiting { since: now };
        }
    }

    /// Goes on.
    pub(crate) fn resume(&mut self, now: Instant) {
        if let State::Waiting { since } = self.state {
            self.waited += now.saturating_duration_since(since);
            self.state = State::Running { since: now };
        }
    }

    /// Goes on since results have come, and may stand still as long again.
    pub(crate) fn answered(&mut self, now: Instant) {
        self.resume(now);
        self.waited = Duration::ZERO;
    }

    /// What is due now.
    pub(crate) fn due(&mut self, now: Instant) -> Due {
        if now < self.rings_at() {
            return Due::Nothing;
        }
        if self.is_waiting() {
            self.resume(now);
            return Due::WaitOver;
        }
        Due::Limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn clock() -> (Clock, Instant) {
        let now = Instant::now();
        (Clock::new(SECOND * 10, SECOND * 30, now), now)
    }

    #[test]
    fn time_that_is_spent_waiting_does_not_count() {
        let (mut clock, start) = clock();
        clock.pause(start + SECOND * 4);
        clock.answered(start + SECOND * 24);
        assert_eq!(clock.rings_at(), start + SECOND * 30);
        assert_eq!(clock.due(start + SECOND * 29), Due::Nothing);
        assert_eq!(clock.due(start + SECOND * 30), Due::Limit);
    }

    #[test]
    fn a_clock_stands_still_only_so_long_until_a_result_comes() {
        let (mut clock, start) = clock();
        clock.pause(start);
        // Going on and waiting again gives no more of it.
        clock.resume(start + SECOND * 20);
        clock.pause(start + SECOND * 21);
        assert_eq!(clock.due(start + SECOND * 31), Due::WaitOver);
        clock.pause(start + SECOND * 31);
        assert!(!clock.is_waiting());
        assert_eq!(clock.rings_at(), start + SECOND * 40);
        clock.answered(start + SECOND * 32);
        clock.pause(start + SECOND * 32);
        assert!(clock.is_waiting());
    }

    #[test]
    fn a_second_pause_and_a_second_start_change_nothing() {
        let (mut clock, start) = clock();
        clock.resume(start + SECOND);
        assert_eq!(clock.rings_at(), start + SECOND * 10);
        clock.pause(start + SECOND);
        clock.pause(start + SECOND * 5);
        assert_eq!(clock.rings_at(), start + SECOND * 31);
    }
}
