//! Programs that are measured: started, read from /proc, ended.

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    path::Path,
    process::Stdio,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::process::{Child, Command};

/// A program that ends within this time of SIGTERM.
const STOP_DEADLINE: Duration = Duration::from_mins(3);

/// A running program; killed when it is dropped.
pub struct Program {
    name: &'static str,
    pid: u32,
    child: Mutex<Option<Child>>,
}

/// What a program has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Of all its threads, in user and kernel.
    pub cpu: Duration,
    /// Resident now, in MB of a million bytes.
    pub resident_mb: f64,
    /// Resident at most.
    pub peak_mb: f64,
}

impl Program {
    /// Starts it, with what it says in a file of `logs`.
    pub fn start(name: &'static str, command: &mut Command, logs: &Path) -> anyhow::Result<Self> {
        let path = logs.join(format!("{name}.log"));
        let log = std::fs::File::create(&path).with_context(|| format!("making {}", path.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            // A Ctrl-C reaches it through this program only, which ends it in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {name}; is it built?"))?;
        let pid = child.id().context("it has ended at once")?;
        Ok(Self { name, pid, child: Mutex::new(Some(child)) })
    }

    /// What it has used.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/{}/{file}", self.pid))
                .with_context(|| format!("{} does not run; see its log", self.name))
        };
        let (stat, status) = (read("stat")?, read("status")?);
        usage(&stat, &status, rustix::param::clock_ticks_per_second())
            .with_context(|| format!("/proc of {} cannot be read: {stat}", self.name))
    }

    /// Whether it still runs.
    pub fn runs(&self) -> bool {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// SIGTERM, and then its end.
    pub async fn stop(&self) -> anyhow::Result<()> {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut child) = child else { return Ok(()) };
        if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            kill_process(pid, Signal::TERM).with_context(|| format!("ending {}", self.name))?;
        }
        let ended = tokio::time::timeout(STOP_DEADLINE, child.wait()).await;
        let status = ended.with_context(|| format!("{} did not end after SIGTERM", self.name))??;
        ensure!(status.success(), "{} ended with {status}; see its log", self.name);
        Ok(())
    }
}

/// From `/proc/PID/stat` and `/proc/PID/status`.
fn usage(stat: &str, status: &str, ticks_per_second: u64) -> Option<Usage> {
    // The name before the last bracket may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    let megabytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kibibytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kibibytes * 1024.0 / 1e6)
    };
    Some(Usage {
        cpu: Duration::from_millis((user + kernel) * 1000 / ticks_per_second.max(1)),
        resident_mb: megabytes("VmRSS")?,
        peak_mb: megabytes("VmHWM")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_memory_are_read_whatever_the_program_is_called() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 8 0 12345 1000000 2000";
        let status = "Name:\ta) b (c\nVmHWM:\t  200000 kB\nVmRSS:\t  100000 kB\n";
        let found = usage(stat, status, 100).unwrap();
        assert_eq!(found.cpu, Duration::from_secs(3));
        assert!((found.resident_mb - 102.4).abs() < 1e-6 && (found.peak_mb - 204.8).abs() < 1e-6);
        assert_eq!(usage("nonsense", status, 100), None);
    }

    #[tokio::test]
    async fn a_program_is_measured_and_ended() {
        let logs = std::env::temp_dir();
        let mut command = Command::new("sh");
        command.args(["-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done"]);
        let program = Program::start("scale-test-program", &mut command, &logs).unwrap();
        assert!(program.runs() && program.usage().unwrap().resident_mb > 0.0);
        // The trap is set once the loop has begun; before that SIGTERM ends the shell with a status of its own.
        while program.usage().unwrap().peak_mb == 0.0 {
            tokio::task::yield_now().await;
        }
        let _ = program.stop().await;
        assert!(!program.runs());
        std::fs::remove_file(logs.join("scale-test-program.log")).unwrap();
    }
}
