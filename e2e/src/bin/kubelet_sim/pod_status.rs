//! What the kubelet says of a pod, from the sight of it to Ready.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

/// Where a pod stands. A real kubelet reports each of these, and whoever watches pods sees each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The pod was seen; nothing runs.
    Accepted,
    /// It has its address.
    Networked,
    /// Its init containers have ended.
    Initialized,
    /// All containers run.
    Running,
    /// It was deleted, and all containers have ended.
    Ended,
}

impl Stage {
    /// A start, in order.
    pub const START: [Self; 4] = [Self::Accepted, Self::Networked, Self::Initialized, Self::Running];
}

/// What is to be done about a pod that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start it.
    Start,
    /// Confirm that it has ended.
    End,
    /// Nothing.
    Nothing,
}

/// Reads a pod.
pub fn step(pod: &Pod) -> Step {
    if pod.metadata.deletion_timestamp.is_some() {
        return Step::End;
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    match phase {
        None | Some("Pending") => Step::Start,
        Some(_) => Step::Nothing,
    }
}

/// Addresses that differ for four million pods, from the range for carriers, which no cluster uses for pods.
pub fn address(number: u32) -> Ipv4Addr {
    let start = u32::from(Ipv4Addr::new(100, 64, 0, 0));
    Ipv4Addr::from(start | (number & 0x003f_ffff))
}

/// The strategic merge patch of a stage; the UID in it makes the patch fail on a later pod of the same name.
pub fn status_patch(pod: &Pod, stage: Stage, ip: Ipv4Addr, now: Timestamp) -> Value {
    let spec = pod.spec.as_ref();
    let (networked, initialized) = (stage >= Stage::Networked, stage >= Stage::Initialized);
    let (running, ended) = (stage == Stage::Running, stage == Stage::Ended);
    let condition = |kind: &str, holds: bool| {
        let reason = match (holds, ended) {
            (true, _) => Value::Null,
            (false, true) => json!("PodCompleted"),
            (false, false) => json!("Simulated"),
        };
        json!({"type": kind, "status": if holds { "True" } else { "False" }, "reason": reason, "lastTransitionTime": now})
    };
    let waits = json!({"waiting": {"reason": "PodInitializing"}});
    let runs = json!({"waiting": null, "running": {"startedAt": now}});
    let has_ended = json!({"waiting": null, "running": null,
        "terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}});
    let main = match (running, ended) {
        (true, _) => &runs,
        (false, true) => &has_ended,
        (false, false) => &waits,
    };
    let init = if initialized { &has_ended } else { &waits };
    let list = |containers: Option<&Vec<Container>>, ready: bool, stands: &Value| {
        Value::Array(containers.into_iter().flatten().map(|it| container_status(it, ready, stands)).collect())
    };
    let phase = match stage {
        Stage::Accepted | Stage::Networked | Stage::Initialized => "Pending",
        Stage::Running => "Running",
        Stage::Ended => "Succeeded",
    };
    let mut status = json!({
        "phase": phase,
        "conditions": [
            condition("PodReadyToStartContainers", networked && !ended),
            condition("Initialized", initialized),
            condition("ContainersReady", running),
            condition("Ready", running),
        ],
        "initContainerStatuses": list(spec.and_then(|spec| spec.init_containers.as_ref()), initialized, init),
        "containerStatuses": list(spec.map(|spec| &spec.containers), running, main),
    });
    if stage == Stage::Accepted {
        status["startTime"] = json!(now);
    }
    if networked && !ended {
        status["podIP"] = json!(ip);
        status["podIPs"] = json!([{"ip": ip}]);
    }
    json!({"metadata": {"uid": pod.metadata.uid}, "status": status})
}

fn container_status(container: &Container, ready: bool, state: &Value) -> Value {
    json!({
        "name": container.name,
        "image": container.image.as_deref().unwrap_or_default(),
        "imageID": "",
        "restartCount": 0,
        "ready": ready,
        "started": ready,
        "state": state,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodStatus;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    fn example() -> Pod {
        pod(json!({
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"initContainers": [{"name": "init", "image": "i"}], "containers": [{"name": "main", "image": "m"}, {"name": "files"}]},
        }))
    }

    fn status_at(stage: Stage) -> PodStatus {
        let mut patch = status_patch(&example(), stage, address(5), Timestamp::UNIX_EPOCH);
        assert_eq!(patch["metadata"]["uid"], "u");
        serde_json::from_value(patch["status"].take()).unwrap()
    }

    fn holds(status: &PodStatus, kind: &str) -> bool {
        status.conditions.as_ref().unwrap().iter().any(|it| it.type_ == kind && it.status == "True")
    }

    #[test]
    fn a_pod_is_ready_only_while_its_containers_run() {
        let accepted = status_at(Stage::Accepted);
        assert!(!holds(&accepted, "Initialized") && !holds(&accepted, "Ready") && accepted.pod_ip.is_none());
        let initialized = status_at(Stage::Initialized);
        assert!(!holds(&status_at(Stage::Networked), "Initialized"));
        assert!(holds(&initialized, "Initialized") && !holds(&initialized, "Ready") && initialized.pod_ip.is_some());
        let running = status_at(Stage::Running);
        assert!(holds(&running, "Ready") && running.phase.as_deref() == Some("Running"));
        let containers = running.container_statuses.unwrap();
        assert!(
            containers.len() == 2
                && containers.iter().all(|it| it.ready && it.state.as_ref().unwrap().running.is_some())
        );
        assert!(running.init_container_statuses.unwrap()[0].state.as_ref().unwrap().terminated.is_some());
        let ended = status_at(Stage::Ended);
        assert!(!holds(&ended, "Ready") && ended.phase.as_deref() == Some("Succeeded"));
        assert!(ended.container_statuses.unwrap().iter().all(|it| it.state.as_ref().unwrap().terminated.is_some()));
    }

    #[test]
    fn a_deleted_pod_is_ended_whatever_its_phase() {
        let deleted = |phase: &str| {
            pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": phase}}))
        };
        assert_eq!(step(&deleted("Running")), Step::End);
        assert_eq!(step(&deleted("Pending")), Step::End);
        assert_eq!(step(&pod(json!({"metadata": {}, "status": {"phase": "Pending"}}))), Step::Start);
        assert_eq!(step(&pod(json!({"metadata": {}, "status": {"phase": "Running"}}))), Step::Nothing);
    }

    #[test]
    fn addresses_differ_and_stay_in_their_range() {
        assert_eq!(address(0), Ipv4Addr::new(100, 64, 0, 0));
        assert_eq!(address(0x003f_ffff), Ipv4Addr::new(100, 127, 255, 255));
        assert_ne!(address(1), address(2));
    }
}
