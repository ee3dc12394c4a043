//! Step three: what to do. Pure: the same sandbox, world, memory and time give the same plan.
//!
//! A plan does at most one thing to children. A binding and a suspension are reported before anything is done about them, and that
//! report is a compare-and-swap on the Sandbox, so a pass on stale data can neither make a second pod nor delete one in use.

mod run;
mod stop;
mod workspace;

use crate::{
    clock::Now,
    history::History,
    observe::{ClaimOwner, ClaimSeen, Observed, Question},
    pod_state::{PodSeen, PodState},
    status::{Ready, View, build_status},
    trouble::Trouble,
    validate::{Identity, ValidSandbox},
};
use crds::{Binding, OnExpiry, Phase, Quantity, Reason, SandboxStatus};
use jiff::SignedDuration;
use stop::End;

pub(crate) use stop::Stop;

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
    /// What should be found out before the plan is carried out: decide again with the answer among the facts.
    pub question: Option<Question>,
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
    /// A claim that an earlier sandbox of this name has left becomes this one's.
    TakeBack(ClaimSeen),
    /// The claim asks for this size.
    Grow(ClaimSeen, Quantity),
    /// A pod of the sandbox is deleted.
    DeletePod {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// The version that was looked at: what has changed since, such as its owner, is looked at first.
        resource_version: String,
    },
    /// The Sandbox itself is deleted, at the end of its life.
    DeleteSandbox,
}

/// What the sandbox should be.
enum Goal {
    Run,
    Off(Stop),
    Gone,
}

fn goal(sandbox: &ValidSandbox, now: Now) -> Goal {
    let expired = sandbox.expires_at.is_some_and(|end| end <= now.time);
    match (expired, sandbox.on_expiry, sandbox.wanted) {
        (true, OnExpiry::Delete, _) => Goal::Gone,
        (true, OnExpiry::Retain, _) => Goal::Off(Stop::expired()),
        (false, _, false) => Goal::Off(Stop::scaled_to_zero()),
        (false, _, true) => match Stop::begun(&sandbox.status) {
            Some(stop) if !stop.is_woken_by(sandbox.activity.as_deref()) => Goal::Off(stop),
            Some(_) | None => Goal::Run,
        },
    }
}

/// Decides.
pub fn decide(sandbox: &ValidSandbox, seen: &Observed, history: &History, now: Now) -> Plan {
    // A pod that is to go is no use of the sandbox, however ready it still is.
    let stops = matches!(sandbox.status.phase, Some(Phase::Suspending | Phase::Suspended | Phase::Expired));
    let ready = !stops && seen.pod.as_ref().is_some_and(|pod| pod.ours && pod.state == PodState::Ready);
    let history = history.sighted(now.uptime, sandbox.activity.as_ref(), ready);
    let pass = Pass { sandbox, seen, history: &history, now };
    let mut plan = match (goal(sandbox, now), &seen.pod) {
        (Goal::Gone, _) => Plan { act: Act::DeleteSandbox, ..pass.plan(sandbox.status.clone()) },
        (Goal::Off(_) | Goal::Run, Some(pod)) if !seen.more_pods.is_empty() => pass.several(pod),
        (Goal::Off(_) | Goal::Run, Some(pod)) if !pod.ours => pass.foreign("pod"),
        (Goal::Off(stop), pod) => pass.stop(pod.as_ref(), stop),
        (Goal::Run, Some(pod)) if sandbox.status.phase == Some(Phase::Suspending) => pass.complete(pod),
        (Goal::Run, pod) => match (pass.end(), pod) {
            (End::Now(stop), pod) => pass.stop(pod.as_ref(), stop),
            (End::In(left), pod) => pass.go_on(pod.as_ref()).look_again_in(Some(left)),
            (End::Never, pod) => pass.go_on(pod.as_ref()),
        },
    };
    if plan.act == Act::Nothing
        && let Some(grow) = pass.growth()
    {
        plan.act = grow;
    }
    let until_expiry = sandbox.expires_at.map(|end| end.duration_since(now.time)).filter(SignedDuration::is_positive);
    plan.look_again_in(until_expiry)
}

impl Plan {
    /// Looks again then at the latest.
    fn look_again_in(mut self, wait: Option<SignedDuration>) -> Self {
        self.requeue = self.requeue.into_iter().chain(wait).min();
        self
    }
}

/// The arguments of one decision.
struct Pass<'a> {
    sandbox: &'a ValidSandbox,
    seen: &'a Observed,
    history: &'a History,
    now: Now,
}

impl Pass<'_> {
    fn plan(&self, status: SandboxStatus) -> Plan {
        Plan {
            identity: self.sandbox.identity.clone(),
            act: Act::Nothing,
            status,
            history: self.history.clone(),
            requeue: None,
            question: None,
        }
    }

    fn report(&self, view: View) -> Plan {
        self.plan(build_status(self.sandbox, self.seen, self.history, view, self.now.time))
    }

    fn not_ready(&self, phase: Phase, trouble: Trouble, binding: Option<Binding>) -> Plan {
        self.report(View { phase, ready: Ready::No(trouble), binding, stop: None, outdated: None })
    }

    /// Something of our name that is not ours: said, and never touched.
    fn foreign(&self, what: &str) -> Plan {
        let message =
            format!("a {what} named {} exists and does not belong to this sandbox; delete it", self.sandbox.child);
        self.not_ready(Phase::Pending, Trouble::new(Reason::ForeignObject, message), None)
    }

    /// Which of them holds what the user did last is unknown, so neither is touched.
    fn several(&self, pod: &PodSeen) -> Plan {
        let names = std::iter::once(&pod.name).chain(&self.seen.more_pods).map(String::as_str).collect::<Vec<_>>();
        let message = format!("several pods belong to this sandbox: {}; delete all but one", names.join(", "));
        let binding = self.sandbox.status.binding.clone();
        self.not_ready(Phase::Pending, Trouble::new(Reason::MultiplePods, message), binding)
    }

    /// The claim, when it may be used.
    fn own_claim(&self) -> Option<&ClaimSeen> {
        self.seen.claim.as_ref().filter(|claim| match claim.owner {
            ClaimOwner::Owned | ClaimOwner::Retained => true,
            ClaimOwner::Mountable | ClaimOwner::Foreign => false,
        })
    }
}

fn delete_pod(pod: &PodSeen, plan: Plan) -> Plan {
    let PodSeen { name, uid, resource_version, .. } = pod.clone();
    Plan { act: Act::DeletePod { name, uid, resource_version }, ..plan }
}
