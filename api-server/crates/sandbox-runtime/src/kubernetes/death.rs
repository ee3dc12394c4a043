//! How the `main` container that we used has ended. Pure.

use crate::Loss;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

const MAIN: &str = "main";

/// What a pod says about a container that we used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// Nothing of its end yet.
    NotSeen,
    /// It ended, and there is nothing to say about it.
    Ended,
    /// It ended, and why is known.
    Known(Loss),
}

/// The `main` container that runs: differs between any two starts of it in one pod.
pub(super) fn running_main(pod: &Pod) -> Option<String> {
    let main = main_of(pod)?;
    main.state.as_ref()?.running.as_ref()?;
    main.container_id.clone()
}

/// How that container ended, by a pod that was read later. The kubelet may need a moment to say.
pub(super) fn death_of(pod: &Pod, container_id: &str) -> Death {
    let Some(main) = main_of(pod) else { return Death::Ended };
    let states = [main.state.as_ref(), main.last_state.as_ref()];
    let end = states
        .into_iter()
        .flatten()
        .filter_map(|state| state.terminated.as_ref())
        .find(|end| end.container_id.as_deref() == Some(container_id));
    match end {
        Some(end) if is_out_of_memory(end) => Death::Known(Loss::OutOfMemory { limit: memory_limit(pod) }),
        None if main.container_id.as_deref() == Some(container_id) => Death::NotSeen,
        // For another reason, or it was started again more than once since.
        Some(_) | None => Death::Ended,
    }
}

fn main_of(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.iter().flatten().find(|status| status.name == MAIN)
}

fn is_out_of_memory(end: &ContainerStateTerminated) -> bool {
    end.reason.as_deref() == Some("OOMKilled")
}

/// The memory limit of `main`, as it was written.
pub(super) fn memory_limit(pod: &Pod) -> Option<String> {
    let main = pod.spec.as_ref()?.containers.iter().find(|container| container.name == MAIN)?;
    let limit = main.resources.as_ref()?.limits.as_ref()?.get("memory")?;
    Some(limit.0.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(id: &str, state: &Value, last: &Value) -> Pod {
        let status = |name: &str, id: &str, state: &Value, last: &Value| {
            json!({"name": name, "image": "i", "imageID": "", "ready": true, "restartCount": 1, "containerID": id,
                   "state": state, "lastState": last})
        };
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [
                {"name": "files", "resources": {"limits": {"memory": "64Mi"}}},
                {"name": "main", "resources": {"limits": {"memory": "96Mi"}}},
            ]},
            "status": {"containerStatuses": [
                status("files", "c://files", &json!({"running": {}}), &json!({})),
                status("main", id, state, last),
            ]},
        }))
        .unwrap()
    }

    fn ended(id: &str, reason: &str) -> Value {
        json!({"terminated": {"exitCode": 137, "containerID": id, "reason": reason, "message": "from inside"}})
    }

    #[test]
    fn the_end_of_exactly_the_container_that_was_used_counts() {
        let (running, none) = (json!({"running": {}}), json!({}));
        let oom = Death::Known(Loss::OutOfMemory { limit: Some("96Mi".into()) });
        for (name, found, expected) in [
            ("still said to run", pod("c://1", &running, &ended("c://0", "OOMKilled")), Death::NotSeen),
            ("started again", pod("c://2", &running, &ended("c://1", "OOMKilled")), oom.clone()),
            ("not started again yet", pod("c://1", &ended("c://1", "OOMKilled"), &none), oom),
            ("for another reason", pod("c://2", &running, &ended("c://1", "Error")), Death::Ended),
            ("another one's end", pod("c://3", &running, &ended("c://2", "OOMKilled")), Death::Ended),
        ] {
            assert_eq!(death_of(&found, "c://1"), expected, "{name}");
        }
        assert_eq!(death_of(&Pod::default(), "c://1"), Death::Ended);
    }

    #[test]
    fn a_container_is_known_only_while_it_runs() {
        assert_eq!(running_main(&pod("c://1", &json!({"running": {}}), &json!({}))), Some("c://1".into()));
        assert_eq!(running_main(&pod("c://1", &ended("c://1", "OOMKilled"), &json!({}))), None);
        assert_eq!(running_main(&Pod::default()), None);
    }
}
