//! The driver of one namespace: each trigger becomes one pass of observe, validate, decide, apply, report.

use crate::{
    apply::{Applied, ApplyError, apply, namespace_is_terminating},
    decide::{Act, Plan, decide},
    health::Readiness,
    history::History,
    metrics::Metrics,
    observe::{Stores, observe, observe_template},
    render::prepare,
    report::{Reported, publish, report},
    status::{ready_words, says_something_new, with_trouble},
    validate::{ValidSandbox, template_name, validate},
    watch::{Guarded, Watches, watch},
};
use futures_util::StreamExt;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Client, ResourceExt,
    runtime::{
        controller::{self, Action, Config},
        events::{Recorder, Reporter},
    },
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// Sandboxes looked at side by side.
const CONCURRENCY: u16 = 16;
/// First wait after a failed pass, doubled with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Longest wait after a failed pass.
const LONGEST_RETRY: Duration = Duration::from_mins(1);
/// A pass that lost against another writer looks again after this, should the watch not bring the news earlier.
const OUTDATED_RETRY: Duration = Duration::from_secs(2);
/// A refused deletion, say for want of a right, is tried again after this.
const REFUSED_RETRY: SignedDuration = SignedDuration::from_mins(2);

/// What all passes of one namespace share.
struct Context {
    client: Client,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    stores: Stores,
    sandboxd_image: String,
    memory: Mutex<HashMap<String, Memory>>,
}

/// What is remembered of one Sandbox.
#[derive(Clone, Default)]
struct Memory {
    uid: String,
    history: History,
    failures: u32,
}

/// What a namespace is looked after with.
pub struct Deps {
    /// Client of the cluster.
    pub client: Client,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Told when the watches have their first lists.
    pub readiness: Arc<Readiness>,
    /// Image of the init and `files` containers.
    pub sandboxd_image: String,
}

/// Looks after one namespace until told to stop; passes that have begun are finished.
pub async fn run(deps: Deps, namespace: String, stop: CancellationToken) {
    let Deps { client, metrics, readiness, sandboxd_image } = deps;
    let Watches { sandboxes, stores, triggers } = watch(&client, &namespace, &metrics);
    let reporter = Reporter { controller: "codeexec-operator".to_owned(), instance: None };
    let context = Arc::new(Context {
        recorder: Recorder::new(client.clone(), reporter),
        client,
        metrics,
        stores: stores.clone(),
        sandboxd_image,
        memory: Mutex::default(),
    });
    let first_lists = {
        let (stores, sandboxes, namespace) = (stores, sandboxes.clone(), namespace.clone());
        async move {
            let ready = tokio::join!(
                sandboxes.wait_until_ready(),
                stores.pods.wait_until_ready(),
                stores.claims.wait_until_ready(),
                stores.templates.wait_until_ready(),
            );
            if let (Ok(()), Ok(()), Ok(()), Ok(())) = ready {
                tracing::info!(namespace, sandboxes = sandboxes.len(), "the namespace is looked after");
                readiness.one_is_ready();
            }
        }
    };
    let passes = controller::applier(
        |sandbox, context| Box::pin(reconcile(sandbox, context)),
        retry_after_failure,
        Arc::clone(&context),
        sandboxes,
        triggers.take_until(stop.cancelled_owned()),
        Config::default().concurrency(CONCURRENCY),
    )
    .for_each(|pass| {
        forget_the_gone(&context, pass.err());
        std::future::ready(())
    });
    tokio::join!(first_lists, passes);
}

/// Drops the memory of a Sandbox that no longer exists. Failed passes were already logged by [`retry_after_failure`].
fn forget_the_gone<A: std::error::Error, B: std::error::Error>(
    context: &Context,
    error: Option<controller::Error<A, B>>,
) {
    match error {
        Some(controller::Error::ObjectNotFound(gone)) => {
            context.lock().remove(&gone.name);
        }
        Some(controller::Error::ReconcilerFailed(..)) | None => {}
        Some(error @ (controller::Error::QueueError(_) | controller::Error::RunnerError(_))) => {
            tracing::warn!(%error, "the queue of a namespace ended");
        }
    }
}

impl Context {
    /// Nothing is left half-written in it, so a poisoned lock is as good as any.
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recall(&self, name: &str, uid: &str) -> History {
        self.lock()
            .get(name)
            .filter(|memory| memory.uid == uid)
            .map(|memory| memory.history.clone())
            .unwrap_or_default()
    }

    fn remember(&self, name: &str, uid: &str, history: History) {
        self.lock().insert(name.to_owned(), Memory { uid: uid.to_owned(), history, failures: 0 });
    }

    /// Failures in a row, this one included.
    fn count_failure(&self, name: &str) -> u32 {
        let mut memory = self.lock();
        let memory = memory.entry(name.to_owned()).or_default();
        memory.failures = memory.failures.saturating_add(1);
        memory.failures
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that the applier asks for")]
fn retry_after_failure(sandbox: Arc<Guarded>, error: &ApplyError, context: Arc<Context>) -> Action {
    context.metrics.failed();
    let doublings = context.count_failure(&sandbox.name_any()).saturating_sub(1).min(16);
    let wait = FIRST_RETRY.saturating_mul(1 << doublings).min(LONGEST_RETRY);
    let retry_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    tracing::warn!(sandbox.name = sandbox.name_any(), sandbox.namespace = sandbox.namespace(), %error, retry_ms, "a pass failed");
    Action::requeue(wait)
}

async fn reconcile(sandbox: Arc<Guarded>, context: Arc<Context>) -> Result<Action, ApplyError> {
    context.metrics.passed();
    let sandbox = match &sandbox.0 {
        Ok(sandbox) => sandbox,
        Err(invalid) => {
            // It stays as it is until somebody changes it.
            tracing::warn!(sandbox.name = invalid.metadata.name, error = invalid.error, "a Sandbox cannot be read");
            return Ok(Action::await_change());
        }
    };
    // A Sandbox that is being deleted gets no writes; its children go by their owner references.
    if sandbox.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    wait_for_first_lists(&context.stores).await;
    let namespace = sandbox.namespace().unwrap_or_default();
    let template = observe_template(&context.stores, &namespace, template_name(sandbox));
    let template = template.as_ref().map(|template| template.0.as_ref().map_err(|invalid| invalid.error.clone()));
    let valid = match validate(sandbox, template) {
        Ok(valid) => valid,
        Err(error) => {
            tracing::warn!(sandbox.name = sandbox.name_any(), %error, "a Sandbox cannot be used");
            return Ok(Action::await_change());
        }
    };
    let seen = observe(&context.stores, &namespace, &valid.child, &valid.identity.uid);
    let history = context.recall(&valid.identity.name, &valid.identity.uid);
    let plan = decide(&valid, &seen, &history, Timestamp::now());
    Box::pin(carry_out(&context, &valid, plan)).await
}

/// The stores of pods, claims and templates may fill after that of the sandboxes; until then nothing can be said about absence.
async fn wait_for_first_lists(stores: &Stores) {
    // An error means that the watches have ended, and this pass with them.
    let _ = tokio::join!(
        stores.pods.wait_until_ready(),
        stores.claims.wait_until_ready(),
        stores.templates.wait_until_ready()
    );
}

async fn carry_out(context: &Context, valid: &ValidSandbox, plan: Plan) -> Result<Action, ApplyError> {
    let Plan { identity, act, mut status, mut history, mut requeue } = plan;
    let writes = act != Act::Nothing || says_something_new(&valid.status, &status);
    if !writes {
        context.remember(&identity.name, &identity.uid, history);
        return Ok(requeue_after(requeue));
    }
    if namespace_is_terminating(&context.client, &identity.namespace).await {
        return Ok(Action::await_change());
    }
    let prepared = prepare(&act, valid, &context.sandboxd_image);
    let applied =
        Box::pin(apply(&context.client, &context.metrics, &identity, &act, prepared, valid.child.as_str())).await?;
    log_decision(&identity.name, &identity.namespace, &act, &applied, &status);
    match applied {
        Applied::Done => {
            if let Act::Start { .. } = act {
                history.trouble = None;
            }
        }
        Applied::Refused(trouble) => {
            let now = Timestamp::now();
            status = with_trouble(status, &valid.status, &trouble, now);
            history = history.failed(trouble);
            requeue = Some(history.wait(now, valid.activity.as_ref()).unwrap_or(REFUSED_RETRY));
        }
        Applied::Outdated => return Ok(Action::requeue(OUTDATED_RETRY)),
        Applied::NamespaceTerminating => return Ok(Action::await_change()),
    }
    context.remember(&identity.name, &identity.uid, history);
    match report(&context.client, &context.metrics, &identity, &valid.status, &status).await? {
        Reported::Written => publish(&context.recorder, &identity, &valid.status, &status).await,
        Reported::Nothing => {}
        Reported::Outdated => return Ok(Action::requeue(OUTDATED_RETRY)),
    }
    Ok(requeue_after(requeue))
}

fn requeue_after(wait: Option<SignedDuration>) -> Action {
    match wait.map(Duration::try_from) {
        // A little late rather than a little early, which would only look once more.
        Some(Ok(wait)) => Action::requeue(wait + Duration::from_millis(5)),
        Some(Err(_)) => Action::requeue(OUTDATED_RETRY),
        None => Action::await_change(),
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
