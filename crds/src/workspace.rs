//! The volume of a sandbox.

use crate::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The volume that holds a sandbox's files.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.existingClaim) || (!has(self.size) && !has(self.storageClassName) && !has(self.accessModes) && !has(self.whenDeleted))")
        .message("an existing claim has its own size, class and access modes, and is never deleted: leave size, storageClassName, accessModes and whenDeleted out")
)]
pub struct Workspace {
    /// Size of the volume, such as `10Gi`; it may only grow, and the storage class must allow that. 5Gi when neither sandbox nor
    /// template says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Storage class of the volume; unset means the cluster's default class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub storage_class_name: Option<String>,
    /// How the volume may be mounted; `ReadWriteOnce` when neither sandbox nor template says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub access_modes: Option<Vec<AccessMode>>,
    /// A PersistentVolumeClaim that exists, instead of one made for the sandbox. It is never deleted with the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_claim: Option<ExistingClaim>,
    /// What happens to the volume when the sandbox is deleted. `Delete`: it is deleted too; this is so when nothing is said.
    /// `Retain`: it is kept, and a new sandbox of the same name, also with `Retain`, takes it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_deleted: Option<WhenDeleted>,
}

/// A PersistentVolumeClaim that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExistingClaim {
    /// Its name, in the same namespace. It must carry the label `codeexec.dev/mountable: "true"`.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
    /// A folder at the top of the volume to use instead of the whole, made when it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?$"))]
    pub sub_path: Option<String>,
}

/// How a volume may be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    /// By one node.
    ReadWriteOnce,
    /// By one pod.
    ReadWriteOncePod,
    /// By many nodes.
    ReadWriteMany,
}

impl AccessMode {
    /// As Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
            Self::ReadWriteMany => "ReadWriteMany",
        }
    }
}

/// What happens to the volume when the sandbox is deleted. `Delete`: it is deleted too; this is so when nothing is said.
/// `Retain`: it is kept, and a new sandbox of the same name, also with `Retain`, takes it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenDeleted {
    /// It is deleted too.
    #[default]
    Delete,
    /// It is kept.
    Retain,
}
