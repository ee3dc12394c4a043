//! A kubelet without containers, for benchmarks of what happens before and after them: it registers a node, reports every pod placed
//! on it as running, ends those that are deleted, and provides volumes for the claims of one storage class. The scheduler, the
//! controllers and the API server are the real ones. On SIGTERM it removes all that it made.

mod node;
mod pod_status;
mod pods;
mod requests;
mod volumes;

use anyhow::{Context as _, anyhow};
use clap::Parser;
use kube::{Client, Config};
use requests::Requests;
use std::time::Duration;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};

/// Registers a simulated node and plays its kubelet until told to stop.
#[derive(Parser)]
struct Args {
    /// Name of the node.
    #[arg(long, default_value = "codeexec-simulated")]
    node: String,
    /// Name of the storage class whose claims get volumes.
    #[arg(long, default_value = "codeexec-simulated")]
    storage_class: String,
    /// Time between the sight of a pod and its Ready, in milliseconds.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    start_delay: u64,
    /// Requests in flight at most.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
}

/// What stops, stops within this time; the rest is left and said.
const CLEAN_UP_DEADLINE: Duration = Duration::from_mins(2);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow!("a TLS provider is already installed"))?;
    let mut config = Config::infer().await.context("no cluster: set KUBECONFIG")?;
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static("codeexec-kubelet-sim")));
    let client = Client::try_from(config).context("the cluster's settings cannot be used")?;
    let requests = Requests::new(args.in_flight);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);

    node::register(&client, &args.node).await?;
    volumes::make_class(&client, &args.storage_class).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(node::keep_alive(client.clone(), args.node.clone()));
    let delay = Duration::from_millis(args.start_delay);
    tasks.spawn(pods::run(client.clone(), requests.clone(), args.node.clone(), delay));
    tasks.spawn(volumes::provide(client.clone(), requests.clone(), args.storage_class.clone()));
    tasks.spawn(volumes::reclaim(client.clone(), requests.clone(), args.storage_class.clone()));
    tracing::info!(node = args.node, storage_class = args.storage_class, "the simulated node is there");

    let outcome = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = tasks.join_next() => Err(anyhow!("a task ended by itself")),
    };
    // The tasks go on meanwhile: they end the pods and the volumes.
    tracing::info!("stopping: what is left on the node is removed");
    tokio::time::timeout(CLEAN_UP_DEADLINE, remove_all(&client, &requests, &args))
        .await
        .unwrap_or_else(|_| Err(anyhow!("not everything that was made could be removed in time")))?;
    outcome
}

/// Pods first, since claims wait for them, as volumes wait for claims.
async fn remove_all(client: &Client, requests: &Requests, args: &Args) -> anyhow::Result<()> {
    node::cordon(client, &args.node).await?;
    pods::remove_all(client, requests, &args.node).await?;
    volumes::remove_all(client, requests, &args.storage_class).await?;
    node::remove(client, &args.node).await
}
