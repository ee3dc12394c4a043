//! What a Sandbox and its pod say. Pure.

use crate::{AcquireError, ContainerSpec, InstanceId, UnavailableReason};
use crds::{ConditionType, Lifecycle, Phase, Reason, Sandbox, SandboxSpec, TemplateRef, fallback, keys};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use std::{collections::BTreeMap, time::Duration};

/// The object of a new sandbox, with the first sign of activity on it.
pub(super) fn new_sandbox(spec: &ContainerSpec, template: Option<&str>, token: String) -> Sandbox {
    let lifetime = spec.lifetime.map(|lifetime| Duration::from_secs(lifetime.as_secs()));
    let lifecycle = lifetime.map(|lifetime| Lifecycle { max_lifetime: Some(lifetime.into()), ..Lifecycle::default() });
    let template_ref = template.map(|name| TemplateRef { name: name.to_owned() });
    let mut sandbox = Sandbox::new(
        spec.name.as_str(),
        SandboxSpec { template_ref, replicas: 1, lifecycle, ..SandboxSpec::default() },
    );
    sandbox.metadata.annotations = Some(BTreeMap::from([
        (keys::ACTIVITY.to_owned(), token),
        (keys::OWNER.to_owned(), spec.owner.as_str().to_owned()),
    ]));
    sandbox
}

/// Whether it is this owner's. One without an owner is nobody's whom we serve.
pub(super) fn is_owned(sandbox: &Sandbox, spec: &ContainerSpec) -> bool {
    sandbox.annotations().get(keys::OWNER).is_some_and(|owner| owner == spec.owner.as_str())
}

/// Whether it is made from this template.
pub(super) fn is_made_from(sandbox: &Sandbox, template: Option<&str>) -> bool {
    let name = sandbox.spec.template_ref.as_ref().map_or(fallback::TEMPLATE, |template| template.name.as_str());
    name == template.unwrap_or(fallback::TEMPLATE)
}

/// The idle timeout in force; zero: never.
pub(super) fn idle_timeout(sandbox: &Sandbox) -> Duration {
    let effective = sandbox.status.as_ref().and_then(|status| status.effective.as_ref());
    effective.map_or(fallback::IDLE_TIMEOUT, |effective| effective.idle_timeout.get())
}

/// What to do about a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Its pod is said to be ready: look at the pod.
    Ready(InstanceId),
    /// Wait for a change.
    Wait,
    /// Waiting would not help.
    Fail(AcquireError),
}

/// Reads a sandbox. `acted_on` is the activity that its operator had acted on when we wrote ours: trouble is believed only when
/// that has changed since, so that an old refusal is not taken for a new one.
pub(super) fn view(sandbox: &Sandbox, acted_on: Option<&str>) -> View {
    if sandbox.metadata.deletion_timestamp.is_some() {
        return View::Wait;
    }
    if sandbox.spec.replicas == 0 {
        return View::Fail(AcquireError::unavailable(UnavailableReason::Suspended, "replicas is 0"));
    }
    let Some(status) = &sandbox.status else { return View::Wait };
    match status.phase {
        Some(Phase::Expired) => return View::Fail(AcquireError::Expired),
        Some(Phase::Ready) => {
            let binding = status.binding.as_ref();
            let instance = binding
                .and_then(|binding| Some(InstanceId { name: binding.pod_name.clone(), uid: binding.pod_uid.clone()? }));
            return instance.map_or(View::Wait, View::Ready);
        }
        Some(Phase::Pending | Phase::Starting | Phase::Suspending | Phase::Suspended) | None => {}
    }
    if status.observed_activity.as_deref() == acted_on {
        return View::Wait;
    }
    let ready = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Ready.as_str());
    let Some(condition) = ready.filter(|condition| condition.status != "True") else { return View::Wait };
    match Reason::parse(&condition.reason).and_then(trouble) {
        Some(reason) => {
            let message = format!("{}: {}", condition.reason, condition.message);
            View::Fail(AcquireError::unavailable(reason, message))
        }
        None => View::Wait,
    }
}

/// What a reason means to who waits; `None`: it may pass by itself.
fn trouble(reason: Reason) -> Option<UnavailableReason> {
    match reason {
        Reason::QuotaExceeded | Reason::LimitRefused => Some(UnavailableReason::Quota),
        Reason::ImagePullFailed => Some(UnavailableReason::Image),
        Reason::TemplateNotFound
        | Reason::TemplateInvalid
        | Reason::RuntimeClassNotFound
        | Reason::ContainerRefused
        | Reason::Refused => Some(UnavailableReason::Template),
        Reason::CrashLooping | Reason::InitFailed => Some(UnavailableReason::CrashLoop),
        Reason::OOMKilled => Some(UnavailableReason::OutOfMemory),
        Reason::WorkspaceLost | Reason::ForeignObject => Some(UnavailableReason::WorkspaceLost),
        Reason::NodeLost => Some(UnavailableReason::NodeLost),
        Reason::PodReady
        | Reason::Starting
        | Reason::Bound
        | Reason::WorkspacePending
        | Reason::Unschedulable
        | Reason::Evicted
        | Reason::PodFailed
        // Held by `replicas: 0`, which is read from the spec; a suspension under way ends in a start.
        | Reason::Suspending
        | Reason::Suspended
        | Reason::Expired => None,
    }
}

/// Whether a stream may be opened to this pod: the one we know, our Sandbox's, and not on its way out.
pub(super) fn is_live(pod: &Pod, instance: &InstanceId, sandbox_uid: &str) -> bool {
    pod.metadata.uid.as_deref() == Some(&instance.uid)
        && pod.metadata.deletion_timestamp.is_none()
        && pod
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true) && owner.uid == sandbox_uid && owner.kind == Sandbox::kind(&()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ContainerKey, ContainerKind};
    use serde_json::json;

    fn spec() -> ContainerSpec {
        let key = ContainerKey { kind: ContainerKind::Explicit, workspace: "w", user: Some("u"), id: "Box 1" };
        ContainerSpec { name: key.name(), owner: key.owner(), lifetime: Some(Duration::from_hours(720)) }
    }

    fn sandbox(status: serde_json::Value) -> Sandbox {
        let mut sandbox = new_sandbox(&spec(), None, "t2".into());
        sandbox.status = Some(serde_json::from_value(status).unwrap());
        sandbox
    }

    fn not_ready(phase: &str, reason: &str, observed: &str) -> Sandbox {
        sandbox(json!({
            "phase": phase,
            "observedActivity": observed,
            "conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": "words",
                            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }))
    }

    #[test]
    fn a_new_sandbox_carries_owner_activity_template_and_lifetime() {
        let object = serde_json::to_value(new_sandbox(&spec(), Some("big"), "t1".into())).unwrap();
        assert_eq!(object["metadata"]["name"], spec().name.as_str());
        assert_eq!(object["metadata"]["annotations"][keys::ACTIVITY], "t1");
        assert_eq!(object["metadata"]["annotations"][keys::OWNER], spec().owner.as_str());
        assert_eq!(object["spec"]["templateRef"]["name"], "big");
        assert_eq!(object["spec"]["lifecycle"]["maxLifetime"], "720h");
        let plain = serde_json::to_value(new_sandbox(&ContainerSpec { lifetime: None, ..spec() }, None, "t".into()));
        assert_eq!(plain.unwrap()["spec"], json!({"replicas": 1}));
    }

    #[test]
    fn a_sandbox_without_our_owner_or_from_another_template_is_not_ours() {
        let mut found = new_sandbox(&spec(), None, "t".into());
        assert!(is_owned(&found, &spec()) && is_made_from(&found, None) && is_made_from(&found, Some("default")));
        assert!(!is_made_from(&found, Some("big")));
        found.metadata.annotations = None;
        assert!(!is_owned(&found, &spec()));
    }

    #[test]
    fn ready_needs_a_bound_pod() {
        let ready = sandbox(json!({"phase": "Ready", "binding": {
            "podName": "p", "podUID": "u", "workspaceClaim": "c", "source": "Cold"}}));
        assert_eq!(view(&ready, None), View::Ready(InstanceId { name: "p".into(), uid: "u".into() }));
        let unbound = sandbox(json!({"phase": "Ready"}));
        assert_eq!(view(&unbound, None), View::Wait);
    }

    #[test]
    fn trouble_is_believed_only_about_our_own_activity() {
        let quota = not_ready("Pending", "QuotaExceeded", "t2");
        let failed = View::Fail(AcquireError::unavailable(UnavailableReason::Quota, "QuotaExceeded: words"));
        assert_eq!(view(&quota, Some("t1")), failed);
        assert_eq!(view(&quota, None), failed);
        assert_eq!(view(&quota, Some("t2")), View::Wait);
    }

    #[test]
    fn what_may_pass_by_itself_is_waited_for() {
        for (phase, reason) in [
            ("Pending", "Unschedulable"),
            ("Starting", "WorkspacePending"),
            ("Starting", "Starting"),
            ("Suspending", "Suspending"),
            ("Suspended", "Suspended"),
            ("Starting", "SomethingNew"),
        ] {
            assert_eq!(view(&not_ready(phase, reason, "t2"), Some("t1")), View::Wait, "{reason}");
        }
    }

    #[test]
    fn held_and_expired_sandboxes_fail_at_once() {
        let mut held = not_ready("Suspended", "Suspended", "t1");
        held.spec.replicas = 0;
        assert!(matches!(
            view(&held, Some("t1")),
            View::Fail(AcquireError::Unavailable { reason: UnavailableReason::Suspended, .. })
        ));
        assert_eq!(view(&sandbox(json!({"phase": "Expired"})), None), View::Fail(AcquireError::Expired));
    }

    #[test]
    fn every_reason_that_needs_a_person_fails_and_no_other() {
        for reason in Reason::ALL {
            let own_words = matches!(reason, Reason::Suspending | Reason::Suspended | Reason::Expired);
            assert_eq!(trouble(*reason).is_some(), reason.needs_action() && !own_words, "{reason}");
        }
    }

    #[test]
    fn a_pod_that_is_going_or_anothers_is_not_live() {
        let instance = InstanceId { name: "p".into(), uid: "u".into() };
        let pod = |uid: &str, owner: &str, controller: bool, going: bool| -> Pod {
            let mut pod = json!({"metadata": {"name": "p", "uid": uid, "ownerReferences": [
                {"apiVersion": "codeexec.dev/v1alpha1", "kind": "Sandbox", "name": "s", "uid": owner, "controller": controller}]}});
            if going {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            serde_json::from_value(pod).unwrap()
        };
        assert!(is_live(&pod("u", "s", true, false), &instance, "s"));
        for other in [
            pod("v", "s", true, false),
            pod("u", "t", true, false),
            pod("u", "s", false, false),
            pod("u", "s", true, true),
        ] {
            assert!(!is_live(&other, &instance, "s"));
        }
    }
}
