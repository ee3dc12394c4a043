//! The program: settings, log, signals, and one task for each namespace.

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use kube::{Client, Config};
use operator::{
    controller::{self, Deps},
    health::{self, Readiness},
    metrics::Metrics,
    settings::{LogFormat, Settings},
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Time to finish passes that have begun, once told to stop.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> Result<()> {
    let settings = Settings::parse();
    start_log(&settings)?;
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow!("a TLS provider is already installed"))?;
    let mut config = Config::infer().await.context("no cluster: neither $KUBECONFIG nor a service account")?;
    config.connect_timeout = Some(Duration::from_secs(10));
    let client = Client::try_from(config).context("the cluster's settings cannot be used")?;
    let listener =
        TcpListener::bind(settings.listen).await.with_context(|| format!("cannot listen on {}", settings.listen))?;

    let namespaces: BTreeSet<String> = settings.sandbox_namespaces.iter().cloned().collect();
    let (metrics, stop) = (Arc::new(Metrics::default()), CancellationToken::new());
    let readiness = Arc::new(Readiness::after(namespaces.len()));
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let server = health::serve(listener, Arc::clone(&readiness), Arc::clone(&metrics), stop.clone());
        async move { server.await.context("the health server failed") }
    });
    for namespace in namespaces {
        let deps = Deps {
            client: client.clone(),
            metrics: Arc::clone(&metrics),
            readiness: Arc::clone(&readiness),
            sandboxd_image: settings.sandboxd_image.clone(),
        };
        let run = controller::run(deps, namespace, stop.clone());
        tasks.spawn(async move {
            run.await;
            Ok(())
        });
    }
    tracing::info!(listen = %settings.listen, version = env!("CARGO_PKG_VERSION"), "the operator runs");
    supervise(tasks, stop).await
}

/// Waits for a signal, or for a task that ends by itself, which is a failure; then ends the others.
async fn supervise(mut tasks: JoinSet<Result<()>>, stop: CancellationToken) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let outcome = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        ended = tasks.join_next() => match ended {
            Some(Ok(Err(error))) => Err(error),
            Some(Err(error)) => Err(anyhow!(error).context("a task failed")),
            Some(Ok(Ok(()))) | None => Err(anyhow!("a task ended by itself")),
        },
    };
    tracing::info!("stopping");
    stop.cancel();
    let finished = tokio::time::timeout(SHUTDOWN_DEADLINE, async { while tasks.join_next().await.is_some() {} }).await;
    if finished.is_err() {
        tracing::warn!("not everything that had begun was finished in time");
    }
    outcome
}

fn start_log(settings: &Settings) -> Result<()> {
    let filter = EnvFilter::try_new(&settings.log).context("--log is no filter")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match settings.log_format {
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init(),
        LogFormat::Text => log.try_init(),
    }
    .map_err(|error| anyhow!(error).context("the log cannot be started"))
}
