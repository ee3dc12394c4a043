//! Step five: says it, in one write of the status and one Event for each change.

use crate::{
    apply::{ApplyError, REQUEST_DEADLINE, request},
    metrics::{Metrics, Write},
    refusal::{Refusal, words_of},
    status::{ready_words, says_something_new},
    validate::Identity,
};
use crds::{Reason, Sandbox, SandboxStatus};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder},
};
use serde_json::{Value, json};

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
    metrics: &Metrics,
    identity: &Identity,
    previous: &SandboxStatus,
    next: &SandboxStatus,
) -> Result<Reported, ApplyError> {
    if !says_something_new(previous, next) {
        return Ok(Reported::Nothing);
    }
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), &identity.namespace);
    let patch = status_patch(identity, next);
    metrics.wrote(Write::Status);
    let parameters = PatchParams::default();
    let call = sandboxes.patch_status(&identity.name, &parameters, &patch);
    match request("writing the status of sandbox", &identity.name, call).await? {
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

/// Replaces the status of exactly this version: a `replace` of the version is answered with 409 when there is a newer one, where a
/// failed `test` would be a 422. A status always serialises; an empty patch would be refused.
fn status_patch(identity: &Identity, status: &SandboxStatus) -> Patch<Value> {
    let operations = json!([
        { "op": "test", "path": "/metadata/uid", "value": identity.uid },
        { "op": "replace", "path": "/metadata/resourceVersion", "value": identity.resource_version },
        { "op": "add", "path": "/status", "value": status },
    ]);
    Patch::Json(serde_json::from_value(operations).unwrap_or_default())
}

/// Publishes an Event when the Ready condition got another reason. An Event that cannot be published is only logged.
pub async fn publish(recorder: &Recorder, identity: &Identity, previous: &SandboxStatus, next: &SandboxStatus) {
    let Some((reason, message)) = ready_words(next) else { return };
    if ready_words(previous).is_some_and(|(known, _)| known == reason) {
        return;
    }
    if identity.name.len() > LONGEST_NAME_WITH_EVENTS {
        return;
    }
    let Some(type_) = Reason::parse(reason).and_then(event_type) else { return };
    let event = Event {
        type_,
        reason: reason.to_owned(),
        note: Some(message.to_owned()),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    let reference = ObjectReference {
        api_version: Some(Sandbox::api_version(&()).into_owned()),
        kind: Some(Sandbox::kind(&()).into_owned()),
        name: Some(identity.name.clone()),
        namespace: Some(identity.namespace.clone()),
        uid: Some(identity.uid.clone()),
        ..ObjectReference::default()
    };
    let published = tokio::time::timeout(REQUEST_DEADLINE, recorder.publish(&event, &reference)).await;
    let error = match published {
        Ok(Ok(())) => return,
        Ok(Err(error)) => words_of(&error),
        Err(_) => "no answer in time".to_owned(),
    };
    tracing::warn!(sandbox.name = identity.name, error, "an Event cannot be published");
}

/// Steps on the way are no Events.
const fn event_type(reason: Reason) -> Option<EventType> {
    match reason {
        Reason::PodReady | Reason::Suspended | Reason::Expired => Some(EventType::Normal),
        Reason::Starting | Reason::Suspending | Reason::Bound => None,
        Reason::WorkspacePending
        | Reason::WorkspaceLost
        | Reason::Unschedulable
        | Reason::ImagePullFailed
        | Reason::InitFailed
        | Reason::ContainerRefused
        | Reason::CrashLooping
        | Reason::OOMKilled
        | Reason::Evicted
        | Reason::PodFailed
        | Reason::NodeLost
        | Reason::QuotaExceeded
        | Reason::LimitRefused
        | Reason::RuntimeClassNotFound
        | Reason::Refused
        | Reason::TemplateNotFound
        | Reason::TemplateInvalid
        | Reason::ForeignObject => Some(EventType::Warning),
    }
}
