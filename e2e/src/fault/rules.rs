//! Which request is spoiled, and how. No IO.

use regex::Regex;
use serde::Deserialize;
use serde_json::{Value, json};

/// A request as far as rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// HTTP method.
    pub verb: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// Body, as text.
    pub body: &'a str,
}

/// What is to go wrong. Replaces what was to go wrong before.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Faults {
    /// A signal to a process.
    pub signal: Option<SignalFault>,
    /// Answers that the API server never gave; the first that matches is taken.
    pub answers: Vec<AnswerFault>,
    /// Watch events come so much later, as from a cache that lags.
    pub watch_delay_ms: u64,
}

/// Signals a process when its n-th request passes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignalFault {
    /// The process.
    pub pid: i32,
    /// `KILL` or `STOP`.
    #[serde(default)]
    pub signal: Signal,
    /// Which of the matching requests, from 1, counted since the faults were set.
    pub nth: u64,
    /// Before it is forwarded, or when its answer is there.
    #[serde(default)]
    pub when: When,
    /// Which requests are counted.
    #[serde(default)]
    pub on: Filter,
}

/// Answers matching requests in place of the API server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnswerFault {
    /// Which requests.
    #[serde(default)]
    pub on: Filter,
    /// How many of them.
    pub times: u64,
    /// A status code, `"hang"`, `"drop"` or `"expired"`.
    pub with: With,
    /// In place of forwarding it, or although it was forwarded.
    #[serde(default)]
    pub when: When,
    /// Seconds that the answer asks to wait.
    #[serde(default)]
    pub retry_after: Option<u64>,
}

/// Which requests; without a verb, the counted writes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    verb: Option<Pattern>,
    path: Option<Pattern>,
    body: Option<Pattern>,
}

/// A regular expression that is found somewhere in the text.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Pattern(Regex);

impl TryFrom<String> for Pattern {
    type Error = regex::Error;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Regex::new(&text).map(Self)
    }
}

/// Signal to a process.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    /// Ends it. A request that came before its end and was to be spoiled `before` is not forwarded.
    #[default]
    Kill,
    /// Stops it until it is continued. The request is forwarded in any case: it was sent.
    Stop,
}

/// Relative to the API server's own work on a request.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// It never gets the request.
    #[default]
    Before,
    /// It has answered.
    After,
}

/// What a client gets.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum With {
    /// An error of Kubernetes with this code.
    Status(u16),
    /// None.
    Other(Other),
}

/// No error of Kubernetes in answer to the request.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Other {
    /// For as long as the client waits.
    Hang,
    /// The connection is closed.
    Drop,
    /// A watch that ends at once: the version to go on from is forgotten, so everything is to be listed again.
    Expired,
}

/// What is done with one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Its number, if it is a counted write.
    pub n: Option<u64>,
    /// A signal to send.
    pub signal: Option<(i32, Signal, When)>,
    /// An answer to give.
    pub answer: Option<(With, When, Option<u64>)>,
}

impl Verdict {
    /// In words, for the journal.
    pub fn words(&self) -> Option<String> {
        let signal = self.signal.map(|(_, signal, when)| format!("{signal:?} {when:?}"));
        let answer = self.answer.map(|(with, when, _)| match with {
            With::Status(code) => format!("{code} {when:?}"),
            With::Other(other) => format!("{other:?} {when:?}"),
        });
        signal.or(answer).map(|words| words.to_lowercase())
    }
}

/// The faults that are left, and the count of writes.
#[derive(Debug, Default)]
pub struct Rules {
    faults: Faults,
    signal_matches: u64,
    writes: u64,
}

impl Rules {
    /// Takes new faults in place of the old.
    pub fn set(&mut self, faults: Faults) {
        self.faults = faults;
        self.signal_matches = 0;
    }

    /// Counts writes from 1 again.
    pub fn restart_count(&mut self) {
        self.writes = 0;
    }

    /// How much later watch events come.
    pub const fn watch_delay_ms(&self) -> u64 {
        self.faults.watch_delay_ms
    }

    /// Decides on a request, and uses up what it decides.
    pub fn meet(&mut self, seen: Seen<'_>) -> Verdict {
        let n = counts(seen).then(|| {
            self.writes += 1;
            self.writes
        });
        Verdict { n, signal: self.signal_for(seen), answer: self.answer_for(seen) }
    }

    fn signal_for(&mut self, seen: Seen<'_>) -> Option<(i32, Signal, When)> {
        let fault = self.faults.signal.as_ref().filter(|fault| fault.on.matches(seen))?;
        self.signal_matches += 1;
        (self.signal_matches == fault.nth).then_some((fault.pid, fault.signal, fault.when))
    }

    fn answer_for(&mut self, seen: Seen<'_>) -> Option<(With, When, Option<u64>)> {
        let fault = self.faults.answers.iter_mut().find(|fault| fault.times > 0 && fault.on.matches(seen))?;
        fault.times -= 1;
        Some((fault.with, fault.when, fault.retry_after))
    }
}

impl Filter {
    fn matches(&self, seen: Seen<'_>) -> bool {
        let finds = |pattern: &Option<Pattern>, text: &str| pattern.as_ref().is_none_or(|it| it.0.is_match(text));
        let verb = self.verb.as_ref().map_or_else(|| counts(seen), |verb| verb.0.is_match(seen.verb));
        verb && finds(&self.path, seen.path) && finds(&self.body, seen.body)
    }
}

/// Whether a request changes something that is counted: neither a dry run, nor an Event, nor a heartbeat, nor a question in form of a POST.
pub fn counts(seen: Seen<'_>) -> bool {
    let (path, query) = seen.path.split_once('?').unwrap_or((seen.path, ""));
    writes(seen.verb)
        && !query.split('&').any(|part| part.starts_with("dryRun="))
        && !matches!(resource(path), "events" | "leases")
        && !path.starts_with("/apis/authorization.k8s.io/")
        && !path.starts_with("/apis/authentication.k8s.io/")
}

/// Whether a method is one of those that change something.
pub fn writes(verb: &str) -> bool {
    matches!(verb, "POST" | "PUT" | "PATCH" | "DELETE")
}

/// Whether a request is a watch.
pub fn watches(seen: Seen<'_>) -> bool {
    let query = seen.path.split_once('?').map_or("", |(_, query)| query);
    seen.verb == "GET" && query.split('&').any(|part| matches!(part, "watch=true" | "watch=1"))
}

/// The plural name of the resource that a path is about: `/api/v1/[namespaces/NS/]RESOURCE/...`, `/apis/GROUP/VERSION/...`.
fn resource(path: &str) -> &str {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let to_skip = if parts.next() == Some("api") { 1 } else { 2 };
    let mut rest = parts.skip(to_skip);
    match (rest.next(), rest.next(), rest.next()) {
        (Some("namespaces"), Some(_), Some(resource)) | (Some(resource), _, _) => resource,
        (None, _, _) => "",
    }
}

/// The body of an error as the API server writes it.
pub fn status_body(verb: &str, code: u16, retry_after: Option<u64>) -> Value {
    let reason = match (code, verb) {
        (409, "POST") => "AlreadyExists",
        (409, _) => "Conflict",
        (429, _) => "TooManyRequests",
        (500, _) => "InternalError",
        (503, _) => "ServiceUnavailable",
        (403, _) => "Forbidden",
        (404, _) => "NotFound",
        (410, _) => "Expired",
        _ => "Unknown",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "injected by the fault proxy", "reason": reason, "code": code,
        "details": { "retryAfterSeconds": retry_after },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: &str = "/api/v1/namespaces/n/pods";

    fn seen<'a>(verb: &'a str, path: &'a str) -> Seen<'a> {
        Seen { verb, path, body: "" }
    }

    fn rules(faults: Value) -> Rules {
        let mut rules = Rules::default();
        rules.set(serde_json::from_value(faults).unwrap());
        rules
    }

    #[test]
    fn only_lasting_changes_count() {
        let table = [
            ("POST", PODS, true),
            ("DELETE", "/api/v1/namespaces/n/pods/p", true),
            ("PATCH", "/apis/codeexec.dev/v1alpha1/namespaces/n/sandboxes/events/status", true),
            ("POST", "/api/v1/namespaces", true),
            ("PATCH", "/api/v1/namespaces/leases", true),
            ("GET", PODS, false),
            ("POST", "/api/v1/namespaces/n/pods?dryRun=All", false),
            ("POST", "/api/v1/namespaces/n/events", false),
            ("PATCH", "/apis/events.k8s.io/v1/namespaces/n/events/e", false),
            ("PUT", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l", false),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", false),
        ];
        for (verb, path, expected) in table {
            assert_eq!(counts(seen(verb, path)), expected, "{verb} {path}");
        }
    }

    #[test]
    fn the_nth_write_after_the_faults_were_set_brings_the_signal_once() {
        let mut rules = rules(json!({}));
        assert_eq!(rules.meet(seen("POST", PODS)).n, Some(1));
        let kill = json!({"signal": {"pid": 7, "nth": 2, "when": "after"}});
        rules.set(serde_json::from_value(kill).unwrap());
        assert_eq!(rules.meet(seen("POST", PODS)), Verdict { n: Some(2), ..Verdict::default() });
        assert_eq!(rules.meet(seen("GET", PODS)), Verdict::default());
        assert_eq!(rules.meet(seen("POST", PODS)).signal, Some((7, Signal::Kill, When::After)));
        assert_eq!(rules.meet(seen("POST", PODS)).signal, None);
    }

    #[test]
    fn a_signal_can_wait_for_one_kind_of_request() {
        let mut rules = rules(
            json!({"signal": {"pid": 7, "signal": "STOP", "nth": 1, "on": {"verb": "^PATCH$", "body": "Suspending"}}}),
        );
        assert_eq!(rules.meet(Seen { verb: "PATCH", path: "/x", body: "Ready" }).signal, None);
        let signal = rules.meet(Seen { verb: "PATCH", path: "/x", body: "Suspending" }).signal;
        assert_eq!(signal, Some((7, Signal::Stop, When::Before)));
    }

    #[test]
    fn answers_are_used_up_in_their_order() {
        let mut rules = rules(json!({"answers": [
            {"on": {"verb": "POST", "path": "/pods$"}, "times": 2, "with": 503, "retryAfter": 1},
            {"on": {"path": "/pods$"}, "times": 1, "with": "hang", "when": "after"},
        ]}));
        let answers: Vec<_> = (0..4).map(|_| rules.meet(seen("POST", PODS)).answer).collect();
        let unavailable = Some((With::Status(503), When::Before, Some(1)));
        let hang = Some((With::Other(Other::Hang), When::After, None));
        assert_eq!(answers, [unavailable, unavailable, hang, None]);
    }

    #[test]
    fn faults_with_a_field_nobody_knows_or_a_broken_pattern_are_refused() {
        for wrong in [json!({"answer": []}), json!({"answers": [{"on": {"path": "("}, "times": 1, "with": 500}]})] {
            assert!(serde_json::from_value::<Faults>(wrong).is_err());
        }
    }

    #[test]
    fn watches_are_told_from_lists() {
        assert!(watches(seen("GET", "/api/v1/namespaces/n/pods?labelSelector=a&watch=true&timeoutSeconds=290")));
        assert!(!watches(seen("GET", "/api/v1/namespaces/n/pods?labelSelector=watch")));
    }

    #[test]
    fn a_conflict_has_the_reason_of_its_verb() {
        assert_eq!(status_body("POST", 409, None)["reason"], "AlreadyExists");
        assert_eq!(status_body("PATCH", 409, None)["reason"], "Conflict");
        assert_eq!(status_body("POST", 429, Some(2))["details"]["retryAfterSeconds"], 2);
    }
}
