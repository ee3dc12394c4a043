//! The driver of one namespace: each trigger becomes one pass of observe, validate, decide, apply, report.

use crate::{
    apply::{Applied, ApplyError, apply, namespace_is_terminating},
    clock::Now,
    decide::{Act, Plan, decide},
    health::Readiness,
    history::History,
    inquire::Inquirer,
    isolation::Isolation,
    leader::Leading,
    metrics::Metrics,
    observe::{Stores, observe, observe_template},
    queue::Queue,
    render::prepare,
    report::{Reported, count, publish, report},
    status::{ready_words, says_something_new, suspended_reason, with_trouble},
    trouble::Trouble,
    validate::{Identity, ValidSandbox, template_name, validate},
    watch::{Guarded, Watches, watch_namespace},
};
use crds::SandboxStatus;
use futures_util::{Stream, StreamExt, stream::FuturesUnordered};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Client, ResourceExt,
    runtime::{
        events::{Recorder, Reporter},
        reflector::ObjectRef,
    },
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// Sandboxes looked at side by side.
const CONCURRENCY: usize = 16;
/// A pass that lost against another writer looks again after this, should the watch not bring the news earlier.
const OUTDATED_RETRY: Duration = Duration::from_secs(2);
/// A namespace that was not being deleted is asked about again after this.
const LIVING_FOR: Duration = Duration::from_secs(1);
/// Questions of one pass.
const QUESTIONS: usize = 3;
/// A refused deletion, say for want of a right, is tried again after this.
const REFUSED_RETRY: SignedDuration = SignedDuration::from_mins(2);

/// What all passes of one namespace share.
struct Context {
    client: Client,
    inquirer: Inquirer,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    stores: Stores,
    sandboxd_image: String,
    isolation: watch::Receiver<Isolation>,
    isolation_required: bool,
    began: Instant,
    /// When the namespace was last seen not to be deleted.
    seen_living: Mutex<Option<Instant>>,
    memory: Mutex<HashMap<String, Memory>>,
}

/// What is remembered of one Sandbox.
#[derive(Clone, Default)]
struct Memory {
    uid: String,
    history: History,
    /// The version that our last write has replaced: while the watch still shows it, the next one is on its way.
    superseded: Option<String>,
}

/// What a namespace is looked after with.
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
    /// Whether the cluster isolates the network of sandboxes.
    pub isolation: watch::Receiver<Isolation>,
    /// Whether it has to.
    pub isolation_required: bool,
}

/// After how long to look again, if the watches bring no news, and what came of a pass, as a label.
type Outcome = (Option<Duration>, &'static str);
/// A pass that has ended, with the name of its Sandbox.
type Ended = (String, Result<Option<Duration>, ApplyError>);

/// Looks after one namespace until told to stop; passes that have begun are finished. Until it leads it only keeps its stores warm.
pub async fn run(deps: Deps, namespace: String, stop: CancellationToken) {
    let Deps { client, metrics, readiness, mut leading, sandboxd_image, isolation, isolation_required } = deps;
    let Watches { sandboxes, stores, triggers } =
        watch_namespace(&client, &namespace, &metrics, &readiness, isolation.clone());
    metrics.count_sandboxes(&namespace, sandboxes.clone());
    let reporter = Reporter { controller: "codeexec-operator".to_owned(), instance: None };
    let context = Arc::new(Context {
        recorder: Recorder::new(client.clone(), reporter),
        inquirer: Inquirer::new(client.clone(), namespace.clone()),
        client,
        metrics,
        stores: stores.clone(),
        sandboxd_image,
        isolation,
        isolation_required,
        began: Instant::now(),
        seen_living: Mutex::default(),
        memory: Mutex::default(),
    });
    let first_lists = {
        let (stores, sandboxes, namespace) = (stores, sandboxes.clone(), namespace.clone());
        async move {
            let ready = tokio::join!(
                sandboxes.wait_until_ready(),
                stores.pods.wait_until_ready(),
                stores.claims.wait_until_ready(),
                stores.mountable.wait_until_ready(),
                stores.templates.wait_until_ready(),
            );
            if let (Ok(()), Ok(()), Ok(()), Ok(()), Ok(())) = ready {
                tracing::info!(namespace, sandboxes = sandboxes.len(), "the namespace is known");
            }
        }
    };
    let passes = async {
        let mut triggers = triggers.boxed();
        // Who is told to stop before the first lists has nothing to finish; the applier would wait for them.
        let begin = async { tokio::join!(leading.begun(), first_lists) };
        tokio::select! {
            () = stop.cancelled() => return,
            _ = begin => {}
            () = drain(&mut triggers) => {}
        }
        let mut queue = Queue::default();
        // What was drained is still to be looked at, like everything else that a new leader finds.
        sandboxes.state().iter().for_each(|sandbox| queue.push(sandbox.name_any(), Instant::now()));
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < CONCURRENCY
                && let Some(name) = queue.pop(Instant::now())
            {
                if let Some(sandbox) = sandboxes.get(&ObjectRef::new(&name).within(&namespace)) {
                    running.push(Box::pin(pass(name, sandbox, &context)));
                } else {
                    context.lock().remove(&name);
                    queue.done(name, None);
                }
            }
            let due = queue.next_due().filter(|_| running.len() < CONCURRENCY);
            tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = running.next(), if !running.is_empty() => settle(&mut queue, &namespace, ended),
                Some(trigger) = triggers.next() => queue.push(trigger.name, Instant::now()),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
        while running.next().await.is_some() {}
    };
    passes.await;
}

/// Polls a stream, whatever it says: the stores fill only by that.
async fn drain(triggers: &mut (impl Stream + Unpin)) {
    while triggers.next().await.is_some() {}
}

/// One pass, measured.
async fn pass(name: String, sandbox: Arc<Guarded>, context: &Context) -> Ended {
    let began = Instant::now();
    let outcome = Box::pin(reconcile(sandbox, context)).await;
    let result = outcome.as_ref().map_or("failed", |(_, result)| *result);
    context.metrics.reconciled("Sandbox", result, began.elapsed());
    (name, outcome.map(|(again, _)| again))
}

/// Puts it in again for when it is to be looked at next.
fn settle(queue: &mut Queue<String>, namespace: &str, (name, outcome): Ended) {
    let now = Instant::now();
    match outcome {
        Ok(again) => queue.done(name, again.map(|wait| now + wait)),
        Err(error) => {
            let retry_ms = u64::try_from(queue.failed(name.clone(), now).as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(sandbox.name = name, sandbox.namespace = namespace, %error, retry_ms, "a pass failed");
        }
    }
}

impl Context {
    /// Nothing is left half-written in it, so a poisoned lock is as good as any.
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        let uptime = SignedDuration::try_from(self.began.elapsed()).unwrap_or(SignedDuration::MAX);
        Now { time: Timestamp::now(), uptime }
    }

    /// Asked before each write, but not more often than once a second.
    async fn namespace_is_terminating(&self, namespace: &str) -> bool {
        let seen = || self.seen_living.lock().unwrap_or_else(PoisonError::into_inner);
        if seen().is_some_and(|at| at.elapsed() < LIVING_FOR) {
            return false;
        }
        let terminating = namespace_is_terminating(&self.client, namespace).await;
        *seen() = (!terminating).then(Instant::now);
        terminating
    }

    fn recall(&self, name: &str, uid: &str) -> History {
        self.lock()
            .get(name)
            .filter(|memory| memory.uid == uid)
            .map(|memory| memory.history.clone())
            .unwrap_or_default()
    }

    fn remember(&self, name: &str, uid: &str, history: History) {
        self.with_memory(name, uid, |memory| memory.history = history);
    }

    /// Changes what is remembered of the Sandbox of this UID; that of an earlier one of its name is dropped.
    fn with_memory(&self, name: &str, uid: &str, change: impl FnOnce(&mut Memory)) {
        let mut memory = self.lock();
        let known = memory.entry(name.to_owned()).or_default();
        if known.uid != uid {
            *known = Memory { uid: uid.to_owned(), ..Memory::default() };
        }
        change(known);
    }

    fn is_superseded(&self, name: &str, uid: &str, version: &str) -> bool {
        let memory = self.lock();
        let known = memory.get(name).filter(|memory| memory.uid == uid);
        known.is_some_and(|memory| memory.superseded.as_deref() == Some(version))
    }
}

async fn reconcile(sandbox: Arc<Guarded>, context: &Context) -> Result<Outcome, ApplyError> {
    let sandbox = match &sandbox.0 {
        Ok(sandbox) => sandbox,
        Err(invalid) => {
            // It stays as it is until somebody changes it.
            tracing::warn!(sandbox.name = invalid.metadata.name, error = invalid.error, "a Sandbox cannot be read");
            return Ok((None, "nothing"));
        }
    };
    // A Sandbox that is being deleted gets no writes; its children go by their owner references.
    if sandbox.metadata.deletion_timestamp.is_some() {
        return Ok((None, "nothing"));
    }
    wait_for_first_lists(&context.stores).await;
    let namespace = sandbox.namespace().unwrap_or_default();
    let template = observe_template(&context.stores, &namespace, template_name(sandbox));
    let template = template.as_ref().map(|template| template.0.as_ref().map_err(|invalid| invalid.error.clone()));
    let valid = match validate(sandbox, template) {
        Ok(valid) => valid,
        Err(error) => {
            tracing::warn!(sandbox.name = sandbox.name_any(), %error, "a Sandbox cannot be used");
            return Ok((None, "nothing"));
        }
    };
    let Identity { name, uid, resource_version, .. } = &valid.identity;
    if context.is_superseded(name, uid, resource_version) {
        return Ok((Some(OUTDATED_RETRY), "outdated"));
    }
    let isolation = (context.isolation.borrow().clone(), context.isolation_required);
    let mut seen = observe(&context.stores, &valid, isolation);
    let history = context.recall(&valid.identity.name, &valid.identity.uid);
    let mut plan = decide(&valid, &seen, &history, context.now());
    for _ in 0..QUESTIONS {
        let Some(question) = plan.question.take() else { break };
        seen.facts = Box::pin(context.inquirer.inquire(question, seen.facts)).await;
        plan = decide(&valid, &seen, &history, context.now());
    }
    Box::pin(carry_out(context, &valid, plan)).await
}

/// The stores of pods, claims and templates may fill after that of the sandboxes; until then nothing can be said about absence.
async fn wait_for_first_lists(stores: &Stores) {
    // An error means that the watches have ended, and this pass with them.
    let _ = tokio::join!(
        stores.pods.wait_until_ready(),
        stores.claims.wait_until_ready(),
        stores.mountable.wait_until_ready(),
        stores.templates.wait_until_ready()
    );
}

async fn carry_out(context: &Context, valid: &ValidSandbox, plan: Plan) -> Result<Outcome, ApplyError> {
    let Plan { identity, act, mut status, mut history, mut requeue, question: _ } = plan;
    if act == Act::Nothing && !says_something_new(&valid.status, &status) {
        context.remember(&identity.name, &identity.uid, history);
        return Ok((requeue_after(requeue), "nothing"));
    }
    if context.namespace_is_terminating(&identity.namespace).await {
        return Ok((None, "namespace terminating"));
    }
    let claim = status.binding.as_ref().map_or(valid.child.as_str(), |binding| &binding.workspace_claim);
    let prepared = prepare(&act, valid, claim, &context.sandboxd_image);
    let applied = Box::pin(apply(&context.client, &identity, &act, prepared)).await?;
    log_decision(&identity.name, &identity.namespace, &act, &applied, &status);
    let mut result = "wrote";
    match (applied, &act) {
        (Applied::Done, Act::Start { .. }) => history.trouble = None,
        (Applied::Done, Act::DeletePod { .. }) => context.metrics.pod_deleted(deletion_cause(&status)),
        (Applied::Done, _) => {}
        (Applied::Refused(trouble), Act::Grow(_, size)) => {
            history.resize_refused = Some((size.clone(), trouble));
            // Said by the next pass, which is due at once.
            context.remember(&identity.name, &identity.uid, history);
            return Ok((Some(Duration::ZERO), "refused"));
        }
        (Applied::Refused(trouble), _) => {
            status = with_trouble(status, &valid.status, &trouble, context.now().time);
            history = history.failed(trouble);
            requeue = Some(history.wait(context.now().uptime, valid.activity.as_ref()).unwrap_or(REFUSED_RETRY));
            result = "refused";
        }
        (Applied::Outdated, _) => return Ok((Some(OUTDATED_RETRY), "outdated")),
        (Applied::NamespaceTerminating, _) => return Ok((None, "namespace terminating")),
    }
    let starting_for = history
        .sight
        .as_ref()
        .and_then(|sight| Duration::try_from(context.now().uptime.saturating_sub(sight.seen)).ok());
    context.remember(&identity.name, &identity.uid, history);
    match report(&context.client, &identity, &valid.status, &status).await? {
        Reported::Written => {
            let replaced = Some(identity.resource_version.clone());
            context.with_memory(&identity.name, &identity.uid, |memory| memory.superseded = replaced);
            count(&context.metrics, &valid.status, &status, starting_for);
            publish(&context.recorder, &identity, &valid.status, &status).await;
        }
        Reported::Nothing => {}
        Reported::Outdated => return Ok((Some(OUTDATED_RETRY), "outdated")),
    }
    Ok((requeue_after(requeue), result))
}

/// Why a pod is deleted, as a label.
fn deletion_cause(status: &SandboxStatus) -> &'static str {
    match suspended_reason(status) {
        Some(cause) => cause.as_str(),
        None => Trouble::of_ready(status).map_or("other", |trouble| trouble.reason.as_str()),
    }
}

fn requeue_after(wait: Option<SignedDuration>) -> Option<Duration> {
    match wait.map(Duration::try_from) {
        // A little late rather than a little early, which would only look once more.
        Some(Ok(wait)) => Some(wait + Duration::from_millis(5)),
        Some(Err(_)) => Some(OUTDATED_RETRY),
        None => None,
    }
}

/// One line for each decision that writes.
fn log_decision(name: &str, namespace: &str, act: &Act, applied: &Applied, status: &crds::SandboxStatus) {
    let (act, applied) = (act_label(act), applied_label(applied));
    let phase = status.phase.map(crds::Phase::as_str);
    let (reason, detail) = ready_words(status).unzip();
    tracing::info!(sandbox.name = name, sandbox.namespace = namespace, act, applied, phase, reason, detail, "decided");
}

const fn act_label(act: &Act) -> &'static str {
    match act {
        Act::Nothing => "report",
        Act::Start { new_claim: true } => "create claim and pod",
        Act::Start { new_claim: false } => "create pod",
        Act::TakeBack(_) => "take back claim",
        Act::Grow(..) => "enlarge claim",
        Act::DeletePod { .. } => "delete pod",
        Act::DeleteSandbox => "delete sandbox",
    }
}

fn applied_label(applied: &Applied) -> &str {
    match applied {
        Applied::Done => "done",
        Applied::Refused(trouble) => trouble.reason.as_str(),
        Applied::Outdated => "outdated",
        Applied::NamespaceTerminating => "namespace terminating",
    }
}
