//! Runs: exactly once, or an honest "unknown".
//!
//! A request whose answer was lost is never simply sent again. The run is asked for by its id; only when the same start of
//! `sandboxd` has never seen it, it is sent again. Another start of `sandboxd` means that nobody knows.

use super::{
    RunOutcome,
    connection::{Answer, Connection, Refusal, RequestError, chain, request},
    pool::{ConnectError, Streams},
};
use crate::{Half, InstanceId};
use bytes::{Bytes, BytesMut};
use http::{Method, Request};
use http_body_util::BodyExt;
use sandboxd_protocol::{BootId, ErrorCode, Exit, Frame, FrameDecoder, RunRequest};
use std::sync::Arc;
use tokio::time::{Duration, Instant, timeout, timeout_at};

/// How much longer than its own limit a run may take.
const GRACE: Duration = Duration::from_secs(5);
/// Time for a DELETE.
const DELETE: Duration = Duration::from_secs(10);
/// Bytes that `sandboxd` may add to a stream that it cuts.
const MARKER: u64 = 64;
/// Requests for one run: the first, and those after lost answers. The pool refuses a stream that breaks all the time; this
/// bounds answers that end early on a whole stream.
const REQUESTS: usize = 6;

/// Why a run has no outcome, as far as it matters for what to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RunFailure {
    /// It did not run, and another instance may run it.
    Elsewhere(String),
    /// It did not run.
    NotRun(String),
    /// It did not run: too many at a time.
    TooMany,
    /// It may have run.
    Unknown(String),
}

/// What a refusal means.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    SendAgain,
    Fail(RunFailure),
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The run was sent, and never before.
    First,
    /// The run was sent once more, after its id was not known.
    Again,
    /// The run was asked for.
    Join,
}

fn after_refusal(asked: Asked, refusal: Refusal) -> Next {
    let Refusal { code, message } = refusal;
    let failure = match (asked, code) {
        (Asked::Join, ErrorCode::NotFound) => return Next::SendAgain,
        (Asked::First, ErrorCode::TooManyRequests) => RunFailure::TooMany,
        (Asked::First, ErrorCode::Draining) => RunFailure::Elsewhere("the sandbox is stopping".to_owned()),
        (Asked::First, ErrorCode::Gone) => RunFailure::Unknown("ran before, and its result is forgotten".to_owned()),
        (
            Asked::First,
            ErrorCode::BadRequest
            | ErrorCode::Forbidden
            | ErrorCode::NotFound
            | ErrorCode::Conflict
            | ErrorCode::TooLarge
            | ErrorCode::Mismatch
            | ErrorCode::Unavailable
            | ErrorCode::NoSpace,
        ) => RunFailure::NotRun(message),
        (Asked::Again | Asked::Join, _) => RunFailure::Unknown(format!("asked again, and refused: {message}")),
    };
    Next::Fail(failure)
}

/// Where a followed answer ended.
enum End {
    Exit(Exit),
    Lost(String),
    Deadline,
    Violation(String),
}

/// What has come of a run so far, over all its answers.
struct Follow {
    limit: Duration,
    cap: u64,
    until: Instant,
    started: bool,
    stdout: BytesMut,
    stderr: BytesMut,
}

impl Follow {
    fn new(request: &RunRequest, now: Instant) -> Self {
        let limit = Duration::from_millis(request.limits.timeout_ms);
        let cap = request.limits.output_bytes.saturating_add(MARKER);
        // Its own clock starts with the run: until then it waits for its turn, just as long.
        let until = now + limit + GRACE;
        Self { limit, cap, until, started: false, stdout: BytesMut::new(), stderr: BytesMut::new() }
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
            Frame::Exit(exit) => return Some(End::Exit(exit)),
        };
        if (kept.len() + data.len()) as u64 > self.cap {
            return Some(End::Violation("the sandbox sent more output than its limit".to_owned()));
        }
        kept.extend_from_slice(&data);
        None
    }

    /// Reads an answer to its end.
    async fn read(&mut self, answer: &mut Answer) -> End {
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

    fn outcome(self, exit: Exit) -> RunOutcome {
        RunOutcome { stdout: self.stdout.freeze(), stderr: self.stderr.freeze(), exit }
    }
}

/// Kills the run when its future is dropped before its end is known.
struct CancelOnDrop {
    streams: Arc<Streams>,
    instance: InstanceId,
    id: String,
    /// The start of `sandboxd` that may have got it.
    boot: Option<BootId>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let (Some(boot), Ok(handle)) = (self.boot.take(), tokio::runtime::Handle::try_current()) else { return };
        let (streams, instance, id) = (self.streams.clone(), self.instance.clone(), std::mem::take(&mut self.id));
        handle.spawn(async move {
            let cancelled = timeout(DELETE, async {
                let connection = streams.get(&instance, Half::Main).await.map_err(|e| e.to_string())?;
                if connection.boot != boot {
                    return Ok(());
                }
                delete(&connection, &id).await.map_err(|e| e.to_string())
            });
            if let Ok(Err(error)) = cancelled.await {
                tracing::warn!(run.id = %id, %error, "could not cancel a run");
            }
        });
    }
}

async fn delete(connection: &Arc<Connection>, id: &str) -> Result<(), RequestError> {
    let request =
        request(Method::DELETE, &format!("/runs/{id}"), Bytes::new()).map_err(|e| RequestError::Lost(e.to_string()))?;
    connection.request(request, Instant::now() + DELETE).await.map(drop)
}

/// Run ids as `sandboxd` takes them; also what keeps them from meaning anything in a path.
pub(super) fn is_run_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// Runs to the end.
pub(crate) async fn run(
    streams: &Arc<Streams>,
    instance: &InstanceId,
    id: &str,
    body: &RunRequest,
) -> Result<RunOutcome, RunFailure> {
    if !is_run_id(id) {
        return Err(RunFailure::NotRun("not a legal run id".to_owned()));
    }
    let put = serde_json::to_vec(body).map(Bytes::from).map_err(|e| RunFailure::NotRun(e.to_string()))?;
    let mut guard =
        CancelOnDrop { streams: streams.clone(), instance: instance.clone(), id: id.to_owned(), boot: None };
    let mut run = Run { streams, instance, id, put, follow: Follow::new(body, Instant::now()), asked: Asked::First };
    let end = run.follow_to_its_end(&mut guard.boot).await;
    // Only a dropped future leaves it armed: an end that is known needs no cancel, and after an unknown one nobody is there.
    guard.boot = None;
    match end {
        Ok(exit) if exit.cancelled && !run.follow.started => Err(RunFailure::TooMany),
        Ok(exit) => Ok(run.follow.outcome(exit)),
        Err(failure) => Err(failure),
    }
}

struct Run<'a> {
    streams: &'a Arc<Streams>,
    instance: &'a InstanceId,
    id: &'a str,
    put: Bytes,
    follow: Follow,
    asked: Asked,
}

impl Run<'_> {
    async fn follow_to_its_end(&mut self, sent_to: &mut Option<BootId>) -> Result<Exit, RunFailure> {
        let mut lost = "no answer".to_owned();
        for _ in 0..REQUESTS {
            let connection = match self.streams.get(self.instance, Half::Main).await {
                Ok(connection) => connection,
                Err(e) if sent_to.is_some() => return Err(RunFailure::Unknown(format!("{lost}; then: {e}"))),
                Err(e @ (ConnectError::Gone(_) | ConnectError::Failed(_))) => {
                    return Err(RunFailure::Elsewhere(e.to_string()));
                }
                Err(e @ (ConnectError::Denied(_) | ConnectError::Broken(_))) => {
                    return Err(RunFailure::NotRun(e.to_string()));
                }
            };
            if sent_to.as_ref().is_some_and(|boot| *boot != connection.boot) {
                return Err(RunFailure::Unknown(format!("{lost}; the sandbox has started anew since")));
            }
            let request = self.request().map_err(|e| RunFailure::NotRun(e.to_string()))?;
            let was_sent = sent_to.replace(connection.boot.clone()).is_some();
            match self.ask(&connection, request).await? {
                Asking::Exit(exit) => return Ok(exit),
                Asking::SendAgain => self.asked = Asked::Again,
                // Once more what was asked, on another stream.
                Asking::NotSent(why) => {
                    if !was_sent {
                        *sent_to = None;
                    }
                    lost = why;
                }
                Asking::Lost(why) => {
                    lost = why;
                    self.asked = Asked::Join;
                }
            }
        }
        match sent_to {
            Some(_) => Err(RunFailure::Unknown(format!("{lost}; asked {REQUESTS} times"))),
            None => Err(RunFailure::Elsewhere(lost)),
        }
    }

    fn request(&self) -> Result<Request<super::connection::RequestBody>, http::Error> {
        let Self { id, follow, .. } = self;
        match self.asked {
            Asked::First | Asked::Again => request(Method::PUT, &format!("/runs/{id}"), self.put.clone()),
            Asked::Join => {
                let (out, err) = (follow.stdout.len(), follow.stderr.len());
                request(Method::GET, &format!("/runs/{id}?out={out}&err={err}"), Bytes::new())
            }
        }
    }

    /// One request and its answer.
    async fn ask(
        &mut self,
        connection: &Arc<Connection>,
        request: Request<super::connection::RequestBody>,
    ) -> Result<Asking, RunFailure> {
        let until = self.follow.until;
        let answer = match connection.request(request, until).await {
            Ok(answer) => answer.accepted(until).await,
            Err(RequestError::Busy) if self.asked == Asked::First => return Err(RunFailure::TooMany),
            Err(e) => Err(e),
        };
        let mut answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(refusal)) => match after_refusal(self.asked, refusal) {
                Next::SendAgain => return Ok(Asking::SendAgain),
                Next::Fail(failure) => return Err(failure),
            },
            Err(RequestError::NotSent(why)) => return Ok(Asking::NotSent(why)),
            Err(RequestError::Lost(why)) => return Ok(Asking::Lost(why)),
            Err(e @ (RequestError::Busy | RequestError::TimedOut)) => {
                return Err(self.give_up(connection, &e.to_string()).await);
            }
        };
        match self.follow.read(&mut answer).await {
            End::Exit(exit) => Ok(Asking::Exit(exit)),
            End::Lost(why) => Ok(Asking::Lost(why)),
            End::Violation(why) => Err(self.give_up(connection, &why).await),
            End::Deadline if self.follow.started => Err(self.give_up(connection, "no end in time").await),
            End::Deadline => self.withdraw(connection, &mut answer).await,
        }
    }

    /// Its turn has not come in time: taken back, which says whether it had started after all.
    async fn withdraw(&mut self, connection: &Arc<Connection>, answer: &mut Answer) -> Result<Asking, RunFailure> {
        self.follow.until = Instant::now() + GRACE;
        if let Err(e) = delete(connection, self.id).await {
            return Err(self.give_up(connection, &e.to_string()).await);
        }
        match self.follow.read(answer).await {
            End::Exit(exit) => Ok(Asking::Exit(exit)),
            End::Lost(why) => Ok(Asking::Lost(why)),
            End::Violation(why) => Err(self.give_up(connection, &why).await),
            End::Deadline => Err(self.give_up(connection, "no end after it was cancelled").await),
        }
    }

    /// The sandbox does not keep its word: its stream is cut, and it is replaced.
    async fn give_up(&self, connection: &Arc<Connection>, why: &str) -> RunFailure {
        connection.cut();
        self.streams.replace(self.instance).await;
        RunFailure::Unknown(why.to_owned())
    }
}

/// How one request ended.
enum Asking {
    Exit(Exit),
    SendAgain,
    /// Nothing of the request left this process.
    NotSent(String),
    Lost(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandboxd_protocol::{Limits, RunKind};

    fn refusal(code: ErrorCode) -> Refusal {
        Refusal { code, message: "m".to_owned() }
    }

    #[test]
    fn a_run_is_sent_again_only_when_its_id_was_never_seen() {
        assert_eq!(after_refusal(Asked::Join, refusal(ErrorCode::NotFound)), Next::SendAgain);
        for code in [ErrorCode::Gone, ErrorCode::Draining, ErrorCode::TooManyRequests, ErrorCode::Unavailable] {
            for asked in [Asked::Join, Asked::Again] {
                let next = after_refusal(asked, refusal(code));
                assert!(matches!(next, Next::Fail(RunFailure::Unknown(_))), "{asked:?} {code:?} {next:?}");
            }
        }
    }

    #[test]
    fn a_first_refusal_says_that_it_did_not_run() {
        assert_eq!(after_refusal(Asked::First, refusal(ErrorCode::TooManyRequests)), Next::Fail(RunFailure::TooMany));
        let draining = after_refusal(Asked::First, refusal(ErrorCode::Draining));
        assert!(matches!(draining, Next::Fail(RunFailure::Elsewhere(_))));
        for code in [ErrorCode::Conflict, ErrorCode::BadRequest, ErrorCode::TooLarge, ErrorCode::Unavailable] {
            assert_eq!(after_refusal(Asked::First, refusal(code)), Next::Fail(RunFailure::NotRun("m".into())));
        }
    }

    #[test]
    fn more_output_than_the_limit_is_refused() {
        let request = RunRequest {
            run: RunKind::Bash { command: "true".into() },
            env: std::collections::BTreeMap::new(),
            limits: Limits { timeout_ms: 1000, output_bytes: 100 },
        };
        let now = Instant::now();
        let mut follow = Follow::new(&request, now);
        assert!(follow.take(Frame::Stdout(Bytes::from(vec![0; 100])), now).is_none());
        assert!(follow.take(Frame::Stderr(Bytes::from(vec![0; 164])), now).is_none());
        assert!(matches!(follow.take(Frame::Stdout(Bytes::from(vec![0; 65])), now), Some(End::Violation(_))));
    }

    #[test]
    fn run_ids_hold_nothing_that_means_something_in_a_path() {
        assert!(is_run_id("srvtoolu_01-AZ"));
        for bad in ["", "a/b", "..", "a?b", "é", &"x".repeat(129)] {
            assert!(!is_run_id(bad), "{bad:?}");
        }
    }
}
