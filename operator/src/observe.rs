//! Step one: what exists. Reads the watched stores only, so a pass costs no request.

use crate::pod_state::{PodSeen, pod_seen};
use crds::{ChildName, SandboxTemplate, keys};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    ResourceExt,
    core::DeserializeGuard,
    runtime::reflector::{ObjectRef, Store},
};
use std::sync::Arc;

/// The stores of one namespace.
#[derive(Clone)]
pub struct Stores {
    /// Pods with our label.
    pub pods: Store<Pod>,
    /// Claims with our label.
    pub claims: Store<PersistentVolumeClaim>,
    /// Every template.
    pub templates: Store<DeserializeGuard<SandboxTemplate>>,
}

/// What exists of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The pod of its name.
    pub pod: Option<PodSeen>,
    /// The claim of its name.
    pub claim: Option<ClaimSeen>,
}

/// A claim, as far as decisions need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimSeen {
    /// Whether its controller is this sandbox.
    pub ours: bool,
    /// Whether it has a volume.
    pub phase: ClaimPhase,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its storage class, for messages.
    pub class: Option<String>,
}

/// Whether a claim has a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimPhase {
    /// Not yet.
    Pending,
    /// It has.
    Bound,
    /// It had.
    Lost,
}

/// What exists of the sandbox of this UID whose children have this name.
pub fn observe(stores: &Stores, namespace: &str, child: &ChildName, uid: &str) -> Observed {
    let pod = stores.pods.get(&ObjectRef::new(child.as_str()).within(namespace));
    let claim = stores.claims.get(&ObjectRef::new(child.as_str()).within(namespace));
    Observed { pod: pod.map(|pod| pod_seen(&pod, uid)), claim: claim.map(|claim| claim_seen(&claim, uid)) }
}

/// The template of this name; `Some(Err)` when it cannot be read.
pub fn observe_template(
    stores: &Stores,
    namespace: &str,
    name: &str,
) -> Option<Arc<DeserializeGuard<SandboxTemplate>>> {
    stores.templates.get(&ObjectRef::new(name).within(namespace))
}

/// Reads a claim.
pub fn claim_seen(claim: &PersistentVolumeClaim, owner_uid: &str) -> ClaimSeen {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    ClaimSeen {
        ours: is_ours(claim, owner_uid),
        phase: match phase {
            Some("Bound") => ClaimPhase::Bound,
            Some("Lost") => ClaimPhase::Lost,
            _ => ClaimPhase::Pending,
        },
        deleting: claim.metadata.deletion_timestamp.is_some(),
        class: claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()),
    }
}

/// Whether the object's controller is the Sandbox of this UID; a label alone proves nothing.
pub fn is_ours<K: ResourceExt>(object: &K, owner_uid: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == owner_uid)
}

/// Selects what the operator watches.
pub fn label_selector() -> &'static str {
    keys::SANDBOX_UID
}
