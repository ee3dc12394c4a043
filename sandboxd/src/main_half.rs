//! The calls of the `main` half.

use crate::{
    http::{self, Answer, Body},
    names::{RunId, query_value},
    runs::{
        drive::{self, Runs},
        run::Follower,
        table::refusal,
    },
};
use hyper::{Method, Request, Response, body::Incoming};
use sandboxd_protocol::{CallResults, ErrorBody, ErrorCode, MAX_RUN_BODY};
use sha2::{Digest, Sha256};
use std::{sync::Arc, time::Duration};

/// Time for which the head of an answer is held back while its run waits: until then a refusal can still be told by its status.
const HEAD_HELD_FOR: Duration = Duration::from_secs(3);

/// A run that ends within this time is answered in one piece: each piece wakes every program on the way, beside the command.
const SHORT: Duration = Duration::from_millis(10);

pub(crate) async fn answer(runs: Arc<Runs>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    if (&method, path.as_str()) == (&Method::GET, "/state") {
        return Ok(http::json(200, &runs.state()));
    }
    if (&method, path.as_str()) == (&Method::POST, "/reset") {
        runs.reset().await?;
        return Ok(http::empty(204));
    }
    let id = path.strip_prefix("/runs/").ok_or_else(http::no_such_call)?;
    let (id, method) = match (id.strip_suffix("/calls"), method) {
        (Some(id), Method::POST) => (id, Method::POST),
        (Some(_), _) | (None, Method::POST) => return Err(http::no_such_call()),
        (None, method) => (id, method),
    };
    let bad_id = || refusal(ErrorCode::BadRequest, "a run id is 1 to 128 of the characters A-Z a-z 0-9 _ -");
    let id = RunId::parse(id).ok_or_else(bad_id)?;
    match method {
        Method::PUT => {
            let body = http::read_body(request.into_body(), MAX_RUN_BODY).await?;
            let digest = Sha256::digest(&body).into();
            let malformed = |e| refusal(ErrorCode::BadRequest, format!("the run request cannot be read: {e}"));
            follow(runs.put(id, digest, || serde_json::from_slice(&body).map_err(malformed))?).await
        }
        Method::GET => {
            let query = request.uri().query();
            let follower = runs.get(&id, offset(query, "out")?, offset(query, "err")?)?;
            follow(follower.after_calls(offset(query, "calls")?)).await
        }
        // Only with `/calls` behind the id.
        Method::POST => {
            let body = http::read_body(request.into_body(), MAX_RUN_BODY).await?;
            let malformed = |e| refusal(ErrorCode::BadRequest, format!("the results cannot be read: {e}"));
            let CallResults { results } = serde_json::from_slice(&body).map_err(malformed)?;
            runs.answer(&id, results)?;
            Ok(http::empty(204))
        }
        Method::DELETE => {
            runs.cancel(&id).await?;
            Ok(http::empty(204))
        }
        _ => Err(http::no_such_call()),
    }
}

fn offset(query: Option<&str>, name: &str) -> Result<u64, ErrorBody> {
    let malformed = || refusal(ErrorCode::BadRequest, format!("{name} is no number"));
    query_value(query, name).map_or(Ok(0), |value| value.parse().map_err(|_| malformed()))
}

async fn follow(follower: Follower) -> Answer {
    let run = Arc::clone(follower.run());
    if let Ok(phase) = tokio::time::timeout(HEAD_HELD_FOR, run.decided()).await {
        drive::refused(phase)?;
        // Whether it is over or the time is: the follower tells.
        let _ = tokio::time::timeout(SHORT, run.over()).await;
    }
    Ok(Response::new(frames(follower)))
}

fn frames(follower: Follower) -> Body {
    http::streamed(follower, |mut follower| async move {
        let frames = follower.next().await?;
        Some((frames, follower))
    })
}
