//! How the `main` container that we used has ended. Pure.

use crate::Loss;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

const MAIN: &str = "main";
/// Of a process that was ended by SIGKILL.
const KILLED: i32 = 128 + 9;

/// What a pod says about a container that we used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// Nothing of its end yet, or nothing of who killed it: that may be said later than that it ended.
    NotSeen,
    /// It ended, and there is nothing to say about it.
    Ended,
    /// It ended, and why is known.
    Known(Loss),
}

/// The `main` container to which a stream was opened, as far as its pod told then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Main {
    /// The one of this ID: it differs between any two starts in one pod.
    Is(String),
    /// A later start than the one of this ID, which the pod still said to have ended.
    After(String),
}

/// To which `main` container a stream is opened now.
pub(super) fn main_in_use(pod: &Pod) -> Option<Main> {
    let main = main_of(pod)?;
    let id = main.container_id.clone()?;
    let runs = main.state.as_ref().is_some_and(|state| state.running.is_some());
    Some(if runs { Main::Is(id) } else { Main::After(id) })
}

/// How that container ended, by a pod that was read later. The kubelet may need a moment to say.
pub(super) fn death_of(pod: &Pod, used: &Main) -> Death {
    let Some(main) = main_of(pod) else { return Death::Ended };
    let is_it = |end: &&ContainerStateTerminated| match (used, &end.container_id) {
        (Main::Is(id), found) => found.as_ref() == Some(id),
        (Main::After(id), Some(found)) => found != id,
        (Main::After(_), None) => false,
    };
    let states = [main.state.as_ref(), main.last_state.as_ref()];
    let ends: Vec<_> = states.into_iter().flatten().filter_map(|state| state.terminated.as_ref()).collect();
    // The pod may have told late of the start of the one that was used: then nothing is left of the one it named.
    let named_is_gone = matches!(used, Main::Is(id) if main.container_id.as_ref() != Some(id));
    let late = || ends.iter().find(|end| named_is_gone && is_out_of_memory(end));
    match (ends.iter().find(|end| is_it(end)).or_else(late), used) {
        (Some(end), _) if is_out_of_memory(end) => Death::Known(Loss::OutOfMemory { limit: memory_limit(pod) }),
        (Some(end), _) if end.exit_code == KILLED => Death::NotSeen,
        (None, Main::Is(id)) if main.container_id.as_ref() == Some(id) => Death::NotSeen,
        (None, Main::After(_)) => Death::NotSeen,
        // For another reason, or it was started again more than once since.
        (Some(_), _) | (None, Main::Is(_)) => Death::Ended,
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
        let code = if reason == "Error" { 1 } else { 137 };
        json!({"terminated": {"exitCode": code, "containerID": id, "reason": reason, "message": "from inside"}})
    }

    #[test]
    fn the_end_of_exactly_the_container_that_was_used_counts() {
        let (running, none) = (json!({"running": {}}), json!({}));
        let oom = Death::Known(Loss::OutOfMemory { limit: Some("96Mi".into()) });
        for (name, found, expected) in [
            ("still said to run", ("c://1", &running, &ended("c://0", "OOMKilled")), Death::NotSeen),
            ("started again", ("c://2", &running, &ended("c://1", "OOMKilled")), oom.clone()),
            ("not started again yet", ("c://1", &ended("c://1", "OOMKilled"), &none), oom.clone()),
            ("for another reason", ("c://2", &running, &ended("c://1", "Error")), Death::Ended),
            ("by whom is not said yet", ("c://2", &running, &ended("c://1", "")), Death::NotSeen),
            ("a later one's end", ("c://3", &running, &ended("c://2", "OOMKilled")), oom),
            ("a later one's other end", ("c://3", &running, &ended("c://2", "Error")), Death::Ended),
        ] {
            let (id, state, last) = found;
            assert_eq!(death_of(&pod(id, state, last), &Main::Is("c://1".into())), expected, "{name}");
        }
        assert_eq!(death_of(&Pod::default(), &Main::Is("c://1".into())), Death::Ended);
    }

    #[test]
    fn a_start_that_the_pod_did_not_tell_of_yet_is_told_from_the_one_before_it() {
        let (running, none) = (json!({"running": {}}), json!({}));
        let oom = Death::Known(Loss::OutOfMemory { limit: Some("96Mi".into()) });
        let before = ended("c://1", "OOMKilled");
        for (name, found, expected) in [
            ("nothing new", pod("c://1", &before, &none), Death::NotSeen),
            ("it runs", pod("c://2", &running, &before), Death::NotSeen),
            ("it has ended", pod("c://2", &ended("c://2", "OOMKilled"), &before), oom.clone()),
            ("started again", pod("c://3", &running, &ended("c://2", "OOMKilled")), oom),
            ("for another reason", pod("c://2", &ended("c://2", "Error"), &before), Death::Ended),
        ] {
            assert_eq!(death_of(&found, &Main::After("c://1".into())), expected, "{name}");
        }
    }

    #[test]
    fn a_container_that_has_ended_is_not_the_one_in_use() {
        let is = |id: &str| Some(Main::Is(id.into()));
        assert_eq!(main_in_use(&pod("c://1", &json!({"running": {}}), &json!({}))), is("c://1"));
        let after = Some(Main::After("c://1".into()));
        assert_eq!(main_in_use(&pod("c://1", &ended("c://1", "OOMKilled"), &json!({}))), after);
        assert_eq!(main_in_use(&Pod::default()), None);
    }
}
