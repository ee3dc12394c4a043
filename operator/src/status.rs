//! Builds the status, and says when it is worth a write.

use crate::{
    observe::{ClaimPhase, Observed},
    pod_state::PodState,
    trouble::Trouble,
    validate::ValidSandbox,
};
use crds::{Binding, ConditionType, Phase, Reason, SandboxStatus, keys};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// What a decision says about a sandbox.
pub struct View {
    /// Where it stands.
    pub phase: Phase,
    /// Whether it is ready.
    pub ready: Ready,
    /// Its pod and claim.
    pub binding: Option<Binding>,
}

/// Whether a command can run.
pub enum Ready {
    /// It can.
    Yes,
    /// It cannot, since.
    No(Trouble),
}

/// The whole status.
pub fn build_status(sandbox: &ValidSandbox, seen: &Observed, view: View, now: Timestamp) -> SandboxStatus {
    let View { phase, ready, binding } = view;
    let generation = sandbox.identity.generation;
    let pod = seen.pod.as_ref().filter(|pod| pod.ours);
    let ready = match ready {
        Ready::Yes => {
            condition(ConditionType::Ready, true, &Trouble::new(Reason::PodReady, "commands can run"), generation, now)
        }
        Ready::No(trouble) => condition(ConditionType::Ready, false, &trouble, generation, now),
    };
    let workspace = workspace_condition(sandbox, seen, now);
    let conditions = [Some(ready), workspace].into_iter().flatten();
    SandboxStatus {
        phase: Some(phase),
        conditions: conditions.map(|condition| keep_transition(&sandbox.status.conditions, condition)).collect(),
        binding,
        observed_activity: sandbox.activity.clone(),
        effective: Some(sandbox.effective.clone()),
        node_name: pod.and_then(|pod| pod.node.clone()),
        pod_ips: pod.map(|pod| pod.ips.clone()).unwrap_or_default(),
        expires_at: sandbox.expires_at.map(Time),
        replicas: i32::from(pod.is_some_and(|pod| !matches!(pod.state, PodState::Terminating { .. }))),
        selector: Some(format!("{}={}", keys::SANDBOX_UID, sandbox.identity.uid)),
        observed_generation: generation,
    }
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

fn workspace_condition(sandbox: &ValidSandbox, seen: &Observed, now: Timestamp) -> Option<Condition> {
    let name = &sandbox.child;
    let (bound, trouble) = match &seen.claim {
        Some(claim) if !claim.ours => return None,
        Some(claim) if claim.deleting => {
            (false, Trouble::new(Reason::WorkspaceLost, format!("claim {name} is being deleted")))
        }
        Some(claim) => match claim.phase {
            ClaimPhase::Bound => (true, Trouble::new(Reason::Bound, format!("claim {name} has its volume"))),
            ClaimPhase::Pending => {
                (false, Trouble::new(Reason::WorkspacePending, format!("claim {name} waits for a volume")))
            }
            ClaimPhase::Lost => (false, Trouble::new(Reason::WorkspaceLost, format!("claim {name} lost its volume"))),
        },
        // A claim that was there and is gone is remembered here: see `lost_workspace`.
        None => {
            let known =
                sandbox.status.conditions.iter().find(|known| known.type_ == ConditionType::WorkspaceBound.as_str())?;
            let pending = known.reason == Reason::WorkspacePending.as_str();
            if pending {
                return None;
            }
            (false, Trouble::new(Reason::WorkspaceLost, format!("claim {name} is gone")))
        }
    };
    Some(condition(ConditionType::WorkspaceBound, bound, &trouble, sandbox.identity.generation, now))
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
    let ready = |status: &SandboxStatus| {
        let ready = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Ready.as_str());
        ready.map(|condition| (condition.status.clone(), condition.reason.clone()))
    };
    let lost =
        |status: &SandboxStatus| status.conditions.iter().any(|known| known.reason == Reason::WorkspaceLost.as_str());
    let unheard = next.phase != Some(Phase::Ready) && previous.observed_activity != next.observed_activity;
    previous.phase != next.phase
        || ready(previous) != ready(next)
        || previous.binding != next.binding
        || previous.effective != next.effective
        || previous.expires_at != next.expires_at
        || previous.observed_generation != next.observed_generation
        || lost(previous) != lost(next)
        || unheard
}

/// Reason and message of the Ready condition.
pub fn ready_words(status: &SandboxStatus) -> Option<(&str, &str)> {
    let ready = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Ready.as_str())?;
    Some((&ready.reason, &ready.message))
}
