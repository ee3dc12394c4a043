//! What is counted about sandboxes and their use. No label names an object or a tenant.

use crate::{AcquireError, RunError, Start};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

/// Upper bounds of the time to ready, in seconds: from a pool's take-over to a slow pull.
const READY_SECONDS: [f64; 12] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 90.0, 120.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Acquire {
    outcome: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Started {
    start: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// The counters.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    acquired: Family<Acquire, Counter>,
    ready_seconds: Family<Started, Histogram, fn() -> Histogram>,
    without_result: Family<Reason, Counter>,
    streams_open: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            acquired: Family::default(),
            ready_seconds: Family::new_with_constructor(|| Histogram::new(READY_SECONDS)),
            without_result: Family::default(),
            streams_open: Gauge::default(),
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "sandboxes_acquired",
            "Sandboxes that were looked at, woken or created for a request, or could not be had",
            self.acquired.clone(),
        );
        registry.register(
            "sandbox_ready_seconds",
            "Time that a request waited for a sandbox to be created or woken",
            self.ready_seconds.clone(),
        );
        registry.register(
            "runs_without_result",
            "Commands whose outcome is unknown, or that did not run",
            self.without_result.clone(),
        );
        registry.register("streams_open", "Streams to sandboxes that are open", self.streams_open.clone());
    }

    /// An acquire ended. One that cost nothing is not counted.
    pub(crate) fn acquired(&self, outcome: Result<Start, &AcquireError>, took: Duration) {
        let (outcome, reason) = match outcome {
            Ok(Start::Reused) => return,
            Ok(start) => {
                if matches!(start, Start::Woken | Start::Created) {
                    let labels = Started { start: start.as_str() };
                    self.ready_seconds.get_or_create(&labels).observe(took.as_secs_f64());
                }
                (start.as_str(), "")
            }
            Err(AcquireError::NotFound) => ("failed", "not_found"),
            Err(AcquireError::Expired) => ("failed", "expired"),
            Err(AcquireError::TimedOut(_)) => ("failed", "timed_out"),
            Err(AcquireError::Unavailable { reason, .. }) => ("failed", reason.as_str()),
        };
        self.acquired.get_or_create(&Acquire { outcome, reason }).inc();
    }

    pub(crate) fn no_result(&self, error: &RunError) {
        let reason = match error {
            RunError::Unknown(_) => "unknown",
            RunError::Lost(_) => "out_of_memory",
            RunError::TooManyRequests => "too_many_requests",
            RunError::TooLarge { .. } => "too_large",
            RunError::NoSandbox(_) => "no_sandbox",
            RunError::Unavailable(_) => "unavailable",
            RunError::NotInImage(_) => "not_in_image",
        };
        self.without_result.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn set_streams_open(&self, count: usize) {
        self.streams_open.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Loss, Slow, UnavailableReason};
    use prometheus_client::encoding::text::encode;

    #[test]
    fn outcomes_are_counted_under_their_reasons_and_a_reuse_is_not() {
        let metrics = Metrics::new();
        let took = Duration::from_secs(3);
        let quota = AcquireError::unavailable(UnavailableReason::Quota, "m");
        metrics.acquired(Ok(Start::Reused), took);
        metrics.acquired(Ok(Start::Ready), took);
        metrics.acquired(Ok(Start::Woken), took);
        metrics.acquired(Err(&quota), took);
        metrics.acquired(Err(&AcquireError::TimedOut(Slow::Room)), took);
        metrics.no_result(&RunError::Lost(Loss::OutOfMemory { limit: None }));
        metrics.set_streams_open(2);
        let mut registry = Registry::with_prefix("p");
        metrics.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "p_sandboxes_acquired_total{outcome=\"ready\",reason=\"\"} 1",
            "p_sandboxes_acquired_total{outcome=\"failed\",reason=\"quota\"} 1",
            "p_sandboxes_acquired_total{outcome=\"failed\",reason=\"timed_out\"} 1",
            "p_sandbox_ready_seconds_bucket{le=\"5.0\",start=\"woken\"} 1",
            "p_runs_without_result_total{reason=\"out_of_memory\"} 1",
            "p_streams_open 2",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("reused") && !text.contains("start=\"ready\""), "{text}");
    }
}
