//! From a spec to a ready pod.

use super::{
    KubernetesRuntime, Used,
    client::{CallError, call, classify},
    death, lock,
    view::{self, View},
};
use crate::{AcquireError, Acquired, ContainerSpec, InstanceId, Slow, Start, UnavailableReason};
use crds::{Sandbox, activity_token, keys};
use futures_util::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use std::{pin::pin, sync::Mutex};
use tokio::time::{Duration, Instant, sleep, timeout};

/// The sandbox is read again after this long without news, in case the watch is dead.
const READ_AGAIN: Duration = Duration::from_secs(15);
/// The same while the status names a pod that is not there: the operator may be about to notice.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Pause after a call that may work the next time.
const PAUSE: Duration = Duration::from_millis(500);
/// As many calls in a row may fail that way.
const CALLS: u32 = 6;
/// How often an object that was deleted while it was waited for is made again.
const MADE: u32 = 3;
/// A container that was killed at its memory limit is started again within this time, by the kubelet's first two waits: the next command
/// may well need less.
const RESTARTED: Duration = Duration::from_secs(35);

/// A failed attempt: those who began to wait before it ended share it, instead of each trying in turn.
#[derive(Debug)]
pub(super) struct Failure {
    at: Instant,
    error: AcquireError,
}

/// How an object stood when we wrote our token.
struct Touched {
    sandbox: Sandbox,
    /// The activity that the operator had acted on by then.
    acted_on: Option<String>,
}

/// Why a wait ended without a ready pod.
enum Waited {
    Deleted,
    Failed(AcquireError),
}

fn is_out_of_memory(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Unavailable { reason: UnavailableReason::OutOfMemory { .. }, .. })
}

impl KubernetesRuntime {
    /// Marks an existing sandbox as used.
    pub(super) async fn touch_existing(&self, spec: &ContainerSpec) -> Result<bool, AcquireError> {
        let Some(touched) = self.touch(spec).await? else {
            lock(&self.used).remove(&spec.name);
            return Ok(false);
        };
        if !view::is_owned(&touched.sandbox, spec) {
            return Ok(false);
        }
        let known = lock(&self.used).get(&spec.name).and_then(|used| used.instance.clone());
        // A pod that was looked at before still counts while the status names it; another one is looked at when it is used.
        let instance = match view::view(&touched.sandbox, touched.acted_on.as_deref()) {
            View::Fail(AcquireError::Expired) => return Err(AcquireError::Expired),
            View::Ready(instance) => known.filter(|known| *known == instance),
            View::Wait(_) | View::Fail(_) => None,
        };
        self.note(spec, &touched.sandbox, instance);
        Ok(true)
    }

    /// One attempt of this process at a time. `slow` is what it waits for, as far as it is known.
    pub(super) async fn acquire_alone(
        &self,
        spec: &ContainerSpec,
        asked: Instant,
        slow: &Mutex<Slow>,
    ) -> Result<Acquired, AcquireError> {
        let lock_of_name = self.lock_of(&spec.name);
        let mut failure = lock_of_name.lock().await;
        if let Some(acquired) = self.reused(spec) {
            return Ok(acquired);
        }
        if let Some(failure) = failure.as_ref().filter(|failure| failure.at >= asked) {
            return Err(failure.error.clone());
        }
        let result = self.make_ready(spec, slow).await;
        *failure = result.as_ref().err().map(|error| Failure { at: Instant::now(), error: error.clone() });
        result
    }

    async fn make_ready(&self, spec: &ContainerSpec, slow: &Mutex<Slow>) -> Result<Acquired, AcquireError> {
        for _ in 0..MADE {
            let (touched, start) = match self.touch(spec).await? {
                Some(touched) => {
                    let ready = matches!(view::view(&touched.sandbox, touched.acted_on.as_deref()), View::Ready(_));
                    (touched, if ready { Start::Ready } else { Start::Woken })
                }
                None => (self.create(spec).await?, Start::Created),
            };
            if !view::is_owned(&touched.sandbox, spec) {
                return Err(AcquireError::NotFound);
            }
            match self.wait(spec, touched, slow).await {
                Ok((sandbox, instance)) => {
                    let idle_timeout = view::idle_timeout(&sandbox);
                    self.note(spec, &sandbox, Some(instance.clone()));
                    return Ok(Acquired { instance, idle_timeout, start });
                }
                Err(Waited::Deleted) => {}
                Err(Waited::Failed(error)) => return Err(error),
            }
        }
        Err(AcquireError::unavailable(UnavailableReason::Runtime, "somebody deletes it again and again"))
    }

    fn note(&self, spec: &ContainerSpec, sandbox: &Sandbox, instance: Option<InstanceId>) {
        let sandbox_uid = sandbox.uid().unwrap_or_default();
        let before = lock(&self.used).get(&spec.name).filter(|used| used.sandbox_uid == sandbox_uid).cloned();
        let used = Used {
            owner: spec.owner.clone(),
            sandbox_uid,
            at: Some(Instant::now()),
            idle_timeout: view::idle_timeout(sandbox),
            last: instance.clone().or_else(|| before.and_then(|used| used.last)),
            instance,
        };
        self.remember(&spec.name, used);
    }

    /// Writes a new token; `None` when there is no such sandbox.
    async fn touch(&self, spec: &ContainerSpec) -> Result<Option<Touched>, AcquireError> {
        let mut failures = 0;
        loop {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {keys::ACTIVITY: new_token()?}}}));
            let params = PatchParams::default();
            match call(self.sandboxes.patch(spec.name.as_str(), &params, &patch)).await {
                Ok(sandbox) => {
                    let acted_on = sandbox.status.as_ref().and_then(|status| status.observed_activity.clone());
                    return Ok(Some(Touched { sandbox, acted_on }));
                }
                Err(CallError::NotFound(_)) => return Ok(None),
                Err(CallError::Transient(_)) if failures < CALLS => {
                    failures += 1;
                    sleep(PAUSE * failures).await;
                }
                Err(error) => return Err(error.into_acquire("mark the sandbox as used")),
            }
        }
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<Touched, AcquireError> {
        let template = self.config.template.as_deref();
        let object = view::new_sandbox(spec, template, new_token()?);
        let mut failures = 0;
        loop {
            match call(self.sandboxes.create(&PostParams::default(), &object)).await {
                Ok(sandbox) => return Ok(Touched { sandbox, acted_on: None }),
                Err(CallError::AlreadyExists) => break,
                Err(CallError::Transient(_)) if failures < CALLS => {
                    failures += 1;
                    sleep(PAUSE * failures).await;
                }
                Err(error) => return Err(error.into_acquire("create the sandbox")),
            }
        }
        // Somebody was faster: another server of ours, or somebody who knew the name.
        match self.touch(spec).await? {
            Some(touched) if !view::is_owned(&touched.sandbox, spec) => Err(AcquireError::NotFound),
            Some(touched) if !view::is_made_from(&touched.sandbox, template) => {
                let message = "it was made from another template at the same time";
                Err(AcquireError::unavailable(UnavailableReason::Template, message))
            }
            Some(touched) => Ok(touched),
            None => Err(AcquireError::unavailable(UnavailableReason::Runtime, "it was deleted at once")),
        }
    }

    /// Waits until the sandbox is ready, and its pod is what the status says. Who waits uses it, so it is marked each quarter.
    async fn wait(
        &self,
        spec: &ContainerSpec,
        touched: Touched,
        slow: &Mutex<Slow>,
    ) -> Result<(Sandbox, InstanceId), Waited> {
        // Trouble with any activity since our first is about us.
        let Touched { mut sandbox, acted_on } = touched;
        let uid = sandbox.uid().unwrap_or_default();
        let began = Instant::now();
        let mut marked = began;
        loop {
            let mut patience = READ_AGAIN;
            match view::view(&sandbox, acted_on.as_deref()) {
                View::Ready(instance) => {
                    if self.is_live(&instance, &uid).await? {
                        return Ok((sandbox, instance));
                    }
                    patience = LOOK_AGAIN;
                }
                View::Wait(reason) => *lock(slow) = reason,
                View::Fail(error) if is_out_of_memory(&error) && began.elapsed() < RESTARTED => patience = LOOK_AGAIN,
                View::Fail(error) => return Err(Waited::Failed(self.with_limit(error, &sandbox).await)),
            }
            let until_mark = view::quarter(&sandbox).map(|quarter| quarter.saturating_sub(marked.elapsed()));
            sandbox = match timeout(until_mark.unwrap_or(patience).min(patience), self.next(&sandbox)).await {
                Ok(Ok(Some(changed))) => changed,
                Ok(Err(waited)) => return Err(waited),
                Ok(Ok(None)) | Err(_) if view::quarter(&sandbox).is_some_and(|quarter| marked.elapsed() >= quarter) => {
                    marked = Instant::now();
                    self.touch(spec).await.map_err(Waited::Failed)?.ok_or(Waited::Deleted)?.sandbox
                }
                Ok(Ok(None)) | Err(_) => self.read(&sandbox).await?,
            };
            if sandbox.uid().as_deref() != Some(&uid) {
                return Err(Waited::Deleted);
            }
        }
    }

    /// Says which memory limit a sandbox was killed at.
    async fn with_limit(&self, error: AcquireError, sandbox: &Sandbox) -> AcquireError {
        let AcquireError::Unavailable { reason: UnavailableReason::OutOfMemory { limit: None }, message } = error
        else {
            return error;
        };
        let pod = match sandbox.status.as_ref().and_then(|status| status.binding.as_ref()) {
            Some(binding) => call(self.pods.get(&binding.pod_name)).await.ok(),
            None => None,
        };
        let limit = pod.as_ref().and_then(death::memory_limit);
        AcquireError::Unavailable { reason: UnavailableReason::OutOfMemory { limit }, message }
    }

    async fn is_live(&self, instance: &InstanceId, sandbox_uid: &str) -> Result<bool, Waited> {
        match call(self.pods.get(&instance.name)).await {
            Ok(pod) => Ok(view::is_live(&pod, instance, sandbox_uid)),
            Err(CallError::NotFound(_) | CallError::Transient(_)) => Ok(false),
            Err(error) => Err(Waited::Failed(error.into_acquire("read the pod"))),
        }
    }

    /// The next version of an object; `None`: read it again.
    async fn next(&self, sandbox: &Sandbox) -> Result<Option<Sandbox>, Waited> {
        let (name, version) = (sandbox.name_any(), sandbox.resource_version().unwrap_or_default());
        let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(60);
        let events = match call(self.sandboxes.watch(&params, &version)).await {
            Ok(events) => events,
            Err(CallError::Denied(message)) => {
                return Err(Waited::Failed(CallError::Denied(message).into_acquire("watch the sandbox")));
            }
            Err(_) => {
                sleep(PAUSE).await;
                return Ok(None);
            }
        };
        let mut events = pin!(events.into_stream());
        while let Some(event) = events.next().await {
            match event {
                Ok(WatchEvent::Added(changed) | WatchEvent::Modified(changed)) => return Ok(Some(changed)),
                Ok(WatchEvent::Deleted(_)) => return Err(Waited::Deleted),
                Ok(WatchEvent::Bookmark(_)) => {}
                Ok(WatchEvent::Error(status)) => {
                    // Too old a version is no reason to pause; anything else might be.
                    if classify(status.code, &status.reason, status.message.clone()) != CallError::Expired {
                        sleep(PAUSE).await;
                    }
                    return Ok(None);
                }
                Err(_) => break,
            }
        }
        sleep(PAUSE).await;
        Ok(None)
    }

    async fn read(&self, sandbox: &Sandbox) -> Result<Sandbox, Waited> {
        match call(self.sandboxes.get(&sandbox.name_any())).await {
            Ok(sandbox) => Ok(sandbox),
            Err(CallError::NotFound(_)) => Err(Waited::Deleted),
            // The deadline of the whole bounds how often.
            Err(CallError::Transient(_)) => {
                sleep(PAUSE).await;
                Ok(sandbox.clone())
            }
            Err(error) => Err(Waited::Failed(error.into_acquire("read the sandbox"))),
        }
    }
}

fn new_token() -> Result<String, AcquireError> {
    let random = getrandom::u32().map_err(|e| AcquireError::unavailable(UnavailableReason::Runtime, e))?;
    Ok(activity_token(Timestamp::now(), random))
}
