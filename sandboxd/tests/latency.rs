//! A measurement, not a check of behaviour: `cargo test -p sandboxd --test latency -- --ignored --nocapture`.
//! `SANDBOXD` names another binary than the one of this build, usually the static one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test ends by a panic")]

mod common;

use common::{Sandbox, bash};
use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const ROUNDS: usize = 300;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test]
#[ignore = "measures, and means nothing on a busy machine"]
async fn a_command_costs_little_beside_a_bare_spawn() {
    let sandbox = Sandbox::main().await;
    let (mut runs, mut spawns) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let start = Instant::now();
        assert_eq!(sandbox.client.run(&format!("r{round}"), &bash("true")).await.code(), 0);
        runs.push(start.elapsed());
        let start = Instant::now();
        let output = Command::new("bash").args(["-c", "true"]).stdin(Stdio::null()).output().unwrap();
        spawns.push(start.elapsed());
        assert!(output.status.success());
    }
    let (run, spawn) = (median(runs), median(spawns));
    println!("p50 of `true`: run {run:?}, bare spawn {spawn:?}, ratio {:.2}", run.as_secs_f64() / spawn.as_secs_f64());
    assert!(run < Duration::from_secs(1));
}
