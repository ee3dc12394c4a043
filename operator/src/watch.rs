//! Watches of one namespace: fills the stores, and names the Sandboxes that something happened to.

use crate::{
    metrics::Metrics,
    observe::{Stores, label_selector},
    validate::template_name,
};
use crds::{Sandbox, SandboxTemplate};
use futures_util::{Stream, StreamExt, future, stream};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt, reflector,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use std::{convert::Infallible, fmt::Debug, sync::Arc};

/// A Sandbox that may be one we cannot read: one bad object must not stop the watch of all others.
pub type Guarded = DeserializeGuard<Sandbox>;

/// What is annotated by `kubectl apply`: a copy of the whole object, of no use here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Objects in one answer of a list.
const PAGE: u32 = 500;

/// Everything watched in one namespace.
pub struct Watches<Triggers> {
    /// The Sandboxes.
    pub sandboxes: Store<Guarded>,
    /// What belongs to them.
    pub stores: Stores,
    /// Sandboxes to look at, endless. The stores fill only while this is polled.
    pub triggers: Triggers,
}

/// Begins to watch.
pub fn watch(
    client: &Client,
    namespace: &str,
    metrics: &Arc<Metrics>,
) -> Watches<impl Stream<Item = Result<ObjectRef<Guarded>, Infallible>> + Send + 'static> {
    let all = || watcher::Config::default().any_semantic().page_size(PAGE);
    let ours = || all().labels(label_selector());
    let (sandboxes, touched_sandboxes) = reflect::<Guarded>(client, namespace, all(), metrics);
    let (templates, touched_templates) =
        reflect::<DeserializeGuard<SandboxTemplate>>(client, namespace, all(), metrics);
    let (pods, touched_pods) = reflect::<Pod>(client, namespace, ours(), metrics);
    let (claims, touched_claims) = reflect::<PersistentVolumeClaim>(client, namespace, ours(), metrics);
    let users = sandboxes.clone();
    let triggers = stream::select_all([
        touched_sandboxes.map(|sandbox| ObjectRef::from_obj(&sandbox)).boxed(),
        touched_templates.flat_map(move |template| stream::iter(users_of(&users, &template.name_any()))).boxed(),
        touched_pods.flat_map(|pod| stream::iter(owners(&pod))).boxed(),
        touched_claims.flat_map(|claim| stream::iter(owners(&claim))).boxed(),
    ]);
    Watches { sandboxes, stores: Stores { pods, claims, templates }, triggers: triggers.map(Ok) }
}

/// A store, and the objects that change. Errors are counted and logged, and the watch goes on after a back-off.
fn reflect<K>(
    client: &Client,
    namespace: &str,
    config: watcher::Config,
    metrics: &Arc<Metrics>,
) -> (Store<K>, impl Stream<Item = K> + Send + 'static)
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let (metrics, namespace) = (Arc::clone(metrics), namespace.to_owned());
    let objects = watcher(api, config)
        .default_backoff()
        .modify(strip)
        .reflect(writer)
        .touched_objects()
        .filter_map(move |event| {
            let object = event
                .inspect_err(|error| {
                    metrics.watch_failed();
                    tracing::warn!(namespace, kind = %K::kind(&()), %error, "a watch was interrupted; it goes on after a pause");
                })
                .ok();
            future::ready(object)
        });
    (store, objects)
}

/// Drops what no decision reads: the largest part of many objects.
fn strip<K: Resource>(object: &mut K) {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

fn owners<K: Resource>(object: &K) -> Vec<ObjectRef<Guarded>> {
    let namespace = object.meta().namespace.as_deref();
    let owners = object.meta().owner_references.iter().flatten();
    owners.filter_map(|owner| ObjectRef::from_owner_ref(namespace, owner, ())).collect()
}

fn users_of(sandboxes: &Store<Guarded>, template: &str) -> Vec<ObjectRef<Guarded>> {
    let uses = |sandbox: &Guarded| sandbox.0.as_ref().is_ok_and(|sandbox| template_name(sandbox) == template);
    sandboxes
        .state()
        .iter()
        .filter(|sandbox| uses(sandbox))
        .map(|sandbox| ObjectRef::from_obj(sandbox.as_ref()))
        .collect()
}
