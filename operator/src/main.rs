//! The program: settings, log, signals, the election, and one task for each namespace.

use anyhow::{Context, Result, anyhow};
use axum::http::{HeaderValue, header::USER_AGENT};
use clap::Parser;
use kube::{Client, Config, client::ClientBuilder};
use operator::{
    controller::{self, Deps},
    gate::{BootClock, Gate, GateLayer},
    health::{self, Readiness},
    isolation,
    leader::{Election, KubeLease, Leading, Lost},
    metrics::Metrics,
    network, probe,
    settings::{ElectionSettings, LogFormat, Settings},
};
use std::{collections::BTreeSet, process::ExitCode, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::Notify,
    task::{JoinHandle, JoinSet},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Time from the signal to the end, the release of the lease included. The kubelet waits longer.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(18);
/// Time to finish passes that have begun; what is left is for the lease.
const PASSES_DEADLINE: Duration = Duration::from_secs(12);
/// The election turns at least once in every attempt and pause; far beyond that it is stuck.
const ELECTION_PULSE: u32 = 4;

#[tokio::main]
async fn main() -> ExitCode {
    let settings = Settings::parse();
    if let Err(error) = start_log(&settings) {
        #[expect(clippy::print_stderr, reason = "the log is not there to say it")]
        {
            eprintln!("{error:#}");
        }
        return ExitCode::FAILURE;
    }
    match run(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the operator ends");
            ExitCode::FAILURE
        }
    }
}

async fn run(settings: Settings) -> Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow!("a TLS provider is already installed"))?;
    let mut config = Config::infer().await.context("no cluster: neither $KUBECONFIG nor a service account")?;
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(concat!("codeexec-operator/", env!("CARGO_PKG_VERSION")))));
    config.connect_timeout = Some(Duration::from_secs(10));
    // What was sent again below the gate would pass it only once; those who ask try again themselves.
    config.default_retry = false;
    let listener =
        TcpListener::bind(settings.listen).await.with_context(|| format!("cannot listen on {}", settings.listen))?;

    let namespaces: BTreeSet<String> = settings.sandbox_namespaces.iter().cloned().collect();
    let metrics = Arc::new(Metrics::default());
    let readiness = Arc::new(Readiness::expecting(namespaces.iter().cloned()));
    let (stop, end) = (CancellationToken::new(), CancellationToken::new());
    let Candidacy { gate, leading, election } =
        start_election(&settings.election, &config, &metrics, &readiness, &end)?;
    let client = client(config, &GateLayer::gated(gate, metrics.api_requests()))?;

    let mut tasks = JoinSet::new();
    let server = health::serve(listener, Arc::clone(&readiness), Arc::clone(&metrics), end.clone());
    let server = tokio::spawn(async move { server.await.context("the health server failed") });
    for namespace in namespaces {
        let (found, isolation) = isolation::channel();
        let deps = Deps {
            client: client.clone(),
            metrics: Arc::clone(&metrics),
            readiness: Arc::clone(&readiness),
            leading: leading.clone(),
            sandboxd_image: settings.sandboxd_image.clone(),
            isolation: isolation.clone(),
            isolation_required: settings.network.require_network_enforcement,
        };
        let disturbed = Arc::new(Notify::new());
        let networks = network::Deps {
            client: client.clone(),
            metrics: Arc::clone(&metrics),
            readiness: Arc::clone(&readiness),
            leading: leading.clone(),
            sandboxd_image: settings.sandboxd_image.clone(),
            settings: settings.network.clone(),
            isolation,
            disturbed: Arc::clone(&disturbed),
        };
        let probes = probe::Deps {
            client: client.clone(),
            metrics: Arc::clone(&metrics),
            leading: leading.clone(),
            sandboxd_image: settings.sandboxd_image.clone(),
            settings: settings.network.clone(),
            isolation: found,
            disturbed,
        };
        tasks.spawn(network::run(networks, namespace.clone(), stop.clone()));
        tasks.spawn(probe::run(probes, namespace.clone(), stop.clone()));
        tasks.spawn(controller::run(deps, namespace, stop.clone()));
    }
    tracing::info!(listen = %settings.listen, version = env!("CARGO_PKG_VERSION"), "the operator runs");
    supervise(Running { tasks, server, election, stop, end }).await
}

fn client(config: Config, layer: &GateLayer) -> Result<Client> {
    let builder = ClientBuilder::try_from(config).context("the cluster's settings cannot be used")?;
    Ok(builder.with_layer(layer).build())
}

/// This process as a candidate.
struct Candidacy {
    gate: Gate,
    leading: Leading,
    election: JoinHandle<Result<(), Lost>>,
}

fn start_election(
    settings: &ElectionSettings,
    config: &Config,
    metrics: &Arc<Metrics>,
    readiness: &Arc<Readiness>,
    end: &CancellationToken,
) -> Result<Candidacy> {
    let (sender, leading) = Leading::new();
    let clock = Arc::new(BootClock);
    if !settings.leader_election {
        sender.send_replace(true);
        metrics.leads(true);
        let end = end.clone();
        let election = tokio::spawn(async move {
            end.cancelled().await;
            drop(sender);
            Ok(())
        });
        return Ok(Candidacy { gate: Gate::always_open(clock), leading, election });
    }
    let timing = settings.timing().map_err(|error| anyhow!(error))?;
    let gate = Gate::closed(clock);
    let namespace = settings.lease_namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = client(config.clone(), &GateLayer::counted(metrics.api_requests()))?;
    let chance = getrandom::u64().map_err(|error| anyhow!("no random numbers: {error}"))?;
    let election = Election {
        store: KubeLease::new(client, &namespace, settings.lease_name.clone(), timing.duration),
        timing,
        identity: format!("{}_{chance:016x}", pod_name(settings)),
        gate: gate.clone(),
        // Up to a fifth of the pause.
        spread: timing.retry * u32::try_from(chance % 1000).unwrap_or(0) / 5000,
    };
    let pulse = readiness.pulse("the election", timing.duration * ELECTION_PULSE);
    let election = tokio::spawn(election.run(sender, pulse, end.clone()));
    tokio::spawn({
        let (metrics, mut leading) = (Arc::clone(metrics), leading.clone());
        async move {
            leading.begun().await;
            metrics.leads(true);
        }
    });
    Ok(Candidacy { gate, leading, election })
}

fn pod_name(settings: &ElectionSettings) -> String {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    settings.pod_name.clone().unwrap_or_else(host)
}

/// Everything that runs.
struct Running {
    tasks: JoinSet<()>,
    server: JoinHandle<Result<()>>,
    election: JoinHandle<Result<(), Lost>>,
    /// Ends the passes.
    stop: CancellationToken,
    /// Ends everything else, and releases the lease.
    end: CancellationToken,
}

/// Waits for a signal, or for a task that ends by itself, which is a failure; then ends the others. Who has lost the lease ends at
/// once: nothing that it could finish would be written.
async fn supervise(mut running: Running) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let outcome = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        ended = &mut running.election => return Err(election_ended(ended)),
        ended = &mut running.server => Err(match ended {
            Ok(Ok(())) => anyhow!("the health server ended by itself"),
            Ok(Err(error)) => error,
            Err(error) => anyhow!(error).context("the health server failed"),
        }),
        ended = running.tasks.join_next() => Err(match ended {
            Some(Err(error)) => anyhow!(error).context("a task failed"),
            Some(Ok(())) | None => anyhow!("a task ended by itself"),
        }),
    };
    tracing::info!("stopping");
    let Running { mut tasks, server, mut election, stop, end } = running;
    let told = Instant::now();
    stop.cancel();
    let passes = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        finished = timeout_at(told + PASSES_DEADLINE, passes) => if finished.is_err() {
            tracing::warn!("not every pass that had begun was finished in time; the lease is left to run out");
            // A write of theirs may still be on its way, so nobody else may begin.
            return outcome;
        },
        ended = &mut election => return Err(election_ended(ended)),
    }
    end.cancel();
    match timeout_at(told + SHUTDOWN_DEADLINE, election).await {
        Ok(Ok(Ok(()))) => {}
        Ok(ended) => return Err(election_ended(ended)),
        Err(_) => tracing::warn!("the lease was not released in time; it runs out by itself"),
    }
    // A connection that somebody keeps open is no reason to stay.
    server.abort();
    outcome
}

fn election_ended(ended: Result<Result<(), Lost>, tokio::task::JoinError>) -> anyhow::Error {
    match ended {
        Ok(Ok(())) => anyhow!("the election ended by itself"),
        Ok(Err(lost)) => anyhow!(lost).context("no longer the leader"),
        Err(error) => anyhow!(error).context("the election failed"),
    }
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
