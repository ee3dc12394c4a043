//! Step five: says it, in one write of the status and one Event for each change.

use crate::{
    apply::{ApplyError, REQUEST_DEADLINE, patch_of_version, request},
    metrics::Metrics,
    refusal::{Refusal, words_of},
    status::{says_something_new, suspended_reason},
    trouble::Trouble,
    validate::Identity,
};
use crds::{ConditionType, Phase, Reason, Sandbox, SandboxStatus};
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder},
};
use serde_json::{Value, json};
use std::time::Duration;

/// The name of an Event is that of its object, a dot and sixteen digits, and may have 253 characters.
const LONGEST_NAME_WITH_EVENTS: usize = 253 - 17;

/// What came of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// There was nothing new to say.
    Nothing,
    /// It was written.
    Written,
    /// Somebody else wrote first; the watch brings what is true.
    Outdated,
}

/// Writes the status if it says something new.
pub async fn report(
    client: &Client,
    identity: &Identity,
    previous: &SandboxStatus,
    next: &SandboxStatus,
) -> Result<Reported, ApplyError> {
    if !says_something_new(previous, next) {
        return Ok(Reported::Nothing);
    }
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), &identity.namespace);
    let patch = status_patch(identity, next);
    let parameters = PatchParams::default();
    let call = sandboxes.patch_status(&identity.name, &parameters, &patch);
    match request("writing the status of sandbox", &identity.name, call).await? {
        // A status that was there already makes no new version.
        Ok(found) if found.metadata.resource_version.as_ref() == Some(&identity.resource_version) => {
            Ok(Reported::Nothing)
        }
        Ok(_) => Ok(Reported::Written),
        Err(Refusal::Refused(trouble)) => {
            // Only a defect of ours: a status that the definition does not allow.
            tracing::error!(sandbox.name = identity.name, detail = trouble.message, "the API server refuses a status");
            Ok(Reported::Nothing)
        }
        Err(Refusal::Exists | Refusal::Outdated | Refusal::NamespaceTerminating | Refusal::Unavailable) => {
            Ok(Reported::Outdated)
        }
    }
}

fn status_patch(identity: &Identity, status: &SandboxStatus) -> Patch<Value> {
    let change = json!({ "op": "add", "path": "/status", "value": status });
    patch_of_version(Some(&identity.uid), Some(&identity.resource_version), [change])
}

/// Publishes an Event for each thing that a status says anew. An Event that cannot be published is only logged.
pub async fn publish(recorder: &Recorder, identity: &Identity, previous: &SandboxStatus, next: &SandboxStatus) {
    if identity.name.len() > LONGEST_NAME_WITH_EVENTS {
        return;
    }
    let reference = ObjectReference {
        api_version: Some(Sandbox::api_version(&()).into_owned()),
        kind: Some(Sandbox::kind(&()).into_owned()),
        name: Some(identity.name.clone()),
        namespace: Some(identity.namespace.clone()),
        uid: Some(identity.uid.clone()),
        ..ObjectReference::default()
    };
    for event in events(previous, next) {
        let published = tokio::time::timeout(REQUEST_DEADLINE, recorder.publish(&event, &reference)).await;
        let error = match published {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => words_of(&error),
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::warn!(sandbox.name = identity.name, error, "an Event cannot be published");
    }
}

/// One for each condition that got another reason, where that is worth one.
fn events(previous: &SandboxStatus, next: &SandboxStatus) -> Vec<Event> {
    let reason = |status: &SandboxStatus, kind: &str| {
        status.conditions.iter().find(|condition| condition.type_ == kind).map(|condition| condition.reason.clone())
    };
    let news = next.conditions.iter().filter(|condition| {
        reason(previous, &condition.type_).as_ref() != Some(&condition.reason)
            && (condition.type_ == ConditionType::Ready.as_str() || is_about_the_workspace(&condition.reason))
    });
    let event = |condition: &Condition| {
        Some(Event {
            type_: event_type(Reason::parse(&condition.reason)?)?,
            reason: condition.reason.clone(),
            note: Some(condition.message.clone()),
            action: "Reconcile".to_owned(),
            secondary: None,
        })
    };
    news.filter_map(event).collect()
}

/// What a Ready sandbox is told about its workspace, too.
fn is_about_the_workspace(reason: &str) -> bool {
    [Reason::ResizeRefused, Reason::ResizePending].iter().any(|known| known.as_str() == reason)
}

/// What a new status counts as.
pub fn count(metrics: &Metrics, previous: &SandboxStatus, next: &SandboxStatus, starting_for: Option<Duration>) {
    let (before, after) = (previous.phase, next.phase);
    let stopping = |phase| matches!(phase, Some(Phase::Suspending | Phase::Suspended | Phase::Expired));
    if stopping(after) && !stopping(before) {
        metrics.suspended(suspended_reason(next).map_or("other", Reason::as_str));
    }
    if before == Some(Phase::Suspended) && after == Some(Phase::Starting) {
        metrics.woke();
    }
    if let (false, true, Some(took)) = (before == Some(Phase::Ready), after == Some(Phase::Ready), starting_for) {
        let source = next.binding.as_ref().map_or("other", |binding| binding.source.as_str());
        metrics.became_ready(source, took);
    }
    let trouble = |status| Trouble::of_ready(status).map(|trouble| trouble.reason);
    if let Some(reason) = trouble(next).filter(|reason| trouble(previous) != Some(*reason) && is_trouble(*reason)) {
        metrics.troubled(reason);
    }
}

fn is_trouble(reason: Reason) -> bool {
    matches!(event_type(reason), Some(EventType::Warning))
}

/// Steps on the way are no Events.
const fn event_type(reason: Reason) -> Option<EventType> {
    match reason {
        Reason::PodReady
        | Reason::Suspended
        | Reason::ScaledToZero
        | Reason::Expired
        | Reason::ResizePending
        | Reason::PodAccepted => Some(EventType::Normal),
        Reason::Starting
        | Reason::Suspending
        | Reason::Bound
        | Reason::Idle
        | Reason::Active
        | Reason::TemplateChanged
        | Reason::UpToDate
        | Reason::Isolated => None,
        Reason::WorkspacePending
        | Reason::WorkspaceLost
        | Reason::WorkspaceUnwritable
        | Reason::WorkspaceAmbiguous
        | Reason::ClaimNotMountable
        | Reason::StorageClassNotFound
        | Reason::ResizeRefused
        | Reason::Unschedulable
        | Reason::ImagePullFailed
        | Reason::InitFailed
        | Reason::ContainerRefused
        | Reason::CrashLooping
        | Reason::OOMKilled
        | Reason::Evicted
        | Reason::PodFailed
        | Reason::NodeLost
        | Reason::MultiplePods
        | Reason::StartTimedOut
        | Reason::QuotaExceeded
        | Reason::LimitRefused
        | Reason::RuntimeClassNotFound
        | Reason::Refused
        | Reason::TemplateNotFound
        | Reason::TemplateInvalid
        | Reason::OverrideNotAllowed
        | Reason::ForeignObject
        | Reason::NetworkNotIsolated => Some(EventType::Warning),
    }
}
