//! One run: its output, how it stands, and who follows it.

mod cells;
mod kept;

use crate::{names::RunId, repl::calls::Calls};
use bytes::{Bytes, BytesMut};
use kept::{Kept, unnamed_file};
use sandboxd_protocol::{ErrorBody, Exit, Frame};
use std::os::unix::fs::FileExt as _;
use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// SHA-256 of a request's body: the same id with another body is a conflict.
pub(crate) type BodyDigest = [u8; 32];

/// How a run stands.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// It waits for its turn.
    Waiting,
    /// It was started.
    Running,
    /// It could not be started; nothing of it ran.
    Refused(ErrorBody),
    /// It ended.
    Ended(Exit),
}

/// Why a run is ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// `DELETE`.
    Cancelled,
    /// Nobody followed it for too long.
    Abandoned,
    /// `POST /reset`, or a run that restarts.
    Reset,
    /// `sandboxd` is stopping.
    Draining,
}

/// One of the two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    Stdout,
    Stderr,
}

#[derive(Debug)]
struct Log {
    phase: Phase,
    started: bool,
    stdout: Kept,
    stderr: Kept,
    calls: Calls,
    /// It does nothing but wait for results of its calls.
    waiting: bool,
    stop: Option<Stop>,
    followers: usize,
    unfollowed_since: Option<Instant>,
}

impl Log {
    fn of(&mut self, channel: Channel) -> &mut Kept {
        match channel {
            Channel::Stdout => &mut self.stdout,
            Channel::Stderr => &mut self.stderr,
        }
    }
}

/// One run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) body: BodyDigest,
    output_limit: usize,
    log: Mutex<Log>,
    /// Something that followers show has changed.
    changed: Notify,
    /// Something that the driver reacts to has changed; only the driver waits.
    control: Notify,
    /// Results of calls have come; only the driver waits.
    answered: Notify,
}

impl Run {
    /// A run that waits, followed by nobody yet.
    pub(crate) fn new(id: RunId, body: BodyDigest, output_limit: usize, now: Instant) -> Self {
        let log = Log {
            phase: Phase::Waiting,
            started: false,
            stdout: Kept::default(),
            stderr: Kept::default(),
            calls: Calls::default(),
            waiting: false,
            stop: None,
            followers: 0,
            unfollowed_since: Some(now),
        };
        let (changed, control, answered) = (Notify::new(), Notify::new(), Notify::new());
        Self { id, body, output_limit, log: Mutex::new(log), changed, control, answered }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.log().phase.clone()
    }

    /// Bytes of output and calls that are kept for it.
    pub(crate) fn kept_bytes(&self) -> usize {
        let log = self.log();
        log.stdout.len() + log.stderr.len() + log.calls.kept_bytes()
    }

    /// Keeps output up to the limit and drops the rest.
    pub(crate) fn push(&self, channel: Channel, data: &[u8]) {
        self.log().of(channel).push(data, self.output_limit);
        self.changed.notify_waiters();
    }

    pub(crate) fn set_running(&self) {
        let mut log = self.log();
        log.phase = Phase::Running;
        log.started = true;
        drop(log);
        self.changed.notify_waiters();
    }

    pub(crate) fn refuse(&self, why: ErrorBody) {
        self.log().phase = Phase::Refused(why);
        self.changed.notify_waiters();
    }

    /// Ends it. Whether output was cut is known here and filled in.
    pub(crate) fn end(&self, exit: &Exit) {
        let mut log = self.log();
        let (stdout_truncated, stderr_truncated) = (log.stdout.is_truncated(), log.stderr.is_truncated());
        log.phase = Phase::Ended(Exit { stdout_truncated, stderr_truncated, ..exit.clone() });
        log.stdout.shrink();
        log.stderr.shrink();
        drop(log);
        self.changed.notify_waiters();
    }

    /// Moves the output of a run that has ended into a file without a name. May wait for the disk; meanwhile the output is followed
    /// from memory.
    pub(crate) fn move_to(&self, folder: &Path) -> io::Result<()> {
        let file = Arc::new(unnamed_file(folder)?);
        let mut start = 0;
        for channel in [Channel::Stdout, Channel::Stderr] {
            let mut written = 0;
            loop {
                let piece = self.log().of(channel).after(written)?.into_owned();
                if piece.is_empty() {
                    break;
                }
                file.write_all_at(&piece, start + written as u64)?;
                written += piece.len();
            }
            self.log().of(channel).lies_in(&file, start);
            start += written as u64;
        }
        Ok(())
    }

    /// Asks the driver to end it; the first reason stays.
    pub(crate) fn request_stop(&self, why: Stop) {
        self.log().stop.get_or_insert(why);
        self.control.notify_one();
    }

    /// Waits until the run has to be stopped. For the driver only.
    pub(crate) async fn stop_requested(&self, abandoned_after: Duration) -> Stop {
        loop {
            let (stop, unfollowed_since) = {
                let log = self.log();
                (log.stop, log.unfollowed_since.filter(|_| !log.waiting))
            };
            if let Some(stop) = stop {
                return stop;
            }
            let Some(since) = unfollowed_since else {
                self.control.notified().await;
                continue;
            };
            let deadline = since + abandoned_after;
            if Instant::now() >= deadline {
                return Stop::Abandoned;
            }
            // Woken or not, the loop looks again.
            let _ = tokio::time::timeout_at(deadline, self.control.notified()).await;
        }
    }

    /// Waits until the run is no longer waiting.
    pub(crate) async fn decided(&self) -> Phase {
        loop {
            let changed = self.changed.notified();
            match self.phase() {
                Phase::Waiting => changed.await,
                phase @ (Phase::Running | Phase::Refused(_) | Phase::Ended(_)) => return phase,
            }
        }
    }

    /// Waits until the run has ended or was refused.
    pub(crate) async fn over(&self) {
        loop {
            let changed = self.changed.notified();
            match self.phase() {
                Phase::Waiting | Phase::Running => changed.await,
                Phase::Refused(_) | Phase::Ended(_) => return,
            }
        }
    }

    /// Follows the run after its first bytes. The run counts as followed until the follower is dropped.
    pub(crate) fn follow(self: &Arc<Self>, stdout: u64, stderr: u64) -> Follower {
        let mut log = self.log();
        log.followers += 1;
        log.unfollowed_since = None;
        drop(log);
        let offset = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let (stdout, stderr) = (offset(stdout), offset(stderr));
        Follower { run: Arc::clone(self), stdout, stderr, calls: 0, started: false, over: false }
    }
}

/// One reader of a run's frames. It pulls, so that a slow reader delays nobody.
#[derive(Debug)]
pub(crate) struct Follower {
    run: Arc<Run>,
    stdout: usize,
    stderr: usize,
    calls: usize,
    started: bool,
    over: bool,
}

impl Follower {
    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// Leaves out the first calls.
    pub(crate) fn after_calls(mut self, calls: u64) -> Self {
        self.calls = usize::try_from(calls).unwrap_or(usize::MAX);
        self
    }

    /// The next frames, encoded; `None` after the last. A run that was refused has no frames at all. An error, after which nothing
    /// comes, when kept output cannot be read.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let run = Arc::clone(&self.run);
        loop {
            let changed = run.changed.notified();
            if self.over {
                return None;
            }
            let frames = self.take();
            self.over |= frames.is_err();
            if frames.as_ref().map_or(true, |frames| !frames.is_empty()) {
                return Some(frames);
            }
            if !self.over {
                changed.await;
            }
        }
    }

    fn take(&mut self) -> io::Result<Bytes> {
        let log = self.run.log();
        let mut out = BytesMut::new();
        if log.started && !self.started {
            self.started = true;
            out.extend_from_slice(&Frame::Started.encode());
        }
        let stdout = log.stdout.after(self.stdout)?;
        if !stdout.is_empty() {
            self.stdout += stdout.len();
            out.extend_from_slice(&Frame::Stdout(Bytes::from(stdout.into_owned())).encode());
        }
        let stderr = log.stderr.after(self.stderr)?;
        if !stderr.is_empty() {
            self.stderr += stderr.len();
            out.extend_from_slice(&Frame::Stderr(Bytes::from(stderr.into_owned())).encode());
        }
        let (calls, list) = log.calls.after(self.calls);
        if calls > 0 {
            self.calls += calls;
            out.extend_from_slice(&Frame::Calls(list.into()).encode());
        }
        let all_sent =
            self.stdout >= log.stdout.len() && self.stderr >= log.stderr.len() && log.calls.after(self.calls).0 == 0;
        match &log.phase {
            Phase::Refused(_) => self.over = true,
            Phase::Ended(exit) if all_sent => {
                self.over = true;
                out.extend_from_slice(&Frame::Exit(exit.clone()).encode());
            }
            Phase::Waiting | Phase::Running | Phase::Ended(_) => {}
        }
        Ok(out.freeze())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut log = self.run.log();
        log.followers = log.followers.saturating_sub(1);
        if log.followers == 0 {
            log.unfollowed_since = Some(Instant::now());
            drop(log);
            self.run.control.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandboxd_protocol::FrameDecoder;

    fn run(limit: usize) -> Arc<Run> {
        Arc::new(Run::new(RunId::parse("r").unwrap(), [0; 32], limit, Instant::now()))
    }

    async fn frames(mut follower: Follower) -> Vec<Frame> {
        let mut decoder = FrameDecoder::default();
        while let Some(bytes) = follower.next().await {
            decoder.push(&bytes.unwrap());
        }
        std::iter::from_fn(|| decoder.next_frame().unwrap()).collect()
    }

    #[tokio::test]
    async fn output_is_cut_at_the_limit_and_says_so() {
        let run = run(4);
        run.set_running();
        run.push(Channel::Stdout, b"abc");
        run.push(Channel::Stdout, b"def");
        run.push(Channel::Stderr, b"1234");
        run.end(&Exit { code: 7, ..Exit::default() });
        let exit = Exit { code: 7, stdout_truncated: true, ..Exit::default() };
        let expected = [Frame::Started, Frame::Stdout("abcd".into()), Frame::Stderr("1234".into()), Frame::Exit(exit)];
        assert_eq!(frames(run.follow(0, 0)).await, expected);
    }

    #[tokio::test]
    async fn a_joiner_gets_what_follows_its_offsets() {
        let run = run(100);
        run.set_running();
        run.push(Channel::Stdout, b"abcdef");
        run.end(&Exit::default());
        let joined = frames(run.follow(4, 9)).await;
        assert_eq!(joined, [Frame::Started, Frame::Stdout("ef".into()), Frame::Exit(Exit::default())]);
    }

    #[tokio::test]
    async fn a_result_is_the_same_wherever_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let (stdout, stderr) = ("o".repeat(200_000), "e".repeat(100_000));
        let run = run(1 << 20);
        run.set_running();
        run.push(Channel::Stdout, stdout.as_bytes());
        run.push(Channel::Stderr, stderr.as_bytes());
        run.end(&Exit::default());
        let mut early = run.follow(0, 0);
        let mut decoder = FrameDecoder::default();
        decoder.push(&early.next().await.unwrap().unwrap());
        let in_memory = (run.kept_bytes(), frames(run.follow(150_000, 7)).await);
        run.move_to(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it has no name");
        assert_eq!((run.kept_bytes(), frames(run.follow(150_000, 7)).await), in_memory);
        while let Some(bytes) = early.next().await {
            decoder.push(&bytes.unwrap());
        }
        let all: Vec<Frame> = std::iter::from_fn(|| decoder.next_frame().unwrap()).collect();
        assert_eq!(all, frames(run.follow(0, 0)).await);
    }

    #[tokio::test]
    async fn a_refused_run_has_no_frames() {
        let run = run(100);
        run.refuse(ErrorBody { code: sandboxd_protocol::ErrorCode::Draining, message: "stopping".into() });
        assert_eq!(frames(run.follow(0, 0)).await, []);
    }

    #[tokio::test]
    async fn a_run_is_abandoned_only_while_nobody_follows() {
        let run = run(1);
        let follower = run.follow(0, 0);
        let patience = Duration::from_millis(1);
        let wait = tokio::time::timeout(Duration::from_millis(50), run.stop_requested(patience));
        assert!(wait.await.is_err());
        drop(follower);
        assert_eq!(run.stop_requested(patience).await, Stop::Abandoned);
    }

    #[tokio::test]
    async fn the_first_reason_to_stop_stays() {
        let run = run(1);
        run.request_stop(Stop::Cancelled);
        run.request_stop(Stop::Draining);
        assert_eq!(run.stop_requested(Duration::from_secs(30)).await, Stop::Cancelled);
    }
}
