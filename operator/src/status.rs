//! Builds the status, and says when it is worth a write.

use crate::{
    decide::Stop,
    history::History,
    isolation::Isolation,
    observe::{ClaimOwner, ClaimPhase, ClaimSeen, Observed},
    pod_state::PodState,
    trouble::Trouble,
    validate::ValidSandbox,
};
use crds::{Binding, ConditionType, Effective, Phase, Quantity, Reason, SandboxStatus, WhenDeleted, keys};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use std::cmp::Ordering;

/// What a decision says about a sandbox.
pub(crate) struct View {
    /// Where it stands.
    pub(crate) phase: Phase,
    /// Whether it is ready.
    pub(crate) ready: Ready,
    /// Its pod and claim.
    pub(crate) binding: Option<Binding>,
    /// Why it stops or has stopped.
    pub(crate) stop: Option<Stop>,
    /// Whether the template changed after the pod was made, where there is a pod to which that matters.
    pub(crate) outdated: Option<bool>,
}

/// Whether a command can run.
pub(crate) enum Ready {
    /// It can.
    Yes,
    /// It cannot, since.
    No(Trouble),
}

/// The whole status.
pub(crate) fn build_status(
    sandbox: &ValidSandbox,
    seen: &Observed,
    history: &History,
    view: View,
    now: Timestamp,
) -> SandboxStatus {
    let View { phase, ready, binding, stop, outdated } = view;
    let (generation, previous) = (sandbox.identity.generation, &sandbox.status);
    let pod = seen.pod.as_ref().filter(|pod| pod.ours);
    let make = |kind, holds, words: &Trouble| condition(kind, holds, words, generation, now);
    let ready = match ready {
        Ready::Yes => make(ConditionType::Ready, true, &Trouble::new(Reason::PodReady, "commands can run")),
        Ready::No(trouble) => make(ConditionType::Ready, false, &trouble),
    };
    let off = matches!(phase, Phase::Suspended | Phase::Expired);
    let conditions = [
        Some(ready),
        workspace_words(sandbox, seen, history)
            .map(|(bound, words)| make(ConditionType::WorkspaceBound, bound, &words)),
        Some(make(ConditionType::Suspended, off, &suspended_words(stop.as_ref(), off))),
        outdated.map(|outdated| make(ConditionType::UpdatePending, outdated, &update_words(outdated))),
        isolation_condition(previous, &seen.isolation, make),
    ];
    let stopped_before = previous.phase == Some(phase);
    SandboxStatus {
        phase: Some(phase),
        conditions: conditions
            .into_iter()
            .flatten()
            .map(|condition| keep_transition(&previous.conditions, condition))
            .collect(),
        binding,
        observed_activity: sandbox.activity.clone(),
        suspended_activity: stop.and_then(|stop| stop.activity),
        suspended_at: off.then(|| previous.suspended_at.clone().filter(|_| stopped_before).unwrap_or(Time(now))),
        effective: Some(effective(sandbox, seen)),
        node_name: pod.and_then(|pod| pod.node.clone()),
        pod_ips: pod.map(|pod| pod.ips.clone()).unwrap_or_default(),
        expires_at: sandbox.expires_at.map(Time),
        replicas: i32::from(pod.is_some_and(|pod| !matches!(pod.state, PodState::Terminating { .. }))),
        selector: Some(format!("{}={}", keys::SANDBOX_UID, sandbox.identity.uid)),
        observed_generation: generation,
    }
}

/// A claim that exists says better than spec and template what will happen to it.
fn effective(sandbox: &ValidSandbox, seen: &Observed) -> Effective {
    let made_with = seen.claim.as_ref().and_then(|claim| match claim.owner {
        ClaimOwner::Owned => Some(WhenDeleted::Delete),
        ClaimOwner::Retained => Some(WhenDeleted::Retain),
        ClaimOwner::Mountable | ClaimOwner::Foreign => None,
    });
    let wanted = sandbox.effective.clone();
    let requested =
        seen.claim.as_ref().filter(|_| sandbox.own_size.is_none()).and_then(|claim| claim.requested.clone());
    // The same amount is left as it was written.
    let differs =
        |size: &Quantity| wanted.workspace_size.as_ref().is_some_and(|wanted| wanted.compare(size) != Ordering::Equal);
    let workspace_size = requested.filter(differs).or_else(|| wanted.workspace_size.clone());
    Effective { when_deleted: made_with.or(wanted.when_deleted), workspace_size, ..wanted }
}

fn suspended_words(stop: Option<&Stop>, off: bool) -> Trouble {
    let Some(stop) = stop else { return Trouble::new(Reason::Active, "the sandbox is in use or about to be") };
    let why = match stop.cause {
        Reason::ScaledToZero => "held by replicas: 0",
        Reason::StartTimedOut => "its last start was given up",
        Reason::Expired => "past its maxLifetime",
        _ => "not used for its idle time-out",
    };
    let how = if off { "there is no pod" } else { "the pod is being deleted" };
    Trouble::new(stop.cause, format!("{why}; {how}, the files are kept"))
}

fn update_words(outdated: bool) -> Trouble {
    if outdated {
        let words =
            "the template, or what the sandbox overrides, changed after the pod was made; the next start follows it";
        Trouble::new(Reason::TemplateChanged, words)
    } else {
        Trouble::new(Reason::UpToDate, "the pod is as its template says")
    }
}

/// What was seen of the network is kept until something else is seen.
fn isolation_condition(
    previous: &SandboxStatus,
    isolation: &Isolation,
    make: impl Fn(ConditionType, bool, &Trouble) -> Condition,
) -> Option<Condition> {
    let kind = ConditionType::NetworkIsolated;
    match isolation {
        Isolation::Unknown => find(previous, kind).cloned(),
        Isolation::Isolated => {
            Some(make(kind, true, &Trouble::new(Reason::Isolated, "network policies were seen to be enforced")))
        }
        Isolation::Broken(words) => Some(make(kind, false, &Trouble::new(Reason::NetworkNotIsolated, words))),
    }
}

fn find(status: &SandboxStatus, kind: ConditionType) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

/// Whether the sandbox had a workspace with files.
pub(crate) fn was_bound(status: &SandboxStatus) -> bool {
    find(status, ConditionType::WorkspaceBound).is_some_and(|known| known.reason != Reason::WorkspacePending.as_str())
}

/// Why the sandbox is, or is being, suspended.
pub(crate) fn suspended_reason(status: &SandboxStatus) -> Option<Reason> {
    Reason::parse(&find(status, ConditionType::Suspended)?.reason).filter(|reason| *reason != Reason::Active)
}

/// The same status with this trouble as the reason for not being ready.
pub fn with_trouble(
    mut status: SandboxStatus,
    previous: &SandboxStatus,
    trouble: &Trouble,
    now: Timestamp,
) -> SandboxStatus {
    let ready = condition(ConditionType::Ready, false, trouble, status.observed_generation, now);
    let ready = keep_transition(&previous.conditions, ready);
    status.conditions.retain(|condition| condition.type_ != ConditionType::Ready.as_str());
    status.conditions.insert(0, ready);
    status
}

fn workspace_words(sandbox: &ValidSandbox, seen: &Observed, history: &History) -> Option<(bool, Trouble)> {
    let Some(claim) = &seen.claim else {
        // A claim that was there and is gone is remembered here.
        let binding = sandbox.status.binding.as_ref();
        let name = binding.map_or(sandbox.child.as_str(), |binding| &binding.workspace_claim);
        return was_bound(&sandbox.status)
            .then(|| (false, Trouble::new(Reason::WorkspaceLost, format!("claim {name} is gone"))));
    };
    let name = &claim.name;
    let words = match (claim.owner, claim.phase) {
        (ClaimOwner::Foreign, _) => return None,
        _ if claim.deleting => (false, Trouble::new(Reason::WorkspaceLost, format!("claim {name} is being deleted"))),
        (_, ClaimPhase::Lost) => (false, Trouble::new(Reason::WorkspaceLost, format!("claim {name} lost its volume"))),
        (_, ClaimPhase::Pending) => {
            (false, Trouble::new(Reason::WorkspacePending, format!("claim {name} waits for a volume")))
        }
        (_, ClaimPhase::Bound) => (true, size_words(sandbox, claim, history)),
    };
    Some(words)
}

/// Whether the volume has the size that is wanted.
fn size_words(sandbox: &ValidSandbox, claim: &ClaimSeen, history: &History) -> Trouble {
    let name = &claim.name;
    let bound = Trouble::new(Reason::Bound, format!("claim {name} has its volume"));
    let Some(size) = &sandbox.own_size else { return bound };
    if let Some((_, refusal)) = history.resize_refused.as_ref().filter(|(refused, _)| refused == size) {
        let message = format!("claim {name} cannot be enlarged to {size}: {}", refusal.message);
        return Trouble::new(Reason::ResizeRefused, message);
    }
    match (&claim.requested, &claim.capacity) {
        (Some(requested), Some(capacity)) if requested.compare(capacity) == Ordering::Greater => Trouble::new(
            Reason::ResizePending,
            format!("claim {name} is being enlarged from {capacity} to {requested}"),
        ),
        (Some(requested), _) if size.compare(requested) == Ordering::Greater => {
            Trouble::new(Reason::ResizePending, format!("claim {name} is being enlarged to {size}"))
        }
        _ => bound,
    }
}

fn condition(
    kind: ConditionType,
    holds: bool,
    trouble: &Trouble,
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    Condition {
        type_: kind.as_str().to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: trouble.reason.as_str().to_owned(),
        message: trouble.message.clone(),
        observed_generation: generation,
        last_transition_time: Time(now),
    }
}

/// The time of a condition moves only when its status does.
fn keep_transition(previous: &[Condition], mut condition: Condition) -> Condition {
    let same = previous.iter().find(|known| known.type_ == condition.type_ && known.status == condition.status);
    if let Some(known) = same {
        condition.last_transition_time = known.last_transition_time.clone();
    }
    condition
}

/// Whether the next status says something new. Node, addresses, messages and the rest ride along with such a change, so that a
/// sandbox at rest costs no write.
pub fn says_something_new(previous: &SandboxStatus, next: &SandboxStatus) -> bool {
    let says = |status: &SandboxStatus, kind| {
        find(status, kind).map(|condition| (condition.status.clone(), condition.reason.clone()))
    };
    let changed = |kind| says(previous, kind) != says(next, kind);
    // That a claim waits for its volume, and that it has it, are steps on the way.
    let noted = |status: &SandboxStatus| {
        let steps = [Reason::Bound.as_str(), Reason::WorkspacePending.as_str()];
        says(status, ConditionType::WorkspaceBound)
            .map(|(_, reason)| reason)
            .filter(|reason| !steps.contains(&reason.as_str()))
    };
    // Good news of the network rides along, bad news does not wait.
    let isolated = |status: &SandboxStatus| {
        find(status, ConditionType::NetworkIsolated).is_none_or(|condition| condition.status == "True")
    };
    let unheard = next.phase != Some(Phase::Ready) && previous.observed_activity != next.observed_activity;
    previous.phase != next.phase
        || changed(ConditionType::Ready)
        || changed(ConditionType::Suspended)
        || changed(ConditionType::UpdatePending)
        || noted(previous) != noted(next)
        || isolated(previous) != isolated(next)
        || previous.binding != next.binding
        || previous.effective != next.effective
        || previous.suspended_activity != next.suspended_activity
        || previous.expires_at != next.expires_at
        || previous.observed_generation != next.observed_generation
        || unheard
}

/// Reason and message of the Ready condition.
pub fn ready_words(status: &SandboxStatus) -> Option<(&str, &str)> {
    let ready = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Ready.as_str())?;
    Some((&ready.reason, &ready.message))
}
