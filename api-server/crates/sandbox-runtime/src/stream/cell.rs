//! Cells: runs that stop for calls of the client's tools and go on with their results.

use super::{
    CellStep,
    connection::{Connection, Refusal, RequestError, request},
    follow::Follow,
    pool::Streams,
    run::{self, REQUESTS, RunFailure, is_run_id},
};
use crate::{InstanceId, Resume};
use bytes::Bytes;
use http::Method;
use sandboxd_protocol::{BootId, CallResult, ErrorCode, MAX_CALLS, MAX_PENDING_CALLS, RunKind, RunRequest, ToolCall};
use serde::Serialize;
use std::{collections::BTreeSet, sync::Arc};
use tokio::time::{Duration, Instant};

/// Time to hand over results.
const HAND_OVER: Duration = Duration::from_secs(30);

/// Which calls may come.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    tools: BTreeSet<String>,
    /// How many have come: the next one has this number.
    pub(super) seen: u32,
}

impl Expected {
    /// The calls of a new cell.
    pub(crate) fn of(request: &RunRequest) -> Option<Self> {
        match &request.run {
            RunKind::Cell { tools, .. } => {
                Some(Self { tools: tools.iter().map(|tool| tool.name.clone()).collect(), seen: 0 })
            }
            RunKind::Bash { .. } | RunKind::Edit(_) => None,
        }
    }

    /// Takes a list of calls; else what is wrong with it.
    pub(super) fn take(&mut self, list: &[u8]) -> Result<Vec<ToolCall>, String> {
        let calls = ToolCall::parse_list(list).map_err(|e| format!("calls that cannot be read: {e}"))?;
        if calls.is_empty() || calls.len() > MAX_PENDING_CALLS {
            return Err(format!("{} calls at a time", calls.len()));
        }
        for call in &calls {
            if call.call_id != self.seen || self.seen as usize >= MAX_CALLS {
                return Err(format!("call {} where {} was next", call.call_id, self.seen));
            }
            if !self.tools.contains(&call.name) {
                return Err("a call of a tool that was not offered".to_owned());
            }
            self.seen += 1;
        }
        Ok(calls)
    }
}

/// The body of `POST /runs/{id}/calls`, borrowed.
#[derive(Serialize)]
struct Results<'a> {
    results: &'a [CallResult],
}

/// Hands over results and follows the cell to its next calls or its end.
pub(crate) async fn resume(
    streams: &Arc<Streams>,
    instance: &InstanceId,
    id: &str,
    resume: &Resume,
) -> Result<CellStep, RunFailure> {
    if !is_run_id(id) {
        return Err(RunFailure::NotRun("not a legal run id".to_owned()));
    }
    let body = serde_json::to_vec(&Results { results: &resume.results }).map(Bytes::from);
    let body = body.map_err(|e| RunFailure::NotRun(e.to_string()))?;
    let boot = hand_over(streams, instance, id, body).await?;
    let expected = Expected { tools: resume.tools.iter().cloned().collect(), seen: resume.calls };
    let follow = Follow::new(resume.limits, Some(expected), Instant::now());
    run::join(streams, instance, id, follow, boot).await
}

/// Repeated when its answer is lost: the same results again change nothing. The boot that has them.
async fn hand_over(streams: &Arc<Streams>, instance: &InstanceId, id: &str, body: Bytes) -> Result<BootId, RunFailure> {
    let mut sent_to: Option<BootId> = None;
    let mut lost = "no answer".to_owned();
    for _ in 0..REQUESTS {
        let connected = run::connect(streams, instance, sent_to.as_ref(), &mut lost).await?;
        let Some(connection) = connected else { continue };
        match post(&connection, id, body.clone()).await {
            Ok(Ok(())) => return Ok(connection.boot.clone()),
            Ok(Err(refusal)) => return Err(after_refusal(refusal)),
            Err(RequestError::NotSent(why)) => lost = why,
            Err(RequestError::Lost(why)) => {
                sent_to = Some(connection.boot.clone());
                lost = why;
            }
            Err(RequestError::Busy) => return Err(RunFailure::TooMany),
            Err(e @ RequestError::TimedOut) => {
                return Err(run::give_up(streams, instance, &connection, &e.to_string()).await);
            }
        }
    }
    Err(RunFailure::Unknown(format!("{lost}; handed over {REQUESTS} times")))
}

async fn post(connection: &Arc<Connection>, id: &str, body: Bytes) -> Result<Result<(), Refusal>, RequestError> {
    let until = Instant::now() + HAND_OVER;
    let request = request(Method::POST, &format!("/runs/{id}/calls"), body);
    let request = request.map_err(|e| RequestError::Lost(e.to_string()))?;
    let answer = connection.request(request, until).await?.accepted(until).await?;
    Ok(answer.map(drop))
}

fn after_refusal(refusal: Refusal) -> RunFailure {
    let Refusal { code, message } = refusal;
    match code {
        // Its interpreter is gone, or it was never there.
        ErrorCode::NotFound | ErrorCode::Gone => RunFailure::Unknown(message),
        ErrorCode::TooManyRequests => RunFailure::TooMany,
        ErrorCode::NotInImage => RunFailure::NotInImage(message),
        ErrorCode::BadRequest
        | ErrorCode::Forbidden
        | ErrorCode::Conflict
        | ErrorCode::TooLarge
        | ErrorCode::Mismatch
        | ErrorCode::Unavailable
        | ErrorCode::Draining
        | ErrorCode::NoSpace => RunFailure::NotRun(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected { tools: BTreeSet::from(["t".into()]), seen: 2 }
    }

    #[test]
    fn calls_are_numbered_without_gaps_and_of_offered_tools() {
        let mut expected = expected();
        let list = r#"[{"call_id":2,"name":"t","input":{"a":1}},{"call_id":3,"name":"t","input":{}}]"#;
        let calls = expected.take(list.as_bytes()).unwrap();
        assert_eq!((calls.len(), calls[0].input["a"].as_i64(), expected.seen), (2, Some(1), 4));
    }

    #[test]
    fn what_was_not_asked_for_is_refused() {
        let many: Vec<_> =
            (2..2 + 129).map(|id| format!("{{\"call_id\":{id},\"name\":\"t\",\"input\":{{}}}}")).collect();
        for bad in [
            "[]",
            "x",
            r#"[{"call_id":1,"name":"t","input":{}}]"#,
            r#"[{"call_id":3,"name":"t","input":{}}]"#,
            r#"[{"call_id":2,"name":"other","input":{}}]"#,
            r#"[{"call_id":2,"name":"t","input":[]}]"#,
            &format!("[{}]", many.join(",")),
        ] {
            assert!(expected().take(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn results_for_a_cell_that_is_not_there_mean_unknown() {
        let refusal = |code| Refusal { code, message: "m".to_owned() };
        for code in [ErrorCode::NotFound, ErrorCode::Gone] {
            assert_eq!(after_refusal(refusal(code)), RunFailure::Unknown("m".into()));
        }
        assert_eq!(after_refusal(refusal(ErrorCode::Conflict)), RunFailure::NotRun("m".into()));
    }
}
