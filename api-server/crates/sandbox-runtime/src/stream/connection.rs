//! One HTTP/2 connection to a `sandboxd`.

use super::cut::{Cut, CutStream};
use crate::{ByteStream, Half};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sandboxd_protocol::{BootId, ErrorBody, ErrorCode, Hello, PROTO, http2};
use std::{
    error::Error as _,
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{
    io::AsyncReadExt,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Duration, Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

pub(super) type RequestBody = UnsyncBoxBody<Bytes, io::Error>;

/// Time until the hello line is there: `attach` waits for a `sandboxd` that is just starting.
const HELLO: Duration = Duration::from_secs(20);
/// Time in which hyper tells all requests that their connection is over.
const ANSWERED: Duration = Duration::from_millis(250);
/// Longest refusal that is read, in bytes.
const MAX_REFUSAL: usize = 16 * 1024;

/// A connection; cut when it is dropped.
pub(crate) struct Connection {
    /// The start of `sandboxd` it leads to.
    pub(super) boot: BootId,
    send: SendRequest<RequestBody>,
    /// Requests that may be under way.
    places: usize,
    permits: Arc<Semaphore>,
    cut: Arc<Cut>,
    /// Cancelled when nothing drives it any more.
    over: CancellationToken,
    last_used: Mutex<Instant>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum RequestError {
    /// No room for another request in time; it was not sent.
    Busy,
    /// The connection was over before any of it was sent.
    NotSent(String),
    /// The connection failed; nobody knows what arrived.
    Lost(String),
    /// No answer in time; nobody knows what arrived.
    TimedOut,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("too many requests at a time"),
            Self::NotSent(why) => write!(f, "not sent: {why}"),
            Self::Lost(why) => write!(f, "connection lost: {why}"),
            Self::TimedOut => f.write_str("no answer in time"),
        }
    }
}

impl Connection {
    /// Reads the hello line and shakes hands.
    pub(super) async fn open(mut io: Box<dyn ByteStream>, half: Half) -> Result<Arc<Self>, String> {
        let hello = timeout(HELLO, read_hello(&mut io)).await.map_err(|_| "no hello line in time".to_owned())??;
        if hello.proto != PROTO {
            return Err(format!("sandboxd speaks protocol {}, we speak {PROTO}", hello.proto));
        }
        let requests = match half {
            Half::Main => http2::MAIN,
            Half::Files => http2::FILES,
        };
        let cut = Arc::new(Cut::default());
        let stream = CutStream { inner: io, cut: cut.clone() };
        let (send, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(requests.window)
            .initial_connection_window_size(http2::CONNECTION_WINDOW)
            .max_frame_size(http2::FRAME)
            .max_header_list_size(http2::MAX_HEADER_LIST)
            .keep_alive_interval(http2::PING_INTERVAL)
            .keep_alive_timeout(http2::PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| format!("handshake: {}", chain(&e)))?;
        let over = CancellationToken::new();
        let (when_over, told) = (cut.clone(), over.clone());
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!(error = %chain(&e), "connection to a sandbox ended");
            }
            when_over.cut();
            told.cancel();
        });
        let (places, last_used) = (requests.at_once as usize, Mutex::new(Instant::now()));
        let permits = Arc::new(Semaphore::new(places));
        Ok(Arc::new(Self { boot: hello.boot, send, places, permits, cut, over, last_used }))
    }

    pub(super) fn is_open(&self) -> bool {
        !self.cut.is_cut() && !self.send.is_closed()
    }

    /// Ends every request on it.
    pub(super) fn cut(&self) {
        self.cut.cut();
    }

    /// Notes a use, against the end for idleness.
    pub(super) fn touch(&self) {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Since when no request has been under way; `None` while one is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let idle = self.permits.available_permits() == self.places;
        idle.then(|| *self.last_used.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns when the connection is over and every request that was known to it has had its answer. One that was handed over at
    /// that very moment can be lost between the ends of hyper's channel, and would wait for ever.
    async fn forgotten(&self) {
        self.over.cancelled().await;
        sleep(ANSWERED).await;
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn request(
        self: &Arc<Self>,
        request: Request<RequestBody>,
        until: Instant,
    ) -> Result<Answer, RequestError> {
        let permit = match timeout_at(until, self.permits.clone().acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(closed)) => return Err(RequestError::Lost(closed.to_string())),
            Err(_) => return Err(RequestError::Busy),
        };
        self.touch();
        let answered = tokio::select! {
            biased;
            answered = timeout_at(until, self.send.clone().try_send_request(request)) => answered,
            () = self.forgotten() => return Err(RequestError::Lost("the connection ended".to_owned())),
        };
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(mut e)) => {
                // Only a request that never left is given back.
                let never_left = e.take_message().is_some();
                let why = chain(e.error());
                return Err(if never_left { RequestError::NotSent(why) } else { RequestError::Lost(why) });
            }
            Err(_) => return Err(RequestError::TimedOut),
        };
        let (head, body) = response.into_parts();
        let place = Place { _permit: permit, connection: self.clone() };
        Ok(Answer { status: head.status, headers: head.headers, body, _place: place })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.cut.cut();
    }
}

/// One of the connection's places for requests; given back with a note of the time.
struct Place {
    _permit: OwnedSemaphorePermit,
    connection: Arc<Connection>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connection.touch();
    }
}

/// The head of an answer, and its body to come. Holds a place among the connection's requests.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Incoming,
    _place: Place,
}

/// A refusal: what `sandboxd` said, or what its status means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: ErrorCode,
    pub(super) message: String,
}

impl Answer {
    /// The answer, unless it is a refusal.
    pub(super) async fn accepted(self, until: Instant) -> Result<Result<Self, Refusal>, RequestError> {
        if self.status.is_success() {
            return Ok(Ok(self));
        }
        let status = self.status;
        let body = self.collect(MAX_REFUSAL, until).await?;
        let refusal = match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(ErrorBody { code, message }) => Refusal { code, message },
            Err(_) => Refusal { code: code_of(status), message: format!("status {status}") },
        };
        Ok(Err(refusal))
    }

    /// The whole body, at most `limit` bytes.
    pub(super) async fn collect(mut self, limit: usize, until: Instant) -> Result<Bytes, RequestError> {
        let mut all = BytesMut::new();
        loop {
            match timeout_at(until, self.body.frame()).await {
                Err(_) => return Err(RequestError::TimedOut),
                Ok(None) => return Ok(all.freeze()),
                Ok(Some(Err(e))) => return Err(RequestError::Lost(chain(&e))),
                Ok(Some(Ok(frame))) => {
                    let data = frame.into_data().unwrap_or_default();
                    if all.len() + data.len() > limit {
                        return Err(RequestError::Lost(format!("the answer is longer than {limit} bytes")));
                    }
                    all.extend_from_slice(&data);
                }
            }
        }
    }
}

/// The code of a status whose body cannot be read.
fn code_of(status: StatusCode) -> ErrorCode {
    match status.as_u16() {
        400 => ErrorCode::BadRequest,
        403 => ErrorCode::Forbidden,
        404 => ErrorCode::NotFound,
        409 => ErrorCode::Conflict,
        410 => ErrorCode::Gone,
        412 => ErrorCode::Mismatch,
        413 => ErrorCode::TooLarge,
        429 => ErrorCode::TooManyRequests,
        501 => ErrorCode::NotInImage,
        503 => ErrorCode::Draining,
        507 => ErrorCode::NoSpace,
        _ => ErrorCode::Unavailable,
    }
}

/// A request without a streamed body.
pub(super) fn request(method: Method, path: &str, body: impl Into<Bytes>) -> Result<Request<RequestBody>, http::Error> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    Request::builder().method(method).uri(format!("http://sandboxd{path}")).body(body)
}

/// Byte by byte: what follows the line is HTTP/2's.
async fn read_hello(io: &mut Box<dyn ByteStream>) -> Result<Hello, String> {
    let mut line = Vec::with_capacity(Hello::MAX_LEN);
    while line.len() < Hello::MAX_LEN {
        match io.read_u8().await.map_err(|e| format!("ended before its hello line: {e}"))? {
            b'\n' => {
                let hello = std::str::from_utf8(&line).ok().and_then(Hello::parse);
                return hello.ok_or_else(|| "the first line is no hello".to_owned());
            }
            byte => line.push(byte),
        }
    }
    Err("the first line is too long for a hello".to_owned())
}

/// An error with its causes: hyper's own text says little.
pub(super) fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
