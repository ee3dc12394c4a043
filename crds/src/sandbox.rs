//! The Sandbox.

use crate::{Duration, Quantity, SandboxStatus};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the sandbox is made from, whether it runs, and when it ends.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "codeexec.dev",
    version = "v1alpha1",
    kind = "Sandbox",
    namespaced,
    status = "SandboxStatus",
    derive = "PartialEq",
    shortname = "sbx",
    category = "codeexec",
    doc = "An isolated place to run commands, with files that stay. Its pod and its volume are made from a SandboxTemplate.",
    annotation("helm.sh/resource-policy", "keep"),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Phase",
        type_ = "string",
        json_path = ".status.phase",
        description = "Where the sandbox stands"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether a command can run now"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Why it is, or is not, ready"
    ),
    printcolumn(
        name = "Template",
        type_ = "string",
        json_path = ".status.effective.template",
        description = "The SandboxTemplate it is made from"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        description = "The reason in full",
        priority = 1
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".status.nodeName",
        description = "Node of the pod",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[cfg_attr(feature = "cel", kube(cel))]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.templateRef) == has(oldSelf.templateRef) && (!has(self.templateRef) || self.templateRef.name == oldSelf.templateRef.name)")
        .message("templateRef cannot be changed; delete the sandbox and create it again from the other template"),
    validation = Rule::new("has(self.workspace) == has(oldSelf.workspace) && (!has(self.workspace) || self.workspace == oldSelf.workspace)")
        .message("workspace cannot be changed; create another sandbox and copy the files")
)]
pub struct SandboxSpec {
    /// The SandboxTemplate of the same namespace to make this sandbox from; unset means the one named `default`. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_ref: Option<TemplateRef>,
    /// 1: the sandbox runs. 0: its pod is deleted and its files are kept, whatever its users do. `kubectl scale` works.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1))]
    pub replicas: i32,
    /// When the sandbox counts as idle, and when it ends; what is unset here is taken from the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// The volume that holds the files; what is unset here is taken from the template. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
}

fn one() -> i32 {
    1
}

/// Names a SandboxTemplate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateRef {
    /// Name of a SandboxTemplate in the same namespace.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
}

/// When a sandbox counts as idle, and when it ends.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.maxLifetime) || self.maxLifetime.matches('[1-9]')")
        .message("maxLifetime must be longer than 0s; leave it out for a sandbox that lives until it is deleted")
)]
pub struct Lifecycle {
    /// Time without activity after which the sandbox counts as idle, such as `5m`; `0s` means never. Users of the sandbox renew
    /// their activity within this time. 5 minutes when neither sandbox nor template says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Duration>,
    /// How long the sandbox lives after its creation, such as `720h`. Unset means until it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lifetime: Option<Duration>,
    /// What happens at the end of `maxLifetime`. `Delete`: the sandbox and its files are deleted; this is so when nothing is said.
    /// `Retain`: its pod is deleted, the sandbox and its files are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_expiry: Option<OnExpiry>,
}

/// What happens at the end of `maxLifetime`. `Delete`: the sandbox and its files are deleted; this is so when nothing is said.
/// `Retain`: its pod is deleted, the sandbox and its files are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnExpiry {
    /// The sandbox and its files are deleted.
    #[default]
    Delete,
    /// Its pod is deleted; the sandbox and its files are kept.
    Retain,
}

/// The volume that holds a sandbox's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Workspace {
    /// Size of the volume, such as `10Gi`. 5Gi when neither sandbox nor template says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Storage class of the volume; unset means the cluster's default class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub storage_class_name: Option<String>,
}
