//! What a command costs through the API, beside the same command started by this program and beside `kubectl exec` into
//! the same pod. The rounds of all three alternate, so that a busy moment of the machine meets them alike.

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use serde_json::{Value, json};
use std::{
    io::Write as _,
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::Command;

/// Latency of one command, as ratios within one run.
#[derive(Parser)]
struct Args {
    /// Address of the API server.
    #[arg(long, env = "CODEEXEC_URL")]
    url: String,
    /// Its key.
    #[arg(long, env = "CODEEXEC_KEY", hide_env_values = true)]
    key: String,
    /// Namespace of the sandboxes: `kubectl exec` is measured too.
    #[arg(long)]
    namespace: Option<String>,
    /// Rounds; `kubectl exec` runs in every fifth.
    #[arg(long, default_value_t = 200)]
    rounds: usize,
}

const CONTAINER: &str = "bench";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // An HTTP client cannot be made without; another installation would do as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::new();
    // Makes the sandbox, and opens its stream.
    api(&http, &args).await?;
    let pod = match &args.namespace {
        Some(namespace) => Some((namespace.as_str(), pod(namespace).await?)),
        None => None,
    };
    let (mut local, mut through_api, mut exec) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.rounds {
        local.push(spawned(Command::new("bash").args(["-c", "true"])).await?);
        through_api.push(api(&http, &args).await?);
        if let Some((namespace, pod)) = pod.as_ref().filter(|_| round % 5 == 0) {
            let mut command = Command::new("kubectl");
            command.args(["-n", namespace, "exec", pod, "-c", "main", "--", "bash", "-c", "true"]);
            exec.push(spawned(&mut command).await?);
        }
    }
    report(&mut local, &mut through_api, &mut exec)
}

/// One command through the whole API: request, two samplings of the demo model, the command, the answer.
async fn api(http: &reqwest::Client, args: &Args) -> anyhow::Result<Duration> {
    let body = json!({
        "model": "default",
        "max_tokens": 256,
        "container": CONTAINER,
        "tools": [{"type": "code_execution_v1", "name": "code_execution"}],
        "messages": [{"role": "user", "content": "```bash\ntrue\n```\n```text\ndone\n```"}],
    });
    let started = Instant::now();
    let request = http.post(format!("{}/api/gpt/v1/messages", args.url)).header("x-api-key", &args.key).json(&body);
    let response = request.send().await.context("calling the server")?;
    let status = response.status();
    let answer: Value = response.json().await.context("reading the answer")?;
    let took = started.elapsed();
    ensure!(
        status.is_success() && answer["content"][1]["content"]["return_code"] == 0,
        "the server answered {status}: {answer}"
    );
    Ok(took)
}

async fn spawned(command: &mut Command) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let output = command.stdin(Stdio::null()).output().await.context("starting a command")?;
    let took = started.elapsed();
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(took)
}

/// The pod of the benchmark's sandbox: a Sandbox and its pod share the slug of the container's id.
async fn pod(namespace: &str) -> anyhow::Result<String> {
    let output = Command::new("kubectl").args(["-n", namespace, "get", "pods", "-o", "name"]).output().await?;
    let names = String::from_utf8(output.stdout)?;
    let mut found = names.lines().filter(|name| name.starts_with(&format!("pod/{CONTAINER}")));
    match (found.next(), found.next()) {
        (Some(name), None) => Ok(name.to_owned()),
        (None, _) => bail!("no pod of the container `{CONTAINER}` in {namespace}: {names}"),
        (Some(_), Some(_)) => bail!("several pods of the container `{CONTAINER}` in {namespace}: {names}"),
    }
}

fn report(local: &mut [Duration], api: &mut [Duration], exec: &mut [Duration]) -> anyhow::Result<()> {
    let base = percentile(local, 50).context("no rounds")?;
    let through_api = percentile(api, 50).context("no rounds")?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{:<34} {:>5} {:>9} {:>9} {:>10} {:>10}",
        "a command that does nothing", "n", "p50 ms", "p95 ms", "x bash", "x API"
    )?;
    for (name, times) in
        [("bash -c true, by this program", local), ("through the API", api), ("kubectl exec into the same pod", exec)]
    {
        let (Some(p50), Some(p95)) = (percentile(times, 50), percentile(times, 95)) else { continue };
        let ratio = |other: Duration| p50.as_secs_f64() / other.as_secs_f64();
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        writeln!(
            out,
            "{name:<34} {:>5} {:>9.2} {:>9.2} {:>10.2} {:>10.2}",
            times.len(),
            millis(p50),
            millis(p95),
            ratio(base),
            ratio(through_api)
        )?;
    }
    Ok(())
}

fn percentile(times: &mut [Duration], percent: usize) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len().checked_sub(1)? * percent / 100).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut times: Vec<_> = [5, 1, 4, 2, 3].map(Duration::from_millis).into();
        assert_eq!(percentile(&mut times, 50), Some(Duration::from_millis(3)));
        assert_eq!(percentile(&mut times, 95), Some(Duration::from_millis(4)));
        assert_eq!(percentile(&mut [], 50), None);
    }
}
