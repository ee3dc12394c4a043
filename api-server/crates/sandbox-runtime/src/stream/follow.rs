//! What comes of a run: its frames, put together over all answers and bounded.

use super::{
    RunOutcome,
    cell::Expected,
    connection::{Answer, chain},
};
use bytes::BytesMut;
use http_body_util::BodyExt;
use sandboxd_protocol::{Exit, Frame, FrameDecoder, Limits, ToolCall};
use tokio::time::{Duration, Instant, timeout_at};

/// How much longer than its own limit a run may take.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// Bytes that `sandboxd` may add to a stream that it cuts.
const MARKER: u64 = 64;

/// Where a followed answer ended.
pub(super) enum End {
    Exit(Exit),
    /// The cell makes calls, and goes on when their results are there.
    Calls(Vec<ToolCall>),
    Lost(String),
    Deadline,
    Violation(String),
}

/// What has come of a run so far, over all its answers.
pub(super) struct Follow {
    limit: Duration,
    cap: u64,
    pub(super) until: Instant,
    pub(super) started: bool,
    stdout: BytesMut,
    stderr: BytesMut,
    /// Which calls may come; none unless the run is a cell.
    expected: Option<Expected>,
}

impl Follow {
    pub(super) fn new(limits: Limits, expected: Option<Expected>, now: Instant) -> Self {
        let limit = Duration::from_millis(limits.timeout_ms);
        let cap = limits.output_bytes.saturating_add(MARKER);
        // Its own clock starts with the run: until then it waits for its turn, just as long.
        let until = now + limit + GRACE;
        Self { limit, cap, until, started: false, stdout: BytesMut::new(), stderr: BytesMut::new(), expected }
    }

    /// Where a joiner goes on.
    pub(super) fn query(&self) -> String {
        let calls = self.expected.as_ref().map_or_else(String::new, |expected| format!("&calls={}", expected.seen));
        format!("out={}&err={}{calls}", self.stdout.len(), self.stderr.len())
    }

    /// Takes a frame; a value ends the answer.
    fn take(&mut self, frame: Frame, now: Instant) -> Option<End> {
        let (kept, data) = match frame {
            Frame::Started if self.started => return None,
            Frame::Started => {
                self.started = true;
                self.until = now + self.limit + GRACE;
                return None;
            }
            Frame::Stdout(data) => (&mut self.stdout, data),
            Frame::Stderr(data) => (&mut self.stderr, data),
            Frame::Calls(list) => {
                let unasked = || Err("a run without tools asked for calls".to_owned());
                let taken = self.expected.as_mut().map_or_else(unasked, |expected| expected.take(&list));
                return Some(taken.map_or_else(End::Violation, End::Calls));
            }
            Frame::Exit(exit) => return Some(End::Exit(exit)),
        };
        if (kept.len() + data.len()) as u64 > self.cap {
            return Some(End::Violation("the sandbox sent more output than its limit".to_owned()));
        }
        kept.extend_from_slice(&data);
        None
    }

    /// Reads an answer to its end.
    pub(super) async fn read(&mut self, answer: &mut Answer) -> End {
        let mut decoder = FrameDecoder::default();
        loop {
            loop {
                match decoder.next_frame() {
                    Ok(None) => break,
                    Ok(Some(frame)) => {
                        if let Some(end) = self.take(frame, Instant::now()) {
                            return end;
                        }
                    }
                    Err(e) => return End::Violation(e.to_string()),
                }
            }
            match timeout_at(self.until, answer.body.frame()).await {
                Err(_) => return End::Deadline,
                Ok(None) => return End::Lost("the answer ended without an exit".to_owned()),
                Ok(Some(Err(e))) => return End::Lost(chain(&e)),
                Ok(Some(Ok(frame))) => decoder.push(&frame.into_data().unwrap_or_default()),
            }
        }
    }

    pub(super) fn outcome(self, exit: Exit) -> RunOutcome {
        RunOutcome { stdout: self.stdout.freeze(), stderr: self.stderr.freeze(), exit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn more_output_than_the_limit_is_refused() {
        let now = Instant::now();
        let mut follow = Follow::new(Limits { timeout_ms: 1000, output_bytes: 100 }, None, now);
        assert!(follow.take(Frame::Stdout(Bytes::from(vec![0; 100])), now).is_none());
        assert!(follow.take(Frame::Stderr(Bytes::from(vec![0; 164])), now).is_none());
        assert!(matches!(follow.take(Frame::Stdout(Bytes::from(vec![0; 65])), now), Some(End::Violation(_))));
    }

    #[test]
    fn calls_of_a_run_without_tools_are_refused() {
        let now = Instant::now();
        let mut follow = Follow::new(Limits { timeout_ms: 1000, output_bytes: 100 }, None, now);
        assert!(matches!(follow.take(Frame::Calls("[]".into()), now), Some(End::Violation(_))));
    }
}
