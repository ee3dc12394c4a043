//! A runtime whose streams are cut as planned.

use sandbox_runtime::{AcquireError, Acquired, ByteStream, ContainerSpec, Half, InstanceId, OpenError, Runtime};
use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// When a stream is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// After so many bytes to the sandbox.
    Written(u64),
    /// After so many bytes from it, and a moment.
    Read(u64, Duration),
}

/// What went over the streams of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recorded {
    pub written: u64,
    pub read: u64,
    /// Bytes read before the longest silence, which is the command's.
    pub read_until_started: u64,
    pub cuts: usize,
    longest_silence: Duration,
    last_read: Option<Instant>,
}

pub struct Cutting {
    inner: Arc<dyn Runtime>,
    plans: Mutex<VecDeque<Plan>>,
    recorded: Arc<Mutex<Recorded>>,
}

impl Cutting {
    pub fn new(inner: Arc<dyn Runtime>, plans: Vec<Plan>) -> Self {
        Self { inner, plans: Mutex::new(plans.into()), recorded: Arc::default() }
    }

    pub fn recorded(&self) -> Recorded {
        *self.recorded.lock().unwrap()
    }
}

#[async_trait::async_trait]
impl Runtime for Cutting {
    async fn find(&self, spec: &ContainerSpec) -> Result<bool, AcquireError> {
        self.inner.find(spec).await
    }

    async fn acquire(&self, spec: &ContainerSpec, deadline: Duration) -> Result<Acquired, AcquireError> {
        self.inner.acquire(spec, deadline).await
    }

    async fn open(&self, instance: &InstanceId, half: Half) -> Result<Box<dyn ByteStream>, OpenError> {
        let inner = self.inner.open(instance, half).await?;
        let plan = self.plans.lock().unwrap().pop_front();
        let recorded = self.recorded.clone();
        Ok(Box::new(Stream { inner: Some(inner), plan, written: 0, read: 0, moment: None, recorded }))
    }

    fn forget(&self, instance: &InstanceId) {
        self.inner.forget(instance);
    }

    async fn replace(&self, instance: &InstanceId) {
        self.inner.replace(instance).await;
    }

    async fn problems(&self) -> Vec<String> {
        self.inner.problems().await
    }

    /// The streams of one call end; the sandbox goes on.
    async fn shut_down(&self) {}
}

struct Stream {
    /// `None` once it is cut.
    inner: Option<Box<dyn ByteStream>>,
    plan: Option<Plan>,
    written: u64,
    read: u64,
    moment: Option<Pin<Box<Sleep>>>,
    recorded: Arc<Mutex<Recorded>>,
}

impl Stream {
    fn cut(&mut self) -> io::Error {
        if self.inner.take().is_some() {
            self.recorded.lock().unwrap().cuts += 1;
        }
        io::Error::new(io::ErrorKind::ConnectionReset, "cut as planned")
    }

    /// Bytes that may still be read; an error when the stream is to be cut now.
    fn readable(&mut self, cx: &mut Context<'_>) -> io::Result<u64> {
        let Some(Plan::Read(bytes, wait)) = self.plan else { return Ok(u64::MAX) };
        let left = bytes.saturating_sub(self.read);
        if left > 0 {
            return Ok(left);
        }
        let moment = self.moment.get_or_insert_with(|| Box::pin(sleep(wait)));
        if moment.as_mut().poll(cx).is_ready() { Err(self.cut()) } else { Ok(0) }
    }

    fn note_read(&mut self, bytes: u64) {
        self.read += bytes;
        let mut recorded = self.recorded.lock().unwrap();
        let now = Instant::now();
        let silence = recorded.last_read.map_or(Duration::ZERO, |last| now - last);
        if silence > recorded.longest_silence {
            recorded.longest_silence = silence;
            recorded.read_until_started = recorded.read;
        }
        recorded.last_read = Some(now);
        recorded.read += bytes;
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = usize::try_from(self.readable(cx)?).unwrap_or(usize::MAX).min(buf.remaining());
        if room == 0 && buf.remaining() > 0 {
            // The moment wakes.
            return Poll::Pending;
        }
        let Some(inner) = self.inner.as_mut() else { return Poll::Ready(Err(self.cut())) };
        let mut bytes = vec![0; room];
        let mut part = ReadBuf::new(&mut bytes);
        ready!(Pin::new(inner).poll_read(cx, &mut part))?;
        buf.put_slice(part.filled());
        let count = part.filled().len() as u64;
        self.note_read(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut room = buf.len();
        if let Some(Plan::Written(bytes)) = self.plan {
            let left = bytes.saturating_sub(self.written);
            if left == 0 {
                return Poll::Ready(Err(self.cut()));
            }
            room = room.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        let Some(inner) = self.inner.as_mut() else { return Poll::Ready(Err(self.cut())) };
        let count = ready!(Pin::new(inner).poll_write(cx, &buf[..room]))?;
        self.written += count as u64;
        self.recorded.lock().unwrap().written += count as u64;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(inner) = self.inner.as_mut() else { return Poll::Ready(Err(self.cut())) };
        Pin::new(inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(inner) = self.inner.as_mut() else { return Poll::Ready(Ok(())) };
        Pin::new(inner).poll_shutdown(cx)
    }
}
