//! What files cost, as ratios within one run: a large file into a container and out of it, and into the file store and out of it, beside
//! the same file sent to nginx and fetched from it; and the server's memory while several come at once. All is sent by curl.

mod nginx;

use anyhow::{Context as _, ensure};
use clap::Parser;
use nginx::Nginx;
use serde_json::Value;
use std::{
    fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

/// Ratios of files.
#[derive(Parser)]
struct Args {
    /// Address of the API server.
    #[arg(long, env = "CODEEXEC_URL")]
    url: String,
    /// Its key.
    #[arg(long, env = "CODEEXEC_KEY", hide_env_values = true)]
    key: String,
    /// Its process, on this machine.
    #[arg(long, env = "CODEEXEC_SERVER_PID")]
    pid: u32,
    /// The nginx to compare with.
    #[arg(long)]
    nginx: PathBuf,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Size of the file in MB.
    #[arg(long, default_value_t = 300)]
    megabytes: u64,
    /// Files that come at once.
    #[arg(long, default_value_t = 5)]
    at_once: usize,
}

const CONTAINER: &str = "file-bench";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = Folder::new()?;
    let file = folder.0.join("file");
    random_file(&file, args.megabytes * 1_000_000)?;
    let nginx = Nginx::start(&args.nginx, &folder.0).await?;
    let bench = Bench { made: made_by_code(&args).await?, args, file };
    bench.speeds(&nginx).await?;
    bench.memory("a container", |n| bench.to_container(&format!("at-once-{n}"))).await?;
    bench.memory("the file store", |_| bench.to_store()).await
}

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("file-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn random_file(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let mut to = fs::File::create(path)?;
    std::io::copy(&mut fs::File::open("/dev/urandom")?.take(bytes), &mut to)?;
    Ok(to.sync_all()?)
}

/// Id of a stored file of this size that code made: only such can be downloaded.
async fn made_by_code(args: &Args) -> anyhow::Result<String> {
    let command = format!("head -c {} /dev/urandom > \"$OUTPUT_DIR/file\"", args.megabytes * 1_000_000);
    let body = serde_json::json!({
        "model": "default",
        "max_tokens": 256,
        "tools": [{"type": "code_execution_20250825", "name": "code_execution"}],
        "messages": [{"role": "user", "content": format!("```bash\n{command}\n```")}],
    });
    let mut curl = call(args, "/v1/messages");
    let output = curl.args(["-H", "content-type: application/json", "-d", &body.to_string()]).output().await?;
    let answer: Value = serde_json::from_slice(&output.stdout).context("reading the answer")?;
    let id = answer["content"][1]["content"]["content"][0]["file_id"].as_str();
    Ok(id.with_context(|| format!("no file came of {answer}"))?.to_owned())
}

/// curl, which fails where the server refuses.
fn curl() -> Command {
    let mut command = Command::new("curl");
    command.args(["--fail-with-body", "-sS"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    command
}

fn call(args: &Args, path: &str) -> Command {
    let mut command = curl();
    command.arg(format!("{}{path}", args.url));
    command.args(["-H", &format!("x-api-key: {}", args.key), "-H", "anthropic-version: 2023-06-01"]);
    command
}

async fn ended(mut command: Command) -> anyhow::Result<Vec<u8>> {
    finished(command.spawn().context("starting curl")?).await
}

async fn finished(child: Child) -> anyhow::Result<Vec<u8>> {
    let output = child.wait_with_output().await?;
    let said = String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
    ensure!(output.status.success(), "a call failed: {said}");
    Ok(output.stdout)
}

/// The disk is at rest before: what one leaves unwritten would be the next one's burden.
async fn timed(command: Command) -> anyhow::Result<(Duration, Vec<u8>)> {
    tokio::task::spawn_blocking(rustix::fs::sync).await?;
    let began = Instant::now();
    let output = ended(command).await?;
    Ok((began.elapsed(), output))
}

struct Bench {
    args: Args,
    file: PathBuf,
    made: String,
}

impl Bench {
    fn with_file(&self, mut command: Command) -> Command {
        command.arg("-T").arg(&self.file);
        command
    }

    fn to_container(&self, key: &str) -> Command {
        self.with_file(call(&self.args, &format!("/api/gpt/v1/files/{key}?scope_id={CONTAINER}")))
    }

    fn to_store(&self) -> Command {
        let mut command = call(&self.args, "/v1/files");
        command.arg("-F").arg(format!("file=@{}", self.file.display()));
        command
    }

    fn fetched(mut command: Command) -> Command {
        command.args(["-o", "/dev/null"]);
        command
    }

    async fn speeds(&self, nginx: &Nginx) -> anyhow::Result<()> {
        let made = ended(self.to_container("file")).await?;
        let made: Value = serde_json::from_slice(&made).context("reading the answer")?;
        let id = made["id"].as_str().context("an upload without an id")?;
        let in_container = format!("/api/gpt/v1/files/{id}/content?scope_id={CONTAINER}");
        let in_store = format!("/v1/files/{}/content", self.made);
        let to = |url: String| {
            let mut command = curl();
            command.arg(url);
            command
        };
        let mut times: [Vec<Duration>; 6] = Default::default();
        // All in each round, so that a busy moment of the machine meets them alike.
        for _ in 0..self.args.rounds {
            let [up_nginx, up_container, up_store, down_nginx, down_container, down_store] = &mut times;
            up_nginx.push(timed(self.with_file(to(nginx.url("file")))).await?.0);
            up_container.push(timed(self.to_container("file")).await?.0);
            let (took, stored) = timed(self.to_store()).await?;
            up_store.push(took);
            self.forget(&stored).await?;
            down_nginx.push(timed(Self::fetched(to(nginx.url("file")))).await?.0);
            down_container.push(timed(Self::fetched(call(&self.args, &in_container))).await?.0);
            down_store.push(timed(Self::fetched(call(&self.args, &in_store))).await?.0);
        }
        let mut out = std::io::stdout();
        let title = format!("a file of {} MB", self.args.megabytes);
        writeln!(out, "{title:<34} {:>5} {:>9} {:>9} {:>16}", "n", "p50 ms", "MB/s", "speed x nginx")?;
        let names = ["up: nginx", "up: container", "up: store", "down: nginx", "down: container", "down: store"];
        let medians = times.map(median);
        for (place, (name, time)) in names.into_iter().zip(medians).enumerate() {
            let beside = medians[place / 3 * 3];
            #[expect(clippy::cast_precision_loss, reason = "a number for people")]
            let speed = self.args.megabytes as f64 / time;
            writeln!(
                out,
                "{name:<34} {:>5} {:>9.0} {speed:>9.0} {:>16.2}",
                self.args.rounds,
                time * 1e3,
                beside / time
            )?;
        }
        Ok(())
    }

    async fn forget(&self, stored: &[u8]) -> anyhow::Result<()> {
        let stored: Value = serde_json::from_slice(stored).context("reading the answer")?;
        let mut delete = call(&self.args, &format!("/v1/files/{}", stored["id"].as_str().context("no id")?));
        delete.args(["-X", "DELETE"]);
        ended(delete).await.map(drop)
    }

    /// The most memory that the server takes while several files come at once, beyond what it takes before.
    async fn memory(&self, place: &str, upload: impl Fn(usize) -> Command) -> anyhow::Result<()> {
        let process = PathBuf::from(format!("/proc/{}", self.args.pid));
        // From here on the kernel looks for the most anew.
        fs::write(process.join("clear_refs"), "5").context("looking at the server's memory")?;
        let before = resident(&process, "VmRSS:")?;
        let sent = (0..self.args.at_once).map(|number| upload(number).spawn()).collect::<Result<Vec<_>, _>>()?;
        for child in sent {
            finished(child).await?;
        }
        let most = resident(&process, "VmHWM:")?;
        writeln!(
            std::io::stdout(),
            "{} files of {} MB at once into {place}: the server's memory +{:.1} MiB (from {:.1})",
            self.args.at_once,
            self.args.megabytes,
            (most - before) / 1024.0,
            before / 1024.0
        )?;
        Ok(())
    }
}

/// Seconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, Duration::as_secs_f64)
}

/// Kibibytes.
fn resident(process: &Path, name: &str) -> anyhow::Result<f64> {
    let status = fs::read_to_string(process.join("status")).context("reading the server's status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_a_value_that_was_measured() {
        let times = [5, 1, 4, 2, 3].map(Duration::from_secs).into();
        assert!((median(times) - 3.0).abs() < f64::EPSILON);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn this_process_takes_memory() {
        assert!(resident(Path::new("/proc/self"), "VmRSS:").is_ok_and(|kibibytes| kibibytes > 100.0));
    }
}
