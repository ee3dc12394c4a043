//! Request bodies within bounds. Whoever sends too much is answered at once, and heard out for a while: a connection that is
//! closed under a sender loses the answer too.

use crate::failure::{Failure, too_large};
use axum::{
    body::{Body, HttpBody},
    extract::Request,
};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, TryStreamExt as _, future, stream};
use http::header;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use std::{
    error::Error,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, timeout};
use wire::ApiError;

/// How much of a refused body is read, in bytes, and for how long.
const HEARD_OUT: usize = 128 * 1024 * 1024;
const HEARD_OUT_FOR: Duration = Duration::from_secs(10);
/// A body that pauses for so long is ended.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// From then on a body must have come with so many bytes a second on average, so that nobody holds an upload open for hours.
const PATIENCE: Duration = Duration::from_mins(1);
const LEAST_RATE: u64 = 1000;

/// The request, whose body is read on for a while when it is answered before its end. One of a client that waits for a word of
/// ours is left alone: it sends nothing more, and reading would be that word.
pub fn heard_out(request: Request) -> Request {
    if request.headers().contains_key(header::EXPECT) {
        request
    } else {
        request.map(|body| Body::new(HeardOut(Some(body))))
    }
}

/// Refuses a request that announces more than `limit` bytes, or an encoding.
pub fn check_head(request: Request, limit: u64) -> Result<Request, Failure> {
    let word = |name| request.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    if word(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > limit) {
        return Err(too_large(limit).into());
    }
    match word(header::CONTENT_ENCODING).filter(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        Some(encoding) => Err(encoding_unsupported(&encoding).into()),
        None => Ok(request),
    }
}

fn encoding_unsupported(encoding: &str) -> ApiError {
    let message = format!("Content-Encoding: `{encoding}` is not supported; send the body without an encoding.");
    ApiError::invalid(message).with_code("request_body_encoding_unsupported")
}

/// The whole body, of at most `limit` bytes.
pub async fn read(request: Request, limit: u64) -> Result<Bytes, Failure> {
    let body = incoming(check_head(request, limit)?.into_body(), limit);
    let whole: Result<BytesMut, io::Error> = body
        .try_fold(BytesMut::new(), |mut whole, data| {
            whole.extend_from_slice(&data);
            future::ready(Ok(whole))
        })
        .await;
    Ok(whole.map_err(|error| failure(Some(error.kind()), limit))?.freeze())
}

async fn next(body: &mut Body) -> Option<Result<Bytes, axum::Error>> {
    loop {
        match body.frame().await? {
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data));
                }
            }
            Err(error) => return Some(Err(error)),
        }
    }
}

/// A body as it comes: at most `limit` bytes, else it ends with [`io::ErrorKind::FileTooLarge`]; and not too slowly, else with
/// [`io::ErrorKind::TimedOut`].
pub fn incoming(body: Body, limit: u64) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let start = Incoming { body, limit, received: 0, began: Instant::now() };
    stream::try_unfold(start, Incoming::next)
}

struct Incoming {
    body: Body,
    limit: u64,
    received: u64,
    began: Instant,
}

impl Incoming {
    async fn next(mut self) -> io::Result<Option<(Bytes, Self)>> {
        let Ok(next) = timeout(LONGEST_PAUSE, next(&mut self.body)).await else {
            return Err(io::ErrorKind::TimedOut.into());
        };
        let Some(data) = next.transpose().map_err(io::Error::other)? else { return Ok(None) };
        self.received += data.len() as u64;
        if self.received > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if is_too_slow(self.received, self.began.elapsed()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some((data, self)))
    }
}

fn is_too_slow(received: u64, elapsed: Duration) -> bool {
    elapsed > PATIENCE && received < elapsed.as_secs().saturating_mul(LEAST_RATE)
}

/// The kind of the input error in a chain of causes, such as a multipart reader's.
pub fn io_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    match error.downcast_ref::<io::Error>() {
        Some(error) => Some(error.kind()),
        None => io_kind(error.source()?),
    }
}

/// What to say of a body that ended with this kind of error.
pub fn failure(kind: Option<io::ErrorKind>, limit: u64) -> Failure {
    match kind {
        Some(io::ErrorKind::FileTooLarge) => too_large(limit).into(),
        Some(io::ErrorKind::TimedOut) => ApiError::invalid(format!(
            "The body was too slow: it stood still for {} seconds, or came with less than {LEAST_RATE} bytes a second.",
            LONGEST_PAUSE.as_secs()
        ))
        .into(),
        _ => ApiError::invalid("The request ended before its body was whole.").into(),
    }
}

/// A body whose rest, when nobody wants it any more, is read for a while; `None` when it is over.
struct HeardOut(Option<Body>);

impl HttpBody for HeardOut {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = self.0.as_mut() else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for HeardOut {
    fn drop(&mut self) {
        let Some(mut body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        let Ok(handle) = tokio::runtime::Handle::try_current() else { return };
        let drain = async move {
            let mut left = HEARD_OUT;
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    break;
                }
            }
        };
        handle.spawn(timeout(HEARD_OUT_FOR, drain));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt as _;

    fn pieces(count: usize, pause: Duration) -> Body {
        Body::from_stream(stream::iter(0..count).then(move |_| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, io::Error>(Bytes::from(vec![0; 1000]))
        }))
    }

    async fn end(body: Body, limit: u64) -> Result<usize, io::ErrorKind> {
        let received: Result<Vec<_>, _> = incoming(body, limit).try_collect().await;
        received.map(|pieces| pieces.iter().map(Bytes::len).sum()).map_err(|error| error.kind())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_too_large_or_too_slow_ends_with_an_error_that_says_so() {
        let seconds = Duration::from_secs;
        for (name, body, expected) in [
            ("whole", pieces(5, seconds(0)), Ok(5000)),
            ("at the limit", pieces(100, seconds(0)), Ok(100_000)),
            ("over it", pieces(101, seconds(0)), Err(io::ErrorKind::FileTooLarge)),
            ("slow for a moment", pieces(5, seconds(10)), Ok(5000)),
            ("standing still", pieces(2, seconds(31)), Err(io::ErrorKind::TimedOut)),
            ("a trickle", pieces(100, seconds(5)), Err(io::ErrorKind::TimedOut)),
            ("slow but steady", pieces(100, Duration::from_millis(900)), Ok(100_000)),
        ] {
            assert_eq!(end(body, 100_000).await, expected, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_whose_body_stands_still_is_answered() {
        let told = read(Request::new(Body::from_stream(stream::pending::<io::Result<Bytes>>())), 9).await;
        assert!(told.unwrap_err().0.message.starts_with("The body was too slow"));
    }

    #[test]
    fn the_kind_is_found_beneath_other_errors() {
        let inner = io::Error::from(io::ErrorKind::TimedOut);
        let outer = axum::Error::new(axum::Error::new(inner));
        assert_eq!(io_kind(&outer), Some(io::ErrorKind::TimedOut));
        assert_eq!(io_kind(&std::fmt::Error), None);
    }
}
