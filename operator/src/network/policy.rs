//! The network policies of a namespace, as they should be. Pure.
//!
//! One policy that denies everything to every pod, and beside it one per template that allows what the template says to its pods.
//! Policies only ever add to each other, so without the template's the pods reach nothing.

use super::settings::{ApiAccess, HelmRelease};
use crds::{Network, keys};
use k8s_openapi::{
    api::networking::v1::{
        NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::ResourceExt;
use std::collections::BTreeMap;

/// The policy that denies everything; the chart makes it.
pub const DENY_ALL: &str = "codeexec-deny-all";
/// Starts the name of a template's policy. The rest is the template's name, so that two templates never share one.
const TEMPLATE_PREFIX: &str = "codeexec-template-";

/// Name of the policy of a template.
pub fn policy_name(template: &str) -> String {
    format!("{TEMPLATE_PREFIX}{template}")
}

/// What a policy is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// It denies everything.
    DenyAll,
    /// It has the name of this template's policy.
    Template(&'a str),
    /// Nothing to do with us.
    Other,
}

/// Reads a name.
pub fn kind(name: &str) -> Kind<'_> {
    match name.strip_prefix(TEMPLATE_PREFIX) {
        _ if name == DENY_ALL => Kind::DenyAll,
        Some(template) if !template.is_empty() => Kind::Template(template),
        Some(_) | None => Kind::Other,
    }
}

/// What is to be done about a policy.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// It is as it should be.
    Nothing,
    /// Make it.
    Create(Box<NetworkPolicy>),
    /// Replace its spec and owners; this one has the UID and version of the one that is replaced.
    Restore(Box<NetworkPolicy>),
    /// Delete it.
    Delete {
        /// Its UID.
        uid: String,
    },
    /// Delete it once no pod needs it.
    DeleteWhenUnused {
        /// Its UID.
        uid: String,
    },
    /// Somebody else's policy has its name.
    Foreign,
}

/// What a template says of its policy.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// There is no such template.
    NoTemplate,
    /// It cannot be read: what it allowed before stays.
    Unreadable,
    /// It says this.
    Network(&'a Network),
}

/// What to do about the policy of a template.
pub fn decide_template(
    namespace: &str,
    template: &str,
    wanted: Wanted<'_>,
    access: Option<ApiAccess<'_>>,
    found: Option<&NetworkPolicy>,
) -> Act {
    let rules = match wanted {
        Wanted::Unreadable => return Act::Nothing,
        Wanted::NoTemplate => Vec::new(),
        Wanted::Network(network) => egress_rules(network, access),
    };
    let desired = (!rules.is_empty()).then(|| template_policy(namespace, template, rules));
    match (desired, found) {
        (None, None) => Act::Nothing,
        (Some(desired), None) => Act::Create(Box::new(desired)),
        (Some(_), Some(found)) if !is_ours(found, template) => Act::Foreign,
        (None, Some(found)) if !is_ours(found, template) => Act::Nothing,
        // Its end brings the next look.
        (_, Some(found)) if found.metadata.deletion_timestamp.is_some() => Act::Nothing,
        (Some(desired), Some(found)) => restore(desired, found),
        (None, Some(found)) => {
            let uid = found.uid().unwrap_or_default();
            match wanted {
                Wanted::NoTemplate => Act::DeleteWhenUnused { uid },
                Wanted::Unreadable | Wanted::Network(_) => Act::Delete { uid },
            }
        }
    }
}

/// What to do about the policy that denies everything.
pub fn decide_deny_all(namespace: &str, release: Option<&HelmRelease>, found: Option<&NetworkPolicy>) -> Act {
    let desired = deny_all(namespace, release);
    match found {
        None => Act::Create(Box::new(desired)),
        Some(found) if found.metadata.deletion_timestamp.is_some() => Act::Nothing,
        Some(found) => restore(desired, found),
    }
}

/// Puts the wanted spec in the place of one that differs. Labels and annotations are left alone.
fn restore(desired: NetworkPolicy, found: &NetworkPolicy) -> Act {
    let owned = !found.owner_references().is_empty();
    if !owned && same_spec(desired.spec.as_ref(), found.spec.as_ref()) {
        return Act::Nothing;
    }
    let metadata = ObjectMeta { uid: found.uid(), resource_version: found.resource_version(), ..desired.metadata };
    Act::Restore(Box::new(NetworkPolicy { metadata, spec: desired.spec }))
}

/// An empty list and none are the same to the API server, which also fills in TCP.
fn same_spec(one: Option<&NetworkPolicySpec>, other: Option<&NetworkPolicySpec>) -> bool {
    one.map(normal) == other.map(normal)
}

fn normal(spec: &NetworkPolicySpec) -> NetworkPolicySpec {
    let mut spec = spec.clone();
    spec.egress = spec.egress.filter(|rules| !rules.is_empty());
    spec.ingress = spec.ingress.filter(|rules| !rules.is_empty());
    let types = spec.policy_types.get_or_insert_default();
    types.sort();
    types.dedup();
    for rule in spec.egress.iter_mut().flatten() {
        normalise_rule(rule);
    }
    spec.pod_selector = spec.pod_selector.map(normal_selector).filter(|selector| *selector != LabelSelector::default());
    spec
}

fn normalise_rule(rule: &mut NetworkPolicyEgressRule) {
    rule.to = rule.to.take().filter(|peers| !peers.is_empty());
    rule.ports = rule.ports.take().filter(|ports| !ports.is_empty());
    for port in rule.ports.iter_mut().flatten() {
        port.protocol.get_or_insert_with(|| "TCP".to_owned());
    }
    for peer in rule.to.iter_mut().flatten() {
        // Here an empty selector means everything, and none means nothing is said.
        peer.namespace_selector = peer.namespace_selector.take().map(normal_selector);
        peer.pod_selector = peer.pod_selector.take().map(normal_selector);
        if let Some(block) = &mut peer.ip_block {
            block.except = block.except.take().filter(|list| !list.is_empty());
        }
    }
}

fn normal_selector(mut selector: LabelSelector) -> LabelSelector {
    selector.match_expressions = selector.match_expressions.filter(|list| !list.is_empty());
    selector.match_labels = selector.match_labels.filter(|labels| !labels.is_empty());
    selector
}

/// Whether the operator made it, for this template.
fn is_ours(policy: &NetworkPolicy, template: &str) -> bool {
    let says = |key: &str, value: &str| policy.labels().get(key).is_some_and(|found| found == value);
    says(keys::MANAGED_BY, keys::MANAGED_BY_VALUE) && says(keys::TEMPLATE, template)
}

fn labels<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn deny_all(namespace: &str, release: Option<&HelmRelease>) -> NetworkPolicy {
    let mut annotations = labels([("helm.sh/resource-policy", "keep")]);
    // Else Helm would not take it for its own when it is installed again.
    let manager = match release {
        Some(HelmRelease { namespace, name }) => {
            annotations.extend(labels([
                ("meta.helm.sh/release-name", name.as_str()),
                ("meta.helm.sh/release-namespace", namespace.as_str()),
            ]));
            "Helm"
        }
        None => keys::MANAGED_BY_VALUE,
    };
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(DENY_ALL.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels([(keys::NAME, "codeexec"), (keys::MANAGED_BY, manager)])),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector::default()),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ..NetworkPolicySpec::default()
        }),
    }
}

/// Nobody owns it: it outlives its template until the template's last pod is gone.
fn template_policy(namespace: &str, template: &str, egress: Vec<NetworkPolicyEgressRule>) -> NetworkPolicy {
    let selected = labels([(keys::TEMPLATE, template)]);
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(policy_name(template)),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels([(keys::TEMPLATE, template), (keys::MANAGED_BY, keys::MANAGED_BY_VALUE)])),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_labels: Some(selected), match_expressions: None }),
            policy_types: Some(vec!["Egress".to_owned()]),
            egress: Some(egress),
            ingress: None,
        }),
    }
}

/// What a template allows. Nothing when it leaves that to the cluster.
fn egress_rules(network: &Network, access: Option<ApiAccess<'_>>) -> Vec<NetworkPolicyEgressRule> {
    let Network { egress, api_access, managed } = network;
    if !managed {
        return Vec::new();
    }
    let api = access.filter(|_| *api_access).map(api_rule);
    egress.iter().cloned().chain(api).collect()
}

fn api_rule(access: ApiAccess<'_>) -> NetworkPolicyEgressRule {
    let selector =
        |labels: BTreeMap<String, String>| LabelSelector { match_labels: Some(labels), match_expressions: None };
    NetworkPolicyEgressRule {
        ports: Some(vec![NetworkPolicyPort {
            port: Some(IntOrString::Int(access.port.into())),
            protocol: Some("TCP".to_owned()),
            end_port: None,
        }]),
        to: Some(vec![NetworkPolicyPeer {
            namespace_selector: Some(selector(labels([("kubernetes.io/metadata.name", access.namespace)]))),
            pod_selector: Some(selector(access.labels.clone())),
            ip_block: None,
        }]),
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
