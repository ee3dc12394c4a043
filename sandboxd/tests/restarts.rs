//! Runs that begin afresh: nothing of before runs on, the workspace is empty, and what is offered and uploaded stays.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test ends by a panic")]

mod common;

use common::{SOON, Sandbox, bash, eventually, is_running, timed};
use hyper::{Method, StatusCode};
use sandboxd_protocol::{RunKind, RunRequest};
use std::{fs, path::Path};

fn restarting(command: &str) -> RunRequest {
    RunRequest { run: RunKind::Bash { command: command.to_owned(), restart: true }, ..bash(command) }
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_restart_finds_an_empty_workspace_and_nothing_running() {
    let sandbox = Sandbox::main().await;
    let claim = sandbox.claim.path();
    for file in ["outputs/report", "uploads/data", "tmp/cache"] {
        fs::write(claim.join(file), "kept").unwrap();
    }
    sandbox
        .run("r1", "mkdir -p a/.b/c && touch .hidden a/.b/c/file && ln -s ../outputs out; setsid sleep 3201 & true")
        .await;
    let mut running = sandbox.client.start("r2", &bash("echo on; exec sleep 3202")).await.unwrap();
    running.until(|seen| !seen.stdout.is_empty()).await;
    assert!(eventually(SOON, || is_running("3201")).await);
    let outcome = sandbox.client.run("r3", &restarting("ls -A; echo then; echo new >file")).await;
    assert_eq!((outcome.text().as_str(), outcome.code()), ("then\n", 0));
    assert!(!is_running("3201") && !is_running("3202"));
    let ended = running.end().await;
    assert_eq!(ended.error_text(), "sandboxd: ended: another command has restarted the sandbox\n");
    assert!(ended.exit.unwrap().cancelled);
    assert_eq!(names_in(&claim.join("workspace")), ["file"]);
    for folder in ["outputs", "uploads", "tmp"] {
        assert_eq!(names_in(&claim.join(folder)).len(), 1, "{folder}");
    }
    // The same run joined restarts nothing.
    assert_eq!(sandbox.client.run("r3", &restarting("ls -A; echo then; echo new >file")).await, outcome);
    assert_eq!(names_in(&claim.join("workspace")), ["file"]);
}

#[tokio::test]
async fn what_comes_during_a_restart_waits_and_is_not_touched_by_it() {
    let sandbox = Sandbox::main().await;
    sandbox.run("r1", "for i in {1..3000}; do : >f$i; done; trap '' TERM; sleep 3203 & true").await;
    let (restart, later) = (restarting("echo alone; ls -A; sleep 0.3; ls -A; touch mine"), bash("ls -A; touch later"));
    let (restart, later) = tokio::join!(sandbox.client.start("r2", &restart), sandbox.client.start("r3", &later));
    let (restart, later) = tokio::join!(restart.unwrap().end(), later.unwrap().end());
    assert_eq!((restart.text().as_str(), later.text().as_str()), ("alone\n", "mine\n"));
}

#[tokio::test]
async fn a_workspace_that_cannot_be_emptied_in_time_is_told_and_the_command_does_not_run() {
    let sandbox = Sandbox::main().await;
    sandbox.run("r1", "for i in {1..2000}; do : >f$i; done").await;
    let request = RunRequest { limits: timed("", 0).limits, ..restarting("touch ran") };
    let refused = sandbox.client.start("r2", &request).await.err().expect("refused");
    assert!(refused.message.contains("workspace cannot be emptied"), "{}", refused.message);
    assert!(!sandbox.path("workspace/ran").exists());
    // Nothing of it was done as far as its id goes.
    assert_eq!(sandbox.client.run("r2", &restarting("ls -A; echo ran")).await.text(), "ran\n");
}

#[tokio::test]
async fn a_reset_empties_the_workspace_too() {
    let sandbox = Sandbox::main().await;
    sandbox.run("r1", "mkdir -m 0 locked; touch file").await;
    assert_eq!(sandbox.client.simple(Method::POST, "/reset").await.0, StatusCode::NO_CONTENT);
    assert_eq!(names_in(&sandbox.path("workspace")), Vec::<String>::new());
}
