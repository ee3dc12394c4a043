//! Step four: does it. Children are made by POST, never by an upsert; deletes carry the UID and the version that were decided on.

use crate::{
    decide::Act,
    observe::{ClaimSeen, is_ours, is_retained_by},
    refusal::{Refusal, read_refusal, words_of},
    render::Prepared,
    trouble::Trouble,
    validate::Identity,
};
use crds::{Reason, Sandbox, keys};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Namespace, PersistentVolumeClaim, Pod},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{fmt::Debug, future::Future, time::Duration};

/// Longest wait for one answer of the API server.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// What came of an act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was done, or there was nothing to do.
    Done,
    /// It was not, and waiting for it will not help by itself.
    Refused(Trouble),
    /// The world has moved on; the watch brings what is true.
    Outdated,
    /// The namespace is being deleted.
    NamespaceTerminating,
}

/// A write that may succeed when it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The API server did not answer in time.
    #[error("{what} {name} was not answered within {} s", REQUEST_DEADLINE.as_secs())]
    TimedOut {
        /// The attempt.
        what: &'static str,
        /// On what.
        name: String,
    },
    /// The API server could not be reached, or could not answer.
    #[error("{what} {name} failed: {}", words_of(source))]
    Failed {
        /// The attempt.
        what: &'static str,
        /// On what.
        name: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// Whether the namespace is being deleted. When that may not be read, it is taken for living: the API server refuses creates anyway.
pub async fn namespace_is_terminating(client: &Client, namespace: &str) -> bool {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    match request("reading namespace", namespace, namespaces.get(namespace)).await {
        Ok(Ok(found)) => found.metadata.deletion_timestamp.is_some(),
        Ok(Err(Refusal::Outdated)) => true,
        Ok(Err(_)) | Err(_) => false,
    }
}

/// Does what a plan says.
pub async fn apply(
    client: &Client,
    identity: &Identity,
    act: &Act,
    prepared: Option<Prepared>,
) -> Result<Applied, ApplyError> {
    let namespace = &identity.namespace;
    let claims = || Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
    match act {
        Act::Nothing => Ok(Applied::Done),
        Act::Start { new_claim: _ } => match prepared {
            Some(prepared) => start(client, identity, prepared).await,
            None => Ok(Applied::Done),
        },
        Act::TakeBack(claim) => {
            let label = format!("/metadata/labels/{}", keys::SANDBOX_UID.replace('/', "~1"));
            let change = json!({ "op": "replace", "path": label, "value": identity.uid });
            patch_claim("taking back claim", &claims(), claim, change).await
        }
        Act::Grow(claim, size) => {
            let change = json!({ "op": "replace", "path": "/spec/resources/requests/storage", "value": size });
            patch_claim("enlarging claim", &claims(), claim, change).await
        }
        Act::DeletePod { name, uid, resource_version } => {
            let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
            let preconditions =
                Preconditions { uid: Some(uid.clone()), resource_version: Some(resource_version.clone()) };
            delete("deleting pod", &pods, name, preconditions).await
        }
        Act::DeleteSandbox => {
            let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
            let preconditions = Preconditions {
                uid: Some(identity.uid.clone()),
                resource_version: Some(identity.resource_version.clone()),
            };
            delete("deleting sandbox", &sandboxes, &identity.name, preconditions).await
        }
    }
}

/// Changes to exactly this version of an object: a `replace` of the version is answered with 409 when there is a newer one, where a
/// failed `test` would be a 422. Operations always make a patch; an empty one would be refused.
pub(crate) fn patch_of_version(
    uid: Option<&String>,
    resource_version: Option<&String>,
    changes: impl IntoIterator<Item = Value>,
) -> Patch<Value> {
    let version = [
        json!({ "op": "test", "path": "/metadata/uid", "value": uid }),
        json!({ "op": "replace", "path": "/metadata/resourceVersion", "value": resource_version }),
    ];
    let operations = version.into_iter().chain(changes).collect();
    Patch::Json(serde_json::from_value(Value::Array(operations)).unwrap_or_default())
}

/// One change of a claim.
async fn patch_claim(
    what: &'static str,
    claims: &Api<PersistentVolumeClaim>,
    claim: &ClaimSeen,
    change: Value,
) -> Result<Applied, ApplyError> {
    let patch = patch_of_version(Some(&claim.uid), Some(&claim.resource_version), [change]);
    match request(what, &claim.name, claims.patch(&claim.name, &PatchParams::default(), &patch)).await? {
        Ok(_) => Ok(Applied::Done),
        Err(refusal) => Ok(not_done(refusal)),
    }
}

fn not_done(refusal: Refusal) -> Applied {
    match refusal {
        Refusal::Refused(trouble) => Applied::Refused(trouble),
        Refusal::NamespaceTerminating => Applied::NamespaceTerminating,
        Refusal::Exists | Refusal::Outdated | Refusal::Unavailable => Applied::Outdated,
    }
}

/// The claim first: a pod without it would only wait.
async fn start(client: &Client, identity: &Identity, prepared: Prepared) -> Result<Applied, ApplyError> {
    let Prepared { claim, pod } = prepared;
    if let Some(claim) = claim {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &identity.namespace);
        match create("creating claim", &claims, &claim, &identity.uid).await? {
            Applied::Done => {}
            other @ (Applied::Refused(_) | Applied::Outdated | Applied::NamespaceTerminating) => return Ok(other),
        }
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), &identity.namespace);
    create("creating pod", &pods, &pod, &identity.uid).await
}

async fn create<K>(what: &'static str, api: &Api<K>, object: &K, owner_uid: &str) -> Result<Applied, ApplyError>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
{
    let name = object.name_any();
    let Err(refusal) = request(what, &name, api.create(&PostParams::default(), object)).await? else {
        return Ok(Applied::Done);
    };
    match refusal {
        // The cache may be behind, so the object itself says whose it is.
        Refusal::Exists => match request("reading", &name, api.get(&name)).await? {
            Ok(found) if is_ours(&found, owner_uid) || is_retained_by(&found, owner_uid) => Ok(Applied::Done),
            Ok(_) => {
                let message = format!("an object named {name} exists and does not belong to this sandbox; delete it");
                Ok(Applied::Refused(Trouble::new(Reason::ForeignObject, message)))
            }
            Err(_) => Ok(Applied::Outdated),
        },
        other => Ok(not_done(other)),
    }
}

async fn delete<K>(
    what: &'static str,
    api: &Api<K>,
    name: &str,
    preconditions: Preconditions,
) -> Result<Applied, ApplyError>
where
    K: Clone + Debug + DeserializeOwned,
{
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match request(what, name, api.delete(name, &parameters)).await? {
        Ok(_) => Ok(Applied::Done),
        Err(refusal) => Ok(not_done(refusal)),
    }
}

/// One request with its deadline. The API server's own refusals come back as a value, everything else as an error.
pub async fn request<T>(
    what: &'static str,
    name: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<Result<T, Refusal>, ApplyError> {
    let name = || name.to_owned();
    let answer = tokio::time::timeout(REQUEST_DEADLINE, Box::pin(call)).await;
    match answer.map_err(|_| ApplyError::TimedOut { what, name: name() })? {
        Ok(value) => Ok(Ok(value)),
        Err(kube::Error::Api(status)) => match read_refusal(&status) {
            Refusal::Unavailable => {
                Err(ApplyError::Failed { what, name: name(), source: Box::new(kube::Error::Api(status)) })
            }
            refusal => Ok(Err(refusal)),
        },
        Err(source) => Err(ApplyError::Failed { what, name: name(), source: Box::new(source) }),
    }
}
