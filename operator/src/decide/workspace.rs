//! What the workspace has to do with it: where it is, whether it can be had, and how large it is.

use super::{Act, Pass};
use crate::{
    observe::{ClaimOwner, ClaimPhase, ClaimSeen, Question, not_mountable},
    pod_state::PodSeen,
    status::was_bound,
    trouble::Trouble,
    validate::WantedWorkspace,
};
use crds::Reason;
use jiff::{SignedDuration, Timestamp};
use std::cmp::Ordering;

/// A claim that is still without a volume this long after its pod was made is worth a word.
const PATIENCE: SignedDuration = SignedDuration::from_secs(4);
/// A claim without a volume for this long may lack its storage class.
const CLASS_PATIENCE: SignedDuration = SignedDuration::from_secs(1);

/// A claim without a volume.
pub(super) struct PendingWorkspace {
    pub(super) trouble: Trouble,
    /// The trouble counts from then on.
    pub(super) since: Timestamp,
    /// What would tell more.
    pub(super) question: Option<Question>,
}

impl Pass<'_> {
    /// Why there is no workspace to start with. One that cannot be had back is never silently replaced by an empty one.
    pub(super) fn no_workspace(&self) -> Option<Trouble> {
        let lost = |name: &str, how: &str| {
            Some(Trouble::new(Reason::WorkspaceLost, format!("claim {name} {how}; delete the sandbox to start anew")))
        };
        match (&self.seen.claim, &self.sandbox.workspace) {
            (None, WantedWorkspace::Existing(existing)) => return Some(not_mountable(&existing.name)),
            (None, WantedWorkspace::Own { .. }) if was_bound(&self.sandbox.status) => {
                let binding = self.sandbox.status.binding.as_ref();
                let name = binding.map_or(self.sandbox.child.as_str(), |binding| &binding.workspace_claim);
                return lost(name, "is gone");
            }
            (Some(ClaimSeen { owner: ClaimOwner::Foreign, .. }), _)
            | (Some(ClaimSeen { owner: ClaimOwner::Mountable, .. }), WantedWorkspace::Own { .. }) => {
                let message = format!(
                    "a claim named {} exists and does not belong to this sandbox; delete it",
                    self.sandbox.child
                );
                return Some(Trouble::new(Reason::ForeignObject, message));
            }
            (Some(claim), _) if claim.deleting => return lost(&claim.name, "is being deleted"),
            (Some(claim), _) if claim.phase == ClaimPhase::Lost => return lost(&claim.name, "lost its volume"),
            (None, WantedWorkspace::Own { .. }) | (Some(_), _) => {}
        }
        if let [_, _, ..] = self.seen.left_behind.as_slice() {
            let names: Vec<_> = self.seen.left_behind.iter().map(|claim| claim.name.as_str()).collect();
            let message =
                format!("several retained claims could be its workspace: {}; delete all but one", names.join(", "));
            return Some(Trouble::new(Reason::WorkspaceAmbiguous, message));
        }
        self.seen.mounts.clone().err()
    }

    /// Name of the claim that the pod mounts, and whether it was there before.
    pub(super) fn claim_to_mount(&self) -> (String, bool) {
        let found = self.seen.claim.as_ref().or_else(|| self.seen.left_behind.first());
        found.map_or_else(|| (self.sandbox.child.to_string(), false), |claim| (claim.name.clone(), true))
    }

    /// The claim has no volume; worth a word from the time that comes with it.
    pub(super) fn pending_workspace(&self, pod: &PodSeen) -> Option<PendingWorkspace> {
        let claim = self.seen.claim.as_ref().filter(|claim| claim.phase == ClaimPhase::Pending)?;
        let created = pod.created?;
        let age = self.now.time.duration_since(claim.created.unwrap_or(created));
        if let Some(class) = claim.class.as_ref().filter(|_| age >= CLASS_PATIENCE) {
            match self.seen.facts.storage_class_exists {
                None => {
                    let trouble = Trouble::new(Reason::Starting, "the pod is starting");
                    let question = Some(Question::StorageClass(class.clone()));
                    return Some(PendingWorkspace { trouble, since: created, question });
                }
                Some(false) => {
                    let message =
                        format!("claim {} asks for the storage class {class}, which does not exist", claim.name);
                    let trouble = Trouble::new(Reason::StorageClassNotFound, message);
                    return Some(PendingWorkspace { trouble, since: created, question: None });
                }
                Some(true) => {}
            }
        }
        let class = claim.class.as_ref().map_or_else(
            || "it names no storage class and the cluster has no default one".to_owned(),
            |class| format!("storage class {class}"),
        );
        let since = created.checked_add(PATIENCE).ok()?;
        let (warning, question) = match &self.seen.facts.claim_warning {
            None => (None, Some(Question::ClaimWarning(claim.uid.clone())).filter(|_| since <= self.now.time)),
            Some(warning) => (warning.as_ref(), None),
        };
        let said = warning.map_or_else(String::new, |warning| format!(": {}", warning.message));
        let message = format!("claim {} waits for a volume ({class}){said}", claim.name);
        Some(PendingWorkspace { trouble: Trouble::new(Reason::WorkspacePending, message), since, question })
    }

    /// The claim asks for less than is wanted, and it is not known that more cannot be had.
    pub(super) fn growth(&self) -> Option<Act> {
        let size = self.sandbox.own_size.as_ref()?;
        let claim = self.own_claim().filter(|claim| !claim.deleting && claim.phase == ClaimPhase::Bound)?;
        let grows = size.compare(claim.requested.as_ref()?) == Ordering::Greater;
        let refused = self.history.resize_refused.as_ref().is_some_and(|(refused, _)| refused == size);
        (grows && !refused).then(|| Act::Grow(claim.clone(), size.clone()))
    }
}

/// Whether the scheduler's words are about volumes. A claim whose class waits for the first consumer stays without a volume for as long
/// as the pod finds no node for any other reason, so the claim's phase alone does not say it.
pub(super) fn is_about_volumes(words: &str) -> bool {
    let words = words.to_ascii_lowercase();
    ["persistentvolumeclaim", "persistent volume", "storageclass", "free storage", "volume node affinity"]
        .iter()
        .any(|sign| words.contains(sign))
}
