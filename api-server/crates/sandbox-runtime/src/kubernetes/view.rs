//! What a Sandbox and its pod say. Pure.

use crate::{AcquireError, ContainerSpec, InstanceId, Slow, UnavailableReason};
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

/// How often who uses it says so; `None`: it is never idle.
pub(super) fn quarter(sandbox: &Sandbox) -> Option<Duration> {
    Some(idle_timeout(sandbox) / 4).filter(|quarter| !quarter.is_zero())
}

/// What to do about a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Its pod is said to be ready: look at the pod.
    Ready(InstanceId),
    /// Wait for a change; it waits for this.
    Wait(Slow),
    /// Waiting would not help.
    Fail(AcquireError),
}

/// Reads a sandbox. `acted_on` is the activity that its operator had acted on when we wrote ours: trouble is believed only when
/// that has changed since, so that an old refusal is not taken for a new one.
pub(super) fn view(sandbox: &Sandbox, acted_on: Option<&str>) -> View {
    if sandbox.metadata.deletion_timestamp.is_some() {
        return View::Wait(Slow::Start);
    }
    if sandbox.spec.replicas == 0 {
        return View::Fail(AcquireError::unavailable(UnavailableReason::Suspended, "replicas is 0"));
    }
    let Some(status) = &sandbox.status else { return View::Wait(Slow::Start) };
    match status.phase {
        Some(Phase::Expired) => return View::Fail(AcquireError::Expired),
        Some(Phase::Ready) => {
            let binding = status.binding.as_ref();
            let instance = binding
                .and_then(|binding| Some(InstanceId { name: binding.pod_name.clone(), uid: binding.pod_uid.clone()? }));
            return instance.map_or(View::Wait(Slow::Start), View::Ready);
        }
        // A suspension under way ends in a start, since our activity is another than the one it was decided on.
        Some(Phase::Pending | Phase::Starting | Phase::Suspending | Phase::Suspended) | None => {}
    }
    let ready = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Ready.as_str());
    let Some(condition) = ready.filter(|condition| condition.status != "True") else { return View::Wait(Slow::Start) };
    match Reason::parse(&condition.reason).map_or(Meaning::Wait(Slow::Start), meaning) {
        Meaning::Wait(slow) => View::Wait(slow),
        // An old refusal is not taken for a new one.
        Meaning::Fail(_) if status.observed_activity.as_deref() == acted_on => View::Wait(Slow::Start),
        Meaning::Fail(reason) => {
            let message = format!("{}: {}", condition.reason, condition.message);
            View::Fail(AcquireError::unavailable(reason, message))
        }
    }
}

/// What a reason means to who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Meaning {
    /// It may pass by itself.
    Wait(Slow),
    /// A person has to change something.
    Fail(UnavailableReason),
}

fn meaning(reason: Reason) -> Meaning {
    use Meaning::{Fail, Wait};
    match reason {
        Reason::QuotaExceeded => Fail(UnavailableReason::Quota),
        Reason::LimitRefused => Fail(UnavailableReason::Limits),
        Reason::ImagePullFailed => Fail(UnavailableReason::Image),
        Reason::TemplateNotFound
        | Reason::TemplateInvalid
        | Reason::RuntimeClassNotFound
        | Reason::OverrideNotAllowed
        | Reason::ContainerRefused
        | Reason::Refused => Fail(UnavailableReason::Template),
        Reason::CrashLooping | Reason::InitFailed => Fail(UnavailableReason::CrashLoop),
        Reason::OOMKilled => Fail(UnavailableReason::OutOfMemory { limit: None }),
        Reason::WorkspaceLost => Fail(UnavailableReason::WorkspaceLost),
        Reason::WorkspaceUnwritable | Reason::WorkspaceAmbiguous => Fail(UnavailableReason::WorkspaceUnusable),
        Reason::StorageClassNotFound | Reason::ClaimNotMountable => Fail(UnavailableReason::Volume),
        Reason::ForeignObject | Reason::MultiplePods => Fail(UnavailableReason::Conflict),
        Reason::NetworkNotIsolated => Fail(UnavailableReason::Network),
        Reason::NodeLost => Fail(UnavailableReason::NodeLost),
        Reason::StartTimedOut => Fail(UnavailableReason::Start),
        Reason::Unschedulable => Wait(Slow::Room),
        Reason::WorkspacePending => Wait(Slow::Volume),
        // Evicted and ended pods are replaced. `replicas: 0` and `Expired` are read from the spec and the phase, and any
        // other suspension ends in a start. The rest are not reasons of the Ready condition.
        Reason::Starting
        | Reason::Evicted
        | Reason::PodFailed
        | Reason::Suspending
        | Reason::Suspended
        | Reason::Idle
        | Reason::ScaledToZero
        | Reason::Expired
        | Reason::PodReady
        | Reason::Bound
        | Reason::ResizePending
        | Reason::ResizeRefused
        | Reason::Active
        | Reason::TemplateChanged
        | Reason::UpToDate
        | Reason::Isolated
        | Reason::PodAccepted => Wait(Slow::Start),
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
        assert_eq!(view(&unbound, None), View::Wait(Slow::Start));
    }

    #[test]
    fn trouble_is_believed_only_about_our_own_activity() {
        let quota = not_ready("Pending", "QuotaExceeded", "t2");
        let failed = View::Fail(AcquireError::unavailable(UnavailableReason::Quota, "QuotaExceeded: words"));
        assert_eq!(view(&quota, Some("t1")), failed);
        assert_eq!(view(&quota, None), failed);
        assert_eq!(view(&quota, Some("t2")), View::Wait(Slow::Start));
    }

    #[test]
    fn what_may_pass_by_itself_is_waited_for() {
        for (phase, reason, slow) in [
            ("Pending", "Unschedulable", Slow::Room),
            ("Starting", "WorkspacePending", Slow::Volume),
            ("Starting", "Starting", Slow::Start),
            ("Suspending", "Suspending", Slow::Start),
            ("Suspending", "Idle", Slow::Start),
            ("Suspended", "Suspended", Slow::Start),
            ("Suspended", "Idle", Slow::Start),
            ("Starting", "SomethingNew", Slow::Start),
        ] {
            assert_eq!(view(&not_ready(phase, reason, "t2"), Some("t1")), View::Wait(slow), "{reason}");
        }
    }

    #[test]
    fn a_suspension_under_way_is_waited_out_though_its_pod_is_still_named() {
        let mut going = not_ready("Suspending", "Suspending", "t1");
        let status = going.status.as_mut().unwrap();
        status.binding = Some(
            serde_json::from_value(json!({"podName": "p", "podUID": "u", "workspaceClaim": "c", "source": "Existing"}))
                .unwrap(),
        );
        assert_eq!(view(&going, Some("t1")), View::Wait(Slow::Start));
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
        // Read from the spec and the phase.
        let elsewhere = |reason: Reason| matches!(reason, Reason::ScaledToZero | Reason::Expired);
        for reason in Reason::ALL {
            let fails = matches!(meaning(*reason), Meaning::Fail(_));
            assert_eq!(fails, reason.needs_action() && !elsewhere(*reason), "{reason}");
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
