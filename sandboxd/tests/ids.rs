//! Exactly once: joining, cancelling, waiting and stopping.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test ends by a panic")]

mod common;

use common::{Client, SOON, Sandbox, bash, eventually, is_running, timed};
use hyper::{Method, StatusCode};
use sandboxd_protocol::{ErrorCode, Exit, State};
use std::time::{Duration, Instant};

async fn state(client: &Client) -> State {
    let (status, body) = client.simple(Method::GET, "/state").await;
    assert_eq!(status, StatusCode::OK);
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn the_same_id_and_body_run_once_and_both_get_the_result() {
    let sandbox = Sandbox::main().await;
    let request = bash("echo x >>n; sleep 0.2; echo done");
    let (first, second) = tokio::join!(sandbox.client.run("r1", &request), sandbox.client.run("r1", &request));
    let later = sandbox.client.run("r1", &request).await;
    assert_eq!((&first, first.text().as_str()), (&second, "done\n"));
    assert_eq!(first, later);
    assert_eq!(std::fs::read_to_string(sandbox.path("workspace/n")).unwrap(), "x\n");
}

#[tokio::test]
async fn another_body_is_a_conflict() {
    let sandbox = Sandbox::main().await;
    sandbox.run("r1", "true").await;
    assert_eq!(sandbox.client.start("r1", &bash("false")).await.err().unwrap().code, ErrorCode::Conflict);
}

#[tokio::test]
async fn an_unknown_run_is_not_found_by_any_verb() {
    let sandbox = Sandbox::main().await;
    assert_eq!(sandbox.client.join("r1", 0, 0).await.err().unwrap().code, ErrorCode::NotFound);
    assert_eq!(sandbox.client.simple(Method::DELETE, "/runs/r1").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_cut_connection_loses_nothing() {
    let sandbox = Sandbox::listening("main", &[]).await;
    let first = Client::connect(&sandbox.socket()).await;
    assert_eq!(first.hello, sandbox.client.hello);
    let mut following = first.start("r1", &bash("echo one; sleep 0.5; echo two; exit 3")).await.unwrap();
    following.until(|seen| seen.stdout == b"one\n").await;
    first.cut().await;
    let joined = sandbox.client.join("r1", 4, 0).await.unwrap().end().await;
    assert_eq!((joined.text().as_str(), joined.code(), joined.started), ("two\n", 3, true));
}

#[tokio::test]
async fn a_run_that_nobody_follows_is_killed_and_kept() {
    let sandbox = Sandbox::listening("main", &["--abandoned-after-ms", "300"]).await;
    let first = Client::connect(&sandbox.socket()).await;
    let mut following = first.start("r1", &bash("echo one; setsid sleep 3020 & wait")).await.unwrap();
    following.until(|seen| !seen.stdout.is_empty()).await;
    assert!(eventually(SOON, || is_running("3020")).await);
    // Followed for longer than the period, by a second one too: it goes on.
    let joined = sandbox.client.join("r1", 0, 0).await.unwrap();
    first.cut().await;
    assert!(!eventually(Duration::from_millis(600), || !is_running("3020")).await);
    drop(joined);
    assert!(eventually(SOON, || !is_running("3020")).await);
    let outcome = sandbox.client.join("r1", 0, 0).await.unwrap().end().await;
    let expected = Exit { code: 137, signal: Some(9), abandoned: true, ..Exit::default() };
    assert_eq!((outcome.text().as_str(), outcome.exit), ("one\n", Some(expected)));
}

#[tokio::test]
async fn cancelling_kills_the_tree_also_after_the_end() {
    let sandbox = Sandbox::main().await;
    let mut running = sandbox.client.start("r1", &bash("setsid sleep 3021 & echo on; sleep 3022")).await.unwrap();
    running.until(|seen| !seen.stdout.is_empty()).await;
    assert_eq!(sandbox.client.simple(Method::DELETE, "/runs/r1").await.0, StatusCode::NO_CONTENT);
    assert!(!is_running("3021") && !is_running("3022"));
    let exit = running.end().await.exit.unwrap();
    assert_eq!((exit.cancelled, exit.signal), (true, Some(9)));

    sandbox.run("r2", "setsid sleep 3023 & true").await;
    assert!(eventually(SOON, || is_running("3023")).await);
    assert_eq!(sandbox.client.simple(Method::DELETE, "/runs/r2").await.0, StatusCode::NO_CONTENT);
    assert!(!is_running("3023"));
}

#[tokio::test]
async fn eight_run_at_a_time_thirty_two_wait_and_more_are_refused() {
    // One connection carries 31 requests, so two are needed.
    let sandbox = Sandbox::listening("main", &[]).await;
    let second = Client::connect(&sandbox.socket()).await;
    let request = bash("while [ ! -e go ]; do sleep 0.02; done");
    let (mut running, mut waiting) = (Vec::new(), Vec::new());
    for n in 0..8 {
        running.push(sandbox.client.start(&format!("r{n}"), &request).await.unwrap());
    }
    for n in 8..40 {
        let client = if n < 28 { &sandbox.client } else { &second };
        let (request, id) = (serde_json::to_vec(&request).unwrap(), format!("/runs/r{n}"));
        waiting.push(async move { client.follow(Method::PUT, &id, request).await.unwrap().end().await });
    }
    let waiting = futures_util::future::join_all(waiting);
    let checked = async {
        let end = Instant::now() + Duration::from_secs(10);
        while state(&second).await != (State { running: 8, waiting: 32, ..State::default() }) {
            assert!(Instant::now() < end, "{:?}", state(&second).await);
        }
        let refused = second.start("r40", &request).await.err().unwrap();
        assert_eq!(refused.code, ErrorCode::TooManyRequests);
        // One that waits can be cancelled.
        assert_eq!(second.simple(Method::DELETE, "/runs/r39").await.0, StatusCode::NO_CONTENT);
        std::fs::write(sandbox.path("workspace/go"), "").unwrap();
    };
    let (waited, ()) = tokio::join!(waiting, checked);
    for following in running {
        assert_eq!(following.end().await.code(), 0);
    }
    let (last, others) = waited.split_last().unwrap();
    assert!(others.iter().all(|outcome| outcome.code() == 0 && outcome.started));
    assert!(!last.started && last.exit.as_ref().unwrap().cancelled);
}

#[tokio::test]
async fn sigterm_kills_what_runs_refuses_what_waits_and_ends_in_a_second() {
    let mut sandbox = Sandbox::main().await;
    let mut running = Vec::new();
    for n in 0..8 {
        running.push(
            sandbox.client.start(&format!("r{n}"), &bash("trap '' TERM; setsid sleep 3024 & wait")).await.unwrap(),
        );
    }
    assert!(eventually(SOON, || is_running("3024")).await);
    let request = bash("touch started");
    let (waiting, start) = tokio::join!(sandbox.client.start("waits", &request), async {
        let end = Instant::now() + Duration::from_secs(5);
        while state(&sandbox.client).await.waiting == 0 {
            assert!(Instant::now() < end);
        }
        sandbox.process.terminate();
        Instant::now()
    });
    assert_eq!(waiting.err().unwrap().code, ErrorCode::Draining);
    for following in running {
        assert_eq!(following.end().await.exit.unwrap().signal, Some(9));
    }
    assert!(sandbox.process.ended_within(SOON).await);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(!is_running("3024") && !sandbox.path("workspace/started").exists());
}

#[tokio::test]
async fn the_process_ends_with_its_inherited_connection_and_kills_everything() {
    let Sandbox { mut process, claim: _claim, client } = Sandbox::main().await;
    client.run("r1", &timed("setsid sleep 3025 & true", 1000)).await;
    assert!(eventually(SOON, || is_running("3025")).await);
    client.cut().await;
    assert!(process.ended_within(SOON).await);
    assert!(!is_running("3025"));
}
