//! What the operator reports.

use crate::{Duration, OnExpiry, Quantity, WhenDeleted};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where the sandbox stands: Pending (cannot start yet), Starting, Ready, Suspending, Suspended, Expired. More words may be added:
/// take an unknown one as "not ready".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Cannot start yet: something it refers to is missing or refused.
    Pending,
    /// Its pod is being made.
    Starting,
    /// A command can run now.
    Ready,
    /// Its pod is being deleted; the workspace stays.
    Suspending,
    /// No pod; the workspace is kept.
    Suspended,
    /// Past its `maxLifetime`: no pod; the workspace is kept.
    Expired,
}

impl Phase {
    /// As it stands in the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Starting => "Starting",
            Self::Ready => "Ready",
            Self::Suspending => "Suspending",
            Self::Suspended => "Suspended",
            Self::Expired => "Expired",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a sandbox's pod came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum BindingSource {
    /// Made for this sandbox, with a new workspace.
    Cold,
    /// Made for this sandbox, on the workspace it already had.
    Existing,
}

impl BindingSource {
    /// As it stands in the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cold => "Cold",
            Self::Existing => "Existing",
        }
    }
}

/// The pod and claim of a sandbox; written before the pod is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// Name of the pod.
    pub pod_name: String,
    /// UID of the pod; unset until it has been Ready. Check it before you open a stream to the pod.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// Name of the PersistentVolumeClaim that holds the workspace.
    pub workspace_claim: String,
    /// Whether the workspace was new when the pod was made.
    pub source: BindingSource,
}

/// What holds for this sandbox, taken together from itself, its template and the fixed fallbacks. For people and tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Effective {
    /// Name of the SandboxTemplate.
    pub template: String,
    /// Image of the `main` container, from the next start on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Time without activity after which the sandbox counts as idle; `0s` means never.
    pub idle_timeout: Duration,
    /// How long a start may take before it is given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout: Option<Duration>,
    /// How long the sandbox lives after its creation; unset means until it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lifetime: Option<Duration>,
    /// What happens at the end of `maxLifetime`.
    pub on_expiry: OnExpiry,
    /// What happens to the workspace's claim when the sandbox is deleted; unset for a claim that existed before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_deleted: Option<WhenDeleted>,
    /// Size of the workspace's volume as asked for; unset for a claim that existed before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_size: Option<Quantity>,
    /// Storage class of the workspace's volume; unset means the cluster's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
}

/// Status of a Sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// Where the sandbox stands: Pending, Starting, Ready, Suspending, Suspended, Expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// `Ready`: whether a command can run now, and why not. `WorkspaceBound`: whether the workspace has its volume. `Suspended`:
    /// whether the sandbox is without a pod, and why. `UpdatePending`: whether the template changed after the pod was made.
    /// `NetworkIsolated`: whether the cluster was seen to enforce network policies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The pod and claim of the sandbox; written before the pod is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// The value of the annotation `codeexec.dev/activity` that the operator last acted on. Trouble in a condition is about this
    /// activity, not about a later one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_activity: Option<String>,
    /// The value of the annotation `codeexec.dev/activity` at which the sandbox was suspended for want of activity; a value that
    /// differs wakes it. Unset while it runs, and while `replicas: 0` holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_activity: Option<String>,
    /// When the sandbox was suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_at: Option<Time>,
    /// What holds for this sandbox, taken together from itself, its template and the fixed fallbacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,
    /// Node of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Addresses of the pod.
    #[serde(default, rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<String>,
    /// When `maxLifetime` ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Pods that exist: 0 or 1.
    #[serde(default)]
    pub replicas: i32,
    /// Label selector of the sandbox's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Status of a SandboxTemplate: what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxTemplateStatus {
    /// `Accepted`: whether the API server takes pods made from the template. `NetworkIsolated`: whether the cluster was seen to enforce
    /// network policies. Written when there is a problem, and when it is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
