//! Step one: what exists. Reads the watched stores only, so a pass costs no request.

use crate::{
    isolation::Isolation,
    pod_state::{PodSeen, pod_seen},
    trouble::Trouble,
    validate::{ValidSandbox, WantedWorkspace},
};
use crds::{Quantity, Reason, Sandbox, SandboxTemplate, WhenDeleted, keys};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod},
    apimachinery::pkg::api::resource::Quantity as KubeQuantity,
};
use kube::{
    ResourceExt,
    core::DeserializeGuard,
    runtime::reflector::{ObjectRef, Store},
};
use std::{collections::BTreeMap, sync::Arc};

/// The stores of one namespace.
#[derive(Clone)]
pub struct Stores {
    /// Pods with our label.
    pub pods: Store<Pod>,
    /// Claims with our label.
    pub claims: Store<PersistentVolumeClaim>,
    /// Claims that somebody else owns and lets sandboxes mount.
    pub mountable: Store<PersistentVolumeClaim>,
    /// Every template.
    pub templates: Store<DeserializeGuard<SandboxTemplate>>,
}

/// What exists of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Its pod, or a pod of its name that is not its own.
    pub pod: Option<PodSeen>,
    /// Names of further pods of its own, which should not exist.
    pub more_pods: Vec<String>,
    /// Its claim, or a claim of its name that is not its own.
    pub claim: Option<ClaimSeen>,
    /// Claims that an earlier sandbox of its name has left, looked for only where it has none and takes one back.
    pub left_behind: Vec<ClaimSeen>,
    /// What is wrong with the claims that its template mounts.
    pub mounts: Result<(), Trouble>,
    /// Whether the cluster isolates its network.
    pub isolation: Isolation,
    /// Whether it has to.
    pub isolation_required: bool,
    /// What was found out for this pass only.
    pub facts: Facts,
}

impl Default for Observed {
    fn default() -> Self {
        Self {
            pod: None,
            more_pods: Vec::new(),
            claim: None,
            left_behind: Vec::new(),
            mounts: Ok(()),
            isolation: Isolation::Unknown,
            isolation_required: false,
            facts: Facts::default(),
        }
    }
}

/// Answers to questions that no watch answers; asked only when they matter, see [`Question`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether the storage class of the claim exists.
    pub storage_class_exists: Option<bool>,
    /// What the node says when it is not well; nothing when it is.
    pub node_trouble: Option<Option<String>>,
    /// The last warning about the pod.
    pub pod_warning: Option<Option<Warning>>,
    /// The last warning about the claim.
    pub claim_warning: Option<Option<Warning>>,
}

/// A question that one request to the API server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Does this storage class exist?
    StorageClass(String),
    /// Is this node well?
    Node(String),
    /// What was the last warning about the pod of this UID?
    PodWarning(String),
    /// What was the last warning about the claim of this UID?
    ClaimWarning(String),
}

/// An Event of type Warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Its reason, such as `FailedMount`.
    pub reason: String,
    /// Its words.
    pub message: String,
}

/// A claim, as far as decisions need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimSeen {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
    /// Whose it is.
    pub owner: ClaimOwner,
    /// Whether it has a volume.
    pub phase: ClaimPhase,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Its storage class, for messages.
    pub class: Option<String>,
    /// The size that was asked for.
    pub requested: Option<Quantity>,
    /// The size that it has.
    pub capacity: Option<Quantity>,
}

/// Whose a claim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOwner {
    /// This sandbox's, deleted with it.
    Owned,
    /// This sandbox's, kept when it is deleted.
    Retained,
    /// Somebody else's, who lets sandboxes mount it.
    Mountable,
    /// Not this sandbox's.
    Foreign,
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

/// What exists of this sandbox.
pub fn observe(
    stores: &Stores,
    sandbox: &ValidSandbox,
    (isolation, isolation_required): (Isolation, bool),
) -> Observed {
    let (pod, more_pods) = pods_of(stores, sandbox);
    let claim = claim_of(stores, sandbox);
    let takes_back = matches!(sandbox.workspace, WantedWorkspace::Own { when_deleted: WhenDeleted::Retain, .. });
    let left_behind = if claim.is_none() && takes_back { left_behind(stores, sandbox) } else { Vec::new() };
    let mounts = mounts(stores, sandbox);
    Observed { pod, more_pods, claim, left_behind, mounts, isolation, isolation_required, facts: Facts::default() }
}

/// The sandbox's pod, whatever its name, before a foreign one of its name; and the names of further ones.
fn pods_of(stores: &Stores, sandbox: &ValidSandbox) -> (Option<PodSeen>, Vec<String>) {
    let (uid, name) = (&sandbox.identity.uid, sandbox.child.as_str());
    let named = stores.pods.get(&ObjectRef::new(name).within(&sandbox.identity.namespace));
    let first = named.filter(|pod| is_ours(pod.as_ref(), uid));
    let known = first.as_ref().map(|pod| pod.name_any());
    let another = |pod: &Pod| is_ours(pod, uid) && Some(pod.name_any()) != known;
    match (first, stores.pods.find(another)) {
        (Some(first), Some(other)) => (Some(pod_seen(&first, uid)), vec![other.name_any()]),
        (Some(only), None) | (None, Some(only)) => (Some(pod_seen(&only, uid)), Vec::new()),
        (None, None) => {
            let foreign = stores.pods.get(&ObjectRef::new(name).within(&sandbox.identity.namespace));
            (foreign.map(|pod| pod_seen(&pod, uid)), Vec::new())
        }
    }
}

fn claim_of(stores: &Stores, sandbox: &ValidSandbox) -> Option<ClaimSeen> {
    let (uid, namespace) = (sandbox.identity.uid.as_str(), sandbox.identity.namespace.as_str());
    let claim = match &sandbox.workspace {
        WantedWorkspace::Existing(existing) => stores.mountable.get(&ObjectRef::new(&existing.name).within(namespace)),
        WantedWorkspace::Own { .. } => {
            let named = stores.claims.get(&ObjectRef::new(sandbox.child.as_str()).within(namespace));
            // A claim that was taken back has the name of its first sandbox.
            let bound = || sandbox.status.binding.as_ref().map(|binding| binding.workspace_claim.as_str());
            let taken_back = || {
                let name = bound().filter(|name| *name != sandbox.child.as_str())?;
                stores
                    .claims
                    .get(&ObjectRef::new(name).within(namespace))
                    .filter(|claim| is_retained_by(claim.as_ref(), uid))
            };
            named.or_else(taken_back).or_else(|| stores.claims.find(|claim| is_retained_by(claim, uid)))
        }
    };
    claim.map(|claim| claim_seen(&claim, uid))
}

/// Claims that were kept when an earlier sandbox of this name and tenant was deleted, and that no pod uses any more.
fn left_behind(stores: &Stores, sandbox: &ValidSandbox) -> Vec<ClaimSeen> {
    let claims = stores.claims.state();
    let left = claims.iter().filter(|claim| {
        let annotations = claim.annotations();
        annotations.get(keys::SANDBOX) == Some(&sandbox.identity.name)
            && annotations.get(keys::OWNER) == sandbox.owner.as_ref()
            && claim.owner_references().is_empty()
            && claim.metadata.deletion_timestamp.is_none()
            && claim.labels().get(keys::SANDBOX_UID) != Some(&sandbox.identity.uid)
            && stores.pods.find(|pod| mounts_claim(pod, &claim.name_any())).is_none()
    });
    left.map(|claim| claim_seen(claim, &sandbox.identity.uid)).collect()
}

fn mounts_claim(pod: &Pod, claim: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref()).any(|source| source.claim_name == claim)
}

/// The claims that the template mounts.
fn mounts(stores: &Stores, sandbox: &ValidSandbox) -> Result<(), Trouble> {
    let mounts = sandbox.source.iter().flat_map(|source| &source.spec.mounts);
    let missing = |name: &&String| {
        stores.mountable.get(&ObjectRef::new(name.as_str()).within(&sandbox.identity.namespace)).is_none()
    };
    match mounts.map(|mount| &mount.claim_name).find(missing) {
        Some(name) => Err(not_mountable(name)),
        None => Ok(()),
    }
}

/// A claim that is not among those that may be mounted: it is missing, or lacks the label.
pub fn not_mountable(name: &str) -> Trouble {
    let message = format!(
        "there is no claim {name:?} in this namespace with the label {}: {:?}; create or label it",
        keys::MOUNTABLE,
        keys::MOUNTABLE_VALUE
    );
    Trouble::new(Reason::ClaimNotMountable, message)
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
pub fn claim_seen(claim: &PersistentVolumeClaim, sandbox_uid: &str) -> ClaimSeen {
    let status = claim.status.as_ref();
    let spec = claim.spec.as_ref();
    let storage = |amounts: Option<&BTreeMap<String, KubeQuantity>>| {
        amounts.and_then(|amounts| amounts.get("storage")).and_then(|amount| amount.0.parse().ok())
    };
    ClaimSeen {
        name: claim.name_any(),
        uid: claim.uid().unwrap_or_default(),
        resource_version: claim.resource_version().unwrap_or_default(),
        owner: claim_owner(claim, sandbox_uid),
        phase: match status.and_then(|status| status.phase.as_deref()) {
            Some("Bound") => ClaimPhase::Bound,
            Some("Lost") => ClaimPhase::Lost,
            _ => ClaimPhase::Pending,
        },
        deleting: claim.metadata.deletion_timestamp.is_some(),
        created: claim.creation_timestamp().map(|time| time.0),
        class: spec.and_then(|spec| spec.storage_class_name.clone()),
        requested: storage(spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref())),
        capacity: storage(status.and_then(|status| status.capacity.as_ref())),
    }
}

fn claim_owner(claim: &PersistentVolumeClaim, sandbox_uid: &str) -> ClaimOwner {
    if is_ours(claim, sandbox_uid) {
        ClaimOwner::Owned
    } else if is_retained_by(claim, sandbox_uid) {
        ClaimOwner::Retained
    } else if claim.labels().get(keys::MOUNTABLE).is_some_and(|value| value == keys::MOUNTABLE_VALUE) {
        ClaimOwner::Mountable
    } else {
        ClaimOwner::Foreign
    }
}

/// Whether the object's controller is the Sandbox of this UID; a label alone proves nothing.
pub fn is_ours<K: ResourceExt>(object: &K, sandbox_uid: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == sandbox_uid)
}

/// Whether the claim is kept for the Sandbox of this UID: nobody owns it, and it carries the label.
pub fn is_retained_by<K: ResourceExt>(claim: &K, sandbox_uid: &str) -> bool {
    claim.owner_references().is_empty() && claim.labels().get(keys::SANDBOX_UID).is_some_and(|uid| uid == sandbox_uid)
}

/// Selects what the operator watches.
pub const fn label_selector() -> &'static str {
    keys::SANDBOX_UID
}

/// Selects the claims that sandboxes may mount.
pub fn mountable_selector() -> String {
    format!("{}={}", keys::MOUNTABLE, keys::MOUNTABLE_VALUE)
}

/// Whether this sandbox uses the claim of this name although it does not own it.
pub fn uses_claim(sandbox: &Sandbox, template: Option<&SandboxTemplate>, claim: &str) -> bool {
    let existing = sandbox.spec.workspace.as_ref().and_then(|workspace| workspace.existing_claim.as_ref());
    let mounts = template.iter().flat_map(|template| &template.spec.mounts).any(|mount| mount.claim_name == claim);
    mounts || existing.is_some_and(|existing| existing.name == claim)
}
