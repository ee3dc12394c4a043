//! What is created: sandboxes, or bare pods with a claim.

use crate::{
    bench::{Bench, resource},
    board::{Sight, Slim, pod_standing, sandbox_standing},
    objects::{self, Bare},
};
use anyhow::{Context as _, bail};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api,
    api::PostParams,
    core::{ApiResource, DynamicObject},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

/// Attempts at one creation.
const ATTEMPTS: u32 = 6;
/// Wait after the first failure, doubled with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// An answer takes at most this.
const DEADLINE: Duration = Duration::from_mins(1);

/// A kind of thing that is created until it is Ready.
pub enum Subject {
    /// Sandboxes of a template.
    Sandboxes(Box<Sandboxes>),
    /// Pods with one claim each.
    Bare(Box<BarePods>),
}

/// Where sandboxes are made and watched, and from which template.
pub struct Sandboxes {
    made: Api<DynamicObject>,
    watched: Api<Slim>,
    template: &'static str,
}

/// Where claims and pods are made and watched, and what they are like.
pub struct BarePods {
    claims: Api<PersistentVolumeClaim>,
    pods: Api<Pod>,
    watched: Api<Slim>,
    like: Bare,
}

impl Subject {
    /// Sandboxes of this template.
    pub fn sandboxes(bench: &Bench, template: &'static str) -> Self {
        let (client, kind) = (&bench.client, resource("Sandbox"));
        Self::Sandboxes(Box::new(Sandboxes {
            made: Api::namespaced_with(client.clone(), &bench.namespace, &kind),
            watched: Api::namespaced_with(client.clone(), &bench.namespace, &kind),
            template,
        }))
    }

    /// Pods and claims like these.
    pub fn bare(bench: &Bench, like: Bare) -> Self {
        let (client, namespace) = (&bench.client, &bench.bare_namespace);
        Self::Bare(Box::new(BarePods {
            claims: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
            watched: Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Pod>(&())),
            like,
        }))
    }

    /// In words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sandboxes(_) => "sandboxes",
            Self::Bare(_) => "bare pods with a claim",
        }
    }

    /// A watch of all of them.
    pub async fn sight(&self) -> anyhow::Result<Sight> {
        match self {
            Self::Sandboxes(subject) => Sight::open(subject.watched.clone(), sandbox_standing).await,
            Self::Bare(subject) => Sight::open(subject.watched.clone(), pod_standing).await,
        }
    }

    /// Makes one.
    pub async fn create(&self, name: &str) -> anyhow::Result<()> {
        match self {
            Self::Sandboxes(subject) => {
                post(&subject.made, &serde_json::from_value(objects::sandbox(name, subject.template))?, name).await
            }
            Self::Bare(subject) => {
                let (claim, pod) = subject.like.named(name);
                post(&subject.claims, &claim, name).await?;
                post(&subject.pods, &pod, name).await
            }
        }
    }

    /// Makes many, so many side by side, each after `turn` has let it go. Gives their names, and when each was begun.
    pub async fn create_many<Turn: Future<Output = anyhow::Result<()>>>(
        &self,
        prefix: &str,
        count: usize,
        concurrency: usize,
        turn: impl Fn(usize) -> Turn,
    ) -> anyhow::Result<Vec<(String, Instant)>> {
        stream::iter(0..count)
            .then(|number| {
                let turn = turn(number);
                async move { turn.await.map(|()| format!("{prefix}-{number:05}")) }
            })
            .map(|name| async move {
                let (name, begun) = (name?, Instant::now());
                self.create(&name).await?;
                anyhow::Ok((name, begun))
            })
            .buffer_unordered(concurrency)
            .try_collect()
            .await
    }
}

/// Creates an object; a server that is at fault is asked again.
pub async fn post<K>(api: &Api<K>, object: &K, name: &str) -> anyhow::Result<()>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let mut failure = anyhow::anyhow!("not tried");
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(FIRST_WAIT * 2_u32.pow(attempt - 1)).await;
        }
        match tokio::time::timeout(DEADLINE, api.create(&PostParams::default(), object)).await {
            Ok(Ok(_)) => return Ok(()),
            // The answer to an earlier attempt was lost.
            Ok(Err(kube::Error::Api(status))) if status.code == 409 && attempt > 0 => return Ok(()),
            Ok(Err(kube::Error::Api(status))) if (400..500).contains(&status.code) && status.code != 429 => {
                bail!("creating {name} was refused: {}", status.message)
            }
            Ok(Err(error)) => failure = error.into(),
            Err(_) => failure = anyhow::anyhow!("no answer within {} s", DEADLINE.as_secs()),
        }
    }
    Err(failure).with_context(|| format!("creating {name}"))
}
