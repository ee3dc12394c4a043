//! Step three: what to do. Pure: the same sandbox, world and time give the same plan.
//!
//! A plan does at most one thing to children. A binding and a suspension are reported before anything is done about them, and that
//! report is a compare-and-swap on the Sandbox, so a pass on stale data can neither make a second pod nor delete one in use.

use crate::{
    history::History,
    observe::{ClaimPhase, ClaimSeen, Observed},
    pod_state::{PodSeen, PodState},
    status::{Ready, View, build_status},
    trouble::Trouble,
    validate::{Identity, ValidSandbox},
};
use crds::{Binding, BindingSource, ConditionType, OnExpiry, Phase, Reason, SandboxStatus};
use jiff::{SignedDuration, Timestamp};

/// A node that has not confirmed a deletion this long after the grace period is taken for lost.
const NODE_LOST_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// A claim that is still without a volume this long after its pod was made is worth a word.
const WORKSPACE_PATIENCE: SignedDuration = SignedDuration::from_secs(10);

/// What one pass does.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// To which Sandbox.
    pub identity: Identity,
    /// To its children, or to itself.
    pub act: Act,
    /// What is then reported; not written when it says nothing new.
    pub status: SandboxStatus,
    /// What is remembered.
    pub history: History,
    /// When to look again although nothing changed.
    pub requeue: Option<SignedDuration>,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    Nothing,
    /// The pod is made, and before it the claim where there is none.
    Start {
        /// Whether the claim has to be made.
        new_claim: bool,
    },
    /// The pod of this UID is deleted.
    DeletePod {
        /// Its UID.
        uid: String,
    },
    /// The Sandbox itself is deleted, at the end of its life.
    DeleteSandbox,
}

/// What the sandbox should be.
enum Goal {
    Run,
    /// Without a pod, in this phase.
    Off(Phase),
    Gone,
}

fn goal(sandbox: &ValidSandbox, now: Timestamp) -> Goal {
    let expired = sandbox.expires_at.is_some_and(|end| end <= now);
    match (expired, sandbox.on_expiry, sandbox.wanted) {
        (true, OnExpiry::Delete, _) => Goal::Gone,
        (true, OnExpiry::Retain, _) => Goal::Off(Phase::Expired),
        (false, _, true) => Goal::Run,
        (false, _, false) => Goal::Off(Phase::Suspended),
    }
}

/// Decides.
pub fn decide(sandbox: &ValidSandbox, seen: &Observed, history: &History, now: Timestamp) -> Plan {
    let pass = Pass { sandbox, seen, history, now };
    let mut plan = match (goal(sandbox, now), &seen.pod) {
        (Goal::Gone, _) => Plan { act: Act::DeleteSandbox, ..pass.plan(sandbox.status.clone()) },
        (Goal::Off(_) | Goal::Run, Some(pod)) if !pod.ours => pass.foreign("pod"),
        (Goal::Off(phase), pod) => pass.stop(pod.as_ref(), phase),
        // A suspension that has begun completes, also when the sandbox is wanted again.
        (Goal::Run, Some(pod)) if sandbox.status.phase == Some(Phase::Suspending) => {
            pass.stop(Some(pod), Phase::Suspended)
        }
        (Goal::Run, Some(pod)) => pass.run(pod),
        (Goal::Run, None) => pass.start(),
    };
    let until_expiry = sandbox.expires_at.map(|end| end.duration_since(now)).filter(SignedDuration::is_positive);
    plan.requeue = plan.requeue.into_iter().chain(until_expiry).min();
    plan
}

/// The arguments of one decision.
struct Pass<'a> {
    sandbox: &'a ValidSandbox,
    seen: &'a Observed,
    history: &'a History,
    now: Timestamp,
}

impl Pass<'_> {
    fn plan(&self, status: SandboxStatus) -> Plan {
        Plan {
            identity: self.sandbox.identity.clone(),
            act: Act::Nothing,
            status,
            history: self.history.clone(),
            requeue: None,
        }
    }

    fn report(&self, phase: Phase, ready: Ready, binding: Option<Binding>) -> Plan {
        self.plan(build_status(self.sandbox, self.seen, View { phase, ready, binding }, self.now))
    }

    fn not_ready(&self, phase: Phase, trouble: Trouble, binding: Option<Binding>) -> Plan {
        self.report(phase, Ready::No(trouble), binding)
    }

    /// Something of our name that is not ours: said, and never touched.
    fn foreign(&self, what: &str) -> Plan {
        let message =
            format!("a {what} named {} exists and does not belong to this sandbox; delete it", self.sandbox.child);
        self.not_ready(Phase::Pending, Trouble::new(Reason::ForeignObject, message), None)
    }

    /// Towards no pod, keeping the claim.
    fn stop(&self, pod: Option<&PodSeen>, phase: Phase) -> Plan {
        let Some(pod) = pod else {
            let (reason, message) = if phase == Phase::Expired {
                (Reason::Expired, "past its maxLifetime; the files are kept")
            } else {
                (Reason::Suspended, "held by replicas: 0; the files are kept")
            };
            return Plan { history: History::default(), ..self.not_ready(phase, Trouble::new(reason, message), None) };
        };
        let binding = self.sandbox.status.binding.clone();
        let stopping = Trouble::new(Reason::Suspending, "the pod is being deleted; the files are kept");
        match &pod.state {
            PodState::Terminating { until } => self.going(Phase::Suspending, stopping, *until, binding),
            PodState::Finished(_) | PodState::Ready | PodState::Waiting { .. } => {
                let plan = self.not_ready(Phase::Suspending, stopping, binding);
                let reported = self.sandbox.status.phase == Some(Phase::Suspending);
                if reported { Plan { act: Act::DeletePod { uid: pod.uid.clone() }, ..plan } } else { plan }
            }
        }
    }

    /// The pod is going; its node may be lost.
    fn going(&self, phase: Phase, otherwise: Trouble, until: Timestamp, binding: Option<Binding>) -> Plan {
        let lost_at = until.checked_add(NODE_LOST_AFTER).unwrap_or(Timestamp::MAX);
        if lost_at > self.now {
            let requeue = Some(lost_at.duration_since(self.now));
            return Plan { requeue, ..self.not_ready(phase, otherwise, binding) };
        }
        let node = self.seen.pod.as_ref().and_then(|pod| pod.node.as_deref()).unwrap_or("unknown");
        let message = format!(
            "node {node} does not confirm that the pod ended; it is not replaced, since two writers on one volume would be worse"
        );
        self.not_ready(phase, Trouble::new(Reason::NodeLost, message), binding)
    }

    /// Towards a pod, where there is none.
    fn start(&self) -> Plan {
        if let Some(lost) = self.lost_workspace() {
            return self.not_ready(Phase::Pending, lost, None);
        }
        if self.seen.claim.as_ref().is_some_and(|claim| !claim.ours) {
            return self.foreign("claim");
        }
        if let Err(trouble) = &self.sandbox.source {
            return self.not_ready(Phase::Pending, trouble.clone(), None);
        }
        let status = &self.sandbox.status;
        let starting = || Trouble::new(Reason::Starting, "the pod is being made");
        let trouble = self.history.trouble.clone().unwrap_or_else(starting);
        let bound =
            status.binding.as_ref().filter(|binding| self.is_fresh(binding) && status.phase == Some(Phase::Starting));
        let plan =
            self.not_ready(Phase::Starting, trouble, Some(bound.cloned().unwrap_or_else(|| self.fresh_binding())));
        if bound.is_none() {
            // The report of the binding ends this pass; the next one makes the pod.
            return plan;
        }
        if let Some(wait) = self.history.wait(self.now, self.sandbox.activity.as_ref()) {
            return Plan { requeue: Some(wait), ..plan };
        }
        let history = self.history.started(self.now, self.sandbox.activity.as_ref());
        Plan { act: Act::Start { new_claim: self.seen.claim.is_none() }, history, ..plan }
    }

    fn is_fresh(&self, binding: &Binding) -> bool {
        binding.pod_uid.is_none() && binding.pod_name == self.sandbox.child.as_str()
    }

    fn fresh_binding(&self) -> Binding {
        let name = self.sandbox.child.to_string();
        let source = if self.seen.claim.is_some() { BindingSource::Existing } else { BindingSource::Cold };
        Binding { pod_name: name.clone(), pod_uid: None, workspace_claim: name, source }
    }

    /// A workspace that cannot be had back is never silently replaced by an empty one.
    fn lost_workspace(&self) -> Option<Trouble> {
        let name = &self.sandbox.child;
        let lost = |how: &str| {
            Some(Trouble::new(Reason::WorkspaceLost, format!("claim {name} {how}; delete the sandbox to start anew")))
        };
        match &self.seen.claim {
            Some(ClaimSeen { ours: false, .. }) => None,
            Some(ClaimSeen { deleting: true, .. }) => lost("is being deleted"),
            Some(ClaimSeen { phase: ClaimPhase::Lost, .. }) => lost("lost its volume"),
            Some(_) => None,
            None => {
                let bound = |condition: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
                    condition.type_ == ConditionType::WorkspaceBound.as_str()
                        && [Reason::Bound.as_str(), Reason::WorkspaceLost.as_str()].contains(&condition.reason.as_str())
                };
                self.sandbox.status.conditions.iter().any(bound).then(|| lost("is gone")).flatten()
            }
        }
    }

    /// Towards Ready, with a pod of ours.
    fn run(&self, pod: &PodSeen) -> Plan {
        let previous = self.sandbox.status.binding.clone().unwrap_or_else(|| self.fresh_binding());
        let unbound = Binding { pod_uid: None, ..previous.clone() };
        let starting = |message: &str| Trouble::new(Reason::Starting, message);
        let delete = |plan: Plan| Plan { act: Act::DeletePod { uid: pod.uid.clone() }, ..plan };
        let unwanted = self.sandbox.replace_pod.as_ref() == Some(&pod.uid);
        let outdated =
            self.sandbox.source.as_ref().is_ok_and(|source| Some(&source.hash) != pod.template_hash.as_ref());
        match &pod.state {
            PodState::Terminating { until } => {
                let why = self.history.trouble.clone().unwrap_or_else(|| starting("the previous pod is ending"));
                self.going(Phase::Starting, why, *until, Some(unbound))
            }
            PodState::Finished(end) => {
                let plan = self.not_ready(Phase::Starting, end.clone(), Some(unbound));
                Plan { history: self.history.failed(end.clone()), ..delete(plan) }
            }
            PodState::Ready | PodState::Waiting { .. } if unwanted => delete(self.not_ready(
                Phase::Starting,
                starting("the pod is replaced, since its user found it broken"),
                Some(unbound),
            )),
            PodState::Waiting { .. } if outdated => delete(self.not_ready(
                Phase::Starting,
                starting("the pod is replaced, since the template changed"),
                Some(unbound),
            )),
            PodState::Ready => {
                let binding = Binding { pod_uid: Some(pod.uid.clone()), ..previous };
                self.report(Phase::Ready, Ready::Yes, Some(binding))
            }
            PodState::Waiting { trouble, since } => self.wait(pod, trouble.clone().zip(Some(*since)), unbound),
        }
    }

    /// The pod is on its way, or in trouble.
    fn wait(&self, pod: &PodSeen, trouble: Option<(Trouble, Option<Timestamp>)>, binding: Binding) -> Plan {
        let due = |at: Timestamp| Some(at.duration_since(self.now)).filter(SignedDuration::is_positive);
        let starting = Trouble::new(Reason::Starting, "the pod is starting");
        let workspace = self.pending_workspace(pod);
        let trouble = match (trouble, workspace) {
            (Some((Trouble { reason: Reason::Unschedulable, message }, since)), Some((pending, _)))
                if is_about_volumes(&message) =>
            {
                Some((Trouble::new(Reason::WorkspacePending, format!("{}: {message}", pending.message)), since))
            }
            (None, Some((pending, since))) => Some((pending, Some(since))),
            (trouble, _) => trouble,
        };
        match trouble {
            None => self.not_ready(Phase::Starting, starting, Some(binding)),
            Some((trouble, since)) => match since.and_then(due) {
                Some(wait) => Plan { requeue: Some(wait), ..self.not_ready(Phase::Starting, starting, Some(binding)) },
                None => self.not_ready(Phase::Starting, trouble, Some(binding)),
            },
        }
    }

    /// The claim has no volume; worth a word from the time that comes with it.
    fn pending_workspace(&self, pod: &PodSeen) -> Option<(Trouble, Timestamp)> {
        let claim = self.seen.claim.as_ref()?;
        if claim.phase != ClaimPhase::Pending {
            return None;
        }
        let class = claim
            .class
            .as_deref()
            .map_or_else(|| "no storage class".to_owned(), |class| format!("storage class {class}"));
        let message = format!("claim {} waits for a volume ({class})", self.sandbox.child);
        let since = pod.created?.checked_add(WORKSPACE_PATIENCE).ok()?;
        Some((Trouble::new(Reason::WorkspacePending, message), since))
    }
}

/// Whether the scheduler's words are about volumes. A claim whose class waits for the first consumer stays without a volume for as long
/// as the pod finds no node for any other reason, so the claim's phase alone does not say it.
fn is_about_volumes(words: &str) -> bool {
    let words = words.to_ascii_lowercase();
    ["persistentvolumeclaim", "persistent volume", "storageclass", "free storage", "volume node affinity"]
        .iter()
        .any(|sign| words.contains(sign))
}
