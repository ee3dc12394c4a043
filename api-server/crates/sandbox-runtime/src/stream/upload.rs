//! The body of a write: the caller's bytes, then their number and hash as trailers.

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};
use sandboxd_protocol::{TRAILER_SHA256, TRAILER_SIZE};
use sha2::{Digest, Sha256};
use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};
use tokio::time::Instant;

/// What is known of an upload outside of it.
#[derive(Clone)]
pub(super) struct Progress(Arc<Mutex<Seen>>);

struct Seen {
    last: Instant,
    error: Option<io::Error>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Seen { last: Instant::now(), error: None })))
    }

    /// When bytes last moved.
    pub(super) fn last(&self) -> Instant {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last
    }

    /// The error of the caller's own body.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).error.take()
    }

    fn moved(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last = Instant::now();
    }

    fn failed(&self, error: io::Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).error = Some(error);
    }
}

/// The body.
pub(super) struct Upload {
    source: Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
    progress: Progress,
    size: u64,
    hash: Sha256,
    is_done: bool,
}

impl Upload {
    pub(super) fn new(source: impl Stream<Item = io::Result<Bytes>> + Send + 'static, progress: Progress) -> Self {
        Self { source: Box::pin(source), progress, size: 0, hash: Sha256::new(), is_done: false }
    }

    fn trailers(&mut self) -> io::Result<HeaderMap> {
        let hash = std::mem::take(&mut self.hash).finalize();
        let hex = HeaderValue::try_from(format!("{hash:x}")).map_err(io::Error::other)?;
        Ok(HeaderMap::from_iter([
            (HeaderName::from_static(TRAILER_SIZE), HeaderValue::from(self.size)),
            (HeaderName::from_static(TRAILER_SHA256), hex),
        ]))
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        let next = ready!(self.source.as_mut().poll_next(cx));
        self.progress.moved();
        Poll::Ready(Some(match next {
            Some(Ok(data)) => {
                self.size += data.len() as u64;
                self.hash.update(&data);
                Ok(Frame::data(data))
            }
            Some(Err(error)) => {
                self.is_done = true;
                self.progress.failed(error);
                // Resets the request: without its trailers nothing is committed.
                Err(io::Error::other("the body to write failed"))
            }
            None => {
                self.is_done = true;
                self.trailers().map(Frame::trailers)
            }
        }))
    }
}
