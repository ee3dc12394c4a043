//! Answers, the same in both halves.

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Response, StatusCode,
    body::{Body as _, Frame, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
};
use sandboxd_protocol::{ErrorBody, ErrorCode};
use serde::Serialize;
use std::{future::Future, io};

/// Body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
/// An answer or a refusal.
pub(crate) type Answer = Result<Response<Body>, ErrorBody>;

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is pulled piece by piece; `None` ends it, an error resets the stream.
pub(crate) fn streamed<S, F, Next>(state: S, next: Next) -> Body
where
    S: Send + 'static,
    F: Future<Output = Option<(io::Result<Bytes>, S)>> + Send + 'static,
    Next: Fn(S) -> F + Send + 'static,
{
    let pieces = stream::unfold(state, move |state| {
        let piece = next(state);
        async { piece.await.map(|(piece, state)| (piece.map(Frame::data), state)) }
    });
    StreamBody::new(pieces).boxed_unsync()
}

pub(crate) fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

pub(crate) fn empty(code: u16) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status(code);
    response
}

pub(crate) fn json(code: u16, value: &impl Serialize) -> Response<Body> {
    // The protocol's own types always serialise.
    let mut response = Response::new(full(serde_json::to_vec(value).unwrap_or_default()));
    *response.status_mut() = status(code);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn refused(why: &ErrorBody) -> Response<Body> {
    json(why.code.status(), why)
}

pub(crate) fn no_such_call() -> ErrorBody {
    ErrorBody { code: ErrorCode::BadRequest, message: "no such call".into() }
}

/// Reads a body that must be short.
pub(crate) async fn read_body(body: Incoming, limit: usize) -> Result<Bytes, ErrorBody> {
    let too_large = || ErrorBody { code: ErrorCode::TooLarge, message: format!("the body is over {limit} bytes") };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    match Limited::new(body, limit).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(e) if e.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Err(e) => Err(ErrorBody { code: ErrorCode::BadRequest, message: format!("the body was cut: {e}") }),
    }
}

/// The text of a header or trailer, if it is there and text.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
