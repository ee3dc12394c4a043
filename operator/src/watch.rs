//! Watches of one namespace: fills the stores, and names the Sandboxes that something happened to.

use crate::{
    health::Readiness,
    isolation::Isolation,
    metrics::Metrics,
    observe::{Stores, label_selector, mountable_selector, uses_claim},
    validate::template_name,
};
use crds::{Sandbox, SandboxTemplate, keys};
use futures_util::{
    Stream, StreamExt, future,
    stream::{self, BoxStream},
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodSpec, Volume};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt, reflector,
        reflector::{ObjectRef, Store},
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, sync::Arc, time::Duration};
use tokio::sync::watch;

/// A Sandbox that may be one we cannot read: one bad object must not stop the watch of all others.
pub type Guarded = DeserializeGuard<Sandbox>;

/// What is annotated by `kubectl apply`: a copy of the whole object, of no use here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Objects in one answer of a list.
const PAGE: u32 = 500;
/// How often the watches show that they are polled, and when they count as stuck.
const PULSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(1));

/// Everything watched in one namespace.
pub struct Watches<Triggers> {
    /// The Sandboxes.
    pub sandboxes: Store<Guarded>,
    /// What belongs to them.
    pub stores: Stores,
    /// Sandboxes to look at, endless. The stores fill only while this is polled.
    pub triggers: Triggers,
}

/// What a watch tells, when its store shows it.
pub(crate) enum Change<K> {
    /// This object is new, changed or gone.
    Of(K),
    /// The store was filled anew: since an interruption anything may have changed or gone.
    Any,
}

/// Begins to watch.
pub fn watch_namespace(
    client: &Client,
    namespace: &str,
    metrics: &Arc<Metrics>,
    readiness: &Arc<Readiness>,
    isolation: watch::Receiver<Isolation>,
) -> Watches<impl Stream<Item = ObjectRef<Guarded>> + Send + 'static> {
    let all = || watcher::Config::default().any_semantic().page_size(PAGE);
    let ours = || all().labels(label_selector());
    let (sandboxes, touched_sandboxes) = reflect::<Guarded>(client, namespace, all(), strip, metrics, readiness);
    let (templates, touched_templates) =
        reflect::<DeserializeGuard<SandboxTemplate>>(client, namespace, all(), strip, metrics, readiness);
    let (pods, touched_pods) = reflect::<Pod>(client, namespace, ours(), strip_pod, metrics, readiness);
    let (claims, touched_claims) =
        reflect::<PersistentVolumeClaim>(client, namespace, ours(), strip, metrics, readiness);
    let mountable_ones = all().labels(&mountable_selector());
    let (mountable, touched_mountable) =
        reflect::<PersistentVolumeClaim>(client, namespace, mountable_ones, strip, metrics, readiness);
    let (users, mounters, mounted, everybody) =
        (sandboxes.clone(), sandboxes.clone(), templates.clone(), sandboxes.clone());
    let users = move |template: &DeserializeGuard<SandboxTemplate>| users_of(&users, &template.name_any());
    let mounters = move |claim: &PersistentVolumeClaim| mounters_of(&mounters, &mounted, &claim.name_any());
    let (every, limit) = PULSE;
    let beats = readiness.pulse(&format!("the watches of namespace {namespace}"), limit).beats(every);
    let triggers = stream::select_all([
        concerned(touched_sandboxes, &sandboxes, |sandbox| vec![ObjectRef::from_obj(sandbox)]),
        concerned(touched_templates, &sandboxes, users),
        concerned(touched_pods, &sandboxes, owners),
        concerned(touched_claims, &sandboxes, owners),
        concerned(touched_mountable, &sandboxes, mounters),
        changes(isolation).flat_map(move |()| stream::iter(references(&everybody, |_| true))).boxed(),
        beats.boxed(),
    ]);
    Watches { sandboxes, stores: Stores { pods, claims, mountable, templates }, triggers }
}

/// The Sandboxes that the changes of a watch concern.
fn concerned<K: Send + 'static>(
    changes: impl Stream<Item = Change<K>> + Send + 'static,
    sandboxes: &Store<Guarded>,
    of: impl Fn(&K) -> Vec<ObjectRef<Guarded>> + Send + 'static,
) -> BoxStream<'static, ObjectRef<Guarded>> {
    let sandboxes = sandboxes.clone();
    let concerned = move |change| match change {
        Change::Of(object) => of(&object),
        Change::Any => sandboxes.state().iter().map(|sandbox| ObjectRef::from_obj(sandbox.as_ref())).collect(),
    };
    changes.map(concerned).flat_map(stream::iter).boxed()
}

/// An item for each change; endless.
fn changes(isolation: watch::Receiver<Isolation>) -> impl Stream<Item = ()> {
    let next = |mut isolation: watch::Receiver<Isolation>| async move {
        match isolation.changed().await {
            Ok(()) => Some(((), isolation)),
            // Nobody is left to say anything.
            Err(_) => future::pending().await,
        }
    };
    stream::unfold(isolation, next)
}

/// A store, and what changes in it. The objects lack what `strip` drops. Errors are counted and logged, and the watch goes on after a
/// back-off.
pub(crate) fn reflect<K>(
    client: &Client,
    namespace: &str,
    config: watcher::Config,
    strip: fn(&mut K),
    metrics: &Arc<Metrics>,
    readiness: &Arc<Readiness>,
) -> (Store<K>, impl Stream<Item = Change<K>> + Send + 'static)
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
    let group = K::group(&());
    let resource = if group.is_empty() { K::plural(&()).into_owned() } else { format!("{}.{group}", K::plural(&())) };
    let health = readiness.watch(namespace, &resource);
    let (metrics, namespace) = (Arc::clone(metrics), namespace.to_owned());
    let changes = watcher::watcher(api, config)
        .default_backoff()
        .inspect(move |event| health.observe(event))
        .modify(strip)
        .reflect(writer)
        .filter_map(move |event| {
            future::ready(match event {
                Ok(Event::Apply(object) | Event::Delete(object)) => Some(Change::Of(object)),
                Ok(Event::InitDone) => Some(Change::Any),
                // The store does not show them before the end of the list.
                Ok(Event::Init | Event::InitApply(_)) => None,
                Err(error) => {
                    metrics.watch_failed(&K::kind(&()));
                    tracing::warn!(namespace, kind = %K::kind(&()), %error, "a watch was interrupted; it goes on after a pause");
                    None
                }
            })
        });
    (store, changes)
}

/// Drops what no decision reads: the largest part of many objects.
pub(crate) fn strip<K: Resource>(object: &mut K) {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// Of a pod's spec no more than its node and its claims are read, and the spec is nearly all of it.
fn strip_pod(pod: &mut Pod) {
    strip(pod);
    let spec = pod.spec.take().unwrap_or_default();
    let is_claim = |volume: &Volume| volume.persistent_volume_claim.is_some();
    let volumes = spec.volumes.map(|volumes| volumes.into_iter().filter(is_claim).collect());
    pod.spec = Some(PodSpec { node_name: spec.node_name, volumes, ..PodSpec::default() });
    if let Some(status) = &mut pod.status {
        let containers = status.init_container_statuses.iter_mut().chain(&mut status.container_statuses).flatten();
        for container in containers {
            (container.volume_mounts, container.resources, container.allocated_resources) = (None, None, None);
            container.image_id = String::new();
        }
    }
}

/// The Sandbox that a pod or claim names; a claim that is kept has no owner reference. A claim that an earlier sandbox has left is
/// of interest to the one of that name, too.
fn owners<K: Resource>(object: &K) -> Vec<ObjectRef<Guarded>> {
    let namespace = object.meta().namespace.as_deref();
    let owners = object.meta().owner_references.iter().flatten();
    let mut owners: Vec<_> = owners.filter_map(|owner| ObjectRef::from_owner_ref(namespace, owner, ())).collect();
    let named = object.meta().annotations.as_ref().and_then(|annotations| annotations.get(keys::SANDBOX));
    if let (true, Some(name)) = (owners.is_empty(), named) {
        owners.push(ObjectRef::new(name).within(namespace.unwrap_or_default()));
    }
    owners
}

fn users_of(sandboxes: &Store<Guarded>, template: &str) -> Vec<ObjectRef<Guarded>> {
    references(sandboxes, |sandbox| template_name(sandbox) == template)
}

fn mounters_of(
    sandboxes: &Store<Guarded>,
    templates: &Store<DeserializeGuard<SandboxTemplate>>,
    claim: &str,
) -> Vec<ObjectRef<Guarded>> {
    references(sandboxes, |sandbox| {
        let namespace = sandbox.namespace().unwrap_or_default();
        let template = templates.get(&ObjectRef::new(template_name(sandbox)).within(&namespace));
        uses_claim(sandbox, template.as_ref().and_then(|template| template.0.as_ref().ok()), claim)
    })
}

fn references(sandboxes: &Store<Guarded>, which: impl Fn(&Sandbox) -> bool) -> Vec<ObjectRef<Guarded>> {
    sandboxes
        .state()
        .iter()
        .filter(|sandbox| sandbox.0.as_ref().is_ok_and(&which))
        .map(|sandbox| ObjectRef::from_obj(sandbox.as_ref()))
        .collect()
}
