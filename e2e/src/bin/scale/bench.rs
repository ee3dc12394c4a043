//! The surroundings of a run: namespaces, templates, the operator and the simulated kubelet; and their removal.

use crate::{
    Args,
    audit::AuditLog,
    load::{Subject, post},
    objects::{self, Bare},
    process::{Program, Usage},
    prometheus::samples,
    traffic::Writes,
};
use anyhow::{Context as _, anyhow, ensure};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::{
    fmt::Debug,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::OnceLock,
    time::Duration,
};
use tokio::process::Command;

/// Template of sandboxes that are never idle.
pub const STAYS: &str = "stays";
/// Template of sandboxes that idle out.
pub const IDLES: &str = "idles";
/// Between two looks at a condition that no watch tells.
const POLL: Duration = Duration::from_millis(100);
/// What has to happen, happens within this.
const PATIENCE: Duration = Duration::from_mins(2);

/// One run.
pub struct Bench {
    pub args: Args,
    pub client: Client,
    /// Of the sandboxes.
    pub namespace: String,
    /// Of the bare pods; the operator does not watch it.
    pub bare_namespace: String,
    pub audit: AuditLog,
    /// Name of the simulated node, and of its storage class.
    node: String,
    http: reqwest::Client,
    operator_address: SocketAddr,
    operator: OnceLock<Program>,
    kubelet: OnceLock<Program>,
}

/// What everybody has used so far.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The operator.
    pub operator: Usage,
    /// The simulated kubelet.
    pub kubelet: Usage,
    /// What the API server counted.
    pub writes: Writes,
    /// Writes that the operator counted itself, without Events and Leases.
    pub own_writes: f64,
    /// Place in the audit log.
    pub audit: u64,
}

impl Bench {
    /// Nothing is made yet.
    pub async fn connect(args: Args) -> anyhow::Result<Self> {
        rustls::crypto::ring::default_provider()
            .install_default()
            .map_err(|_| anyhow!("a TLS provider is already installed"))?;
        let mut config = Config::infer().await.context("no cluster: set KUBECONFIG")?;
        config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static("codeexec-scale")));
        let run = std::process::id();
        // Free at this moment; the operator takes it right after.
        let operator_address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        std::fs::create_dir_all(&args.logs).with_context(|| format!("making {}", args.logs.display()))?;
        Ok(Self {
            client: Client::try_from(config).context("the cluster's settings cannot be used")?,
            namespace: format!("codeexec-scale-{run}"),
            bare_namespace: format!("codeexec-scale-{run}-bare"),
            audit: AuditLog::new(args.audit_log.clone()),
            node: format!("codeexec-simulated-{run}"),
            http: reqwest::Client::new(),
            operator_address,
            operator: OnceLock::new(),
            kubelet: OnceLock::new(),
            args,
        })
    }

    /// Namespaces, templates and programs; returns when all are ready.
    pub async fn set_up(&self) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        for name in [&self.namespace, &self.bare_namespace] {
            let restricted =
                json!({"metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
            post(&namespaces, &serde_json::from_value(restricted)?, name).await?;
            // Pods are refused until it is there.
            let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), name);
            wait_until("the namespace's service account", || exists(&accounts, "default")).await?;
        }
        let templates = self.api::<DynamicObject>(&resource("SandboxTemplate"));
        let idle = format!("{}s", self.args.idle);
        for (name, idle) in [(STAYS, "0s"), (IDLES, idle.as_str())] {
            let template = objects::template(name, &self.node, &self.node, idle);
            post(&templates, &serde_json::from_value(template)?, name).await?;
        }
        let kubelet = self.start_kubelet()?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        wait_until("the simulated node's Ready", || async {
            ensure!(kubelet.runs(), "kubelet_sim ended; see its log in {}", self.args.logs.display());
            Ok(nodes.get_opt(&self.node).await?.is_some_and(|node| node_is_ready(&node)))
        })
        .await?;
        let operator = self.start_operator()?;
        wait_until("the operator's readiness", || async {
            ensure!(operator.runs(), "the operator ended; see its log in {}", self.args.logs.display());
            let answer = self.http.get(format!("http://{}/readyz", self.operator_address)).send().await;
            Ok(answer.is_ok_and(|answer| answer.status().is_success()))
        })
        .await
    }

    fn start_kubelet(&self) -> anyhow::Result<&Program> {
        let mut command = Command::new(&self.args.kubelet);
        command.args(["--node", &self.node, "--storage-class", &self.node]);
        command.args(["--start-delay", &self.args.start_delay.to_string()]);
        let program = Program::start("kubelet_sim", &mut command, &self.args.logs)?;
        Ok(self.kubelet.get_or_init(|| program))
    }

    fn start_operator(&self) -> anyhow::Result<&Program> {
        let mut command = Command::new(&self.args.operator);
        command.args(["--sandbox-namespace", &self.namespace, "--sandboxd-image", objects::IMAGE]);
        command.args(["--listen", &self.operator_address.to_string()]).args(&self.args.operator_arg);
        command.env("CODEEXEC_LEASE_NAMESPACE", &self.namespace);
        let program = Program::start("operator", &mut command, &self.args.logs)?;
        Ok(self.operator.get_or_init(|| program))
    }

    /// The pod and the claim of a sandbox, which the bare ones are made like; it is gone when this returns.
    pub async fn example(&self) -> anyhow::Result<Bare> {
        let subject = Subject::sandboxes(self, STAYS);
        let sight = subject.sight().await?;
        subject.create("example").await?;
        sight.reaches(1, PATIENCE, |counts| counts.were_ready).await.context("the first sandbox")?;
        let pods = self.pods(&self.namespace).list(&ListParams::default()).await?.items;
        let claims = self.claims(&self.namespace).list(&ListParams::default()).await?.items;
        let (Some(pod), Some(claim)) = (pods.first(), claims.first()) else {
            return Err(anyhow!("a Ready sandbox has no pod or no claim"));
        };
        let like = Bare::like(pod, claim)?;
        self.clear().await?;
        Ok(like)
    }

    /// What everybody has used so far.
    pub async fn snapshot(&self) -> anyhow::Result<Snapshot> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = self.client.request_text(request).await.context("reading the API server's metrics")?;
        let own = self.http.get(format!("http://{}/metrics", self.operator_address)).send().await?.text().await?;
        Ok(Snapshot {
            operator: self.operator.get().context("the operator does not run")?.usage()?,
            kubelet: self.kubelet.get().context("the kubelet does not run")?.usage()?,
            writes: Writes::read(&text),
            own_writes: own_writes(&own),
            audit: self.audit.place(),
        })
    }

    /// Removes sandboxes, pods, claims and volumes, and returns when they are gone.
    pub async fn clear(&self) -> anyhow::Result<()> {
        let sandboxes = self.api::<DynamicObject>(&resource("Sandbox"));
        delete_all(&sandboxes, self.args.concurrency).await.context("removing sandboxes")?;
        for namespace in [&self.namespace, &self.bare_namespace] {
            delete_all(&self.pods(namespace), self.args.concurrency).await.context("removing pods")?;
            delete_all(&self.claims(namespace), self.args.concurrency).await.context("removing claims")?;
        }
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        wait_until("the end of the volumes", || async {
            let all = volumes.list(&ListParams::default()).await?.items;
            let ours = |volume: &PersistentVolume| {
                volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref()) == Some(&self.node)
            };
            Ok(!all.iter().any(ours))
        })
        .await
    }

    /// Removes all that this run has made. The kubelet ends last, since it confirms the end of the pods.
    pub async fn clean_up(&self) -> anyhow::Result<()> {
        tracing::info!("cleaning up");
        if let Some(operator) = self.operator.get() {
            operator.stop().await?;
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        for name in [&self.namespace, &self.bare_namespace] {
            if let Err(error) = namespaces.delete(name, &DeleteParams::default()).await {
                ensure!(is_missing(&error), "deleting namespace {name}: {error}");
            }
        }
        for name in [&self.namespace, &self.bare_namespace] {
            // As many objects as there are take their time.
            let gone = async {
                while exists(&namespaces, name).await.unwrap_or(true) {
                    tokio::time::sleep(POLL).await;
                }
            };
            tokio::time::timeout(PATIENCE * 10, gone)
                .await
                .with_context(|| format!("namespace {name} does not end"))?;
        }
        match self.kubelet.get() {
            Some(kubelet) => kubelet.stop().await,
            None => Ok(()),
        }
    }

    /// The pods of a namespace.
    pub fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn claims(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn api<K>(&self, resource: &ApiResource) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = kube::core::DynamicResourceScope>,
    {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }
}

/// A kind of our group.
pub fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(crds::GROUP, crds::VERSION, kind))
}

fn node_is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True");
    // The control plane takes this taint away once it has noticed.
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    ready && !taints.into_iter().flatten().any(|taint| taint.key == "node.kubernetes.io/not-ready")
}

/// Writes in the operator's own count: by kind of request, or by its older name.
fn own_writes(metrics: &str) -> f64 {
    let counts = |sample: &crate::prometheus::Sample| {
        !matches!(sample.label("verb").to_ascii_lowercase().as_str(), "get" | "list" | "watch")
            && !matches!(sample.label("resource"), "events" | "leases")
            && (sample.label("code").is_empty() || sample.label("code").starts_with('2'))
    };
    samples(metrics, "codeexec_operator_api_requests_total")
        .chain(samples(metrics, "codeexec_operator_writes_total"))
        .filter(counts)
        .map(|sample| sample.value)
        .sum()
}

fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

async fn exists<K: Clone + Debug + DeserializeOwned>(api: &Api<K>, name: &str) -> anyhow::Result<bool> {
    Ok(api.get_metadata_opt(name).await?.is_some())
}

/// Deletes everything, and returns when it is gone.
async fn delete_all<K: Clone + Debug + DeserializeOwned>(api: &Api<K>, concurrency: usize) -> anyhow::Result<()> {
    let mut left = usize::MAX;
    let mut progress = tokio::time::Instant::now();
    loop {
        let list = api.list_metadata(&ListParams::default()).await?.items;
        if list.is_empty() {
            return Ok(());
        }
        if list.len() < left {
            (left, progress) = (list.len(), tokio::time::Instant::now());
        }
        ensure!(progress.elapsed() < PATIENCE, "{left} are left, and nothing changes");
        let living = list.iter().filter(|object| object.metadata.deletion_timestamp.is_none());
        let deletions = living.map(|object| {
            let name = object.metadata.name.clone().unwrap_or_default();
            async move { api.delete(&name, &DeleteParams::default()).await.map(drop) }
        });
        let outcomes: Vec<_> = stream::iter(deletions).buffer_unordered(concurrency).collect().await;
        for error in outcomes.into_iter().filter_map(Result::err) {
            // What is at fault for a moment is tried again with the next list.
            if !is_missing(&error) {
                tracing::warn!(%error, "a deletion failed");
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Looks again and again; fails when it takes too long.
pub async fn wait_until<Look: Future<Output = anyhow::Result<bool>>>(
    what: &str,
    look: impl Fn() -> Look,
) -> anyhow::Result<()> {
    let happened = async {
        while !look().await? {
            tokio::time::sleep(POLL).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, happened)
        .await
        .with_context(|| format!("{what} did not happen within {} s", PATIENCE.as_secs()))?
        .with_context(|| what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_own_count_leaves_reads_events_leases_and_refusals_out() {
        let text = "\
codeexec_operator_api_requests_total{verb=\"post\",resource=\"pods\",code=\"2xx\"} 3
codeexec_operator_api_requests_total{verb=\"patch\",resource=\"sandboxes/status\",code=\"4xx\"} 2
codeexec_operator_api_requests_total{verb=\"post\",resource=\"events\",code=\"2xx\"} 5
codeexec_operator_api_requests_total{verb=\"GET\",resource=\"namespaces\",code=\"2xx\"} 7
codeexec_operator_writes_total{kind=\"status\"} 2
";
        assert!((own_writes(text) - 5.0).abs() < 1e-9);
    }
}
