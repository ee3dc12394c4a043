//! Whether the cluster keeps sandboxes off the network, as far as it was tried.
//!
//! A pod of a namespace is tried on one node at a time, so what is known is kept per node: one node where something was reached is
//! enough to say so, whatever the others show. Invariant: a try that shows nothing takes away nothing that an earlier one showed.

use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::sync::watch;

/// What was seen is believed for so long; tries are hourly.
pub const BELIEVED_FOR: Duration = Duration::from_hours(3);
/// What a try reaches when policies are not enforced, and the operator itself reaches in any case.
pub const CANARY: &str = "canary";

/// Whether network policies are enforced on the pods of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Not tried yet, or the try showed nothing.
    #[default]
    Unknown,
    /// A pod like a sandbox's reached nothing.
    Isolated,
    /// A pod like a sandbox's reached something; the sentence says what.
    Broken(String),
}

/// Who says it, and who listens. It begins as [`Isolation::Unknown`].
pub fn channel() -> (watch::Sender<Isolation>, watch::Receiver<Isolation>) {
    watch::channel(Isolation::Unknown)
}

/// Somewhere a pod tried to connect to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Place {
    /// What it is: [`CANARY`] or another word of the operator.
    pub name: String,
    /// Its address and port.
    pub address: String,
}

/// What the probe writes when it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Report {
    /// Where it tried to connect to.
    pub tried: Vec<Place>,
    /// Where a connection was made in the last round.
    pub reached: Vec<Place>,
}

/// What one try showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing was reached that could have been.
    Isolated,
    /// These were reached.
    Reached(Vec<Place>),
    /// It shows nothing; the sentence says why.
    Nothing(String),
}

/// Reads a report. `control` are the canaries that the operator reached itself, just before.
pub fn judge(control: &BTreeSet<String>, report: Report) -> Finding {
    let Report { tried, mut reached } = report;
    // What was reached is reached, whether or not the canary answers.
    if !reached.is_empty() {
        reached.sort();
        reached.dedup();
        return Finding::Reached(reached);
    }
    let proves = |place: &&Place| place.name == CANARY && control.contains(&place.address);
    if control.is_empty() {
        return Finding::Nothing(
            "the operator itself did not reach the canary, so a pod that does not either shows nothing".to_owned(),
        );
    }
    if !tried.iter().any(|place| proves(&place)) {
        return Finding::Nothing("the probe did not try the canary that the operator reached".to_owned());
    }
    Finding::Isolated
}

/// What is known of each node.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    nodes: BTreeMap<String, Seen>,
    /// Nodes that a try was meant for, whether or not it came to run there.
    aimed: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Seen {
    /// What was reached there; nothing is good.
    reached: Vec<Place>,
    at: Duration,
}

impl Ledger {
    /// Takes in what a try on a node showed, at a moment of a clock that never goes back.
    pub fn record(&mut self, node: &str, finding: &Finding, at: Duration) {
        let reached = match finding {
            Finding::Isolated => Vec::new(),
            Finding::Reached(places) => places.clone(),
            Finding::Nothing(_) => return,
        };
        self.nodes.insert(node.to_owned(), Seen { reached, at });
    }

    /// A try was meant for this node.
    pub fn aim(&mut self, node: &str) {
        self.aimed.insert(node.to_owned());
    }

    /// These nodes are all there are: of others nothing is known any more.
    pub fn keep(&mut self, nodes: &BTreeSet<String>) {
        self.nodes.retain(|node, _| nodes.contains(node));
        self.aimed.retain(|node| nodes.contains(node));
    }

    /// The node that the next try should be on: one where something was reached, else one that is new, else one that is not known yet.
    pub fn next(&self, nodes: &BTreeSet<String>) -> Option<String> {
        let broken = self.nodes.iter().find(|(_, seen)| !seen.reached.is_empty()).map(|(node, _)| node);
        let unknown = || nodes.iter().find(|node| !self.nodes.contains_key(*node));
        broken.or_else(|| self.untried(nodes)).or_else(unknown).cloned()
    }

    /// A node that nothing is known of, and that no try was meant for.
    pub fn untried<'a>(&self, nodes: &'a BTreeSet<String>) -> Option<&'a String> {
        nodes.iter().find(|node| !self.nodes.contains_key(*node) && !self.aimed.contains(*node))
    }

    /// All of it as one word. Isolation that was not seen again for long is not believed; a leak is, until it was seen to be gone.
    pub fn verdict(&self, namespace: &str, now: Duration) -> Isolation {
        let broken = self.nodes.iter().find(|(_, seen)| !seen.reached.is_empty());
        if let Some((node, seen)) = broken {
            return Isolation::Broken(sentence(namespace, node, &seen.reached));
        }
        let fresh = |seen: &Seen| now.saturating_sub(seen.at) <= BELIEVED_FOR;
        if self.nodes.values().any(fresh) { Isolation::Isolated } else { Isolation::Unknown }
    }
}

fn sentence(namespace: &str, node: &str, reached: &[Place]) -> String {
    let places: Vec<String> = reached.iter().map(|place| format!("{} ({})", place.name, place.address)).collect();
    format!(
        "a pod of namespace {namespace} on node {node} reached {} although a NetworkPolicy denies it everything; use a network plugin that \
         enforces NetworkPolicies, and see that it runs on every node",
        places.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    type Places<'a> = &'a [(&'a str, &'a str)];

    const HOUR: Duration = Duration::from_hours(1);

    fn places(list: &[(&str, &str)]) -> Vec<Place> {
        list.iter().map(|(name, address)| Place { name: (*name).to_owned(), address: (*address).to_owned() }).collect()
    }

    fn nodes(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn reached(list: &[(&str, &str)]) -> Finding {
        Finding::Reached(places(list))
    }

    #[test]
    fn only_a_try_that_could_have_reached_the_canary_shows_isolation() {
        let canary = ("canary", "10.0.0.9:8080");
        let kubelet = ("kubelet", "10.0.0.1:10250");
        let nothing: &[(&str, &str)] = &[];
        let rows: [(&str, &[&str], Places<'_>, Places<'_>, &str); 7] = [
            ("all blocked", &[canary.1], &[canary, kubelet], nothing, "isolated"),
            ("the canary is reached", &[canary.1], &[canary, kubelet], &[canary], "canary"),
            ("only the node is reached", &[canary.1], &[canary, kubelet], &[kubelet], "kubelet"),
            ("nothing answers anybody", &[], &[canary, kubelet], nothing, "nothing"),
            ("reached although the canary answers nobody", &[], &[canary, kubelet], &[kubelet], "kubelet"),
            ("the canary was not tried", &[canary.1], &[kubelet], nothing, "nothing"),
            ("another canary was tried", &["10.0.0.8:8080"], &[canary], nothing, "nothing"),
        ];
        for (name, control, tried, touched, expected) in rows {
            let report = Report { tried: places(tried), reached: places(touched) };
            let found = match judge(&nodes(control), report) {
                Finding::Isolated => "isolated".to_owned(),
                Finding::Nothing(_) => "nothing".to_owned(),
                Finding::Reached(places) => places[0].name.clone(),
            };
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn one_leaking_node_is_enough_until_it_was_seen_to_be_tight() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.verdict("boxes", HOUR), Isolation::Unknown);
        ledger.record("a", &Finding::Isolated, HOUR);
        assert_eq!(ledger.verdict("boxes", HOUR), Isolation::Isolated);
        ledger.record("b", &reached(&[("metadata", "169.254.169.254:80")]), HOUR);
        ledger.record("a", &Finding::Isolated, HOUR * 2);
        let Isolation::Broken(sentence) = ledger.verdict("boxes", HOUR * 20) else { panic!("a leak is forgotten") };
        for word in ["namespace boxes", "node b", "metadata (169.254.169.254:80)"] {
            assert!(sentence.contains(word), "{sentence}");
        }
        ledger.record("b", &Finding::Nothing("busy".to_owned()), HOUR * 21);
        assert!(matches!(ledger.verdict("boxes", HOUR * 21), Isolation::Broken(_)));
        ledger.record("b", &Finding::Isolated, HOUR * 22);
        assert_eq!(ledger.verdict("boxes", HOUR * 22), Isolation::Isolated);
    }

    #[test]
    fn a_leaking_node_that_is_gone_counts_no_more() {
        let mut ledger = Ledger::default();
        ledger.record("a", &Finding::Isolated, HOUR);
        ledger.record("b", &reached(&[("canary", "x")]), HOUR);
        ledger.keep(&nodes(&["a", "c"]));
        assert_eq!(ledger.verdict("boxes", HOUR), Isolation::Isolated);
    }

    #[test]
    fn isolation_that_was_not_seen_again_for_long_is_not_believed() {
        let mut ledger = Ledger::default();
        ledger.record("a", &Finding::Isolated, HOUR);
        assert_eq!(ledger.verdict("boxes", HOUR + BELIEVED_FOR), Isolation::Isolated);
        assert_eq!(ledger.verdict("boxes", HOUR * 2 + BELIEVED_FOR), Isolation::Unknown);
    }

    #[test]
    fn leaking_nodes_are_tried_before_new_ones_and_new_ones_once() {
        let mut ledger = Ledger::default();
        let all = nodes(&["a", "b", "c"]);
        ledger.record("a", &Finding::Isolated, HOUR);
        assert_eq!(ledger.next(&all).as_deref(), Some("b"));
        ledger.aim("b");
        assert_eq!(ledger.next(&all).as_deref(), Some("c"));
        ledger.record("b", &reached(&[("canary", "x")]), HOUR);
        assert_eq!(ledger.next(&all).as_deref(), Some("b"));
        ledger.record("b", &Finding::Isolated, HOUR);
        ledger.aim("c");
        assert_eq!((ledger.untried(&all), ledger.next(&all).as_deref()), (None, Some("c")));
        ledger.record("c", &Finding::Isolated, HOUR);
        assert_eq!(ledger.next(&all), None);
    }
}
