//! From first use to the end.

use crate::support::{self, DEADLINE, Host, bash, config, open, parent, pids, processes, spec, text, until};
use sandbox_runtime::{
    AcquireError, ContainerKey, ContainerKind, ContainerSpec, local::LocalError, local::LocalRuntime,
};
use std::{
    collections::HashSet,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

const LONG: Duration = Duration::from_mins(10);

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_sandbox_is_stopped_and_its_files_are_there_at_the_next_use() {
    let host = Host::start_with(Duration::from_secs(1)).await;
    let sandbox = host.sandbox("box").await;
    sandbox.run("r1", &bash("echo kept > file")).await.unwrap();
    until(|| host.processes().is_empty()).await;
    assert_eq!(text(&sandbox.run("r2", &bash("cat file")).await.unwrap().stdout), "kept\n");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_command_that_takes_longer_than_the_idle_timeout_is_not_cut_short() {
    let host = Host::start_with(Duration::from_secs(1)).await;
    let outcome = host.sandbox("box").await.run("r1", &bash("sleep 4; echo done")).await.unwrap();
    assert_eq!(text(&outcome.stdout), "done\n");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn past_its_lifetime_a_sandbox_is_expired_and_then_gone() {
    let data = tempfile::tempdir().unwrap();
    let short = spec("short", Some(Duration::from_secs(1)));
    {
        let sandboxes = open(data.path(), LONG).await.unwrap();
        assert_eq!(sandboxes.find(&short).await, Ok(false));
        let sandbox = sandboxes.acquire(&short, DEADLINE).await.unwrap();
        sandbox.run("r1", &bash("echo old > file")).await.unwrap();
        let expired = async {
            while sandboxes.find(&short).await != Err(AcquireError::Expired) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, expired).await.unwrap();
        assert_eq!(sandboxes.acquire(&short, DEADLINE).await.unwrap_err(), AcquireError::Expired);
        sandboxes.shut_down().await;
    }
    // The runtime ends with its last user; the next one looks for expired folders at once.
    let sandboxes = reopened(data.path()).await;
    until(|| std::fs::read_dir(data.path().join("sandboxes")).unwrap().next().is_none()).await;
    assert_eq!(sandboxes.find(&short).await, Ok(false));
    let sandbox = sandboxes.acquire(&spec("short", None), DEADLINE).await.unwrap();
    assert_eq!(text(&sandbox.run("r1", &bash("ls")).await.unwrap().stdout), "");
    sandboxes.shut_down().await;
}

/// The lock of the folder is free once the last task of the former runtime is gone.
async fn reopened(data: &std::path::Path) -> sandbox_runtime::Sandboxes {
    let opened = tokio::time::timeout(DEADLINE, async {
        loop {
            match open(data, LONG).await {
                Ok(sandboxes) => return sandboxes,
                Err(LocalError::InUse(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error}"),
            }
        }
    });
    opened.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_owners_sandbox_is_as_good_as_none() {
    let host = Host::start().await;
    host.sandbox("box").await;
    let key = ContainerKey { kind: ContainerKind::Explicit, workspace: "acme", user: Some("bob"), id: "box" };
    let forged = ContainerSpec { owner: key.owner(), ..spec("box", None) };
    assert_eq!(host.sandboxes.find(&forged).await, Ok(false));
    assert_eq!(host.sandboxes.acquire(&forged, DEADLINE).await.unwrap_err(), AcquireError::NotFound);
    assert_eq!(host.sandboxes.find(&spec("box", None)).await, Ok(true));
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_refuses_to_start_with_a_sentence() {
    let data = tempfile::tempdir().unwrap();
    let mut without = config(data.path(), LONG);
    without.bwrap = "no-such-bwrap".into();
    let error = LocalRuntime::new(without).await.unwrap_err();
    assert!(matches!(error, LocalError::NoBubblewrap(_)) && error.to_string().contains("apt-get install bubblewrap"));
    let mut without = config(data.path(), LONG);
    without.sandboxd = "/nonexistent/sandboxd".into();
    assert!(matches!(LocalRuntime::new(without).await.unwrap_err(), LocalError::NoSandboxd(_)));
    let mut broken = config(data.path(), LONG);
    broken.bwrap = "/usr/bin/false".into();
    let error = LocalRuntime::new(broken).await.unwrap_err();
    assert!(error.to_string().contains("no mode without isolation"), "{error}");

    let first = LocalRuntime::new(config(data.path(), LONG)).await.unwrap();
    assert!(matches!(LocalRuntime::new(config(data.path(), LONG)).await.unwrap_err(), LocalError::InUse(_)));
    drop(first);
}

/// The process that the next test kills; does nothing when it is not asked.
#[tokio::test(flavor = "multi_thread")]
async fn host_process() {
    let Some(data) = std::env::var_os("SANDBOX_TEST_HOST").map(PathBuf::from) else { return };
    let sandboxes = open(&data, LONG).await.unwrap();
    let sandbox = sandboxes.acquire(&spec("box", None), DEADLINE).await.unwrap();
    sandbox.run("r1", &bash("setsid sleep 1000 & disown; (sleep 1000 &) ; true")).await.unwrap();
    support::read(&sandbox, "/home/agent/workspace/none").await;
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_server_is_killed_every_process_of_its_sandboxes_dies() {
    let data = tempfile::tempdir().unwrap();
    let claim = data.path().join("sandboxes").join(spec("box", None).name.as_str()).join("claim/workspace");
    std::fs::create_dir_all(&claim).unwrap();
    std::fs::write(claim.join("none"), "").unwrap();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lifecycle::host_process", "--nocapture"])
        .env("SANDBOX_TEST_HOST", data.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let below = || -> HashSet<u32> {
        let all = pids();
        let mut below = HashSet::from([server.id()]);
        loop {
            let more: Vec<u32> = all
                .iter()
                .copied()
                .filter(|pid| !below.contains(pid) && parent(*pid).is_some_and(|parent| below.contains(&parent)))
                .collect();
            if more.is_empty() {
                below.remove(&server.id());
                return below;
            }
            below.extend(more);
        }
    };
    let sleeps = || {
        let is_sleep =
            |pid: &&u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "sleep");
        below().iter().filter(is_sleep).count()
    };
    until(|| sleeps() == 2 && processes(data.path()).len() == 2).await;
    let doomed = below();
    assert!(doomed.len() >= 6, "two bwraps, two sandboxds, two sleeps: {doomed:?}");
    server.kill().unwrap();
    server.wait().unwrap();
    until(|| doomed.iter().all(|pid| parent(*pid).is_none())).await;
}
