//! Which runs there are: each id once, finished results for a while, forgotten ids remembered by their digest. No IO.

use crate::{
    names::RunId,
    runs::run::{BodyDigest, Phase, Run},
};
use sandboxd_protocol::{ErrorBody, ErrorCode, RUNNING_RUNS, State, WAITING_RUNS};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// How long a finished result is kept.
const KEPT_FOR: Duration = Duration::from_mins(15);
/// How many finished results are kept.
const KEPT_RESULTS: usize = 256;
/// Bytes of output kept in finished results.
const KEPT_BYTES: usize = 64 * 1024 * 1024;
/// Forgotten ids that are remembered; 16 bytes each.
const REMEMBERED: usize = 65_536;

/// A refusal.
pub(crate) fn refusal(code: ErrorCode, message: impl Into<String>) -> ErrorBody {
    ErrorBody { code, message: message.into() }
}

/// What a `PUT` meets.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Nobody used the id: the run may be made.
    New,
    /// The run exists with the same body.
    Join(Arc<Run>),
}

/// All runs of this boot.
#[derive(Debug, Default)]
pub(crate) struct Table {
    live: HashMap<RunId, Arc<Run>>,
    finished: HashMap<RunId, (Arc<Run>, usize)>,
    order: VecDeque<(Instant, RunId)>,
    kept_bytes: usize,
    forgotten: HashSet<u128>,
    forgotten_order: VecDeque<u128>,
    /// Some forgotten ids are no longer remembered: "never seen" cannot be said any more.
    overflowed: bool,
    draining: bool,
}

impl Table {
    /// Decides about a `PUT`. A run that is refused here leaves no trace: its id may be used again.
    pub(crate) fn admit(&mut self, id: &RunId, body: &BodyDigest, now: Instant) -> Result<Admission, ErrorBody> {
        self.expire(now);
        if let Some(run) = self.known(id) {
            return if run.body == *body {
                Ok(Admission::Join(run))
            } else {
                Err(refusal(ErrorCode::Conflict, "this run id is taken by another request"))
            };
        }
        if self.forgotten.contains(&id.digest()) {
            return Err(refusal(ErrorCode::Gone, "this run ended and its result is no longer kept"));
        }
        if self.draining {
            return Err(draining());
        }
        if self.live.len() >= RUNNING_RUNS + WAITING_RUNS {
            let message = format!("{RUNNING_RUNS} commands run and {WAITING_RUNS} wait already");
            return Err(refusal(ErrorCode::TooManyRequests, message));
        }
        Ok(Admission::New)
    }

    /// Finds a run for `GET` and `DELETE`.
    pub(crate) fn find(&mut self, id: &RunId, now: Instant) -> Result<Arc<Run>, ErrorBody> {
        self.expire(now);
        if let Some(run) = self.known(id) {
            return Ok(run);
        }
        // Without certainty that it was never seen the answer is the one after which nobody runs it again.
        if self.overflowed || self.forgotten.contains(&id.digest()) {
            return Err(refusal(ErrorCode::Gone, "this run ended and its result is no longer kept"));
        }
        Err(refusal(ErrorCode::NotFound, "no run of this id was seen since the sandbox started"))
    }

    fn known(&self, id: &RunId) -> Option<Arc<Run>> {
        self.live.get(id).or_else(|| self.finished.get(id).map(|(run, _)| run)).cloned()
    }

    /// Takes a run that [`Self::admit`] let in.
    pub(crate) fn insert(&mut self, run: Arc<Run>) {
        self.live.insert(run.id.clone(), run);
    }

    /// Forgets a run of which nothing was started, as if it had never come.
    pub(crate) fn withdraw(&mut self, id: &RunId) {
        self.live.remove(id);
    }

    /// Moves an ended run to the finished ones.
    pub(crate) fn finish(&mut self, id: &RunId, now: Instant) {
        let Some(run) = self.live.remove(id) else { return };
        let bytes = run.kept_bytes();
        self.kept_bytes += bytes;
        self.finished.insert(id.clone(), (run, bytes));
        self.order.push_back((now, id.clone()));
        self.expire(now);
    }

    fn expire(&mut self, now: Instant) {
        while let Some((ended, id)) = self.order.front() {
            let full = self.order.len() > KEPT_RESULTS || self.kept_bytes > KEPT_BYTES;
            if !full && now.saturating_duration_since(*ended) < KEPT_FOR {
                return;
            }
            if let Some((_, bytes)) = self.finished.remove(id) {
                self.kept_bytes -= bytes;
            }
            let digest = id.digest();
            self.order.pop_front();
            self.remember(digest);
        }
    }

    fn remember(&mut self, digest: u128) {
        if self.forgotten_order.len() >= REMEMBERED
            && let Some(oldest) = self.forgotten_order.pop_front()
        {
            self.forgotten.remove(&oldest);
            self.overflowed = true;
        }
        if self.forgotten.insert(digest) {
            self.forgotten_order.push_back(digest);
        }
    }

    /// From now on nothing new is started; the runs that have not ended.
    pub(crate) fn drain(&mut self) -> Vec<Arc<Run>> {
        self.draining = true;
        self.live()
    }

    /// The runs that have not ended.
    pub(crate) fn live(&self) -> Vec<Arc<Run>> {
        self.live.values().cloned().collect()
    }

    /// What `GET /state` tells.
    pub(crate) fn state(&mut self, now: Instant) -> State {
        self.expire(now);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let waiting = self.live.values().filter(|run| matches!(run.phase(), Phase::Waiting)).count();
        State {
            running: count(self.live.len() - waiting),
            waiting: count(waiting),
            kept: count(self.finished.len()),
            cell: self.live.values().find_map(|run| run.waiting_cell()),
        }
    }
}

/// The refusal of everything that was not started before SIGTERM.
pub(crate) fn draining() -> ErrorBody {
    refusal(ErrorCode::Draining, "the sandbox is stopping; nothing of this request was started")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::run::Channel;
    use sandboxd_protocol::Exit;

    fn id(n: usize) -> RunId {
        RunId::parse(&format!("run-{n}")).unwrap()
    }

    fn add(table: &mut Table, n: usize, output: usize, now: Instant) -> Arc<Run> {
        assert!(matches!(table.admit(&id(n), &[0; 32], now), Ok(Admission::New)));
        let run = Arc::new(Run::new(id(n), [0; 32], output, now));
        run.push(Channel::Stdout, &vec![0; output]);
        table.insert(Arc::clone(&run));
        run
    }

    fn code<T: std::fmt::Debug>(result: Result<T, ErrorBody>) -> ErrorCode {
        result.unwrap_err().code
    }

    #[test]
    fn the_same_body_joins_and_another_conflicts() {
        let (mut table, now) = (Table::default(), Instant::now());
        add(&mut table, 1, 0, now);
        assert!(matches!(table.admit(&id(1), &[0; 32], now), Ok(Admission::Join(_))));
        assert_eq!(code(table.admit(&id(1), &[1; 32], now)), ErrorCode::Conflict);
        table.finish(&id(1), now);
        assert!(matches!(table.admit(&id(1), &[0; 32], now), Ok(Admission::Join(_))));
    }

    #[test]
    fn a_result_is_gone_after_its_time_and_never_runs_again() {
        let (mut table, now) = (Table::default(), Instant::now());
        add(&mut table, 1, 0, now);
        table.finish(&id(1), now);
        assert!(table.find(&id(1), now + KEPT_FOR - Duration::from_secs(1)).is_ok());
        assert_eq!(code(table.find(&id(1), now + KEPT_FOR)), ErrorCode::Gone);
        assert_eq!(code(table.admit(&id(1), &[0; 32], now + KEPT_FOR)), ErrorCode::Gone);
        assert_eq!(code(table.find(&id(2), now)), ErrorCode::NotFound);
    }

    #[test]
    fn results_are_bounded_in_number_and_bytes() {
        let (mut table, now) = (Table::default(), Instant::now());
        for n in 0..=KEPT_RESULTS {
            add(&mut table, n, 0, now);
            table.finish(&id(n), now);
        }
        assert_eq!(table.state(now).kept, 256);
        assert_eq!(code(table.find(&id(0), now)), ErrorCode::Gone);
        add(&mut table, 1000, KEPT_BYTES, now);
        table.finish(&id(1000), now);
        assert_eq!((table.state(now).kept, table.find(&id(1000), now).is_ok()), (256, true));
        add(&mut table, 1001, 1, now);
        table.finish(&id(1001), now);
        assert_eq!(table.state(now).kept, 1);
    }

    #[test]
    fn too_many_are_refused_and_leave_no_trace() {
        let (mut table, now) = (Table::default(), Instant::now());
        for n in 0..RUNNING_RUNS + WAITING_RUNS {
            add(&mut table, n, 0, now);
        }
        assert_eq!(code(table.admit(&id(99), &[0; 32], now)), ErrorCode::TooManyRequests);
        assert_eq!(code(table.find(&id(99), now)), ErrorCode::NotFound);
        table.finish(&id(0), now);
        assert!(matches!(table.admit(&id(99), &[0; 32], now), Ok(Admission::New)));
    }

    #[test]
    fn a_run_of_which_nothing_was_started_may_come_again() {
        let (mut table, now) = (Table::default(), Instant::now());
        add(&mut table, 1, 0, now).refuse(draining());
        table.withdraw(&id(1));
        assert!(matches!(table.admit(&id(1), &[5; 32], now), Ok(Admission::New)));
    }

    #[test]
    fn draining_refuses_new_runs_and_still_joins_old_ones() {
        let (mut table, now) = (Table::default(), Instant::now());
        add(&mut table, 1, 0, now).end(&Exit::default());
        table.finish(&id(1), now);
        table.drain();
        assert_eq!(code(table.admit(&id(2), &[0; 32], now)), ErrorCode::Draining);
        assert!(matches!(table.admit(&id(1), &[0; 32], now), Ok(Admission::Join(_))));
    }

    #[test]
    fn once_memory_of_forgotten_ids_overflows_nothing_is_called_never_seen() {
        let (mut table, now) = (Table::default(), Instant::now());
        (0..=REMEMBERED as u128).for_each(|digest| table.remember(digest));
        assert_eq!(code(table.find(&id(5), now)), ErrorCode::Gone);
        assert!(matches!(table.admit(&id(5), &[0; 32], now), Ok(Admission::New)));
    }
}
