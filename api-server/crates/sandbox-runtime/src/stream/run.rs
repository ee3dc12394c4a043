//! Runs: exactly once, or an honest "unknown".
//!
//! A request whose answer was lost is never simply sent again. The run is asked for by its id; only when the same start of
//! `sandboxd` has never seen it, it is sent again. Another start of `sandboxd` means that nobody knows.

use super::{
    CellStep, RunOutcome,
    cell::Expected,
    connection::{Answer, Connection, Refusal, RequestError, request},
    follow::{End, Follow, GRACE},
    pool::{ConnectError, Streams},
};
use crate::{Half, InstanceId};
use bytes::Bytes;
use http::{Method, Request};
use sandboxd_protocol::{BootId, ErrorCode, Exit, MAX_RUN_BODY, RunRequest, ToolCall};
use std::sync::Arc;
use tokio::time::{Duration, Instant, sleep, timeout};

/// Time for a DELETE.
const DELETE: Duration = Duration::from_secs(10);
/// Pause before a stream is opened once more.
const REOPEN: Duration = Duration::from_millis(100);
/// Requests for one run: the first, and those after lost answers. The pool refuses a stream that breaks all the time; this
/// bounds answers that end early on a whole stream.
pub(super) const REQUESTS: usize = 6;

/// Why a run has no outcome, as far as it matters for what to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RunFailure {
    /// It did not run, and another instance may run it.
    Elsewhere(String),
    /// It did not run.
    NotRun(String),
    /// The image has no program for it, in words for a model.
    NotInImage(String),
    /// It did not run: we may not open a stream.
    Denied(String),
    /// It did not run: too many at a time.
    TooMany,
    /// It did not run: its request is longer than a sandbox takes.
    TooLarge,
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
        (Asked::First, ErrorCode::NotInImage) => RunFailure::NotInImage(message),
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
    match start(streams, instance, id, body, None).await? {
        CellStep::Finished(outcome) => Ok(outcome),
        // Nobody expected them, so that they were refused before.
        CellStep::Calls(_) => Err(RunFailure::Unknown("a run without tools asked for calls".to_owned())),
    }
}

/// Runs to the end, or to the first calls of a cell; then the cell waits, followed by nobody.
pub(crate) async fn start(
    streams: &Arc<Streams>,
    instance: &InstanceId,
    id: &str,
    body: &RunRequest,
    expected: Option<Expected>,
) -> Result<CellStep, RunFailure> {
    if !is_run_id(id) {
        return Err(RunFailure::NotRun("not a legal run id".to_owned()));
    }
    let put = serde_json::to_vec(body).map(Bytes::from).map_err(|e| RunFailure::NotRun(e.to_string()))?;
    if put.len() > MAX_RUN_BODY {
        return Err(RunFailure::TooLarge);
    }
    let mut guard =
        CancelOnDrop { streams: streams.clone(), instance: instance.clone(), id: id.to_owned(), boot: None };
    let follow = Follow::new(body.limits, expected, Instant::now());
    let mut run = Run { streams, instance, id, put: Some(put), follow, asked: Asked::First };
    let end = run.follow_to_its_end(&mut guard.boot).await;
    // Only a dropped future leaves it armed: an end that is known needs no cancel, and after an unknown one nobody is there.
    guard.boot = None;
    run.step(end?)
}

/// Follows a cell that was started before on this boot.
pub(super) async fn join(
    streams: &Arc<Streams>,
    instance: &InstanceId,
    id: &str,
    follow: Follow,
    boot: BootId,
) -> Result<CellStep, RunFailure> {
    let mut run = Run { streams, instance, id, put: None, follow, asked: Asked::Join };
    let end = run.follow_to_its_end(&mut Some(boot)).await?;
    run.step(end)
}

/// Where nobody follows a run any more.
enum Stop {
    Exit(Exit),
    Calls(Vec<ToolCall>),
}

struct Run<'a> {
    streams: &'a Arc<Streams>,
    instance: &'a InstanceId,
    id: &'a str,
    /// The request, if it is ours to send.
    put: Option<Bytes>,
    follow: Follow,
    asked: Asked,
}

impl Run<'_> {
    fn step(self, end: Stop) -> Result<CellStep, RunFailure> {
        match end {
            Stop::Exit(exit) if exit.cancelled && !self.follow.started => Err(RunFailure::TooMany),
            Stop::Exit(exit) => Ok(CellStep::Finished(self.follow.outcome(exit))),
            Stop::Calls(calls) => Ok(CellStep::Calls(calls)),
        }
    }

    async fn follow_to_its_end(&mut self, sent_to: &mut Option<BootId>) -> Result<Stop, RunFailure> {
        let mut lost = "no answer".to_owned();
        for _ in 0..REQUESTS {
            let connected = connect(self.streams, self.instance, sent_to.as_ref(), &mut lost).await?;
            let Some(connection) = connected else { continue };
            let request = self.request().map_err(|e| RunFailure::NotRun(e.to_string()))?;
            let was_sent = sent_to.replace(connection.boot.clone()).is_some();
            match self.ask(&connection, request).await? {
                Asking::Stop(stop) => return Ok(stop),
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
        let Self { id, follow, put, .. } = self;
        match (self.asked, put) {
            (Asked::First | Asked::Again, Some(put)) => request(Method::PUT, &format!("/runs/{id}"), put.clone()),
            (Asked::Join, _) | (_, None) => {
                request(Method::GET, &format!("/runs/{id}?{}", follow.query()), Bytes::new())
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
                Next::SendAgain if self.put.is_some() => return Ok(Asking::SendAgain),
                Next::SendAgain => return Err(RunFailure::Unknown("the sandbox does not know the cell".to_owned())),
                Next::Fail(failure) => return Err(failure),
            },
            Err(RequestError::NotSent(why)) => return Ok(Asking::NotSent(why)),
            Err(RequestError::Lost(why)) => return Ok(Asking::Lost(why)),
            Err(e @ (RequestError::Busy | RequestError::TimedOut)) => {
                return Err(self.give_up(connection, &e.to_string()).await);
            }
        };
        match self.follow.read(&mut answer).await {
            End::Exit(exit) => Ok(Asking::Stop(Stop::Exit(exit))),
            End::Calls(calls) => Ok(Asking::Stop(Stop::Calls(calls))),
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
            End::Exit(exit) => Ok(Asking::Stop(Stop::Exit(exit))),
            // Made before it was cancelled; its end follows.
            End::Calls(_) => Ok(Asking::Lost("calls of a cancelled cell".to_owned())),
            End::Lost(why) => Ok(Asking::Lost(why)),
            End::Violation(why) => Err(self.give_up(connection, &why).await),
            End::Deadline => Err(self.give_up(connection, "no end after it was cancelled").await),
        }
    }

    /// The sandbox does not keep its word: its stream is cut, and it is replaced.
    async fn give_up(&self, connection: &Arc<Connection>, why: &str) -> RunFailure {
        give_up(self.streams, self.instance, connection, why).await
    }
}

/// A stream to the start of `sandboxd` that may have got the request, if any has. `None` after a pause when it could not be opened
/// this time: who has the run may well answer the next time. `lost` says why the last try brought nothing.
pub(super) async fn connect(
    streams: &Streams,
    instance: &InstanceId,
    sent_to: Option<&BootId>,
    lost: &mut String,
) -> Result<Option<Arc<Connection>>, RunFailure> {
    let connection = match streams.get(instance, Half::Main).await {
        Ok(connection) => connection,
        Err(ConnectError::Failed(why)) if sent_to.is_some() => {
            *lost = why;
            sleep(REOPEN).await;
            return Ok(None);
        }
        Err(e) if sent_to.is_some() => return Err(RunFailure::Unknown(format!("{lost}; then: {e}"))),
        Err(e @ (ConnectError::Gone(_) | ConnectError::Failed(_) | ConnectError::Broken(_))) => {
            return Err(RunFailure::Elsewhere(e.to_string()));
        }
        Err(ConnectError::Denied(why)) => return Err(RunFailure::Denied(why)),
    };
    if sent_to.is_some_and(|boot| *boot != connection.boot) {
        return Err(RunFailure::Unknown(format!("{lost}; the sandbox has started anew since")));
    }
    Ok(Some(connection))
}

/// Cuts the stream of a sandbox that does not keep its word, and has it replaced.
pub(super) async fn give_up(
    streams: &Streams,
    instance: &InstanceId,
    connection: &Connection,
    why: &str,
) -> RunFailure {
    connection.cut();
    streams.replace(instance).await;
    RunFailure::Unknown(why.to_owned())
}

/// How one request ended.
enum Asking {
    Stop(Stop),
    SendAgain,
    /// Nothing of the request left this process.
    NotSent(String),
    Lost(String),
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn run_ids_hold_nothing_that_means_something_in_a_path() {
        assert!(is_run_id("srvtoolu_01-AZ"));
        for bad in ["", "a/b", "..", "a?b", "é", &"x".repeat(129)] {
            assert!(!is_run_id(bad), "{bad:?}");
        }
    }
}
