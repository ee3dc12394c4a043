//! The objects that a run makes. Nothing here does IO.

use anyhow::Context as _;
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::{Value, json};

/// Nothing pulls it.
pub const IMAGE: &str = "registry.invalid/simulated:1";
/// Label and taint of the simulated node.
const SIMULATED: &str = "codeexec.dev/simulated";

/// A template whose sandboxes go to the simulated node. An idle time-out of `0s` means that they stay.
pub fn template(name: &str, node: &str, storage_class: &str, idle_timeout: &str) -> Value {
    json!({
        "apiVersion": format!("{}/{}", crds::GROUP, crds::VERSION),
        "kind": "SandboxTemplate",
        "metadata": {"name": name},
        "spec": {
            "image": IMAGE,
            "nodeSelector": {(SIMULATED): "true", "kubernetes.io/hostname": node},
            "tolerations": [{"key": SIMULATED, "operator": "Equal", "value": "true", "effect": "NoSchedule"}],
            "workspace": {"size": "1Gi", "storageClassName": storage_class},
            "lifecycle": {"idleTimeout": idle_timeout},
        },
    })
}

/// A Sandbox of a template.
pub fn sandbox(name: &str, template: &str) -> Value {
    json!({
        "apiVersion": format!("{}/{}", crds::GROUP, crds::VERSION),
        "kind": "Sandbox",
        "metadata": {"name": name},
        "spec": {"templateRef": {"name": template}},
    })
}

/// A pod and a claim with the same content as those of a sandbox, and nothing else of it.
#[derive(Clone, Debug)]
pub struct Bare {
    claim: PersistentVolumeClaimSpec,
    pod: PodSpec,
}

impl Bare {
    /// Takes the content over from a sandbox's pod and claim.
    pub fn like(pod: &Pod, claim: &PersistentVolumeClaim) -> anyhow::Result<Self> {
        let mut claim = claim.spec.clone().context("the sandbox's claim has no spec")?;
        claim.volume_name = None;
        let mut pod = pod.spec.clone().context("the sandbox's pod has no spec")?;
        pod.node_name = None;
        Ok(Self { claim, pod })
    }

    /// Both under one name.
    pub fn named(&self, name: &str) -> (PersistentVolumeClaim, Pod) {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let claim = PersistentVolumeClaim {
            metadata: metadata.clone(),
            spec: Some(self.claim.clone()),
            ..PersistentVolumeClaim::default()
        };
        let mut spec = self.pod.clone();
        for volume in spec.volumes.iter_mut().flatten() {
            if let Some(source) = &mut volume.persistent_volume_claim {
                name.clone_into(&mut source.claim_name);
            }
        }
        (claim, Pod { metadata, spec: Some(spec), status: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_pod_has_the_containers_of_the_sandbox_and_a_claim_of_its_own() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "s", "ownerReferences": [], "labels": {"codeexec.dev/sandbox-uid": "u"}},
            "spec": {"nodeName": "n", "containers": [{"name": "main"}, {"name": "files"}],
                "volumes": [{"name": "w", "persistentVolumeClaim": {"claimName": "s"}}, {"name": "h", "emptyDir": {}}]},
        }))
        .unwrap();
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "s"}, "spec": {"volumeName": "pvc-u", "storageClassName": "sim"},
        }))
        .unwrap();
        let (own_claim, own_pod) = Bare::like(&pod, &claim).unwrap().named("bare-1");
        assert_eq!(own_claim.spec.as_ref().unwrap().volume_name, None);
        assert_eq!(own_claim.spec.unwrap().storage_class_name.as_deref(), Some("sim"));
        assert!(own_pod.metadata.labels.is_none(), "the operator must not see it");
        let spec = own_pod.spec.unwrap();
        assert_eq!((spec.node_name, spec.containers.len()), (None, 2));
        assert_eq!(spec.volumes.unwrap()[0].persistent_volume_claim.as_ref().unwrap().claim_name, "bare-1");
    }
}
