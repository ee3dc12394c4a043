//! A byte stream that can be cut from outside.
//!
//! hyper runs an HTTP/2 connection in tasks of its own; aborting them closes nothing while a body lives. So the stream itself
//! has the switch. Its end is always an error: no request may take a lost connection for a whole answer.

use crate::ByteStream;
use futures_util::task::AtomicWaker;
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The switch.
#[derive(Debug, Default)]
pub(super) struct Cut {
    done: AtomicBool,
    waker: AtomicWaker,
}

impl Cut {
    pub(super) fn cut(&self) {
        self.done.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_cut(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// One waker is enough: hyper polls both directions from one task.
    fn check(&self, cx: &Context<'_>) -> io::Result<()> {
        self.waker.register(cx.waker());
        if self.is_cut() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the stream was cut by us"));
        }
        Ok(())
    }
}

/// The stream with its switch.
pub(super) struct CutStream {
    pub(super) inner: Box<dyn ByteStream>,
    pub(super) cut: Arc<Cut>,
}

impl AsyncRead for CutStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.cut.check(cx)?;
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        if buf.filled().len() == before && buf.remaining() > 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the stream ended")));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CutStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.cut.check(cx)?;
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.cut.check(cx)?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.cut.check(cx)?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
