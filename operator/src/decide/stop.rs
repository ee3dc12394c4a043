//! Towards no pod: idle, held, given up or expired. The claim stays.

use super::{Pass, Plan, delete_pod};
use crate::{
    pod_state::{PodSeen, PodState},
    status::{Ready, View, suspended_reason},
    trouble::Trouble,
};
use crds::{Binding, Duration, Phase, Reason, SandboxStatus};
use jiff::{SignedDuration, Timestamp};

/// A node that has not confirmed a deletion this long after the grace period is taken for lost.
const NODE_LOST_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// Why, and into what, a sandbox stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// `Suspended` or `Expired`.
    pub(crate) phase: Phase,
    /// `Idle`, `ScaledToZero`, `StartTimedOut` or `Expired`.
    pub(crate) cause: Reason,
    /// The activity at which it was decided; another one wakes the sandbox. `None`: only the spec does.
    pub(crate) activity: Option<String>,
    /// What is said of Ready instead of the cause.
    trouble: Option<Trouble>,
}

/// When a sandbox that should run has to stop.
pub(super) enum End {
    Now(Stop),
    In(SignedDuration),
    Never,
}

impl Stop {
    pub(super) fn expired() -> Self {
        Self { phase: Phase::Expired, cause: Reason::Expired, activity: None, trouble: None }
    }

    pub(super) fn scaled_to_zero() -> Self {
        Self { phase: Phase::Suspended, cause: Reason::ScaledToZero, activity: None, trouble: None }
    }

    fn idle(activity: Option<&String>) -> Self {
        let activity = Some(activity.cloned().unwrap_or_default());
        Self { phase: Phase::Suspended, cause: Reason::Idle, activity, trouble: None }
    }

    fn given_up(activity: Option<&String>, trouble: Trouble) -> Self {
        let activity = Some(activity.cloned().unwrap_or_default());
        Self { phase: Phase::Suspended, cause: Reason::StartTimedOut, activity, trouble: Some(trouble) }
    }

    /// The suspension that was decided on for want of activity, if there is one.
    pub(super) fn begun(status: &SandboxStatus) -> Option<Self> {
        let going = matches!(status.phase, Some(Phase::Suspending | Phase::Suspended));
        let activity = status.suspended_activity.clone().filter(|_| going)?;
        let cause = suspended_reason(status).unwrap_or(Reason::Idle);
        // Only a start that was given up leaves its reason; others come and go with the pod.
        let trouble = Trouble::of_ready(status).filter(|trouble| {
            let passing = matches!(trouble.reason, Reason::NodeLost | Reason::ForeignObject | Reason::MultiplePods);
            cause == Reason::StartTimedOut && !passing
        });
        Some(Self { phase: Phase::Suspended, cause, activity: Some(activity), trouble })
    }

    /// Whether this activity is another one than that at which it was decided.
    pub(super) fn is_woken_by(&self, activity: Option<&str>) -> bool {
        activity.is_some_and(|activity| self.activity.as_deref() != Some(activity))
    }

    /// What is said of Ready while the pod goes, and when it is gone.
    fn words(&self, gone: bool) -> Trouble {
        let (reason, why) = match (self.cause, gone) {
            (Reason::Expired, _) => (Reason::Expired, "past its maxLifetime"),
            (Reason::ScaledToZero, _) => (Reason::ScaledToZero, "held by replicas: 0"),
            (Reason::StartTimedOut, _) => {
                (Reason::StartTimedOut, "the last start took too long; the next use tries again")
            }
            (_, false) => (Reason::Suspending, "not used for its idle time-out; the pod is being deleted"),
            (_, true) => (Reason::Suspended, "not used for its idle time-out; the next use starts it"),
        };
        self.trouble.clone().unwrap_or_else(|| Trouble::new(reason, format!("{why}; the files are kept")))
    }
}

impl Pass<'_> {
    /// Whether nobody has used the sandbox for too long, or its start has taken too long.
    ///
    /// Both are counted from what this process has seen itself, so a restart or a change of leader only makes them later.
    pub(super) fn end(&self) -> End {
        // A pod is all that keeps a claim alive that is being deleted.
        let deleting = self.seen.claim.as_ref().is_some_and(|claim| claim.deleting);
        let Some(sight) = self.history.sight.as_ref().filter(|_| !deleting) else { return End::Never };
        let (since, limit, stop): (_, _, fn(&Self) -> Stop) = match (sight.ready, self.sandbox.idle_timeout) {
            (Some(ready), Some(timeout)) => (ready, timeout.max(self.sandbox.hold.unwrap_or_default()), |pass| {
                Stop::idle(pass.sandbox.activity.as_ref())
            }),
            (None, _) if self.sandbox.status.phase == Some(Phase::Starting) => {
                (sight.seen, self.sandbox.start_timeout, |pass| {
                    Stop::given_up(pass.sandbox.activity.as_ref(), pass.why_not_started())
                })
            }
            (Some(_), None) | (None, _) => return End::Never,
        };
        let left = limit.saturating_sub(self.now.uptime.saturating_sub(since));
        if left.is_positive() { End::In(left) } else { End::Now(stop(self)) }
    }

    /// The reason that stands in the status is kept.
    fn why_not_started(&self) -> Trouble {
        let limit = std::time::Duration::try_from(self.sandbox.start_timeout).map(Duration::from).unwrap_or_default();
        let known = Trouble::of_ready(&self.sandbox.status).filter(|known| known.reason != Reason::Starting);
        let (reason, message) = known.map_or_else(
            || (Reason::StartTimedOut, format!("the pod was not ready within {limit}; the next use tries again")),
            |known| (known.reason, format!("given up after {limit}, the next use tries again: {}", known.message)),
        );
        Trouble::new(reason, message)
    }

    /// A suspension that has begun completes, also when the sandbox is wanted again.
    pub(super) fn complete(&self, pod: &PodSeen) -> Plan {
        self.stop(Some(pod), Stop::begun(&self.sandbox.status).unwrap_or_else(Stop::scaled_to_zero))
    }

    /// Towards no pod, keeping the claim.
    pub(super) fn stop(&self, pod: Option<&PodSeen>, stop: Stop) -> Plan {
        let ready = |gone| Ready::No(stop.words(gone));
        let Some(pod) = pod else {
            let history = self.history.rested();
            let (phase, ready) = (stop.phase, ready(true));
            let plan = self.report(View { phase, ready, binding: None, stop: Some(stop), outdated: None });
            return Plan { history, ..plan };
        };
        let binding = self.sandbox.status.binding.clone();
        let view = View { phase: Phase::Suspending, ready: ready(false), binding, stop: Some(stop), outdated: None };
        match &pod.state {
            PodState::Terminating { until } => self.going(view, *until),
            PodState::Finished(_) | PodState::Ready | PodState::Waiting { .. } => {
                let plan = self.report(view);
                let reported = self.sandbox.status.phase == Some(Phase::Suspending);
                if reported { delete_pod(pod, plan) } else { plan }
            }
        }
    }

    /// The pod is going; its node may be lost.
    pub(super) fn going(&self, view: View, until: Timestamp) -> Plan {
        let lost_at = until.checked_add(NODE_LOST_AFTER).unwrap_or(Timestamp::MAX);
        if lost_at > self.now.time {
            return self.report(view).look_again_in(Some(lost_at.duration_since(self.now.time)));
        }
        let node = self.seen.pod.as_ref().and_then(|pod| pod.node.as_deref()).unwrap_or("unknown");
        let message = format!(
            "node {node} does not confirm that the pod ended; it is not replaced, since two writers on one volume would be worse"
        );
        self.report(View { ready: Ready::No(Trouble::new(Reason::NodeLost, message)), ..view })
    }
}

pub(super) fn starting_view(trouble: Trouble, binding: Binding) -> View {
    View { phase: Phase::Starting, ready: Ready::No(trouble), binding: Some(binding), stop: None, outdated: None }
}
