//! The Sandbox.

use crate::{Duration, Overrides, SandboxStatus, Workspace};
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
        name = "Activity",
        type_ = "date",
        json_path = ".metadata.annotations['codeexec\\.dev/activity']",
        description = "Time since it was last used"
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
    validation = Rule::new("!has(oldSelf.workspace) || has(self.workspace)")
        .message("workspace cannot be taken away"),
    validation = Rule::new("has(oldSelf.workspace) || !has(self.workspace) || (!has(self.workspace.storageClassName) && !has(self.workspace.accessModes) && !has(self.workspace.existingClaim) && !has(self.workspace.whenDeleted))")
        .message("of the workspace only the size can be changed; create another sandbox and copy the files"),
    validation = Rule::new("!has(oldSelf.workspace) || !has(self.workspace) || (has(self.workspace.storageClassName) == has(oldSelf.workspace.storageClassName) && (!has(self.workspace.storageClassName) || self.workspace.storageClassName == oldSelf.workspace.storageClassName) && has(self.workspace.accessModes) == has(oldSelf.workspace.accessModes) && (!has(self.workspace.accessModes) || self.workspace.accessModes == oldSelf.workspace.accessModes) && has(self.workspace.existingClaim) == has(oldSelf.workspace.existingClaim) && (!has(self.workspace.existingClaim) || self.workspace.existingClaim == oldSelf.workspace.existingClaim) && has(self.workspace.whenDeleted) == has(oldSelf.workspace.whenDeleted) && (!has(self.workspace.whenDeleted) || self.workspace.whenDeleted == oldSelf.workspace.whenDeleted))")
        .message("of the workspace only the size can be changed; create another sandbox and copy the files"),
    validation = Rule::new("!has(oldSelf.workspace) || !has(oldSelf.workspace.size) || (has(self.workspace) && has(self.workspace.size) && quantity(string(self.workspace.size)).compareTo(quantity(string(oldSelf.workspace.size))) >= 0)")
        .message("workspace.size may only grow")
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
    /// The volume that holds the files; what is unset here is taken from the template. Only its size can be changed, and only grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// What this sandbox has other than its template says, as far as the template's `allowedOverrides` lets it. Takes effect at the
    /// next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<Overrides>,
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
        .message("maxLifetime must be longer than 0s; leave it out for a sandbox that lives until it is deleted"),
    validation = Rule::new("!has(self.startTimeout) || self.startTimeout.matches('[1-9]')")
        .message("startTimeout must be longer than 0s")
)]
pub struct Lifecycle {
    /// Time without activity after which the sandbox counts as idle, such as `5m`; `0s` means never. Users of the sandbox renew
    /// their activity within this time. 5 minutes when neither sandbox nor template says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Duration>,
    /// How long a start may take, such as `10m`, before it is given up and the sandbox suspended until it is next used. 10 minutes
    /// when neither sandbox nor template says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout: Option<Duration>,
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
