//! Step four: does it. Children are made by POST, never by an upsert; deletes carry the UID that was decided on.

use crate::{
    decide::Act,
    metrics::{Metrics, Write},
    observe::is_ours,
    refusal::{Refusal, read_refusal, words_of},
    render::Prepared,
    trouble::Trouble,
    validate::Identity,
};
use crds::{Reason, Sandbox};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Namespace, PersistentVolumeClaim, Pod},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
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
    metrics: &Metrics,
    identity: &Identity,
    act: &Act,
    prepared: Option<Prepared>,
    child: &str,
) -> Result<Applied, ApplyError> {
    let namespace = &identity.namespace;
    match act {
        Act::Nothing => Ok(Applied::Done),
        Act::Start { new_claim: _ } => match prepared {
            Some(prepared) => start(client, metrics, identity, prepared).await,
            None => Ok(Applied::Done),
        },
        Act::DeletePod { uid } => {
            let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
            metrics.wrote(Write::DeletePod);
            delete("deleting pod", &pods, child, Preconditions { uid: Some(uid.clone()), resource_version: None }).await
        }
        Act::DeleteSandbox => {
            let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
            let preconditions = Preconditions {
                uid: Some(identity.uid.clone()),
                resource_version: Some(identity.resource_version.clone()),
            };
            metrics.wrote(Write::DeleteSandbox);
            delete("deleting sandbox", &sandboxes, &identity.name, preconditions).await
        }
    }
}

/// The claim first: a pod without it would only wait.
async fn start(
    client: &Client,
    metrics: &Metrics,
    identity: &Identity,
    prepared: Prepared,
) -> Result<Applied, ApplyError> {
    let Prepared { claim, pod } = prepared;
    if let Some(claim) = claim {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &identity.namespace);
        metrics.wrote(Write::CreateClaim);
        match create("creating claim", &claims, &claim, &identity.uid).await? {
            Applied::Done => {}
            other @ (Applied::Refused(_) | Applied::Outdated | Applied::NamespaceTerminating) => return Ok(other),
        }
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), &identity.namespace);
    metrics.wrote(Write::CreatePod);
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
            Ok(found) if is_ours(&found, owner_uid) => Ok(Applied::Done),
            Ok(_) => {
                let message = format!("an object named {name} exists and does not belong to this sandbox; delete it");
                Ok(Applied::Refused(Trouble::new(Reason::ForeignObject, message)))
            }
            Err(_) => Ok(Applied::Outdated),
        },
        Refusal::Refused(trouble) => Ok(Applied::Refused(trouble)),
        Refusal::NamespaceTerminating => Ok(Applied::NamespaceTerminating),
        Refusal::Outdated | Refusal::Unavailable => Ok(Applied::Outdated),
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
        Err(Refusal::Refused(trouble)) => Ok(Applied::Refused(trouble)),
        Err(Refusal::NamespaceTerminating) => Ok(Applied::NamespaceTerminating),
        Err(Refusal::Exists | Refusal::Outdated | Refusal::Unavailable) => Ok(Applied::Outdated),
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
