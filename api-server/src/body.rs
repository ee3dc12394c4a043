//! Request bodies within bounds. Whoever sends too much is answered at once, and heard out for a while: a connection that is
//! closed under a sender loses the answer too.

use crate::failure::{Failure, too_large};
use axum::{body::Body, extract::Request};
use bytes::{Bytes, BytesMut};
use http::header;
use http_body_util::BodyExt as _;
use std::time::Duration;
use wire::ApiError;

/// How much of a refused body is read, in bytes, and for how long.
const HEARD_OUT: usize = 128 * 1024 * 1024;
const HEARD_OUT_FOR: Duration = Duration::from_secs(10);

/// Refuses a request that announces more than `limit` bytes.
pub fn check_length(request: Request, limit: u64) -> Result<Request, Failure> {
    let announced =
        request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|announced| announced > limit) {
        hear_out(request.into_body());
        return Err(too_large(limit).into());
    }
    Ok(request)
}

/// The whole body, of at most `limit` bytes.
pub async fn read(request: Request, limit: u64) -> Result<Bytes, Failure> {
    let mut body = check_length(request, limit)?.into_body();
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::invalid("The request body ended early."))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() as u64 + data.len() as u64 > limit {
            hear_out(body);
            return Err(too_large(limit).into());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

fn hear_out(mut body: Body) {
    let drain = async move {
        let mut left = HEARD_OUT;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    tokio::spawn(tokio::time::timeout(HEARD_OUT_FOR, drain));
}
