//! Counters of the server, in the text format of Prometheus. No label names a tenant or an object.

use http::{Method, StatusCode};
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use sandbox_runtime::Sandboxes;
use std::{fmt, time::Duration};

/// Upper bounds in seconds; a turn may take nine minutes.
const SECONDS: [f64; 12] = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 540.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: String,
    method: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: String,
}

/// A model of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Sampled {
    model: String,
    outcome: &'static str,
}

/// Everything that is counted.
pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    seconds: Family<Route, Histogram, fn() -> Histogram>,
    samplings: Family<Sampled, Counter>,
    first_event: Family<Asked, Histogram, fn() -> Histogram>,
    tasks: Gauge,
}

impl Metrics {
    /// Those of one server.
    pub fn new(sandboxes: &Sandboxes) -> Self {
        let mut registry = Registry::with_prefix("codeexec_api");
        let requests = Family::<Answered, Counter>::default();
        let seconds = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        registry.register("requests", "Requests answered", requests.clone());
        registry.register("request_seconds", "Time until the head of an answer, a stream's included", seconds.clone());
        let samplings = Family::<Sampled, Counter>::default();
        let first_event = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        registry.register("samplings", "Answers of models: ended, cancelled, or the error's type", samplings.clone());
        registry.register("first_event_seconds", "Time until a model's answer begins", first_event.clone());
        let tasks = Gauge::default();
        registry.register(
            "tasks",
            "Tasks of the server's runtime: connections, turns, streams into sandboxes",
            tasks.clone(),
        );
        sandboxes.register(&mut registry);
        Self { registry, requests, seconds, samplings, first_event, tasks }
    }

    /// A request was answered. `route` is a template of ours, never a path.
    pub fn answered(&self, route: &str, method: &Method, status: StatusCode, took: Duration) {
        let labels = Answered { route: route.to_owned(), method: method_label(method), status: status.as_u16() };
        self.requests.get_or_create(&labels).inc();
        self.seconds.get_or_create(&Route { route: route.to_owned() }).observe(took.as_secs_f64());
    }

    /// A model's answer began so long after it was asked for.
    pub fn began(&self, model: &str, took: Duration) {
        self.first_event.get_or_create(&Asked { model: model.to_owned() }).observe(took.as_secs_f64());
    }

    /// A model's answer came to this end: `ended`, `cancelled`, or the `error.type` of what went wrong.
    pub fn sampled(&self, model: &str, outcome: &'static str) {
        self.samplings.get_or_create(&Sampled { model: model.to_owned(), outcome }).inc();
    }

    /// All of it as text, for a caller in the server's runtime.
    pub fn render(&self, sandboxes: &Sandboxes) -> Result<String, fmt::Error> {
        sandboxes.refresh_metrics();
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        self.tasks.set(i64::try_from(tasks).unwrap_or(i64::MAX));
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        Ok(page)
    }
}

/// Clients may send any word as a method; labels are few.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_of_a_clients_own_making_is_no_label() {
        assert_eq!(method_label(&Method::POST), "POST");
        assert_eq!(method_label(&Method::from_bytes(b"X-SECRET").unwrap()), "other");
    }
}
