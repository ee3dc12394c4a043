//! What the API server says it was asked: requests by verb and resource, before and after.

use crate::prometheus::samples;
use std::{collections::BTreeMap, fmt};

/// A kind of request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// Resource, with its subresource.
    pub resource: String,
    /// Verb in the API server's words.
    pub verb: String,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

/// Numbers of requests that change something.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Writes {
    /// Those that were done.
    pub done: BTreeMap<Kind, f64>,
    /// Those that were refused, with whatever code.
    pub refused: BTreeMap<Kind, f64>,
}

/// Whether requests of this kind may change what is stored.
fn changes(verb: &str, resource: &str) -> bool {
    let reads = matches!(verb, "GET" | "LIST" | "WATCH" | "WATCHLIST" | "CONNECT" | "HEAD");
    // Reviews and tokens are answers to a POST; nothing is stored.
    let asks = resource.ends_with("reviews") || resource == "serviceaccounts/token";
    !reads && !asks && !resource.is_empty()
}

impl Writes {
    /// From the API server's `/metrics`.
    pub fn read(text: &str) -> Self {
        let mut all = Self::default();
        for sample in samples(text, "apiserver_request_total") {
            let mut resource = sample.label("resource").to_owned();
            if !sample.label("subresource").is_empty() {
                resource = format!("{resource}/{}", sample.label("subresource"));
            }
            let verb = sample.label("verb");
            if !changes(verb, &resource) || !sample.label("dry_run").is_empty() {
                continue;
            }
            let kind = Kind { resource, verb: verb.to_owned() };
            let list = if sample.label("code").starts_with('2') { &mut all.done } else { &mut all.refused };
            *list.entry(kind).or_default() += sample.value;
        }
        all
    }

    /// What came on top of `before`.
    pub fn since(&self, before: &Self) -> Self {
        let subtract = |now: &BTreeMap<Kind, f64>, before: &BTreeMap<Kind, f64>| {
            now.iter()
                .map(|(kind, count)| (kind.clone(), count - before.get(kind).copied().unwrap_or_default()))
                .filter(|(_, count)| *count > 0.0)
                .collect()
        };
        Self { done: subtract(&self.done, &before.done), refused: subtract(&self.refused, &before.refused) }
    }

    /// Those done, without Leases and Events.
    pub fn counted(&self) -> f64 {
        self.of(|kind| !matches!(kind.resource.as_str(), "leases" | "events"))
    }

    /// Those done that a test picks.
    pub fn of(&self, pick: impl Fn(&Kind) -> bool) -> f64 {
        self.done.iter().filter(|(kind, _)| pick(kind)).map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
apiserver_request_total{code=\"201\",dry_run=\"\",resource=\"pods\",subresource=\"\",verb=\"POST\"} 5
apiserver_request_total{code=\"200\",dry_run=\"\",resource=\"pods\",subresource=\"\",verb=\"LIST\"} 50
";
    const AFTER: &str = "\
apiserver_request_total{code=\"201\",dry_run=\"\",resource=\"pods\",subresource=\"\",verb=\"POST\"} 8
apiserver_request_total{code=\"201\",dry_run=\"All\",resource=\"pods\",subresource=\"\",verb=\"POST\"} 4
apiserver_request_total{code=\"409\",dry_run=\"\",resource=\"pods\",subresource=\"status\",verb=\"PATCH\"} 2
apiserver_request_total{code=\"200\",dry_run=\"\",resource=\"pods\",subresource=\"status\",verb=\"PATCH\"} 6
apiserver_request_total{code=\"200\",dry_run=\"\",resource=\"leases\",subresource=\"\",verb=\"PUT\"} 9
apiserver_request_total{code=\"201\",dry_run=\"\",resource=\"subjectaccessreviews\",subresource=\"\",verb=\"POST\"} 3
apiserver_request_total{code=\"200\",dry_run=\"\",resource=\"pods\",subresource=\"\",verb=\"LIST\"} 70
";

    #[test]
    fn only_what_changed_something_since_then_counts() {
        let writes = Writes::read(AFTER).since(&Writes::read(BEFORE));
        let shown: Vec<_> = writes.done.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        assert_eq!(shown, ["PUT leases 9", "POST pods 3", "PATCH pods/status 6"]);
        assert!((writes.counted() - 9.0).abs() < 1e-9);
        assert!((writes.refused.values().sum::<f64>() - 2.0).abs() < 1e-9);
    }
}
