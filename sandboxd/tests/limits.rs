//! What happens before and when the container's memory is used up. The control group is one of plain files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test ends by a panic")]

mod common;

use common::{Outcome, Sandbox, bash};
use std::{fs, path::PathBuf, time::Duration};

const LIMIT: u64 = 256 << 20;

struct Limited {
    sandbox: Sandbox,
    cgroup: tempfile::TempDir,
}

impl Limited {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(more: &[(&str, &str)]) -> Self {
        let cgroup = tempfile::tempdir().unwrap();
        let this = |name: &str| cgroup.path().join(name);
        fs::write(this("memory.max"), format!("{LIMIT}\n")).unwrap();
        fs::write(this("memory.current"), "1000\n").unwrap();
        fs::write(this("memory.events"), "oom_kill 0\n").unwrap();
        for (name, content) in more {
            fs::write(this(name), content).unwrap();
        }
        let folder = cgroup.path().to_str().unwrap();
        let sandbox = Sandbox::start("main", &["--cgroup", folder], common::make_claim()).await;
        Self { sandbox, cgroup }
    }

    /// A large call and a small one while the use that a file tells is high; it is low again when the large one has ended.
    async fn press(&self, file: &str, high: u64, low: u64, command: &str) -> (Outcome, Outcome) {
        let client = &self.sandbox.client;
        let mut large = client.start("large", &bash(command)).await.unwrap();
        let mut small = client.start("small", &bash("echo 1; sleep 1; echo done")).await.unwrap();
        large.until(|seen| !seen.stdout.is_empty()).await;
        small.until(|seen| !seen.stdout.is_empty()).await;
        fs::write(self.file(file), format!("{high}\n")).unwrap();
        let large = tokio::time::timeout(Duration::from_secs(30), large.end()).await.unwrap();
        fs::write(self.file(file), format!("{low}\n")).unwrap();
        (large, small.end().await)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.cgroup.path().join(name)
    }
}

/// T14(a), attack 11.
#[tokio::test]
async fn one_greedy_process_sees_a_failed_allocation() {
    let limited = Limited::start().await;
    let outcome = limited.sandbox.run("r1", "python3 -c 'bytearray(300 << 20)'; echo code $?").await;
    assert!(outcome.error_text().ends_with("MemoryError\n"), "{}", outcome.error_text());
    assert_eq!(outcome.text(), "code 1\n");
    assert_eq!(limited.sandbox.run("r2", "python3 -c 'bytearray(100 << 20)'; echo code $?").await.text(), "code 0\n");
}

#[tokio::test]
async fn the_largest_call_is_killed_before_memory_is_used_up_and_the_others_go_on() {
    let limited = Limited::start().await;
    let greedy = "python3 -c 'x = bytearray(100 << 20); print(1, flush=True); import time; time.sleep(999)' & wait";
    let (large, small) = limited.press("memory.current", LIMIT - 1, 1000, greedy).await;
    let exit = large.exit.clone().unwrap();
    assert_eq!((exit.code, exit.oom), (137, true), "{exit:?}");
    assert_eq!(large.error_text(), "sandboxd: killed: the memory limit of 256 MiB of the sandbox is reached\n");
    assert_eq!((small.text().as_str(), small.code()), ("1\ndone\n", 0));
    assert!(!small.exit.unwrap().oom);
}

#[tokio::test]
async fn a_kill_by_the_kernel_is_told_from_another_one() {
    let limited = Limited::start().await;
    let other = limited.sandbox.run("r1", "kill -9 $$").await.exit.unwrap();
    assert_eq!((other.code, other.oom), (137, false));
    let events = limited.file("memory.events");
    let counted = format!("echo oom_kill 1 > {}; kill -9 $$", events.display());
    let outcome = limited.sandbox.run("r2", &counted).await;
    assert!(outcome.exit.as_ref().unwrap().oom && outcome.error_text().contains("memory limit"), "{outcome:?}");
    // Somebody else's, while a run ends well.
    let counted = format!("echo oom_kill 2 > {}", events.display());
    assert!(!limited.sandbox.run("r3", &counted).await.exit.unwrap().oom);
}

/// Attack 10, where the limit can be seen from inside.
#[tokio::test]
async fn the_call_with_most_processes_is_killed_before_none_can_be_started() {
    let limited = Limited::start_with(&[("pids.max", "100\n"), ("pids.current", "5\n")]).await;
    let many = "for i in {1..30}; do sleep 999 & done; echo 1; wait";
    let (large, small) = limited.press("pids.current", 99, 5, many).await;
    let exit = large.exit.clone().unwrap();
    assert_eq!((exit.code, exit.oom), (137, false), "{exit:?}");
    assert_eq!(large.error_text(), "sandboxd: killed: the process limit of 100 of the sandbox is reached\n");
    assert_eq!((small.text().as_str(), small.code()), ("1\ndone\n", 0));
}
