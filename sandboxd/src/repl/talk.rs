//! What is decided while a cell runs: whether its clock stands still, when it is interrupted, when it is killed. Pure; time is
//! passed in.

use crate::{
    process::shim::Report,
    repl::{
        clock::{Clock, Due},
        message::CallsMessage,
    },
    runs::run::Stop,
};
use sandboxd_protocol::{Exit, MAX_WAIT};
use std::time::Duration;
use tokio::time::Instant;

/// From the interrupt to the second one, which reaches the children that the code waits for too.
const SECOND_INTERRUPT: Duration = Duration::from_secs(1);
/// From the interrupt to the kill.
const KILL: Duration = Duration::from_secs(2);

/// Why a cell is ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    TimedOut,
    Stopped(Stop),
    /// A newer cell came while it waited for results.
    Superseded,
}

/// How a cell has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The interpreter says so, and waits for the next cell.
    Done(i32),
    /// The interpreter has ended.
    Gone(Report),
    /// The shim was killed.
    ShimLost,
    /// The control pipe is of no use any more.
    Broken(&'static str),
    /// It did not end after its interrupt.
    Killed,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Interrupt the interpreter.
    Interrupt,
    /// Interrupt it and the children in its process group.
    InterruptGroup,
    Kill,
}

/// One cell under way.
#[derive(Debug)]
pub(crate) struct Talk {
    clock: Clock,
    /// Messages with results that were sent.
    sent: u64,
    why: Option<Why>,
    /// Since when it is interrupted, and whether a second time.
    interrupted: Option<(Instant, bool)>,
}

impl Talk {
    pub(crate) fn new(timeout: Duration, now: Instant) -> Self {
        Self { clock: Clock::new(timeout, MAX_WAIT, now), sent: 0, why: None, interrupted: None }
    }

    /// Whether it waits for results and nothing else.
    pub(crate) fn is_waiting(&self) -> bool {
        self.why.is_none() && self.clock.is_waiting()
    }

    /// Whether it goes on until it ends by itself.
    pub(crate) fn is_free(&self) -> bool {
        self.why.is_none()
    }

    /// Why it was ended.
    pub(crate) fn why(&self) -> Option<Why> {
        self.why
    }

    /// When [`Self::due`] is to be asked.
    pub(crate) fn rings_at(&self) -> Instant {
        match self.interrupted {
            None => self.clock.rings_at(),
            Some((at, false)) => at + SECOND_INTERRUPT,
            Some((at, true)) => at + KILL,
        }
    }

    /// The interpreter told how its calls stand.
    pub(crate) fn told(&mut self, message: &CallsMessage, any_pending: bool, now: Instant) {
        // Said before the last results were there, it is no longer true.
        if message.idle && any_pending && message.seen == self.sent {
            self.clock.pause(now);
        } else {
            self.clock.resume(now);
        }
    }

    /// Results are on their way.
    pub(crate) fn answered(&mut self, now: Instant) {
        self.sent += 1;
        self.clock.answered(now);
    }

    /// It has to end.
    pub(crate) fn end(&mut self, why: Why, now: Instant) -> Step {
        if self.why.is_some() {
            return Step::Nothing;
        }
        self.why = Some(why);
        self.interrupted = Some((now, false));
        match why {
            // Nobody needs the interpreter after these.
            Why::Stopped(Stop::Draining | Stop::Reset) => Step::Kill,
            Why::TimedOut | Why::Superseded | Why::Stopped(Stop::Cancelled | Stop::Abandoned) => Step::Interrupt,
        }
    }

    /// What is due now.
    pub(crate) fn due(&mut self, now: Instant) -> Step {
        let Some((at, again)) = self.interrupted else {
            return match self.clock.due(now) {
                Due::Limit => self.end(Why::TimedOut, now),
                Due::WaitOver | Due::Nothing => Step::Nothing,
            };
        };
        if now >= at + KILL {
            return Step::Kill;
        }
        if again || now < at + SECOND_INTERRUPT {
            return Step::Nothing;
        }
        self.interrupted = Some((at, true));
        Step::InterruptGroup
    }
}

/// How the run ended, without what its output tells.
pub(crate) fn exit(end: End, why: Option<Why>, fresh: bool) -> Exit {
    let lost = Exit { interpreter_lost: true, ..Exit::default() };
    let killed = Exit { code: 128 + libc::SIGKILL, signal: Some(libc::SIGKILL), ..lost.clone() };
    let ended = match end {
        End::Done(code) => Exit { code, ..Exit::default() },
        End::Gone(Report::Exited(code)) => Exit { code, ..lost },
        End::Gone(Report::Signalled(n)) => Exit { code: 128 + n, signal: Some(n), ..lost },
        // There was none to lose.
        End::Gone(Report::NotStarted(_)) => Exit { code: 126, ..Exit::default() },
        End::ShimLost | End::Broken(_) | End::Killed => killed,
    };
    // Code that was interrupted may end as if nothing had been.
    let interrupted = if ended.code == 0 { 128 + libc::SIGINT } else { ended.code };
    let ended = Exit { fresh_interpreter: fresh, ..ended };
    match why {
        None | Some(Why::Stopped(Stop::Draining)) => ended,
        // As `timeout` does.
        Some(Why::TimedOut) => Exit { code: 124, timed_out: true, ..ended },
        Some(Why::Superseded) => Exit { code: interrupted, superseded: true, ..ended },
        Some(Why::Stopped(Stop::Abandoned)) => Exit { code: interrupted, abandoned: true, ..ended },
        Some(Why::Stopped(Stop::Cancelled | Stop::Reset)) => Exit { code: interrupted, cancelled: true, ..ended },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn told(idle: bool, seen: u64) -> CallsMessage {
        CallsMessage { cell: 1, calls: Vec::new(), closed: Vec::new(), idle, seen }
    }

    #[test]
    fn a_cell_that_waits_for_results_does_not_time_out() {
        let start = Instant::now();
        let mut talk = Talk::new(SECOND * 10, start);
        talk.told(&told(true, 0), true, start + SECOND);
        assert!(talk.is_waiting());
        assert_eq!(talk.due(start + SECOND * 100), Step::Nothing);
        talk.answered(start + SECOND * 100);
        // What it said before the results reached it.
        talk.told(&told(true, 0), true, start + SECOND * 101);
        assert!(!talk.is_waiting());
        assert_eq!(talk.due(start + SECOND * 109), Step::Interrupt);
        assert_eq!(talk.why(), Some(Why::TimedOut));
    }

    #[test]
    fn a_cell_without_calls_cannot_stop_its_clock() {
        let start = Instant::now();
        let mut talk = Talk::new(SECOND, start);
        talk.told(&told(true, 0), false, start);
        assert!(!talk.is_waiting());
    }

    #[test]
    fn an_interrupt_is_followed_by_a_second_and_a_kill() {
        let start = Instant::now();
        let mut talk = Talk::new(SECOND, start);
        assert_eq!(talk.end(Why::Stopped(Stop::Cancelled), start), Step::Interrupt);
        assert_eq!(talk.end(Why::TimedOut, start), Step::Nothing);
        assert_eq!(talk.rings_at(), start + SECOND);
        assert_eq!(talk.due(start + SECOND), Step::InterruptGroup);
        assert_eq!(talk.due(start + SECOND), Step::Nothing);
        assert_eq!(talk.rings_at(), start + SECOND * 2);
        assert_eq!(talk.due(start + SECOND * 2), Step::Kill);
        assert_eq!(talk.why(), Some(Why::Stopped(Stop::Cancelled)));
    }

    #[test]
    fn an_exit_tells_what_happened_to_the_interpreter() {
        let timed_out = exit(End::Done(130), Some(Why::TimedOut), false);
        assert_eq!((timed_out.code, timed_out.timed_out, timed_out.interpreter_lost), (124, true, false));
        let killed = exit(End::Killed, Some(Why::TimedOut), false);
        assert_eq!((killed.code, killed.signal, killed.timed_out, killed.interpreter_lost), (124, Some(9), true, true));
        let superseded = exit(End::Done(0), Some(Why::Superseded), true);
        assert_eq!((superseded.code, superseded.superseded, superseded.fresh_interpreter), (130, true, true));
        let gone = exit(End::Gone(Report::Exited(0)), None, false);
        assert_eq!((gone.code, gone.interpreter_lost), (0, true));
        assert!(!exit(End::Gone(Report::NotStarted(2)), None, false).interpreter_lost);
    }
}
