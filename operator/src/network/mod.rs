//! The network policies of a namespace, and what its templates are told about themselves.
//!
//! [`policy`] says what should be (pure), [`write`] does it; [`crate::templates`] says what is wrong with a template. Each pass looks at
//! one template, or at the policy that denies everything. One pass at a time, and a few requests for each: templates are few.

pub mod policy;
pub mod settings;
pub mod write;

use crate::{
    apply::ApplyError,
    health::Readiness,
    isolation::Isolation,
    leader::Leading,
    metrics::Metrics,
    queue::Queue,
    templates::{self, Memory},
    trouble::Trouble,
    watch::{Change, reflect, strip},
};
use crds::{Reason, SandboxTemplate};
use futures_util::{
    FutureExt, Stream, StreamExt,
    future::BoxFuture,
    stream::{self, FuturesUnordered},
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::{
    Client, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{
        events::{Recorder, Reporter},
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use policy::{Act, DENY_ALL, Kind, Wanted, decide_deny_all, decide_template, kind, policy_name};
use settings::NetworkSettings;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use write::{Written, write};

/// A pass that lost against another writer looks again after this, should the watch not bring the news earlier.
const OUTDATED_RETRY: Duration = Duration::from_secs(2);
/// A policy whose template is gone is looked at again after this, while pods need it.
const NEEDED_RETRY: Duration = Duration::from_secs(15);

/// What a namespace's networks are looked after with.
pub struct Deps {
    /// Client of the cluster.
    pub client: Client,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Told how the watches fare.
    pub readiness: Arc<Readiness>,
    /// Says when passes may begin.
    pub leading: Leading,
    /// Image of the init and `files` containers.
    pub sandboxd_image: String,
    /// Where the API server is, and the rest.
    pub settings: NetworkSettings,
    /// Whether policies are enforced.
    pub isolation: watch::Receiver<Isolation>,
    /// Told when a policy that is no template's changes, so that enforcement is tried again.
    pub disturbed: Arc<Notify>,
}

/// What a pass is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    /// The policy that denies everything. It comes first.
    DenyAll,
    /// A template and its policy, by the name of the template.
    Template(String),
}

/// News of a watch.
enum News {
    Look(Key),
    LookAtAll,
    /// A policy that is nobody's here.
    Disturbed,
}

/// What all passes of one namespace share.
struct Context {
    client: Client,
    recorder: Recorder,
    namespace: String,
    sandboxd_image: String,
    settings: NetworkSettings,
    isolation: watch::Receiver<Isolation>,
    disturbed: Arc<Notify>,
    templates: Store<DeserializeGuard<SandboxTemplate>>,
    policies: Store<NetworkPolicy>,
    memory: Mutex<HashMap<String, Remembered>>,
}

/// What is remembered of one template.
#[derive(Clone, Default)]
struct Remembered {
    status: Memory,
    /// The version of its policy that was written last, and from what: the API server may keep it in other words.
    written: Option<(String, NetworkPolicy)>,
}

/// Looks after the policies and templates of one namespace until told to stop; a pass that has begun is finished.
pub async fn run(deps: Deps, namespace: String, stop: CancellationToken) {
    let Deps { client, metrics, readiness, mut leading, sandboxd_image, settings, isolation, disturbed } = deps;
    let (templates, touched_templates) = reflect::<DeserializeGuard<SandboxTemplate>>(
        &client,
        &namespace,
        watcher::Config::default(),
        strip,
        &metrics,
        &readiness,
    );
    let (policies, touched_policies) =
        reflect::<NetworkPolicy>(&client, &namespace, watcher::Config::default(), strip, &metrics, &readiness);
    let reporter = Reporter { controller: "codeexec-operator".to_owned(), instance: None };
    let context = Arc::new(Context {
        recorder: Recorder::new(client.clone(), reporter),
        client,
        namespace,
        sandboxd_image,
        settings,
        isolation: isolation.clone(),
        disturbed,
        templates: templates.clone(),
        policies: policies.clone(),
        memory: Mutex::default(),
    });
    let news = stream::select(
        touched_templates.map(|change| match change {
            Change::Of(template) => News::Look(Key::Template(template.name_any())),
            Change::Any => News::LookAtAll,
        }),
        touched_policies.map(|change| match change {
            Change::Of(policy) => news_of(&policy.name_any()),
            Change::Any => News::LookAtAll,
        }),
    )
    .boxed();
    let may_begin = async move {
        // An error means that the watches have ended, and this with them.
        let _ = tokio::join!(templates.wait_until_ready(), policies.wait_until_ready());
        leading.begun().await;
    };
    turn(&context, &metrics, may_begin.boxed(), news, isolation, &stop).await;
}

fn news_of(policy: &str) -> News {
    match kind(policy) {
        Kind::DenyAll => News::Look(Key::DenyAll),
        Kind::Template(template) => News::Look(Key::Template(template.to_owned())),
        Kind::Other => News::Disturbed,
    }
}

type Ended = (Key, Result<Option<Duration>, ApplyError>, Duration);

/// The loop: the stores fill only while it polls the news.
async fn turn(
    context: &Arc<Context>,
    metrics: &Metrics,
    mut may_begin: BoxFuture<'_, ()>,
    mut news: impl Stream<Item = News> + Unpin,
    mut isolation: watch::Receiver<Isolation>,
    stop: &CancellationToken,
) {
    let mut queue = Queue::default();
    let mut running: FuturesUnordered<BoxFuture<'static, Ended>> = FuturesUnordered::new();
    let (mut began, mut told) = (false, true);
    loop {
        let due = queue.next_due().filter(|_| began && running.is_empty());
        tokio::select! {
            () = stop.cancelled() => break,
            () = &mut may_begin, if !began => {
                began = true;
                look_at_all(context, &mut queue);
            }
            Some(piece) = news.next() => match piece {
                News::Look(key) => queue.push(key, Instant::now()),
                News::LookAtAll => look_at_all(context, &mut queue),
                News::Disturbed => context.disturbed.notify_one(),
            },
            changed = isolation.changed(), if told => {
                told = changed.is_ok();
                look_at_all(context, &mut queue);
            }
            Some(ended) = running.next(), if !running.is_empty() => settle(&mut queue, metrics, &context.namespace, ended),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                if let Some(key) = queue.pop(Instant::now()) {
                    running.push(timed(Arc::clone(context), key).boxed());
                }
            }
        }
    }
    while running.next().await.is_some() {}
}

async fn timed(context: Arc<Context>, key: Key) -> Ended {
    let began = Instant::now();
    let outcome = pass(&context, &key).await;
    (key, outcome, began.elapsed())
}

fn settle(queue: &mut Queue<Key>, metrics: &Metrics, namespace: &str, (key, outcome, took): Ended) {
    let now = Instant::now();
    let (kind, name) = match &key {
        Key::DenyAll => ("NetworkPolicy", DENY_ALL.to_owned()),
        Key::Template(name) => ("SandboxTemplate", name.clone()),
    };
    metrics.reconciled(kind, if outcome.is_ok() { "done" } else { "failed" }, took);
    match outcome {
        Ok(again) => queue.done(key, again.map(|wait| now + wait)),
        Err(error) => {
            let retry_ms = u64::try_from(queue.failed(key, now).as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(kind, name, namespace, %error, retry_ms, "a pass failed");
        }
    }
}

/// Everything that exists, and what was left by templates that do not.
fn look_at_all(context: &Context, queue: &mut Queue<Key>) {
    let now = Instant::now();
    queue.push(Key::DenyAll, now);
    for template in context.templates.state() {
        queue.push(Key::Template(template.name_any()), now);
    }
    for policy in context.policies.state() {
        if let News::Look(key) = news_of(&policy.name_any()) {
            queue.push(key, now);
        }
    }
}

/// One pass; says after which time to look again.
async fn pass(context: &Context, key: &Key) -> Result<Option<Duration>, ApplyError> {
    match key {
        Key::DenyAll => deny_all(context).await,
        Key::Template(name) => template(context, name).await,
    }
}

async fn deny_all(context: &Context) -> Result<Option<Duration>, ApplyError> {
    let Context { client, namespace, settings, policies, .. } = context;
    let found = policies.get(&ObjectRef::new(DENY_ALL).within(namespace));
    let act = decide_deny_all(namespace, settings.helm_release.as_ref(), found.as_deref());
    let words = match &act {
        Act::Create(_) => "the policy that denies everything was missing and is made anew",
        _ => "the policy that denies everything was changed and is restored",
    };
    match write(client, namespace, "", DENY_ALL, act).await? {
        Written::Done(_) => {
            tracing::warn!(namespace, policy = DENY_ALL, "{words}");
            context.disturbed.notify_one();
            Ok(None)
        }
        Written::Outdated => Ok(Some(OUTDATED_RETRY)),
        Written::Refused(trouble) => {
            tracing::error!(
                namespace,
                policy = DENY_ALL,
                detail = trouble.message,
                "the policy that denies everything is refused"
            );
            Ok(Some(NEEDED_RETRY))
        }
        Written::Nothing | Written::Needed | Written::NamespaceTerminating => Ok(None),
    }
}

async fn template(context: &Context, name: &str) -> Result<Option<Duration>, ApplyError> {
    let Context { client, namespace, settings, templates, policies, .. } = context;
    let guarded = templates.get(&ObjectRef::new(name).within(namespace));
    let silent = crds::Network::default();
    let wanted = match guarded.as_ref().map(|guarded| &guarded.0) {
        None => Wanted::NoTemplate,
        Some(Err(_)) => Wanted::Unreadable,
        Some(Ok(template)) if template.metadata.deletion_timestamp.is_some() => Wanted::NoTemplate,
        Some(Ok(template)) => Wanted::Network(template.spec.network.as_ref().unwrap_or(&silent)),
    };
    let found = policies.get(&ObjectRef::new(&policy_name(name)).within(namespace));
    let act = decide_template(namespace, name, wanted, settings.api_access(), found.as_deref());
    let trouble = match write_template(context, name, act).await? {
        Written::Nothing | Written::Done(_) => no_api_server(settings, &wanted),
        Written::Refused(trouble) => Some(trouble),
        Written::Needed => return Ok(Some(NEEDED_RETRY)),
        Written::Outdated => return Ok(Some(OUTDATED_RETRY)),
        Written::NamespaceTerminating => return Ok(None),
    };
    let Some(guarded) = guarded.filter(|guarded| guarded.meta().deletion_timestamp.is_none()) else {
        context.lock().remove(name);
        return Ok(None);
    };
    let isolation = context.isolation.borrow().clone();
    let mut memory = context.recall(name).status;
    let look =
        templates::Look { client, recorder: &context.recorder, namespace, sandboxd_image: &context.sandboxd_image };
    let again = templates::tell(&look, &guarded, &mut memory, trouble, &isolation).await;
    context.lock().entry(name.to_owned()).or_default().status = memory;
    again
}

/// Writes the policy of a template, unless what is there is what was written from the same before.
async fn write_template(context: &Context, name: &str, act: Act) -> Result<Written, ApplyError> {
    let Context { client, namespace, .. } = context;
    let intended = match &act {
        Act::Create(policy) | Act::Restore(policy) => {
            Some(NetworkPolicy { metadata: kube::api::ObjectMeta::default(), ..(**policy).clone() })
        }
        Act::Nothing | Act::Delete { .. } | Act::DeleteWhenUnused { .. } | Act::Foreign => None,
    };
    if let (Act::Restore(policy), Some(intended), Some((version, written))) =
        (&act, &intended, context.recall(name).written)
        && policy.metadata.resource_version.as_ref() == Some(&version)
        && written == *intended
    {
        return Ok(Written::Nothing);
    }
    let words = match &act {
        Act::Create(_) => "made",
        Act::Restore(_) => "changed",
        Act::Nothing | Act::Delete { .. } | Act::DeleteWhenUnused { .. } | Act::Foreign => "deleted",
    };
    let policy = policy_name(name);
    let written = write(client, namespace, name, &policy, act).await?;
    if let Written::Done(version) = &written {
        tracing::info!(namespace, policy, template = name, "the policy of a template was {words}");
        let written = version.clone().zip(intended);
        context.lock().entry(name.to_owned()).or_default().written = written;
    }
    Ok(written)
}

/// A template that lets its sandboxes reach the API server, where nobody said which that is.
fn no_api_server(settings: &NetworkSettings, wanted: &Wanted<'_>) -> Option<Trouble> {
    let Wanted::Network(network) = wanted else { return None };
    let unknown = network.managed && network.api_access && settings.api_access().is_none();
    let message = "network.apiAccess: this operator was not told where the API server is, so its sandboxes cannot reach it; set \
                   --api-access-namespace, --api-access-selector and --api-access-port";
    unknown.then(|| Trouble::new(Reason::TemplateInvalid, message))
}

impl Context {
    /// Nothing is left half-written in it, so a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Remembered>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recall(&self, name: &str) -> Remembered {
        self.lock().get(name).cloned().unwrap_or_default()
    }
}
