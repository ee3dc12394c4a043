//! The last thing that a request of the controllers passes before it is sent.
//!
//! Invariant: no write leaves this process unless its lease is surely still its own, judged on this machine's clock alone. A
//! process that was stopped past its lease and goes on therefore writes nothing. Every request is counted here, once for each
//! time it is sent, so the client below must not send again by itself.

mod call;
#[cfg(test)]
mod tests;

pub use call::{ApiCall, api_call, outcome_class};

use http::{Request, Response};
use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tower::{BoxError, Layer, Service};

/// The clocks of this machine.
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed moment. It never goes back, and goes on while the process is stopped or the machine sleeps.
    fn now(&self) -> Duration;
    /// The time of day, for people only.
    fn wall(&self) -> Timestamp;
}

/// The clock since the machine was started.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Duration {
        // Unlike the monotonic clock this one counts the time in which the machine sleeps.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Why a write was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sent: this operator does not surely hold its lease")]
pub struct NotLeading;

/// Open while the lease is surely ours. Clones are one gate.
#[derive(Clone)]
pub struct Gate {
    clock: Arc<dyn Clock>,
    /// Nanoseconds of the clock; from then on it is closed.
    until: Arc<AtomicU64>,
}

/// A gate that no time closes.
const FOR_EVER: u64 = u64::MAX;

impl Gate {
    /// Closed until [`Gate::open_until`].
    pub fn closed(clock: Arc<dyn Clock>) -> Self {
        Self { clock, until: Arc::default() }
    }

    /// Open for ever: for an operator without leader election.
    pub fn always_open(clock: Arc<dyn Clock>) -> Self {
        Self { clock, until: Arc::new(AtomicU64::new(FOR_EVER)) }
    }

    /// The clock it goes by.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Opens it until this moment of its clock.
    pub fn open_until(&self, moment: Duration) {
        let nanos = u64::try_from(moment.as_nanos()).unwrap_or(FOR_EVER - 1);
        self.until.store(nanos, Ordering::SeqCst);
    }

    /// Closes it.
    pub fn close(&self) {
        self.until.store(0, Ordering::SeqCst);
    }

    /// How long it stays open unless it is opened further; zero when it is closed.
    pub fn left(&self) -> Duration {
        match self.until.load(Ordering::SeqCst) {
            FOR_EVER => Duration::MAX,
            until => Duration::from_nanos(until).saturating_sub(self.clock.now()),
        }
    }

    /// Whether a write may be sent now.
    pub fn is_open(&self) -> bool {
        !self.left().is_zero()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("left", &self.left()).finish_non_exhaustive()
    }
}

/// What a request is counted under.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    verb: &'static str,
    resource: String,
    code: &'static str,
}

/// Requests to the API server. Clones are one family.
pub type ApiRequests = Family<RequestLabels, Counter>;

/// Puts a gate, or only the counting, in front of a client.
#[derive(Clone, Debug)]
pub struct GateLayer {
    gate: Option<Gate>,
    requests: ApiRequests,
}

impl GateLayer {
    /// For the client of the controllers: writes pass while the gate is open.
    pub const fn gated(gate: Gate, requests: ApiRequests) -> Self {
        Self { gate: Some(gate), requests }
    }

    /// For the client of the lease itself.
    pub const fn counted(requests: ApiRequests) -> Self {
        Self { gate: None, requests }
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated { inner, gate: self.gate.clone(), requests: self.requests.clone() }
    }
}

/// A client behind a gate.
#[derive(Clone, Debug)]
pub struct Gated<S> {
    inner: S,
    gate: Option<Gate>,
    requests: ApiRequests,
}

impl<S, B, R> Service<Request<B>> for Gated<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = api_call(request.method(), request.uri());
        let mut tally = Tally { requests: self.requests.clone(), call: Some(call) };
        let gate = self.gate.clone().filter(|_| !request.method().is_safe());
        if gate.as_ref().is_some_and(|gate| !gate.is_open()) {
            tally.count("held");
            return Box::pin(std::future::ready(Err(NotLeading.into())));
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = match gate {
                Some(gate) => while_open(&gate, answer).await,
                None => answer.await.map_err(Into::into),
            };
            tally.count(match &answer {
                Ok(answer) => outcome_class(answer.status()),
                Err(error) if error.is::<NotLeading>() => "held",
                Err(_) => "none",
            });
            answer
        })
    }
}

/// Goes on with a request only while the gate is open: one that still waits for a connection is given up in time.
async fn while_open<T, E: Into<BoxError>>(
    gate: &Gate,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, BoxError> {
    let mut request = pin!(request);
    loop {
        let left = gate.left();
        if left.is_zero() {
            return Err(NotLeading.into());
        }
        // The gate is looked at before each step, since a stopped process may find the connection ready before any timer.
        let step = poll_fn(|context| {
            if gate.is_open() {
                request.as_mut().poll(context).map_err(Into::into)
            } else {
                Poll::Ready(Err(NotLeading.into()))
            }
        });
        tokio::select! {
            biased;
            answer = step => return answer,
            () = tokio::time::sleep(left) => {}
        }
    }
}

/// Counts a request once, also one that its caller gave up.
struct Tally {
    requests: ApiRequests,
    call: Option<ApiCall>,
}

impl Tally {
    fn count(&mut self, code: &'static str) {
        if let Some(ApiCall { verb, resource }) = self.call.take() {
            self.requests.get_or_create(&RequestLabels { verb, resource, code }).inc();
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.count("none");
    }
}
