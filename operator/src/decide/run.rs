//! Towards a pod that is Ready.

use super::{Act, Pass, Plan, delete_pod, stop::starting_view, workspace::is_about_volumes};
use crate::{
    isolation::Isolation,
    observe::{Question, Warning},
    pod_state::{PodSeen, PodState},
    status::{Ready, View},
    trouble::Trouble,
};
use crds::{Binding, BindingSource, Phase, Reason};
use jiff::{SignedDuration, Timestamp};

/// A pod that is not Ready this long after it was made, for no known reason, is asked about.
const PATIENCE: SignedDuration = SignedDuration::from_secs(4);
/// A pod that is not Ready for no known reason is asked about again after this.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(15);

impl Pass<'_> {
    pub(super) fn go_on(&self, pod: Option<&PodSeen>) -> Plan {
        pod.map_or_else(|| self.start(), |pod| self.run(pod))
    }

    /// Towards a pod, where there is none.
    fn start(&self) -> Plan {
        if let Some(trouble) = self.no_workspace() {
            return self.not_ready(Phase::Pending, trouble, None);
        }
        if let Err(trouble) = &self.sandbox.source {
            return self.not_ready(Phase::Pending, trouble.clone(), None);
        }
        if let Some(trouble) = self.network_trouble(true) {
            return self.not_ready(Phase::Pending, trouble, None);
        }
        let status = &self.sandbox.status;
        let starting = || Trouble::new(Reason::Starting, "the pod is being made");
        let trouble = self.history.trouble.clone().unwrap_or_else(starting);
        let fresh = self.fresh_binding();
        let bound = status.phase == Some(Phase::Starting)
            && status.binding.as_ref().is_some_and(|binding| {
                binding.pod_uid.is_none()
                    && binding.pod_name == fresh.pod_name
                    && binding.workspace_claim == fresh.workspace_claim
            });
        let binding = status.binding.clone().filter(|_| bound).unwrap_or(fresh);
        let plan = self.report(starting_view(trouble, binding));
        if !bound {
            // The report of the binding ends this pass; the next one makes the pod.
            return plan;
        }
        if let (None, [claim]) = (&self.seen.claim, self.seen.left_behind.as_slice()) {
            return Plan { act: Act::TakeBack(claim.clone()), ..plan };
        }
        let activity = self.sandbox.activity.as_ref();
        if let Some(wait) = self.history.wait(self.now.uptime, activity) {
            return plan.look_again_in(Some(wait));
        }
        let history = self.history.started(self.now.uptime, activity);
        Plan { act: Act::Start { new_claim: self.seen.claim.is_none() }, history, ..plan }
    }

    fn fresh_binding(&self) -> Binding {
        let (workspace_claim, existed) = self.claim_to_mount();
        let source = if existed { BindingSource::Existing } else { BindingSource::Cold };
        Binding { pod_name: self.sandbox.child.to_string(), pod_uid: None, workspace_claim, source }
    }

    /// Whether the network keeps a pod from running. One that runs already is left alone as long as nothing bad is known.
    fn network_trouble(&self, new: bool) -> Option<Trouble> {
        if !self.seen.isolation_required {
            return None;
        }
        match &self.seen.isolation {
            Isolation::Broken(words) => Some(Trouble::new(Reason::NetworkNotIsolated, words)),
            Isolation::Unknown if new => {
                let words = "it is not known yet whether the cluster enforces network policies, which is required";
                Some(Trouble::new(Reason::NetworkNotIsolated, words))
            }
            Isolation::Isolated | Isolation::Unknown => None,
        }
    }

    /// Towards Ready, with a pod of ours.
    fn run(&self, pod: &PodSeen) -> Plan {
        let previous = self.sandbox.status.binding.clone().unwrap_or_else(|| self.fresh_binding());
        let previous = Binding { pod_name: pod.name.clone(), ..previous };
        let unbound = Binding { pod_uid: None, ..previous.clone() };
        let starting = |message: &str| Trouble::new(Reason::Starting, message);
        let unwanted = self.sandbox.replace_pod.as_ref() == Some(&pod.uid);
        let outdated =
            self.sandbox.source.as_ref().is_ok_and(|source| Some(&source.hash) != pod.template_hash.as_ref());
        let replace = |why: &str| delete_pod(pod, self.report(starting_view(starting(why), unbound.clone())));
        match &pod.state {
            PodState::Terminating { until } => {
                let why = self.history.trouble.clone().unwrap_or_else(|| starting("the previous pod is ending"));
                self.going(starting_view(why, unbound), *until)
            }
            PodState::Finished(end) => {
                let (end, question) = self.explained_end(pod, end.clone());
                let plan = self.report(starting_view(end.clone(), unbound));
                Plan { history: self.history.failed(end), question, ..delete_pod(pod, plan) }
            }
            PodState::Ready | PodState::Waiting { .. } if unwanted => {
                replace("the pod is replaced, since its user found it broken")
            }
            // One that was Ready before may hold what somebody is working on.
            PodState::Waiting { .. } if outdated && previous.pod_uid.as_ref() != Some(&pod.uid) => {
                replace("the pod is replaced, since the template changed")
            }
            PodState::Ready => {
                let binding = Some(Binding { pod_uid: Some(pod.uid.clone()), ..previous });
                let (phase, ready) = match self.network_trouble(false) {
                    None => (Phase::Ready, Ready::Yes),
                    Some(trouble) => (Phase::Pending, Ready::No(trouble)),
                };
                self.report(View { phase, ready, binding, stop: None, outdated: Some(outdated) })
            }
            PodState::Waiting { trouble, since } => {
                let was_ready = previous.pod_uid.as_ref() == Some(&pod.uid);
                let binding = if was_ready { previous } else { unbound };
                self.wait(pod, trouble.clone(), *since, binding, was_ready)
            }
        }
    }

    /// Why a pod ended. The kubelet may tell that the containers of an evicted pod ended well before it tells that it evicted the pod,
    /// and always publishes an Event first.
    fn explained_end(&self, pod: &PodSeen, end: Trouble) -> (Trouble, Option<Question>) {
        match (end.reason, &self.seen.facts.pod_warning) {
            (Reason::PodFailed, None) => (end, Some(Question::PodWarning(pod.uid.clone()))),
            (Reason::PodFailed, Some(Some(warning))) if warning.reason == Reason::Evicted.as_str() => {
                (Trouble::new(Reason::Evicted, &warning.message), None)
            }
            _ => (end, None),
        }
    }

    /// The pod is on its way, or in trouble.
    fn wait(
        &self,
        pod: &PodSeen,
        trouble: Option<Trouble>,
        since: Option<Timestamp>,
        binding: Binding,
        was_ready: bool,
    ) -> Plan {
        let due = |at: Timestamp| Some(at.duration_since(self.now.time)).filter(SignedDuration::is_positive);
        let starting = Trouble::new(Reason::Starting, "the pod is starting");
        let about_volumes = trouble
            .as_ref()
            .is_none_or(|known| known.reason == Reason::Unschedulable && is_about_volumes(&known.message));
        let pending = if about_volumes { self.pending_workspace(pod) } else { None };
        let (trouble, since, question) = match (trouble, pending) {
            (Some(known), Some(pending)) if pending.trouble.reason == Reason::WorkspacePending => {
                let message = format!("{}: {}", pending.trouble.message, known.message);
                (Some(Trouble::new(Reason::WorkspacePending, message)), Some(pending.since), pending.question)
            }
            (_, Some(pending)) => (Some(pending.trouble), Some(pending.since), pending.question),
            (Some(known), None) => (Some(known), since, None),
            (None, None) => self.unexplained(pod, was_ready),
        };
        let (view, wait) = match (trouble, since.and_then(due)) {
            (None, wait) => (starting, wait.or(Some(ASK_AGAIN))),
            (Some(_), Some(wait)) => (starting, Some(wait)),
            (Some(trouble), None) => (trouble, None),
        };
        Plan { question, ..self.report(starting_view(view, binding)).look_again_in(wait) }
    }

    /// Neither the kubelet nor the scheduler says anything of a pod that is not Ready: its node or an Event may.
    fn unexplained(&self, pod: &PodSeen, was_ready: bool) -> (Option<Trouble>, Option<Timestamp>, Option<Question>) {
        if let (true, Some(node)) = (was_ready, &pod.node) {
            return match &self.seen.facts.node_trouble {
                None => (None, None, Some(Question::Node(node.clone()))),
                Some(None) => (None, None, None),
                Some(Some(words)) => {
                    let message =
                        format!("node {node} does not answer: {words}; the pod is not replaced before it is gone");
                    (Some(Trouble::new(Reason::NodeLost, message)), None, None)
                }
            };
        }
        let asked_from = pod.created.and_then(|created| created.checked_add(PATIENCE).ok());
        if asked_from.is_none_or(|from| from > self.now.time) {
            return (None, asked_from, None);
        }
        match &self.seen.facts.pod_warning {
            None => (None, None, Some(Question::PodWarning(pod.uid.clone()))),
            Some(warning) => (warning.as_ref().map(warned), None, None),
        }
    }
}

/// What an Event about a pod means.
fn warned(warning: &Warning) -> Trouble {
    let reason = match warning.reason.as_str() {
        "FailedMount" | "FailedAttachVolume" | "FailedMapVolume" => Reason::WorkspacePending,
        "FailedCreatePodSandBox" | "FailedCreatePodContainer" => Reason::ContainerRefused,
        _ => Reason::Starting,
    };
    Trouble::new(reason, &warning.message)
}
