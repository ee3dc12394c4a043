//! The probe's pod. Pure.

use crate::{
    isolation::CANARY,
    render::{container, fixed_resources, owned},
};
use crds::keys;
use k8s_openapi::{
    api::core::v1::{
        Affinity, Container, EnvVar, EnvVarSource, NodeSelectorRequirement, NodeSelectorTerm, ObjectFieldSelector, Pod,
        PodSecurityContext, PodSpec, PreferredSchedulingTerm, SeccompProfile,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use sandboxd_protocol::layout;
use std::net::SocketAddr;

/// Starts the name of every probe's pod.
pub const PREFIX: &str = "codeexec-network-probe-";
/// Label, with the value `true`, of every probe's pod.
pub const LABEL: &str = "codeexec.dev/probe";
/// Its only container.
pub const CONTAINER: &str = "probe";
/// The pod is ended by the kubelet after so many seconds; it needs some ten, and the pull of its image.
pub const DEADLINE_SECONDS: i64 = 300;

const BINARY: &str = "/sandboxd";
const MESSAGE: &str = "/dev/termination-log";
const NODE_IPS: &str = "NODE_IPS";
const KUBELET_PORT: u16 = 10250;
/// Where clouds tell a machine who it is, in both families.
const METADATA: &str = "metadata=169.254.169.254,fd00:ec2::254:80";

/// Where a sandbox's pod would run, and with what.
#[derive(Clone, Debug, Default)]
pub struct Placement(PodSpec);

impl Placement {
    /// Like this pod.
    pub fn like(pod: Pod) -> Self {
        let spec = pod.spec.unwrap_or_default();
        Self(PodSpec {
            runtime_class_name: spec.runtime_class_name,
            host_users: spec.host_users,
            node_selector: spec.node_selector,
            tolerations: spec.tolerations,
            image_pull_secrets: spec.image_pull_secrets,
            affinity: spec
                .affinity
                .map(|affinity| Affinity { node_affinity: affinity.node_affinity, ..Affinity::default() }),
            ..PodSpec::default()
        })
    }
}

/// A pod that tries to reach the canaries, the Kubernetes service, its own node and the metadata address, and nothing else.
pub fn probe_pod(
    namespace: &str,
    name: &str,
    image: &str,
    canaries: &[SocketAddr],
    placement: &Placement,
    prefer: Option<&str>,
) -> Pod {
    let user = i64::from(layout::USER);
    let mut affinity = placement.0.affinity.clone().unwrap_or_default();
    if let Some(node) = prefer {
        let preferred = affinity.node_affinity.get_or_insert_default();
        preferred.preferred_during_scheduling_ignored_during_execution.get_or_insert_default().push(preference(node));
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(owned(&[
                (keys::NAME, "codeexec-network-probe"),
                (keys::MANAGED_BY, keys::MANAGED_BY_VALUE),
                (LABEL, "true"),
            ])),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![probe_container(image, canaries)],
            restart_policy: Some("Never".to_owned()),
            active_deadline_seconds: Some(DEADLINE_SECONDS),
            termination_grace_period_seconds: Some(1),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(user),
                run_as_group: Some(user),
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
                ..PodSecurityContext::default()
            }),
            affinity: Some(affinity).filter(|affinity| *affinity != Affinity::default()),
            ..placement.0.clone()
        }),
        status: None,
    }
}

fn probe_container(image: &str, canaries: &[SocketAddr]) -> Container {
    let canaries = canaries.iter().map(|address| format!("{CANARY}={address}"));
    let others = [
        // What each pod is told, whatever else it is told.
        "kubernetes=$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)".to_owned(),
        format!("kubelet=$({NODE_IPS}):{KUBELET_PORT}"),
        METADATA.to_owned(),
    ];
    let targets: Vec<_> = canaries.chain(others).flat_map(|target| ["--target".to_owned(), target]).collect();
    let command: Vec<&str> =
        [BINARY, "probe", "--report", MESSAGE].into_iter().chain(targets.iter().map(String::as_str)).collect();
    Container {
        env: Some(vec![EnvVar {
            name: NODE_IPS.to_owned(),
            value: None,
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector { field_path: "status.hostIPs".to_owned(), api_version: None }),
                ..EnvVarSource::default()
            }),
        }]),
        resources: Some(fixed_resources("500m", "64Mi", "64Mi")),
        termination_message_path: Some(MESSAGE.to_owned()),
        ..container(CONTAINER, image, &command)
    }
}

/// A wish only: a node may be full, or not for sandboxes.
fn preference(node: &str) -> PreferredSchedulingTerm {
    let requirement = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    PreferredSchedulingTerm {
        weight: 100,
        preference: NodeSelectorTerm { match_fields: Some(vec![requirement]), match_expressions: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn made(placement: &Placement, prefer: Option<&str>) -> Value {
        let canaries = ["10.96.0.9:8080".parse().unwrap(), "[fd00::9]:8080".parse().unwrap()];
        serde_json::to_value(probe_pod("boxes", "codeexec-network-probe-x", "img", &canaries, placement, prefer))
            .unwrap()
    }

    #[test]
    fn it_tries_the_canaries_the_kubernetes_service_its_node_and_the_metadata_address() {
        let pod = made(&Placement::default(), None);
        let container = &pod["spec"]["containers"][0];
        let command: Vec<&str> =
            container["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(
            command,
            [
                "/sandboxd",
                "probe",
                "--report",
                "/dev/termination-log",
                "--target",
                "canary=10.96.0.9:8080",
                "--target",
                "canary=[fd00::9]:8080",
                "--target",
                "kubernetes=$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)",
                "--target",
                "kubelet=$(NODE_IPS):10250",
                "--target",
                "metadata=169.254.169.254,fd00:ec2::254:80",
            ]
        );
        assert_eq!(
            container["env"],
            json!([{ "name": "NODE_IPS", "valueFrom": { "fieldRef": { "fieldPath": "status.hostIPs" } } }])
        );
    }

    #[test]
    fn no_sandbox_owns_it_and_no_template_allows_it_anything() {
        let pod = made(&Placement::default(), None);
        let labels = pod["metadata"]["labels"].as_object().unwrap();
        assert_eq!(labels[LABEL], "true");
        assert!(!labels.contains_key(keys::TEMPLATE) && !labels.contains_key(keys::SANDBOX_UID));
        assert!(pod["metadata"].get("ownerReferences").is_none() && pod["spec"].get("volumes").is_none());
        assert_eq!(pod["spec"]["automountServiceAccountToken"], json!(false));
        assert_eq!(pod["spec"]["restartPolicy"], json!("Never"));
    }

    #[test]
    fn it_runs_where_sandboxes_would() {
        let sandbox: Pod = serde_json::from_value(json!({
            "spec": {
                "containers": [{ "name": "main", "image": "theirs" }],
                "volumes": [{ "name": "w", "emptyDir": {} }],
                "runtimeClassName": "gvisor",
                "nodeSelector": { "pool": "boxes" },
                "tolerations": [{ "key": "boxes", "operator": "Exists" }],
                "imagePullSecrets": [{ "name": "pull" }],
                "affinity": { "podAntiAffinity": {}, "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1, "preference": {} }] } },
            }
        }))
        .unwrap();
        let spec = &made(&Placement::like(sandbox), Some("n2"))["spec"];
        assert_eq!(spec["runtimeClassName"], json!("gvisor"));
        assert_eq!(spec["nodeSelector"], json!({ "pool": "boxes" }));
        assert_eq!(spec["tolerations"], json!([{ "key": "boxes", "operator": "Exists" }]));
        assert_eq!(spec["imagePullSecrets"], json!([{ "name": "pull" }]));
        assert!(spec.get("volumes").is_none() && spec["affinity"].get("podAntiAffinity").is_none());
        let terms =
            spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"].as_array().unwrap();
        assert_eq!(terms.len(), 2);
        assert_eq!(terms[1]["preference"]["matchFields"][0]["values"], json!(["n2"]));
    }
}
