//! What the API server adds to a model: to the time of a stream's first words and to that of a turn with one command, beside the same
//! upstream called directly; and how many events a second a core passes on, beside `LiteLLM`'s proxy before the same upstream.

mod client;
#[path = "../../process.rs"]
mod process;
#[path = "../../table.rs"]
mod table;
mod upstream;

use anyhow::{Context as _, ensure};
use clap::Parser;
use client::Target;
use process::Program;
use std::{
    io::Write as _,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use table::{Table, millis, number, percentile};
use tokio::process::Command;

/// A program that does not answer within this time of its start is broken.
const START_DEADLINE: Duration = Duration::from_mins(3);
/// Streams at once while events are counted.
const STREAMS: usize = 4;
/// Milliseconds, milliseconds, and times.
const FIRST_GOAL: f64 = 2.0;
const TURN_GOAL: f64 = 5.0;
const RATE_GOAL: f64 = 10.0;

/// Ratios of the API server beside its upstream and another proxy.
#[derive(Parser)]
struct Args {
    /// The API server.
    #[arg(long, default_value = "target/release/api-server")]
    server: PathBuf,
    /// Its sandboxd.
    #[arg(long, env = "SANDBOXD_BIN")]
    sandboxd: PathBuf,
    /// `LiteLLM`; without it, nothing is compared with it.
    #[arg(long)]
    litellm: Option<PathBuf>,
    /// A folder for what the programs write; made anew.
    #[arg(long, default_value = "target/bench/model")]
    folder: PathBuf,
    /// Rounds of what is timed.
    #[arg(long, default_value_t = 300)]
    rounds: usize,
    /// Events of each stream through the API server; the other proxy gets a twentieth.
    #[arg(long, default_value_t = 50_000)]
    events: usize,
    /// Events of each stream at a model's pace.
    #[arg(long, default_value_t = 2500)]
    paced: usize,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // An HTTP client cannot be made without; another installation would do as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match std::fs::remove_dir_all(&args.folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).context("emptying the folder"),
        _ => std::fs::create_dir_all(&args.folder).context("making the folder")?,
    }
    let upstream = format!("http://{}", upstream::start().await?);
    let direct = Target::new(&upstream, false);
    let server = Server::start(&args, &upstream).await?;
    let mut table = Table::new(["the model behind the API server", "value", "goal"]);
    let mut row = |name: &str, value: f64, goal: &str| table.row([name.to_owned(), number(value), goal.to_owned()]);

    let first = first_words(&direct, &server.plain, args.rounds).await?;
    row("first words: time added to the upstream's, p50 ms", first, &format!("<= {FIRST_GOAL}"));
    let turn = turns(&direct, &server.coding, args.rounds).await?;
    row("turn with a command: time added to its parts', p50 ms", turn, &format!("<= {TURN_GOAL}"));
    let ours = Rates::of(&server.plain, &server.program, args.events, args.paced).await?;
    row("events a second and core, at a model's pace", ours.paced, "");
    row("events a second and core, as fast as it goes", ours.fast, "");
    let memory = server.program.usage()?;
    row("memory at most, MB", memory.peak_mb, "");
    row("memory after that, MB", memory.resident_mb, "");
    if let Some(binary) = &args.litellm {
        let (target, program) = litellm(binary, &args.folder, &upstream).await?;
        let theirs = Rates::of(&target, &program, args.events / 20, args.paced).await?;
        row("LiteLLM: at a model's pace", theirs.paced, "");
        row("LiteLLM: as fast as it goes", theirs.fast, "");
        row("LiteLLM: memory at most, MB", program.usage()?.peak_mb, "");
        row(
            "events a second and core, at a model's pace, x LiteLLM",
            ours.paced / theirs.paced,
            &format!(">= {RATE_GOAL}"),
        );
        row("events a second and core, as fast as it goes, x LiteLLM", ours.fast / theirs.fast, "");
        let first = first_words(&direct, &target, args.rounds / 10).await?;
        row("LiteLLM: first words: time added, p50 ms", first, "");
    }
    server.program.stop().await?;
    write!(std::io::stdout(), "{table}").context("writing the report")
}

/// The API server before the upstream.
struct Server {
    program: Program,
    plain: Target,
    coding: Target,
}

impl Server {
    async fn start(args: &Args, upstream: &str) -> anyhow::Result<Self> {
        let address = free_address()?;
        let mut command = Command::new(&args.server);
        command.args(["--auth", "none", "--listen", &address, "--provider", "anthropic", "--provider-url", upstream]);
        command
            .args(["--model", "bench", "--data-dir"])
            .arg(args.folder.join("data"))
            .env("CODEEXEC_SANDBOXD", &args.sandboxd);
        let program = Program::start("api-server", &mut command, &args.folder)?;
        let url = format!("http://{address}");
        let plain = Target::new(&url, false);
        answers(&program, &plain).await?;
        Ok(Self { program, plain, coding: Target::new(&url, true) })
    }
}

async fn litellm(binary: &Path, folder: &Path, upstream: &str) -> anyhow::Result<(Target, Program)> {
    let (address, config) = (free_address()?, folder.join("litellm.yaml"));
    let parameters = format!("{{model: anthropic/bench, api_base: \"{upstream}\", api_key: bench}}");
    std::fs::write(&config, format!("model_list: [{{model_name: bench, litellm_params: {parameters}}}]\n"))?;
    let (host, port) = address.split_once(':').context("no port")?;
    let mut command = Command::new(binary);
    command.arg("--config").arg(&config).args(["--host", host, "--port", port, "--num_workers", "1"]);
    // Prices and announcements come from elsewhere otherwise.
    command
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .env("LITELLM_LOG", "ERROR")
        .env("LITELLM_MASTER_KEY", client::KEY);
    let program = Program::start("litellm", &mut command, folder)?;
    let target = Target::new(&format!("http://{address}"), false);
    answers(&program, &target).await?;
    Ok((target, program))
}

/// A port that was free a moment ago.
fn free_address() -> anyhow::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

async fn answers(program: &Program, target: &Target) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let Err(error) = target.send("1", None).await else { return Ok(()) };
        ensure!(program.runs() && started.elapsed() < START_DEADLINE, "it does not answer: {error:#}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Milliseconds that the proxy adds to the time of the first words. The rounds of both alternate.
async fn first_words(direct: &Target, proxied: &Target, rounds: usize) -> anyhow::Result<f64> {
    let [mut alone, mut through] = [const { Vec::new() }; 2];
    for _ in 0..rounds {
        alone.push(direct.send("20", None).await?.first);
        through.push(proxied.send("20", None).await?.first);
    }
    Ok(median(&mut through)? - median(&mut alone)?)
}

/// Milliseconds of a turn with one command beyond those of both its samplings and of the command itself, started here.
async fn turns(direct: &Target, server: &Target, rounds: usize) -> anyhow::Result<f64> {
    // Makes the sandbox.
    let container = server.container("run").await?;
    let [mut call, mut words, mut command, mut turn] = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        call.push(direct.send("run", None).await?.whole);
        words.push(direct.send("4", None).await?.whole);
        let started = Instant::now();
        let status = Command::new("bash").args(["-c", "true"]).stdin(Stdio::null()).status().await?;
        command.push(started.elapsed());
        ensure!(status.success(), "bash ended with {status}");
        turn.push(server.send("run", Some(&container)).await?.whole);
    }
    Ok(median(&mut turn)? - median(&mut call)? - median(&mut words)? - median(&mut command)?)
}

fn median(times: &mut [Duration]) -> anyhow::Result<f64> {
    times.sort_unstable();
    Ok(millis(percentile(times, 50)?))
}

/// How much a proxy passes on.
struct Rates {
    /// Events in a second of its CPU time, when each comes by itself.
    paced: f64,
    /// The same when they come as fast as they are read.
    fast: f64,
}

impl Rates {
    async fn of(target: &Target, program: &Program, fast: usize, paced: usize) -> anyhow::Result<Self> {
        // Not counted: connections are made, code is loaded.
        target.send("1000", None).await?;
        let paced = rate(target, program, &format!("{paced}{}", upstream::PACED), paced).await?;
        let fast = rate(target, program, &fast.to_string(), fast).await?;
        Ok(Self { paced, fast })
    }
}

/// Events in a second of the proxy's CPU time; each stream has at least `events`.
async fn rate(target: &Target, program: &Program, text: &str, events: usize) -> anyhow::Result<f64> {
    let before = program.usage()?.cpu;
    let told = futures_util::future::try_join_all((0..STREAMS).map(|_| target.send(text, None))).await?;
    let cpu = program.usage()?.cpu.saturating_sub(before);
    let passed: usize = told.iter().map(|told| told.events).sum();
    ensure!(passed >= STREAMS * events, "{passed} events of {} came", STREAMS * events);
    Ok(f64::from(u32::try_from(passed)?) / cpu.as_secs_f64())
}
