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
use sandboxd_protocol::{ErrorBody, ErrorCode, MAX_RUN_BODY};
use sha2::{Digest, Sha256};
use std::{sync::Arc, time::Duration};

/// Time for which the head of an answer is held back while its run waits: until then a refusal can still be told by its status.
const HEAD_HELD_FOR: Duration = Duration::from_secs(3);

pub(crate) async fn answer(runs: Arc<Runs>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    if (&method, path.as_str()) == (&Method::GET, "/state") {
        return Ok(http::json(200, &runs.state()));
    }
    let id = path.strip_prefix("/runs/").ok_or_else(http::no_such_call)?;
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
            follow(runs.get(&id, offset(query, "out")?, offset(query, "err")?)?).await
        }
        Method::DELETE => {
            runs.cancel(&id).await?;
            Ok(http::empty(204))
        }
        _ => Err(http::no_such_call()),
    }
}

fn offset(query: Option<&str>, name: &str) -> Result<u64, ErrorBody> {
    let malformed = || refusal(ErrorCode::BadRequest, format!("{name} is no number of bytes"));
    query_value(query, name).map_or(Ok(0), |value| value.parse().map_err(|_| malformed()))
}

async fn follow(follower: Follower) -> Answer {
    let run = Arc::clone(follower.run());
    if let Ok(phase) = tokio::time::timeout(HEAD_HELD_FOR, run.decided()).await {
        drive::refused(phase)?;
    }
    Ok(Response::new(frames(follower)))
}

fn frames(follower: Follower) -> Body {
    http::streamed(follower, |mut follower| async move {
        let frames = follower.next().await?;
        Some((Ok(frames), follower))
    })
}
