//! What the stream into a sandbox costs, on a real cluster, as ratios within one run: a command over an open stream beside the same
//! command started here and beside `kubectl exec`; a cell; the first command on a running sandbox; the start of a pod; a file up and
//! down beside `kubectl cp`; a command beside a transfer; and what `sandboxd` takes at rest.

mod pod_start;
mod sandbox;
mod table;
mod transfer;

use anyhow::{Context as _, ensure};
use clap::Parser;
use sandbox::Subject;
use std::{
    io::Write as _,
    process::Stdio,
    time::{Duration, Instant},
};
use table::{Row, megabytes, table};
use tokio::process::Command;

/// Ratios of the stream into a sandbox.
#[derive(Parser)]
struct Args {
    /// Namespace of the sandboxes, where the template `default` works.
    #[arg(long, env = "CODEEXEC_TEST_SANDBOXES")]
    namespace: String,
    /// Rounds; what is slow runs in every tenth.
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    /// Another image of sandboxes, whose start is compared with that of the template's own.
    #[arg(long)]
    full_image: Option<String>,
    /// Size of the file that is sent, in MB.
    #[arg(long, default_value_t = 300)]
    megabytes: u64,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let subject = Subject::new(&args.namespace).await?;
    subject.run("warm-up", "true").await?;
    let pod = subject.pod().await?;
    commands(&subject, &pod, &args).await?;
    at_rest(&subject).await?;
    transfer::measure(&subject, &pod, args.megabytes * 1_000_000).await?;
    // Meanwhile the sandbox above may idle out.
    Box::pin(pod_start::measure(&subject, args.full_image.as_deref())).await?;
    subject.delete().await
}

async fn commands(subject: &Subject, pod: &str, args: &Args) -> anyhow::Result<()> {
    let [mut local, mut open, mut cell, mut first, mut exec, mut kubectl] = [const { Vec::new() }; 6];
    // Starts the interpreter.
    subject.cell("cell", "1+1", "2\n").await?;
    for round in 0..args.rounds {
        local.push(timed(spawned(Command::new("bash").args(["-c", "true"]))).await?);
        open.push(timed(subject.run(&format!("open-{round}"), "true")).await?);
        cell.push(timed(subject.cell(&format!("cell-{round}"), "1+1", "2\n")).await?);
        if round % 10 == 0 {
            exec.push(timed(subject.exec(pod)).await?);
            kubectl.push(
                timed(spawned(&mut subject.kubectl(&["exec", pod, "-c", "main", "--", "bash", "-c", "true"]))).await?,
            );
            // Streams of its own, opened for this command.
            let fresh = subject.with_new_streams().await?;
            first.push(timed(fresh.run(&format!("first-{round}"), "true")).await?);
            fresh.close_streams().await;
        }
    }
    say(&table(
        "a command that does nothing",
        &["x bash", "x kubectl exec", "x open stream"],
        &[0, 1, 2],
        &[
            Row::new("bash -c true, by this program", local),
            Row::new("kubectl exec", kubectl),
            Row::new("over an open stream", open),
            Row::new("a cell, 1+1", cell),
            Row::new("the first, its stream opened", first),
            Row::new("an exec of true, by this program", exec),
        ],
    )?)
}

/// What `sandboxd` holds, and how often it wakes, with no stream open and nothing running.
async fn at_rest(subject: &Subject) -> anyhow::Result<()> {
    subject.close_streams().await;
    let look = "cat /proc/1/status; cat /proc/1/task/*/status | grep ^voluntary_ctxt";
    let seen = |text: String| -> anyhow::Result<(u64, u64)> {
        let number = |line: &str, name: &str| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok();
        let resident = text.lines().find_map(|line| number(line, "VmRSS:")).context("no VmRSS")?;
        // The first is that of the whole status, which the list of threads repeats.
        let switches = text.lines().filter_map(|line| number(line, "voluntary_ctxt_switches:")).skip(1).sum();
        Ok((resident, switches))
    };
    let pod = subject.pod().await?;
    let arguments = ["exec", &pod, "-c", "main", "--", "sh", "-c", look];
    let ask = || subject.kubectl_output(&arguments);
    let before = seen(ask().await?)?;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let after = seen(ask().await?)?;
    let (held, woken) = (megabytes(after.0 * 1024), after.1.saturating_sub(before.1));
    say(&format!("sandboxd at rest: {held} resident, woken {woken} times in {} s", began.elapsed().as_secs()))
}

/// A part of the report.
fn say(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}\n")?)
}

async fn timed(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<Duration> {
    let started = Instant::now();
    work.await?;
    Ok(started.elapsed())
}

async fn spawned(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().await.context("starting a command")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
