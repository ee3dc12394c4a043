//! How far the operator goes: many sandboxes on a simulated node of a real API server, beside as many bare pods with a claim each made
//! from the same containers; then many suspended ones at rest. Everything is printed as ratios or as a cost for one sandbox.

mod audit;
mod bench;
mod board;
mod creation;
mod load;
mod objects;
#[path = "../../process.rs"]
mod process;
mod prometheus;
mod report;
mod rest;
#[path = "../../table.rs"]
mod table;
mod traffic;

use anyhow::Context as _;
use bench::Bench;
use clap::Parser;
use creation::{create, one_at_a_time};
use load::Subject;
use std::{path::PathBuf, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

/// Creation rate, CPU, memory and writes of the operator, beside bare pods in the same run.
#[derive(Clone, Parser)]
pub struct Args {
    /// Sandboxes that run at once, and bare pods that they are compared with.
    #[arg(long, default_value_t = 2000)]
    sandboxes: usize,
    /// Sandboxes that are started, idle out and then rest; 0 leaves this part out.
    #[arg(long, default_value_t = 10_000)]
    suspended: usize,
    /// Of these, how many may run at once.
    #[arg(long, default_value_t = 1500)]
    window: usize,
    /// Their idle time-out in seconds.
    #[arg(long, default_value_t = 20)]
    idle: u64,
    /// How long the suspended ones are watched at rest, in seconds.
    #[arg(long, default_value_t = 600)]
    rest: u64,
    /// Pairs of one sandbox and one bare pod, made one after the other.
    #[arg(long, default_value_t = 50)]
    pairs: usize,
    /// Objects created side by side.
    #[arg(long, default_value_t = 32)]
    concurrency: usize,
    /// Time that still counts after the last one is Ready, in seconds.
    #[arg(long, default_value_t = 5)]
    settle: u64,
    /// Without any progress for so many seconds the run has failed.
    #[arg(long, default_value_t = 120)]
    stall: u64,
    /// Time that the simulated kubelet takes to start a pod, in milliseconds.
    #[arg(long, default_value_t = 0)]
    start_delay: u64,
    /// The operator's program.
    #[arg(long, default_value = "target/release/operator")]
    operator: PathBuf,
    /// One more argument for the operator; may be repeated.
    #[arg(long, allow_hyphen_values = true)]
    operator_arg: Vec<String>,
    /// The program of the simulated kubelet.
    #[arg(long, default_value = "target/release/kubelet_sim")]
    kubelet: PathBuf,
    /// Logs of both.
    #[arg(long, default_value = "target/bench-scale")]
    logs: PathBuf,
    /// The API server's audit log, to tell who wrote.
    #[arg(long, env = "CLUSTER_AUDIT_LOG")]
    audit_log: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).init();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let bench = Bench::connect(args).await?;
    let outcome = tokio::select! {
        outcome = run(&bench) => outcome,
        _ = terminate.recv() => Err(anyhow::anyhow!("ended by SIGTERM")),
        _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
    };
    let cleaned = bench.clean_up().await;
    outcome?;
    cleaned.context("cleaning up")
}

async fn run(bench: &Bench) -> anyhow::Result<()> {
    let args = &bench.args;
    bench.set_up().await?;
    let like = bench.example().await?;
    let (sandboxes, bare) = (Subject::sandboxes(bench, bench::STAYS), Subject::bare(bench, like));
    if args.pairs > 0 {
        tracing::info!(pairs = args.pairs, "one at a time");
        report::pairs(&one_at_a_time(bench, &sandboxes, &bare).await?)?;
        bench.clear().await?;
    }
    if args.sandboxes > 0 {
        // Bare pods before and after, so that a change of the machine during the run shows.
        let mut runs = Vec::new();
        for subject in [&bare, &sandboxes, &bare] {
            tracing::info!(count = args.sandboxes, "creating {}", subject.name());
            runs.push(create(bench, subject).await?);
            tracing::info!("removing them");
            bench.clear().await?;
        }
        report::creations(&runs)?;
    }
    if args.suspended > 0 {
        let idles = Subject::sandboxes(bench, bench::IDLES);
        tracing::info!(count = args.suspended, "creating sandboxes that idle out");
        let suspended = rest::suspend(bench, &idles).await?;
        tracing::info!(seconds = args.rest, "watching them at rest");
        let at_rest = rest::watch(bench, Duration::from_secs(args.rest)).await?;
        report::rest(&suspended, &at_rest)?;
    }
    Ok(())
}
