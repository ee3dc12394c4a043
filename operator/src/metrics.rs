//! What the operator tells of itself, for Prometheus. No label names an object but a template, and of those only so many.

mod census;
mod process;

pub use census::Tally;

use crate::{gate::ApiRequests, isolation::Isolation, validate::template_name, watch::Guarded};
use census::Census;
use crds::Reason;
use kube::runtime::reflector::Store;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};
use std::time::Duration;

/// Seconds of a pass: one without a write takes well under a millisecond, one with several a few answers of the API server.
const PASS_SECONDS: [f64; 13] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Seconds until a sandbox is ready: from a warm image to a start that is given up.
const START_SECONDS: [f64; 12] = [0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 60.0, 180.0, 600.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PassLabels {
    kind: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

/// Namespaces are settings, and few.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamespaceLabel {
    namespace: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

type Seconds<L> = Family<L, Histogram, fn() -> Histogram>;

/// The operator's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    passes: Family<PassLabels, Counter>,
    pass_seconds: Seconds<KindLabel>,
    ready_seconds: Seconds<SourceLabel>,
    suspends: Family<CauseLabel, Counter>,
    wakes: Counter,
    troubles: Family<ReasonLabel, Counter>,
    pod_deletions: Family<CauseLabel, Counter>,
    watch_errors: Family<KindLabel, Counter>,
    requests: ApiRequests,
    leader: Gauge,
    isolated: Family<NamespaceLabel, Gauge>,
    census: Census,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            passes: Family::default(),
            pass_seconds: Seconds::new_with_constructor(|| Histogram::new(PASS_SECONDS)),
            ready_seconds: Seconds::new_with_constructor(|| Histogram::new(START_SECONDS)),
            suspends: Family::default(),
            wakes: Counter::default(),
            troubles: Family::default(),
            pod_deletions: Family::default(),
            watch_errors: Family::default(),
            requests: Family::default(),
            leader: Gauge::default(),
            isolated: Family::default(),
            census: Census::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    /// The registry adds `_total` to the names of counters.
    fn register(&mut self) {
        self.registry.register_collector(Box::new(process::Process));
        let registry = self.registry.sub_registry_with_prefix("codeexec_operator");
        registry.register("reconciles", "Passes over one object, by what came of them", self.passes.clone());
        registry.register("reconcile_seconds", "Duration of passes", self.pass_seconds.clone());
        registry.register(
            "time_to_ready_seconds",
            "From creation or wake to Ready, by where the pod came from",
            self.ready_seconds.clone(),
        );
        registry.register("suspends", "Sandboxes that were suspended, by cause", self.suspends.clone());
        registry.register("wakes", "Suspended sandboxes that were woken", self.wakes.clone());
        registry.register("troubles", "Sandboxes that came into trouble, by reason", self.troubles.clone());
        registry.register("pod_deletions", "Pods deleted by the operator, by cause", self.pod_deletions.clone());
        registry.register("watch_errors", "Interruptions of watches", self.watch_errors.clone());
        registry.register(
            "api_requests",
            "Requests to the API server; code is a status, a class of them, none (no answer) or held (not sent: not leading)",
            self.requests.clone(),
        );
        registry.register("leader", "1 while this operator leads", self.leader.clone());
        registry.register(
            "network_isolated",
            "1 when network policies were seen to be enforced on the pods of a namespace, 0 when they were seen not to be",
            self.isolated.clone(),
        );
        registry.register("build", "What is running", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        registry.register_collector(Box::new(self.census.clone()));
    }

    /// A pass over one object ended. `kind` and `result` are static names: `Sandbox`, and `nothing`, `wrote`, `outdated`, `refused`,
    /// `failed` and the like.
    pub fn reconciled(&self, kind: &'static str, result: &'static str, took: Duration) {
        self.passes.get_or_create(&PassLabels { kind, result }).inc();
        self.pass_seconds.get_or_create(&KindLabel { kind: kind.to_owned() }).observe(took.as_secs_f64());
    }

    /// A sandbox became Ready so long after its creation or wake; `source` says where its pod came from: `cold`, `pool`, `existing`.
    pub fn became_ready(&self, source: &'static str, took: Duration) {
        self.ready_seconds.get_or_create(&SourceLabel { source }).observe(took.as_secs_f64());
    }

    /// A sandbox was suspended: `idle`, `replicas`, `start_timeout` and the like.
    pub fn suspended(&self, cause: &'static str) {
        self.suspends.get_or_create(&CauseLabel { cause }).inc();
    }

    /// A suspended sandbox was woken.
    pub fn woke(&self) {
        self.wakes.inc();
    }

    /// The Ready condition of a sandbox took this reason.
    pub fn troubled(&self, reason: Reason) {
        self.troubles.get_or_create(&ReasonLabel { reason: reason.as_str() }).inc();
    }

    /// A pod was deleted: `suspend`, `failed`, `replaced` and the like.
    pub fn pod_deleted(&self, cause: &'static str) {
        self.pod_deletions.get_or_create(&CauseLabel { cause }).inc();
    }

    /// A watch of this kind was interrupted.
    pub fn watch_failed(&self, kind: &str) {
        self.watch_errors.get_or_create(&KindLabel { kind: kind.to_owned() }).inc();
    }

    /// Whether this operator leads.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// What is known of the isolation of a namespace's pods.
    pub fn network_isolated(&self, namespace: &str, isolation: &Isolation) {
        let label = NamespaceLabel { namespace: namespace.to_owned() };
        match isolation {
            Isolation::Isolated => _ = self.isolated.get_or_create(&label).set(1),
            Isolation::Broken(_) => _ = self.isolated.get_or_create(&label).set(0),
            Isolation::Unknown => _ = self.isolated.remove(&label),
        }
    }

    /// Where requests to the API server are counted: for the layer on the client.
    pub fn api_requests(&self) -> ApiRequests {
        self.requests.clone()
    }

    /// Counts the sandboxes of a namespace whenever the metrics are read.
    pub fn count_sandboxes(&self, namespace: &str, sandboxes: Store<Guarded>) {
        self.census.add(namespace, move |tally| {
            for sandbox in sandboxes.state() {
                match &sandbox.0 {
                    Ok(sandbox) => {
                        let phase = sandbox.status.as_ref().and_then(|status| status.phase);
                        tally.count(template_name(sandbox), phase.map_or("Pending", crds::Phase::as_str));
                    }
                    Err(_) => tally.count("", "Unreadable"),
                }
            }
        });
    }

    /// All of them, as text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use kube::{
        core::DeserializeGuard,
        runtime::{reflector, watcher},
    };
    use serde_json::json;

    fn lines(metrics: &Metrics, wanted: &[&str]) {
        let text = metrics.render();
        for line in wanted {
            assert!(text.lines().any(|found| found == *line), "{line}\n{text}");
        }
    }

    #[test]
    fn what_happened_is_counted_under_its_name() {
        let metrics = Metrics::default();
        metrics.reconciled("Sandbox", "wrote", Duration::from_millis(20));
        metrics.became_ready("pool", Duration::from_millis(1500));
        metrics.suspended("idle");
        metrics.woke();
        metrics.troubled(Reason::OOMKilled);
        metrics.pod_deleted("suspend");
        metrics.watch_failed("Pod");
        metrics.leads(true);
        lines(
            &metrics,
            &[
                "codeexec_operator_reconciles_total{kind=\"Sandbox\",result=\"wrote\"} 1",
                "codeexec_operator_reconcile_seconds_bucket{le=\"0.01\",kind=\"Sandbox\"} 0",
                "codeexec_operator_reconcile_seconds_bucket{le=\"0.025\",kind=\"Sandbox\"} 1",
                "codeexec_operator_time_to_ready_seconds_bucket{le=\"2.0\",source=\"pool\"} 1",
                "codeexec_operator_suspends_total{cause=\"idle\"} 1",
                "codeexec_operator_wakes_total 1",
                "codeexec_operator_troubles_total{reason=\"OOMKilled\"} 1",
                "codeexec_operator_pod_deletions_total{cause=\"suspend\"} 1",
                "codeexec_operator_watch_errors_total{kind=\"Pod\"} 1",
                "codeexec_operator_leader 1",
                concat!("codeexec_operator_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
                "# EOF",
            ],
        );
    }

    #[test]
    fn sandboxes_are_counted_by_phase_and_template_as_they_stand() {
        let metrics = Metrics::default();
        let (store, mut writer) = reflector::store();
        metrics.count_sandboxes("a", store);
        let mut put = |name: &str, phase: Option<&str>| {
            let mut sandbox = fixture::sandbox(&json!({ "templateRef": { "name": "slim" } }));
            sandbox.metadata.name = Some(name.to_owned());
            sandbox.status = phase.map(|phase| serde_json::from_value(json!({ "phase": phase })).unwrap());
            writer.apply_watcher_event(&watcher::Event::Apply(DeserializeGuard(Ok(sandbox))));
        };
        put("a", Some("Ready"));
        put("b", Some("Ready"));
        put("c", None);
        lines(
            &metrics,
            &[
                "codeexec_operator_sandboxes{template=\"slim\",phase=\"Ready\"} 2",
                "codeexec_operator_sandboxes{template=\"slim\",phase=\"Pending\"} 1",
            ],
        );
        put("b", Some("Suspended"));
        lines(&metrics, &["codeexec_operator_sandboxes{template=\"slim\",phase=\"Ready\"} 1"]);
    }

    #[test]
    fn isolation_is_shown_only_where_it_is_known() {
        let metrics = Metrics::default();
        for (namespace, isolation) in [
            ("a", Isolation::Isolated),
            ("b", Isolation::Broken("x".to_owned())),
            ("c", Isolation::Isolated),
            ("c", Isolation::Unknown),
        ] {
            metrics.network_isolated(namespace, &isolation);
        }
        lines(
            &metrics,
            &[
                "codeexec_operator_network_isolated{namespace=\"a\"} 1",
                "codeexec_operator_network_isolated{namespace=\"b\"} 0",
            ],
        );
        assert!(!metrics.render().contains("network_isolated{namespace=\"c\"}"));
    }

    #[test]
    fn the_process_is_measured() {
        let text = Metrics::default().render();
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split(' ').nth(1).unwrap().parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes ") > 1e6);
        assert!(value("process_cpu_seconds_total ") >= 0.0);
    }
}
