use super::*;
use crate::fixture::NAMESPACE;
use serde_json::{Value, json};

const TEMPLATE: &str = "data.science";

fn network(value: Value) -> Network {
    serde_json::from_value(value).unwrap()
}

fn web() -> Value {
    json!({ "egress": [{ "to": [{ "ipBlock": { "cidr": "203.0.113.0/24" } }], "ports": [{ "port": 443 }] }] })
}

fn api_labels() -> BTreeMap<String, String> {
    labels([("app", "api")])
}

fn decide(network: &Network, found: Option<&NetworkPolicy>) -> Act {
    let api = api_labels();
    let access = ApiAccess { namespace: "system", labels: &api, port: 8081 };
    decide_template(NAMESPACE, TEMPLATE, Wanted::Network(network), Some(access), found)
}

fn created(act: Act) -> NetworkPolicy {
    let Act::Create(policy) = act else { panic!("{act:?}") };
    *policy
}

/// As the API server keeps it.
fn kept(mut policy: NetworkPolicy) -> NetworkPolicy {
    policy.metadata.uid = Some("u1".to_owned());
    policy.metadata.resource_version = Some("7".to_owned());
    for port in policy
        .spec
        .iter_mut()
        .flat_map(|spec| spec.egress.iter_mut().flatten())
        .flat_map(|rule| rule.ports.iter_mut().flatten())
    {
        port.protocol.get_or_insert_with(|| "TCP".to_owned());
    }
    policy
}

fn existing() -> NetworkPolicy {
    kept(created(decide(&network(web()), None)))
}

#[test]
fn the_policy_of_a_template_allows_its_pods_what_it_says_and_no_more() {
    let policy = created(decide(&network(web()), None));
    assert_eq!(policy.name_any(), "codeexec-template-data.science");
    assert!(policy.owner_references().is_empty());
    let spec = serde_json::to_value(policy.spec).unwrap();
    assert_eq!(
        spec,
        json!({
            "podSelector": { "matchLabels": { "codeexec.dev/template": TEMPLATE } },
            "policyTypes": ["Egress"],
            "egress": [{ "to": [{ "ipBlock": { "cidr": "203.0.113.0/24" } }], "ports": [{ "port": 443 }] }],
        })
    );
}

#[test]
fn api_access_is_one_port_of_the_api_servers_pods() {
    let policy = created(decide(&network(json!({ "apiAccess": true })), None));
    let egress = serde_json::to_value(policy.spec.unwrap().egress).unwrap();
    assert_eq!(
        egress,
        json!([{
            "ports": [{ "port": 8081, "protocol": "TCP" }],
            "to": [{
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "system" } },
                "podSelector": { "matchLabels": { "app": "api" } },
            }],
        }])
    );
    let unknown =
        decide_template(NAMESPACE, TEMPLATE, Wanted::Network(&network(json!({ "apiAccess": true }))), None, None);
    assert_eq!(unknown, Act::Nothing);
}

#[test]
fn a_template_that_allows_nothing_has_no_policy() {
    for says in [json!({}), json!({ "egress": [] }), json!({ "managed": false, "apiAccess": true }), {
        let mut unmanaged = web();
        unmanaged["managed"] = json!(false);
        unmanaged
    }] {
        assert_eq!(decide(&network(says.clone()), None), Act::Nothing, "{says}");
        assert_eq!(decide(&network(says.clone()), Some(&existing())), Act::Delete { uid: "u1".to_owned() }, "{says}");
    }
}

#[test]
fn a_policy_that_is_as_it_should_be_is_left_alone() {
    assert_eq!(decide(&network(web()), Some(&existing())), Act::Nothing);
}

#[test]
fn what_somebody_changed_is_restored_and_an_edit_applied() {
    let mut wider = existing();
    wider.spec.as_mut().unwrap().egress.as_mut().unwrap().push(NetworkPolicyEgressRule::default());
    let mut ingress = existing();
    ingress.spec.as_mut().unwrap().ingress =
        Some(vec![k8s_openapi::api::networking::v1::NetworkPolicyIngressRule::default()]);
    let mut elsewhere = existing();
    elsewhere.spec.as_mut().unwrap().pod_selector = None;
    let mut port = existing();
    port.spec.as_mut().unwrap().egress.as_mut().unwrap()[0].ports = None;
    let mut owned = existing();
    owned.metadata.owner_references = Some(vec![k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
        name: "x".to_owned(),
        ..Default::default()
    }]);
    for (name, found) in
        [("rules", wider), ("ingress", ingress), ("selector", elsewhere), ("port", port), ("owner", owned)]
    {
        let Act::Restore(policy) = decide(&network(web()), Some(&found)) else { panic!("{name}") };
        assert_eq!(
            (policy.metadata.uid.as_deref(), policy.metadata.resource_version.as_deref()),
            (Some("u1"), Some("7")),
            "{name}"
        );
        assert_eq!(kept(*policy).spec, existing().spec, "{name}");
    }
}

#[test]
fn a_policy_of_the_name_that_is_not_ours_is_never_touched() {
    let mut foreign = existing();
    foreign.metadata.labels = None;
    assert_eq!(decide(&network(web()), Some(&foreign)), Act::Foreign);
    assert_eq!(decide(&network(json!({ "managed": false })), Some(&foreign)), Act::Nothing);
    let gone = decide_template(NAMESPACE, TEMPLATE, Wanted::NoTemplate, None, Some(&foreign));
    assert_eq!(gone, Act::Nothing);
    let mut of_another = existing();
    of_another.metadata.labels.as_mut().unwrap().insert(keys::TEMPLATE.to_owned(), "other".to_owned());
    assert_eq!(decide(&network(web()), Some(&of_another)), Act::Foreign);
}

#[test]
fn it_outlives_its_template_while_pods_need_it() {
    let found = existing();
    let gone = decide_template(NAMESPACE, TEMPLATE, Wanted::NoTemplate, None, Some(&found));
    assert_eq!(gone, Act::DeleteWhenUnused { uid: "u1".to_owned() });
    let unreadable = decide_template(NAMESPACE, TEMPLATE, Wanted::Unreadable, None, Some(&found));
    assert_eq!(unreadable, Act::Nothing);
    let mut going = found;
    going.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(crate::fixture::time(0)));
    assert_eq!(decide(&network(json!({})), Some(&going)), Act::Nothing);
    assert_eq!(decide(&network(web()), Some(&going)), Act::Nothing);
}

#[test]
fn everything_is_denied_again_whatever_somebody_did() {
    let Act::Create(policy) = decide_deny_all(NAMESPACE, None, None) else { panic!("it is not made") };
    let found = kept((*policy).clone());
    let spec = serde_json::to_value(&policy.spec).unwrap();
    assert_eq!(spec, json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }));
    assert_eq!(decide_deny_all(NAMESPACE, None, Some(&found)), Act::Nothing);
    for change in [
        json!({ "podSelector": { "matchLabels": { "a": "b" } }, "policyTypes": ["Ingress", "Egress"] }),
        json!({ "podSelector": {}, "policyTypes": ["Ingress"] }),
        json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": [{}] }),
        json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}] }),
    ] {
        let mut changed = found.clone();
        changed.spec = Some(serde_json::from_value(change.clone()).unwrap());
        assert!(matches!(decide_deny_all(NAMESPACE, None, Some(&changed)), Act::Restore(_)), "{change}");
    }
}

#[test]
fn helm_takes_the_deny_all_policy_for_its_own() {
    let release = HelmRelease { namespace: "system".to_owned(), name: "codeexec".to_owned() };
    let Act::Create(policy) = decide_deny_all(NAMESPACE, Some(&release), None) else { panic!("it is not made") };
    assert_eq!(policy.labels()["app.kubernetes.io/managed-by"], "Helm");
    assert_eq!(policy.annotations()["meta.helm.sh/release-name"], "codeexec");
    assert_eq!(policy.annotations()["meta.helm.sh/release-namespace"], "system");
    assert_eq!(policy.annotations()["helm.sh/resource-policy"], "keep");
}

#[test]
fn names_say_what_a_policy_is() {
    for template in ["a", "deny-all", "x.y-z"] {
        assert_eq!(kind(&policy_name(template)), Kind::Template(template));
    }
    assert_eq!(kind(DENY_ALL), Kind::DenyAll);
    for other in ["mine", "codeexec-template-", "codeexec-deny-all-2"] {
        assert_eq!(kind(other), Kind::Other, "{other}");
    }
}
