//! Reads a pod: where it stands, and what is wrong, in the kubelet's words.

use crate::{observe::is_ours, trouble::Trouble};
use crds::{Reason, keys};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use kube::ResourceExt;
use sandboxd_protocol::layout;

/// A pod that finds no node is often placed a moment later (a volume being bound, a node coming up): not worth a word before.
const UNSCHEDULABLE_PATIENCE: SignedDuration = SignedDuration::from_secs(4);

/// How the kubelet calls the end of a container that was killed at its memory limit.
const OUT_OF_MEMORY: &str = "OOMKilled";

/// A pod, as far as decisions need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSeen {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
    /// Whether its controller is this sandbox.
    pub ours: bool,
    /// Hash of the template that it was made from.
    pub template_hash: Option<String>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Its node.
    pub node: Option<String>,
    /// Its addresses.
    pub ips: Vec<String>,
    /// Where it stands.
    pub state: PodState,
}

/// Where a pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    /// It is being deleted; its node should have confirmed that by then.
    Terminating {
        /// End of its grace period.
        until: Timestamp,
    },
    /// It ended and does not come back.
    Finished(Trouble),
    /// Its containers run.
    Ready,
    /// Not ready yet, or not any more.
    Waiting {
        /// What is wrong, if anything is.
        trouble: Option<Trouble>,
        /// The trouble counts from then on.
        since: Option<Timestamp>,
    },
}

/// Reads a pod.
pub fn pod_seen(pod: &Pod, owner_uid: &str) -> PodSeen {
    let status = pod.status.clone().unwrap_or_default();
    PodSeen {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        resource_version: pod.resource_version().unwrap_or_default(),
        ours: is_ours(pod, owner_uid),
        template_hash: pod.annotations().get(keys::TEMPLATE_HASH).cloned(),
        created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        ips: status.pod_ips.iter().flatten().map(|address| address.ip.clone()).collect(),
        state: pod.metadata.deletion_timestamp.as_ref().map_or_else(
            || running_state(&status),
            // The timestamp already includes the grace period.
            |time| PodState::Terminating { until: time.0 },
        ),
    }
}

fn running_state(status: &PodStatus) -> PodState {
    if let Some(end) = finished(status) {
        return PodState::Finished(end);
    }
    let ready = condition(status, "Ready").is_some_and(|condition| condition.status == "True");
    if ready && status.phase.as_deref() == Some("Running") {
        return PodState::Ready;
    }
    if let Some(trouble) = container_trouble(status) {
        return PodState::Waiting { trouble: Some(trouble), since: None };
    }
    match condition(status, "PodScheduled") {
        Some(condition) if condition.status == "False" => PodState::Waiting {
            trouble: Some(Trouble::new(Reason::Unschedulable, words(condition))),
            since: condition
                .last_transition_time
                .as_ref()
                .map(|time| time.0.saturating_add(UNSCHEDULABLE_PATIENCE))
                .and_then(Result::ok),
        },
        _ => PodState::Waiting { trouble: None, since: None },
    }
}

fn condition<'a>(status: &'a PodStatus, name: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == name)
}

fn words(condition: &PodCondition) -> String {
    condition
        .message
        .clone()
        .or_else(|| condition.reason.clone())
        .unwrap_or_else(|| "nothing is said about it".to_owned())
}

/// How the pod ended, if it did.
fn finished(status: &PodStatus) -> Option<Trouble> {
    let phase = status.phase.as_deref().filter(|phase| matches!(*phase, "Failed" | "Succeeded"))?;
    // A pod whose containers end well when they are told to is not said to have failed, even when its node evicted it.
    if let Some(disruption) = condition(status, "DisruptionTarget").filter(|condition| condition.status == "True") {
        return Some(Trouble::new(Reason::Evicted, words(disruption)));
    }
    let reason = status.reason.as_deref().unwrap_or_default();
    let message = match (&status.message, reason) {
        (Some(message), _) => message.clone(),
        (None, "") => format!("the pod ended ({phase})"),
        (None, reason) => format!("the pod ended ({phase}: {reason})"),
    };
    Some(Trouble::new(if reason == "Evicted" { Reason::Evicted } else { Reason::PodFailed }, message))
}

/// What keeps a container from running: the init container first, since the others wait for it.
fn container_trouble(status: &PodStatus) -> Option<Trouble> {
    let init = status.init_container_statuses.iter().flatten().find_map(|container| trouble_of(container, true));
    init.or_else(|| status.container_statuses.iter().flatten().find_map(|container| trouble_of(container, false)))
}

fn trouble_of(container: &ContainerStatus, init: bool) -> Option<Trouble> {
    let name = &container.name;
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let said = waiting.message.as_deref().filter(|text| !text.is_empty()).unwrap_or(reason);
        return match reason {
            "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "ImageInspectError"
            | "RegistryUnavailable"
            | "SignatureValidationFailed" => {
                Some(Trouble::new(Reason::ImagePullFailed, format!("container {name}: {said}")))
            }
            "CreateContainerConfigError"
            | "CreateContainerError"
            | "RunContainerError"
            | "PreCreateHookError"
            | "PreStartHookError"
            | "PostStartHookError" => Some(Trouble::new(Reason::ContainerRefused, format!("container {name}: {said}"))),
            "CrashLoopBackOff" => Some(crash(container, init)),
            _ => ended_before(container, init),
        };
    }
    let Some(end) = &state.terminated else { return ended_before(container, init) };
    // One that was killed at its memory limit is started again at once, with everything in it lost: worth a word the first time.
    let worth_a_word = if init { end.exit_code != 0 } else { end.reason.as_deref() == Some(OUT_OF_MEMORY) };
    worth_a_word.then(|| crash(container, init))
}

/// What is wrong with a container that runs again, or is about to, after it ended badly. Said until the pod is ready, so that one which
/// ends again and again is not said to start each time.
fn ended_before(container: &ContainerStatus, init: bool) -> Option<Trouble> {
    let end = container.last_state.as_ref()?.terminated.as_ref()?;
    let out_of_memory = end.reason.as_deref() == Some(OUT_OF_MEMORY);
    let worth_a_word = if init { end.exit_code != 0 } else { out_of_memory || container.restart_count > 1 };
    worth_a_word.then(|| crash(container, init))
}

/// The container ended, and the kubelet waits before it starts it again.
fn crash(container: &ContainerStatus, init: bool) -> Trouble {
    let name = &container.name;
    let ends = [container.state.as_ref(), container.last_state.as_ref()];
    let Some(end) = ends.into_iter().flatten().find_map(|state| state.terminated.as_ref()) else {
        let reason = if init { Reason::InitFailed } else { Reason::CrashLooping };
        return Trouble::new(reason, format!("container {name} keeps ending"));
    };
    let out_of_memory = end.reason.as_deref() == Some(OUT_OF_MEMORY);
    // The termination message of `main` is written by code in the sandbox, so it is never repeated; that of our own image is.
    // Nothing of it ran when it could not even be started: then the message is the runtime's.
    let never_ran = matches!(end.reason.as_deref(), Some("StartError" | "ContainerCannotRun"));
    let said = end.message.as_deref().map(str::trim).filter(|text| !text.is_empty() && (init || never_ran));
    let how = said.map_or_else(|| format!("ended with exit code {}", end.exit_code), str::to_owned);
    match (init, out_of_memory) {
        (true, _) if end.exit_code == i32::from(layout::EXIT_WORKSPACE_UNWRITABLE) => {
            Trouble::new(Reason::WorkspaceUnwritable, how)
        }
        (true, _) => Trouble::new(Reason::InitFailed, format!("container {name}: {how}")),
        (false, true) => Trouble::new(Reason::OOMKilled, format!("container {name} was killed at its memory limit")),
        (false, false) => Trouble::new(Reason::CrashLooping, format!("container {name} keeps ending: {how}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn state(status: &Value) -> PodState {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "p", "uid": "pod-uid" },
            "spec": { "containers": [] },
            "status": status,
        }))
        .unwrap();
        pod_seen(&pod, "owner").state
    }

    fn waiting(container: &str, reason: &str) -> Value {
        let status = json!({ "name": container, "ready": false, "restartCount": 1, "image": "i", "imageID": "",
            "state": { "waiting": { "reason": reason, "message": "in the kubelet's words" } },
            "lastState": { "terminated": { "exitCode": 3, "message": "from inside" } } });
        let list = if container == "init" { "initContainerStatuses" } else { "containerStatuses" };
        json!({ "phase": "Pending", list: [status] })
    }

    #[test]
    fn each_trouble_has_its_reason_and_words() {
        let rows = [
            ("no image", waiting("main", "ImagePullBackOff"), Reason::ImagePullFailed, "main: in the kubelet's words"),
            ("no such name", waiting("main", "InvalidImageName"), Reason::ImagePullFailed, "in the kubelet's words"),
            ("bad mount", waiting("files", "CreateContainerError"), Reason::ContainerRefused, "in the kubelet's words"),
            ("crashes", waiting("main", "CrashLoopBackOff"), Reason::CrashLooping, "exit code 3"),
            ("init crashes", waiting("init", "CrashLoopBackOff"), Reason::InitFailed, "from inside"),
        ];
        for (row, status, reason, message) in rows {
            let PodState::Waiting { trouble: Some(trouble), since: None } = state(&status) else { panic!("{row}") };
            assert_eq!(trouble.reason, reason, "{row}");
            assert!(trouble.message.contains(message), "{row}: {}", trouble.message);
        }
    }

    #[test]
    fn words_of_code_in_the_sandbox_are_never_repeated() {
        let PodState::Waiting { trouble: Some(trouble), .. } = state(&waiting("main", "CrashLoopBackOff")) else {
            panic!()
        };
        assert!(!trouble.message.contains("from inside"));
    }

    #[test]
    fn a_container_that_never_ran_is_explained_in_the_runtimes_words() {
        let mut status = waiting("main", "CrashLoopBackOff");
        status["containerStatuses"][0]["lastState"]["terminated"]["reason"] = json!("StartError");
        let PodState::Waiting { trouble: Some(trouble), .. } = state(&status) else { panic!() };
        assert!(trouble.message.contains("from inside"), "{}", trouble.message);
    }

    #[test]
    fn a_container_killed_at_its_memory_limit_is_reported_before_it_runs_again() {
        let mut status = waiting("main", "");
        status["containerStatuses"][0]["state"] = json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
        let PodState::Waiting { trouble: Some(trouble), .. } = state(&status) else { panic!() };
        assert_eq!(trouble.reason, Reason::OOMKilled);
        status["containerStatuses"][0]["state"] = json!({ "terminated": { "exitCode": 1, "reason": "Error" } });
        assert_eq!(state(&status), PodState::Waiting { trouble: None, since: None }, "it is started again");
    }

    #[test]
    fn what_ends_again_and_again_is_said_until_it_is_ready() {
        let mut status = waiting("init", "");
        status["initContainerStatuses"][0]["state"] = json!({ "running": {} });
        let PodState::Waiting { trouble: Some(trouble), .. } = state(&status) else { panic!() };
        assert_eq!(trouble.reason, Reason::InitFailed);
        let mut status = waiting("main", "");
        status["containerStatuses"][0]["state"] = json!({ "running": {} });
        assert_eq!(state(&status), PodState::Waiting { trouble: None, since: None }, "once is no habit");
        status["containerStatuses"][0]["restartCount"] = json!(2);
        let PodState::Waiting { trouble: Some(trouble), .. } = state(&status) else { panic!() };
        assert_eq!(trouble.reason, Reason::CrashLooping);
    }

    #[test]
    fn a_workspace_that_cannot_be_written_has_a_reason_of_its_own() {
        let mut status = waiting("init", "CrashLoopBackOff");
        status["initContainerStatuses"][0]["lastState"]["terminated"]["exitCode"] =
            json!(layout::EXIT_WORKSPACE_UNWRITABLE);
        let PodState::Waiting { trouble: Some(trouble), .. } = state(&status) else { panic!() };
        assert_eq!(trouble, Trouble::new(Reason::WorkspaceUnwritable, "from inside"));
    }

    #[test]
    fn an_unplaced_pod_is_given_a_moment() {
        let status = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/3 nodes", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
        let PodState::Waiting { trouble, since } = state(&status) else { panic!() };
        assert_eq!(trouble, Some(Trouble::new(Reason::Unschedulable, "0/3 nodes")));
        assert_eq!(since, Some("2026-01-01T00:00:04Z".parse().unwrap()));
    }

    #[test]
    fn an_evicted_pod_has_ended() {
        let evicted = json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" });
        assert_eq!(state(&evicted), PodState::Finished(Trouble::new(Reason::Evicted, "low on memory")));
        let polite = json!({ "phase": "Succeeded", "conditions": [{ "type": "DisruptionTarget", "status": "True",
            "reason": "TerminationByKubelet", "message": "Usage of EmptyDir volume exceeds the limit" }] });
        let expected = Trouble::new(Reason::Evicted, "Usage of EmptyDir volume exceeds the limit");
        assert_eq!(state(&polite), PodState::Finished(expected));
        let failed = json!({ "phase": "Failed", "reason": "NodeShutdown" });
        assert_eq!(
            state(&failed),
            PodState::Finished(Trouble::new(Reason::PodFailed, "the pod ended (Failed: NodeShutdown)"))
        );
    }

    #[test]
    fn a_pod_is_ready_only_while_it_runs() {
        let ready = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        assert_eq!(state(&ready), PodState::Ready);
        let creating = json!({ "phase": "Pending", "containerStatuses": [{ "name": "main", "ready": false, "restartCount": 0,
            "image": "i", "imageID": "", "state": { "waiting": { "reason": "ContainerCreating" } } }] });
        assert_eq!(state(&creating), PodState::Waiting { trouble: None, since: None });
    }
}
