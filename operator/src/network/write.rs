//! Writes policies.

use super::policy::Act;
use crate::{
    apply::{ApplyError, namespace_is_terminating, patch_of_version, request},
    refusal::Refusal,
    trouble::Trouble,
};
use crds::{Reason, keys};
use k8s_openapi::api::{core::v1::Pod, networking::v1::NetworkPolicy};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};

/// What came of an act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// There was nothing to do.
    Nothing,
    /// It was done. Of what remains: its version.
    Done(Option<String>),
    /// It is still needed.
    Needed,
    /// It was refused, and will be again.
    Refused(Trouble),
    /// The world has moved on; the watch brings what is true.
    Outdated,
    /// The namespace is being deleted.
    NamespaceTerminating,
}

/// Does it. A policy whose template is gone stays while a pod made from that template exists.
pub async fn write(
    client: &Client,
    namespace: &str,
    template: &str,
    name: &str,
    act: Act,
) -> Result<Written, ApplyError> {
    match act {
        Act::Nothing => return Ok(Written::Nothing),
        Act::Foreign => return Ok(Written::Refused(foreign(name))),
        Act::Create(_) | Act::Restore(_) | Act::Delete { .. } | Act::DeleteWhenUnused { .. } => {}
    }
    if namespace_is_terminating(client, namespace).await {
        return Ok(Written::NamespaceTerminating);
    }
    let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), namespace);
    match act {
        Act::Create(policy) => {
            let parameters = PostParams::default();
            let answer = policies.create(&parameters, &policy);
            Ok(outcome(request("creating network policy", name, answer).await?))
        }
        Act::Restore(policy) => {
            let (parameters, patch) = (PatchParams::default(), replacement(&policy));
            let answer = policies.patch(name, &parameters, &patch);
            Ok(outcome(request("restoring network policy", name, answer).await?))
        }
        Act::DeleteWhenUnused { .. } if used(client, namespace, template).await? => Ok(Written::Needed),
        Act::Delete { uid } | Act::DeleteWhenUnused { uid } => {
            let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
            let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
            match request("deleting network policy", name, policies.delete(name, &parameters)).await? {
                Ok(_) => Ok(Written::Done(None)),
                Err(refusal) => Ok(refused(refusal)),
            }
        }
        Act::Nothing | Act::Foreign => Ok(Written::Nothing),
    }
}

/// Whether a pod of this template exists, asked of the API server itself.
async fn used(client: &Client, namespace: &str, template: &str) -> Result<bool, ApplyError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let parameters = ListParams::default().labels(&format!("{}={template}", keys::TEMPLATE)).limit(1);
    match request("listing the pods of template", template, pods.list_metadata(&parameters)).await? {
        Ok(found) => Ok(!found.items.is_empty()),
        // Nothing is known, so nothing is taken away.
        Err(_) => Ok(true),
    }
}

fn outcome(answer: Result<NetworkPolicy, Refusal>) -> Written {
    match answer {
        Ok(policy) => Written::Done(policy.resource_version()),
        Err(refusal) => refused(refusal),
    }
}

fn refused(refusal: Refusal) -> Written {
    match refusal {
        Refusal::Refused(trouble) => Written::Refused(Trouble::new(Reason::TemplateInvalid, trouble.message)),
        Refusal::NamespaceTerminating => Written::NamespaceTerminating,
        Refusal::Exists | Refusal::Outdated | Refusal::Unavailable => Written::Outdated,
    }
}

fn foreign(name: &str) -> Trouble {
    let message = format!("a NetworkPolicy named {name} exists and is not the operator's; rename or delete it");
    Trouble::new(Reason::ForeignObject, message)
}

/// Nobody may own a policy, since it would go with its owner.
fn replacement(policy: &NetworkPolicy) -> Patch<Value> {
    let changes = [
        json!({ "op": "add", "path": "/metadata/ownerReferences", "value": [] }),
        json!({ "op": "add", "path": "/spec", "value": policy.spec }),
    ];
    patch_of_version(policy.metadata.uid.as_ref(), policy.metadata.resource_version.as_ref(), changes)
}
