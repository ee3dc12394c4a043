//! Sandboxes on Kubernetes, as `Sandbox` resources that the operator turns into pods.
//!
//! Using one is writing a new activity token; the answer to that write, never a cache, says how it stands. While our own token is
//! younger than a quarter of the idle timeout, a use costs no call at all.

mod acquire;
mod client;
mod death;
mod exec;
mod view;

use crate::{
    AcquireError, Acquired, ByteStream, ContainerName, ContainerSpec, Half, Installed, InstanceId, Loss, OpenError,
    OwnerTag, Runtime, Slow, Start,
};
use acquire::Failure;
use client::{CallError, call};
use crds::{Sandbox, SandboxTemplate, fallback, keys};
use death::{Death, Main, death_of, main_in_use};
use http::{Method, Request};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Duration, Instant, sleep, timeout},
};

/// Time for the exec to start.
const EXEC: Duration = Duration::from_secs(20);
/// How long a token counts as fresh when the sandbox is never idle.
const FRESH: Duration = Duration::from_mins(1);
/// Uses that are remembered before old ones are looked for.
const REMEMBERED: usize = 256;
/// How long the kubelet may take to say how a container ended, and how often it is asked.
const DEATH: Duration = Duration::from_secs(15);
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How old what is told of the template may be. Prompts stay the same as long as it does.
const TEMPLATE_AGE: Duration = Duration::from_secs(30);
/// A pod of this name is not there: asking to exec in it shows whether we may, and does nothing.
const NO_POD: &str = "codeexec-readiness";

/// Settings of the Kubernetes runtime. The cluster is that of `$KUBECONFIG`, or of the pod's service account.
#[derive(Clone, Debug)]
pub struct KubernetesConfig {
    /// Namespace of the sandboxes.
    pub namespace: String,
    /// Template of new sandboxes; `None`: the namespace's `default`.
    pub template: Option<String>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// No usable kubeconfig and no service account.
    #[error("no cluster configured: {0}")]
    Config(String),
}

/// Sandboxes on Kubernetes.
pub struct KubernetesRuntime {
    config: KubernetesConfig,
    client: Client,
    sandboxes: Api<Sandbox>,
    pods: Api<Pod>,
    /// Under whose lock this process finds out about one sandbox; holds the last failure for those who waited meanwhile.
    locks: Mutex<HashMap<ContainerName, Arc<AsyncMutex<Option<Failure>>>>>,
    used: Mutex<HashMap<ContainerName, Used>>,
    /// The `main` container at the time when a stream to it was opened, to tell its end from that of another start of it.
    mains: Mutex<HashMap<InstanceId, Main>>,
    /// What the template said of its image, and when it was asked last.
    installed: AsyncMutex<Option<(Instant, Installed)>>,
}

/// A use of ours.
#[derive(Clone, Debug)]
struct Used {
    owner: OwnerTag,
    sandbox_uid: String,
    /// When we wrote a token; `None` when the next use has to look.
    at: Option<Instant>,
    idle_timeout: Duration,
    /// What was ready then, if anything.
    instance: Option<InstanceId>,
    /// What was ready at the last time that anything was: requests under way may still need it.
    last: Option<InstanceId>,
}

impl Used {
    fn is_fresh(&self, now: Instant) -> bool {
        let window = if self.idle_timeout.is_zero() { FRESH } else { self.idle_timeout / 4 };
        self.at.is_some_and(|at| now.duration_since(at) < window)
    }
}

impl fmt::Debug for KubernetesRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesRuntime").field("config", &self.config).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KubernetesRuntime {
    /// Makes the client; does not wait for the cluster.
    pub async fn new(config: KubernetesConfig) -> Result<Self, KubernetesError> {
        let client = client::connect().await?;
        let sandboxes = Api::namespaced(client.clone(), &config.namespace);
        let pods = Api::namespaced(client.clone(), &config.namespace);
        let (locks, used, mains) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Self { config, client, sandboxes, pods, locks, used, mains, installed: AsyncMutex::default() })
    }

    fn template(&self) -> &str {
        self.config.template.as_deref().unwrap_or(fallback::TEMPLATE)
    }

    fn templates(&self) -> Api<SandboxTemplate> {
        Api::namespaced(self.client.clone(), &self.config.namespace)
    }

    fn lock_of(&self, name: &ContainerName) -> Arc<AsyncMutex<Option<Failure>>> {
        let mut locks = lock(&self.locks);
        if let Some(lock) = locks.get(name) {
            return lock.clone();
        }
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        locks.entry(name.clone()).or_default().clone()
    }

    /// Our last use, if it is fresh and this owner's.
    fn fresh(&self, spec: &ContainerSpec) -> Option<Used> {
        let used = lock(&self.used).get(&spec.name).cloned()?;
        (used.owner == spec.owner && used.is_fresh(Instant::now())).then_some(used)
    }

    /// What was ready at our last use, if that is fresh.
    fn reused(&self, spec: &ContainerSpec) -> Option<Acquired> {
        let Used { instance, idle_timeout, .. } = self.fresh(spec)?;
        Some(Acquired { instance: instance?, idle_timeout, start: Start::Reused })
    }

    fn remember(&self, name: &ContainerName, used: Used) {
        let mut all = lock(&self.used);
        if all.len() >= REMEMBERED {
            let now = Instant::now();
            // Twice the window: a stream in use is marked each quarter, and its sandbox's uid is needed to open another.
            all.retain(|_, used| used.at.is_some_and(|at| now.duration_since(at) < used.idle_timeout.max(FRESH) * 2));
        }
        all.insert(name.clone(), used);
    }

    fn remember_main(&self, instance: &InstanceId, pod: &Pod) {
        let Some(container) = main_in_use(pod) else { return };
        let mut mains = lock(&self.mains);
        if mains.len() >= REMEMBERED {
            let used = lock(&self.used);
            mains.retain(|instance, _| used.values().any(|used| used.last.as_ref() == Some(instance)));
        }
        mains.insert(instance.clone(), container);
    }

    /// Name and UID of the Sandbox whose pod this is.
    fn sandbox_of(&self, instance: &InstanceId) -> Option<(ContainerName, String)> {
        let used = lock(&self.used);
        let (name, used) = used.iter().find(|(_, used)| used.last.as_ref() == Some(instance))?;
        Some((name.clone(), used.sandbox_uid.clone()))
    }

    /// Whether the pod of this name is the one that is meant, and lives.
    async fn check_pod(&self, instance: &InstanceId, half: Half) -> Result<(), OpenError> {
        let (_, sandbox_uid) =
            self.sandbox_of(instance).ok_or_else(|| OpenError::Gone("another start has taken its place".to_owned()))?;
        let pod = match call(self.pods.get(&instance.name)).await {
            Ok(pod) => pod,
            Err(CallError::NotFound(message)) => return Err(OpenError::Gone(message)),
            Err(CallError::Denied(message)) => return Err(OpenError::Denied(self.denied("get", "pods", &message))),
            Err(error) => return Err(OpenError::Failed(format!("{error:?}"))),
        };
        if !view::is_live(&pod, instance, &sandbox_uid) {
            return Err(OpenError::Gone("its pod is going or was replaced".to_owned()));
        }
        if half == Half::Main {
            self.remember_main(instance, &pod);
        }
        Ok(())
    }

    /// Asks for an exec in a pod that is not there: refused, or not found.
    async fn may_exec(&self, method: Method) -> Result<(), String> {
        let request = exec::request(&self.config.namespace, NO_POD, Half::Main).map_err(|e| e.to_string())?;
        let verb = if method == Method::GET { "get" } else { "create" };
        let request = Request::builder().method(method).uri(request.uri().clone()).body(Vec::new());
        let request = request.map_err(|e| e.to_string())?;
        match call(self.client.request_text(request)).await {
            Err(CallError::Denied(message)) => Err(self.denied(verb, "pods/exec", &message)),
            // Unreachable is said once, by the list.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn denied(&self, verb: &str, resource: &str, message: &str) -> String {
        format!("may not {verb} {resource} in namespace {}: {message}", self.config.namespace)
    }
}

#[async_trait::async_trait]
impl Runtime for KubernetesRuntime {
    async fn find(&self, spec: &ContainerSpec) -> Result<bool, AcquireError> {
        if self.fresh(spec).is_some() {
            return Ok(true);
        }
        Box::pin(self.touch_existing(spec)).await
    }

    async fn mark(&self, spec: &ContainerSpec) -> Result<(), AcquireError> {
        Box::pin(self.touch_existing(spec)).await.map(drop)
    }

    async fn acquire(&self, spec: &ContainerSpec, deadline: Duration) -> Result<Acquired, AcquireError> {
        if let Some(acquired) = self.reused(spec) {
            return Ok(acquired);
        }
        let slow = Mutex::new(Slow::Start);
        let acquired = Box::pin(timeout(deadline, self.acquire_alone(spec, Instant::now(), &slow))).await;
        acquired.unwrap_or_else(|_| Err(AcquireError::TimedOut(*lock(&slow))))
    }

    async fn open(&self, instance: &InstanceId, half: Half) -> Result<Box<dyn ByteStream>, OpenError> {
        let request = exec::request(&self.config.namespace, &instance.name, half)
            .map_err(|e| OpenError::Failed(e.to_string()))?;
        // At the same time, since each takes a while; nothing is sent over the stream before the pod is known to be the right one.
        let (checked, opened) =
            tokio::join!(self.check_pod(instance, half), timeout(EXEC, exec::open(&self.client, request)));
        checked?;
        match opened {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            // The kubelet's own words: most of all that the container does not run, as while it is started again.
            Ok(Err(kube::Error::Api(status))) => Err(match CallError::from(kube::Error::Api(status)) {
                CallError::NotFound(message) => OpenError::Gone(message),
                CallError::Denied(message) => OpenError::Denied(self.denied("get or create", "pods/exec", &message)),
                other => OpenError::NotRunning(format!("{other:?}")),
            }),
            Ok(Err(error)) => Err(OpenError::Failed(error.to_string())),
            Err(_) => Err(OpenError::Failed("the exec did not start in time".to_owned())),
        }
    }

    fn forget(&self, instance: &InstanceId) {
        for used in lock(&self.used).values_mut().filter(|used| used.instance.as_ref() == Some(instance)) {
            used.instance = None;
            used.at = None;
        }
    }

    /// Nothing is deleted here: the operator deletes exactly the pod whose UID is written down.
    async fn replace(&self, instance: &InstanceId) {
        let Some((name, _)) = self.sandbox_of(instance) else { return };
        lock(&self.used).retain(|_, used| used.last.as_ref() != Some(instance));
        let patch = Patch::Merge(json!({"metadata": {"annotations": {keys::REPLACE_POD: instance.uid}}}));
        let patched = call(self.sandboxes.patch_metadata(name.as_str(), &PatchParams::default(), &patch)).await;
        match patched {
            Ok(_) => tracing::warn!(sandbox.name = %name, pod.uid = %instance.uid, "asked for another pod"),
            Err(error) => tracing::warn!(sandbox.name = %name, ?error, "could not ask for another pod"),
        }
    }

    async fn loss(&self, instance: &InstanceId) -> Option<Loss> {
        let container = lock(&self.mains).get(instance).cloned()?;
        let until = Instant::now() + DEATH;
        while Instant::now() < until {
            let pod = call(self.pods.get(&instance.name)).await.ok()?;
            if pod.metadata.uid.as_deref() != Some(&instance.uid) {
                return None;
            }
            match death_of(&pod, &container) {
                Death::Known(loss) => return Some(loss),
                Death::Ended => return None,
                Death::NotSeen => sleep(ASK_AGAIN).await,
            }
        }
        None
    }

    async fn problems(&self) -> Vec<String> {
        let (one, templates, template) = (ListParams::default().limit(1), self.templates(), self.template());
        let (listed, found, may_get, may_create) = tokio::join!(
            call(self.sandboxes.list(&one)),
            call(templates.get(template)),
            self.may_exec(Method::GET),
            self.may_exec(Method::POST),
        );
        let mut problems: Vec<String> = [may_get, may_create].into_iter().filter_map(Result::err).collect();
        match listed {
            Ok(_) => {}
            Err(CallError::Denied(message)) => problems.push(self.denied("list", "sandboxes", &message)),
            Err(CallError::NotFound(_)) => {
                problems.push("the custom resources of codeexec.dev are not installed".to_owned());
            }
            Err(error) => problems.push(format!("the Kubernetes API cannot be used: {error:?}")),
        }
        match found {
            // Unreachable is said once. A template may come after the server, and requests name it when it is missing.
            Ok(_) | Err(CallError::Transient(_) | CallError::NotFound(_)) => {}
            Err(CallError::Denied(message)) => problems.push(self.denied("get", "sandboxtemplates", &message)),
            Err(error) => problems.push(format!("cannot read SandboxTemplate {template}: {error:?}")),
        }
        problems
    }

    /// What was known before, where the template cannot be read: requests wait for nothing that they can do without.
    async fn installed(&self) -> Installed {
        let mut seen = self.installed.lock().await;
        match &*seen {
            Some((at, installed)) if at.elapsed() < TEMPLATE_AGE => return installed.clone(),
            Some(_) | None => {}
        }
        let installed = match call(self.templates().get(self.template())).await {
            Ok(template) => Installed { libraries: template.spec.libraries, absent: Vec::new() },
            Err(_) => seen.take().map(|(_, before)| before).unwrap_or_default(),
        };
        *seen = Some((Instant::now(), installed.clone()));
        installed
    }

    /// Sandboxes outlive this process: other servers use them, and the operator suspends what is idle.
    async fn shut_down(&self) {}
}
