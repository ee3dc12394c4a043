//! What is wrong with a template, said in its status.
//!
//! Problems only: a template that never had one has no status, so making templates costs nothing. Whether the API server takes a pod of
//! the template is tried without making one, when the template changes, and from time to time while it does not.

mod check;
mod status;

pub use status::{Announcement, Findings, announcements, next_status};

use crate::{
    apply::{ApplyError, REQUEST_DEADLINE, namespace_is_terminating, patch_of_version, request},
    isolation::Isolation,
    refusal::{Refusal, words_of},
    trouble::Trouble,
};
use check::{Answer, ask};
use crds::{Reason, SandboxTemplate, SandboxTemplateStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ObjectMeta, PatchParams},
    core::DeserializeGuard,
    runtime::events::{Event, Recorder},
};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// A template that is refused is tried again after this: what it lacks may have come.
const TRY_AGAIN: Duration = Duration::from_mins(1);
/// A pass that lost against another writer looks again after this.
const OUTDATED_RETRY: Duration = Duration::from_secs(2);

/// With what a template is looked at.
pub struct Look<'a> {
    /// Client of the cluster.
    pub client: &'a Client,
    /// Publishes Events.
    pub recorder: &'a Recorder,
    /// Namespace of the template.
    pub namespace: &'a str,
    /// Image of the init and `files` containers.
    pub sandboxd_image: &'a str,
}

/// What is remembered of a template.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The last try of a pod.
    tried: Option<Tried>,
}

#[derive(Clone, Debug)]
struct Tried {
    uid: Option<String>,
    generation: Option<i64>,
    /// What was wrong with it.
    trouble: Option<Trouble>,
    at: Instant,
}

/// Says what is wrong with a template, and after which time to look again. `trouble` is what is known to be wrong already.
pub async fn tell(
    look: &Look<'_>,
    guarded: &DeserializeGuard<SandboxTemplate>,
    memory: &mut Memory,
    trouble: Option<Trouble>,
    isolation: &Isolation,
) -> Result<Option<Duration>, ApplyError> {
    let (metadata, previous, trouble) = match &guarded.0 {
        Err(invalid) => {
            let name = invalid.metadata.name.as_deref().unwrap_or_default();
            let Some(previous) = read_status(look, name).await? else { return Ok(None) };
            let message = format!("the template cannot be read: {}", invalid.error);
            (&invalid.metadata, previous, Some(Trouble::new(Reason::TemplateInvalid, message)))
        }
        Ok(template) => {
            let previous = template.status.clone().unwrap_or_default();
            let trouble = match trouble {
                Some(trouble) => Some(trouble),
                None => match tried(look, template, memory).await? {
                    Ok(trouble) => trouble,
                    Err(wait) => return Ok(wait),
                },
            };
            (&template.metadata, previous, trouble)
        }
    };
    let again = trouble.is_some().then_some(TRY_AGAIN);
    let findings = Findings { generation: metadata.generation, trouble, isolation };
    let Some(next) = next_status(&previous, &findings, Timestamp::now()) else { return Ok(again) };
    match write_status(look, metadata, &next).await? {
        Some(true) => {}
        Some(false) => return Ok(Some(OUTDATED_RETRY)),
        None => return Ok(None),
    }
    for announcement in announcements(&previous, &next) {
        tracing::info!(
            template.name = metadata.name,
            template.namespace = look.namespace,
            reason = announcement.reason,
            detail = announcement.message,
            "a template has another condition"
        );
        announce(look.recorder, &reference(look.namespace, metadata), &announcement).await;
    }
    Ok(again)
}

/// What is wrong with a pod of the template, from memory if that is fresh. `Err` says after which time to look again, if at all.
async fn tried(
    look: &Look<'_>,
    template: &SandboxTemplate,
    memory: &mut Memory,
) -> Result<Result<Option<Trouble>, Option<Duration>>, ApplyError> {
    let (uid, generation) = (template.metadata.uid.clone(), template.metadata.generation);
    let same = |tried: &&Tried| tried.uid == uid && tried.generation == generation;
    if let Some(tried) = memory.tried.as_ref().filter(same)
        && (tried.trouble.is_none() || tried.at.elapsed() < TRY_AGAIN)
    {
        return Ok(Ok(tried.trouble.clone()));
    }
    let known = status::known_to_be_fine(template.status.as_ref(), generation);
    let trouble = if memory.tried.is_none() && known {
        None
    } else {
        match ask(look.client, look.namespace, template, look.sandboxd_image).await? {
            Answer::Accepted => None,
            Answer::Refused(trouble) => Some(trouble),
            Answer::Unclear => return Ok(Err(Some(TRY_AGAIN))),
            Answer::NamespaceTerminating => return Ok(Err(None)),
        }
    };
    memory.tried = Some(Tried { uid, generation, trouble: trouble.clone(), at: Instant::now() });
    Ok(Ok(trouble))
}

/// Any template, also one that cannot be read.
fn raw(look: &Look<'_>) -> Api<DynamicObject> {
    Api::namespaced_with(look.client.clone(), look.namespace, &ApiResource::erase::<SandboxTemplate>(&()))
}

/// The status of a template that cannot be read as a whole.
async fn read_status(look: &Look<'_>, name: &str) -> Result<Option<SandboxTemplateStatus>, ApplyError> {
    match request("reading template", name, raw(look).get(name)).await? {
        Ok(found) => {
            let status = found.data.get("status").cloned().unwrap_or_default();
            Ok(Some(serde_json::from_value(status).unwrap_or_default()))
        }
        Err(_) => Ok(None),
    }
}

/// Whether it was written; `None` when the namespace is being deleted.
async fn write_status(
    look: &Look<'_>,
    metadata: &ObjectMeta,
    status: &SandboxTemplateStatus,
) -> Result<Option<bool>, ApplyError> {
    if namespace_is_terminating(look.client, look.namespace).await {
        return Ok(None);
    }
    let name = metadata.name.as_deref().unwrap_or_default();
    let change = json!({ "op": "add", "path": "/status", "value": status });
    let patch = patch_of_version(metadata.uid.as_ref(), metadata.resource_version.as_ref(), [change]);
    let (templates, parameters) = (raw(look), PatchParams::default());
    match request("writing the status of template", name, templates.patch_status(name, &parameters, &patch)).await? {
        Ok(_) => Ok(Some(true)),
        Err(Refusal::NamespaceTerminating) => Ok(None),
        Err(Refusal::Refused(trouble)) => {
            tracing::error!(
                template.name = name,
                detail = trouble.message,
                "the API server refuses the status of a template"
            );
            Ok(None)
        }
        Err(Refusal::Exists | Refusal::Outdated | Refusal::Unavailable) => Ok(Some(false)),
    }
}

fn reference(namespace: &str, metadata: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: Some(SandboxTemplate::api_version(&()).into_owned()),
        kind: Some(SandboxTemplate::kind(&()).into_owned()),
        name: metadata.name.clone(),
        namespace: Some(namespace.to_owned()),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// Publishes an Event. One that cannot be published is only logged.
pub async fn announce(recorder: &Recorder, about: &ObjectReference, announcement: &Announcement) {
    let Announcement { type_, reason, message } = announcement;
    let event = Event {
        type_: *type_,
        reason: reason.clone(),
        note: Some(message.clone()),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    let published = tokio::time::timeout(REQUEST_DEADLINE, recorder.publish(&event, about)).await;
    let error = match published {
        Ok(Ok(())) => return,
        Ok(Err(error)) => words_of(&error),
        Err(_) => "no answer in time".to_owned(),
    };
    tracing::warn!(kind = about.kind, name = about.name, error, "an Event cannot be published");
}
