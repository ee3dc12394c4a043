//! The SandboxTemplate.

use crate::{Lifecycle, Network, Override, Quantity, SandboxTemplateStatus, Workspace};
use k8s_openapi::api::core::v1::{Affinity, TopologySpreadConstraint};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The pod of the sandboxes that are made from it, and what holds for those that say nothing else.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "codeexec.dev",
    version = "v1alpha1",
    kind = "SandboxTemplate",
    namespaced,
    status = "SandboxTemplateStatus",
    derive = "PartialEq",
    shortname = "sbxt",
    category = "codeexec",
    doc = "What sandboxes are made from. A change of the image or another field of the pod takes effect when a sandbox next starts.",
    annotation("helm.sh/resource-policy", "keep"),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Runtime", type_ = "string", json_path = ".spec.runtimeClassName", description = "Runtime class"),
    printcolumn(
        name = "Problem",
        type_ = "string",
        json_path = ".status.conditions[?(@.status==\"False\")].reason",
        description = "What is wrong with it, if anything is"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("the name of a SandboxTemplate must have 63 characters or less, since it becomes a label of pods")
)]
#[cfg_attr(feature = "cel", kube(cel))]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.workspace) || !has(self.workspace.existingClaim)")
        .message("workspace.existingClaim belongs into a Sandbox; to give every sandbox of a template the same files, use mounts"),
    validation = Rule::new("!has(self.allowedImages) || (has(self.allowedOverrides) && self.allowedOverrides.exists(field, field == 'image'))")
        .message("allowedImages needs image among allowedOverrides")
)]
pub struct SandboxTemplateSpec {
    /// Image of the `main` container, in which commands run. Any image with a shell works; its own command is replaced.
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$"))]
    pub image: String,
    /// CPU, memory and local storage of the `main` container. Limits are always set: 1 CPU, 5Gi of memory and 2Gi of local
    /// storage where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Variables of the `main` container, as literal values. Do not put secrets here: code in the sandbox reads them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Runtime class of the pod, such as `gvisor`; unset means the cluster's default runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub runtime_class_name: Option<String>,
    /// `false`: the pod has a user namespace of its own, so that its users are nobody on the node. Needs a cluster that has them;
    /// unset means the cluster's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,
    /// Labels that a node must have to take the pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that the pod tolerates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub tolerations: Vec<Toleration>,
    /// Which nodes, and which neighbours, the pod prefers or avoids; as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// How pods are spread over nodes and zones; as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Priority class of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub priority_class_name: Option<String>,
    /// Labels and annotations of the pod, beside the operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_metadata: Option<PodMetadata>,
    /// Secrets of the same namespace with which the image is pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<PullSecret>,
    /// Further volumes of the `main` container: PersistentVolumeClaims of the same namespace that carry the label
    /// `codeexec.dev/mountable: "true"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mountPath"]))]
    pub mounts: Vec<Mount>,
    /// The volume of sandboxes that say nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// Idle time and lifetime of sandboxes that say nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Which fields of `overrides` a Sandbox may set: `resources`, `env`, `image`, `runtimeClassName`. The first two when nothing is
    /// said; an empty list means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "set"))]
    pub allowed_overrides: Option<Vec<Override>>,
    /// Images that a Sandbox may choose when `image` is among `allowedOverrides`: whole references, or the start of one and a `*`, such
    /// as `ghcr.io/example/*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), inner(length(min = 1, max = 512), regex(pattern = r"^[^\s*]+[*]?$")))]
    pub allowed_images: Vec<String>,
    /// What the sandboxes may reach: nothing, but for what is named here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// What the image offers beside a shell, in words for the model, such as `pandas 2.3` or `LibreOffice`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 100)))]
    pub libraries: Vec<String>,
    /// Whether the image has Python, so that the model is offered a REPL. `false` for an image without it.
    #[serde(default = "yes")]
    pub repl: bool,
}

fn yes() -> bool {
    true
}

/// Labels and annotations of a pod.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.labels) || self.labels.all(key, !key.startsWith('codeexec.dev/') && !key.startsWith('app.kubernetes.io/'))")
        .message("labels under codeexec.dev/ and app.kubernetes.io/ are the operator's"),
    validation = Rule::new("!has(self.annotations) || self.annotations.all(key, !key.startsWith('codeexec.dev/'))")
        .message("annotations under codeexec.dev/ are the operator's")
)]
pub struct PodMetadata {
    /// Labels of the pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50))]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50))]
    pub annotations: BTreeMap<String, String>,
}

/// A further volume of the `main` container.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!['/home/agent', '/mnt/user-data', '/mnt/skills', '/skills', '/files', '/tmp', '/opt/sandboxd', '/run', '/claim', '/dev', '/proc', '/sys'].exists(taken, self.mountPath == taken || self.mountPath.startsWith(taken + '/'))")
        .message("this mountPath is taken by the sandbox; choose another, such as /mnt/data"),
    validation = Rule::new("!['/home', '/mnt', '/opt'].exists(parent, self.mountPath == parent)")
        .message("this mountPath would hide folders of the sandbox; choose one below it, such as /mnt/data")
)]
pub struct Mount {
    /// Name of the claim, in the same namespace. It must carry the label `codeexec.dev/mountable: "true"`.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub claim_name: String,
    /// Where `main` sees it, such as `/mnt/data`.
    #[schemars(length(min = 2, max = 512), regex(pattern = r"^(/[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?)+$"))]
    pub mount_path: String,
    /// A folder of the volume to mount instead of the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 512),
        regex(pattern = r"^[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?(/[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?)*$")
    )]
    pub sub_path: Option<String>,
    /// `false`: `main` may write it.
    #[serde(default = "yes")]
    pub read_only: bool,
}

/// Resources of the `main` container.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.requests) || !has(self.limits) || !has(self.requests.cpu) || !has(self.limits.cpu) || quantity(string(self.requests.cpu)).compareTo(quantity(string(self.limits.cpu))) <= 0")
        .message("requests.cpu must not be more than limits.cpu"),
    validation = Rule::new("!has(self.requests) || !has(self.limits) || !has(self.requests.memory) || !has(self.limits.memory) || quantity(string(self.requests.memory)).compareTo(quantity(string(self.limits.memory))) <= 0")
        .message("requests.memory must not be more than limits.memory")
)]
pub struct Resources {
    /// What a node must have free to take the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<ResourceList>,
    /// What the container may use at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
}

/// Amounts by kind of resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceList {
    /// Cores, such as `2` or `500m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Memory, such as `4Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// Storage of the node outside the workspace (HOME, caches), such as `2Gi`.
    #[serde(default, rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub ephemeral_storage: Option<Quantity>,
}

/// A variable with a literal value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name of the variable.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// Its value, taken as it is.
    #[serde(default)]
    #[schemars(length(max = 32768))]
    pub value: String,
}

/// Names a Secret with which images are pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PullSecret {
    /// Name of a Secret in the same namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

/// A taint of nodes that the pod tolerates.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.key) || (has(self.operator) && self.operator == 'Exists')")
        .message("a toleration without a key needs operator: Exists"),
    validation = Rule::new("!has(self.operator) || self.operator != 'Exists' || !has(self.value)")
        .message("a toleration with operator: Exists takes no value"),
    validation = Rule::new("!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')")
        .message("tolerationSeconds needs effect: NoExecute")
)]
pub struct Toleration {
    /// Key of the taint; unset, with operator `Exists`, means every key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub key: Option<String>,
    /// How the value is compared: `Equal` when nothing is said, or `Exists` for any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// Value of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Effect of the taint; unset means every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TolerationEffect>,
    /// How long the pod stays on a node that gets the taint, in seconds; unset means for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// How the value is compared: `Equal` when nothing is said, or `Exists` for any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// The values are the same.
    Equal,
    /// Any value.
    Exists,
}

/// Effect of the taint; unset means every effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationEffect {
    /// New pods are kept away.
    NoSchedule,
    /// New pods are kept away if possible.
    PreferNoSchedule,
    /// Running pods are evicted too.
    NoExecute,
}

impl SandboxTemplateSpec {
    /// Whether a Sandbox may override this field.
    pub fn allows(&self, field: Override) -> bool {
        self.allowed_overrides.as_deref().unwrap_or(Override::DEFAULT).contains(&field)
    }

    /// Whether a Sandbox may choose this image, once it may choose one at all.
    pub fn allows_image(&self, image: &str) -> bool {
        self.image == image
            || self.allowed_images.iter().any(|allowed| match allowed.strip_suffix('*') {
                Some(start) => image.starts_with(start),
                None => image == allowed,
            })
    }

    /// Hash over the fields that a pod is made of, as the user wrote them; equal hashes mean that a pod is up to date.
    ///
    /// Only the user's fields count, so an upgrade of the operator makes no pod look old.
    pub fn pod_hash(&self) -> String {
        let Self {
            image,
            resources,
            env,
            runtime_class_name,
            host_users,
            node_selector,
            tolerations,
            affinity,
            topology_spread_constraints,
            priority_class_name,
            pod_metadata,
            image_pull_secrets,
            mounts,
            // These change no pod.
            workspace: _,
            lifecycle: _,
            allowed_overrides: _,
            allowed_images: _,
            network: _,
            libraries: _,
            repl: _,
        } = self;
        let fields = serde_json::json!({
            "image": image,
            "resources": resources,
            "env": env,
            "runtimeClassName": runtime_class_name,
            "nodeSelector": node_selector,
            "tolerations": tolerations,
            "imagePullSecrets": image_pull_secrets,
            "hostUsers": host_users,
            "affinity": affinity,
            "topologySpreadConstraints": topology_spread_constraints,
            "priorityClassName": priority_class_name,
            "podMetadata": pod_metadata,
            "mounts": mounts,
        });
        let digest = Sha256::digest(fields.to_string());
        let start = digest.first_chunk::<8>().copied().unwrap_or_default();
        format!("{:016x}", u64::from_be_bytes(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(json: serde_json::Value) -> SandboxTemplateSpec {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn the_hash_follows_the_fields_of_the_pod_only() {
        let plain = template(serde_json::json!({ "image": "python:3" }));
        let told = template(serde_json::json!({ "image": "python:3", "libraries": ["pandas"], "repl": false }));
        let other = template(serde_json::json!({ "image": "python:4" }));
        assert_eq!(plain.pod_hash(), told.pod_hash());
        assert_ne!(plain.pod_hash(), other.pod_hash());
        assert_eq!(plain.pod_hash().len(), 16);
    }
}
