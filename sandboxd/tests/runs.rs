//! Commands, with the real binary over a socket pair.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test ends by a panic")]

mod common;

use common::{SOON, Sandbox, bash, eventually, is_running, timed};
use sandboxd_protocol::{Exit, RunRequest};
use std::time::Instant;

#[tokio::test]
async fn a_command_gives_its_output_and_code() {
    let sandbox = Sandbox::main().await;
    let outcome = sandbox.run("r1", "echo out; echo err >&2; exit 7").await;
    assert_eq!((outcome.started, outcome.stdout, outcome.stderr), (true, b"out\n".to_vec(), b"err\n".to_vec()));
    assert_eq!(outcome.exit, Some(Exit { code: 7, ..Exit::default() }));
}

/// T01.
#[tokio::test]
async fn a_background_process_delays_nothing_and_lives_on() {
    let sandbox = Sandbox::main().await;
    let start = Instant::now();
    let first = sandbox.run("r1", "(sleep 3001; echo late) & echo started").await;
    let second = sandbox.run("r2", "echo next").await;
    assert!(start.elapsed() < SOON);
    assert_eq!((first.text(), first.code(), second.text()), ("started\n".into(), 0, "next\n".into()));
    assert!(eventually(SOON, || is_running("3001")).await);
}

#[tokio::test]
async fn a_background_process_that_writes_on_is_neither_killed_nor_blocked() {
    let sandbox = Sandbox::main().await;
    let command = "(for i in {1..20000}; do echo $i 0123456789; done; touch written) & echo started";
    assert_eq!(sandbox.run("r1", command).await.code(), 0);
    assert!(eventually(SOON, || sandbox.path("workspace/written").exists()).await);
    assert_eq!(sandbox.run("r2", "echo next").await.text(), "next\n");
}

/// T02.
#[tokio::test]
async fn a_time_out_kills_every_descendant() {
    let sandbox = Sandbox::main().await;
    let start = Instant::now();
    let command = "trap '' TERM; setsid sleep 3002 & (setsid bash -c 'sleep 3003 & sleep 3004 & disown -a' &); sleep 3005 & echo part; wait";
    let outcome = sandbox.client.run("r1", &timed(command, 1000)).await;
    assert!(start.elapsed() < SOON);
    let exit = outcome.exit.clone().unwrap();
    assert_eq!((outcome.text().as_str(), exit.code, exit.timed_out), ("part\n", 124, true));
    for word in ["3002", "3003", "3004", "3005"] {
        assert!(!is_running(word), "{word} is still running");
    }
}

/// T03.
#[tokio::test]
async fn stdin_is_at_its_end() {
    let sandbox = Sandbox::main().await;
    let start = Instant::now();
    assert_eq!(sandbox.run("r1", "read x; echo rc=$?").await.text(), "rc=1\n");
    assert_eq!(sandbox.run("r2", "cat").await.text(), "");
    assert!(start.elapsed() < SOON);
}

/// T04: bytes are for the caller to read as text.
#[tokio::test]
async fn output_bytes_arrive_as_they_are() {
    let sandbox = Sandbox::main().await;
    assert_eq!(sandbox.run("r1", r"printf '\xff\xfeok\0'").await.stdout, b"\xff\xfeok\0");
    let outcome = sandbox.run("r2", "printf 'a%.0s' {1..1023}; printf '€%.0s' {1..5000}").await;
    assert_eq!(outcome.text(), format!("{}{}", "a".repeat(1023), "€".repeat(5000)));
}

/// T05.
#[tokio::test]
async fn huge_output_is_cut_and_the_command_goes_on() {
    let sandbox = Sandbox::main().await;
    let outcome = sandbox.run("r1", "seq 1 2000000; touch done; exit 7").await;
    let exit = outcome.exit.clone().unwrap();
    assert_eq!(
        (outcome.stdout.len(), exit.code, exit.stdout_truncated, exit.stderr_truncated),
        (1 << 20, 7, true, false)
    );
    assert!(outcome.stdout.starts_with(b"1\n2\n3\n") && sandbox.path("workspace/done").exists());
}

#[tokio::test]
async fn both_streams_at_once_do_not_deadlock() {
    let sandbox = Sandbox::main().await;
    let command = "head -c 20000000 /dev/zero & head -c 20000000 /dev/zero >&2; wait";
    let exit = sandbox.run("r1", command).await.exit.unwrap();
    assert_eq!((exit.code, exit.stdout_truncated, exit.stderr_truncated), (0, true, true));
}

/// T06.
#[tokio::test]
async fn a_command_of_any_length_behaves_like_a_short_one() {
    let sandbox = Sandbox::main().await;
    let tail = "echo \"$0 $# $- $LINENO\"\nnosuch\nread x; echo rc=$?\nls /proc/self/fd\necho \"${__c-unset}\"\nexit 9";
    for (id, filling) in [("long", "b".repeat(200_000)), ("longest", "c".repeat(6_000_000))] {
        let command = format!("cat >file <<'EOF'\n{filling}\nEOF\n{tail}");
        let outcome = sandbox.run(id, &command).await;
        let short = sandbox.run(&format!("{id}-short"), &format!("cat >other <<'EOF'\nb\nEOF\n{tail}")).await;
        assert_eq!(outcome, short);
        assert_eq!((outcome.code(), outcome.error_text().as_str()), (9, "bash: line 5: nosuch: command not found\n"));
        assert_eq!(std::fs::read_to_string(sandbox.path("workspace/file")).unwrap(), format!("{filling}\n"));
    }
}

#[tokio::test]
async fn a_signal_ends_a_command_as_in_a_shell() {
    let sandbox = Sandbox::main().await;
    let exit = sandbox.run("r1", "kill -SEGV $$").await.exit.unwrap();
    assert_eq!(exit, Exit { code: 139, signal: Some(11), ..Exit::default() });
}

#[tokio::test]
async fn the_environment_is_the_containers_the_fixed_one_and_the_requests() {
    let sandbox = Sandbox::main().await;
    let mut request = bash("env | sort; ulimit -c; cat /proc/self/oom_score_adj; pwd");
    request.env.insert("TOKEN".into(), "t 1".into());
    let text = sandbox.client.run("r1", &request).await.text();
    let path = "PATH=/home/agent/.local/bin:/usr/bin:/bin";
    for line in ["HOME=/home/agent", "LANG=C.UTF-8", path, "OF_THE_IMAGE=i", "TOKEN=t 1", "1000"] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in {text}");
    }
    assert!(!text.contains("KUBERNETES"), "{text}");
    assert!(text.contains(&format!("OUTPUT_DIR={}", sandbox.path("output/r1").display())));
    assert!(text.ends_with(&format!("{}\n", sandbox.path("workspace").display())));
}

#[tokio::test]
async fn a_command_gets_no_descriptor_but_its_streams() {
    let sandbox = Sandbox::main().await;
    let outcome = sandbox.run("r1", "for n in /proc/self/fd/*; do echo ${n##*/}; done | sort -n | tr '\\n' ' '").await;
    // The fourth is bash reading the folder.
    assert_eq!(outcome.text(), "0 1 2 3 ");
}

#[tokio::test]
async fn a_fresh_output_folder_is_counted_or_removed() {
    let sandbox = Sandbox::main().await;
    std::fs::create_dir(sandbox.path("output/r1")).unwrap();
    std::fs::write(sandbox.path("output/r1/planted"), "x").unwrap();
    let used = sandbox.run("r1", "ls -A \"$OUTPUT_DIR\"; touch \"$OUTPUT_DIR\"/{a,b}").await;
    assert_eq!((used.text().as_str(), used.exit.unwrap().outputs), ("", 2));
    let unused = sandbox.run("r2", "true").await;
    assert_eq!(unused.exit.unwrap().outputs, 0);
    let gone = |name: &str| std::fs::symlink_metadata(sandbox.path(name)).is_err();
    assert!(eventually(SOON, || gone("output/r2")).await);
    let linked = sandbox.run("r3", "rmdir \"$OUTPUT_DIR\"; ln -s / \"$OUTPUT_DIR\"").await;
    assert_eq!(linked.exit.unwrap().outputs, 0);
    assert!(eventually(SOON, || gone("output/r3")).await);
}

#[tokio::test]
async fn a_time_limit_counts_from_the_start_and_output_until_then_is_kept() {
    let sandbox = Sandbox::main().await;
    let outcome = sandbox.client.run("r1", &timed("echo before; exec sleep 3006", 300)).await;
    let exit = outcome.exit.clone().unwrap();
    assert_eq!((outcome.text().as_str(), exit.timed_out, exit.signal), ("before\n", true, Some(9)));
    assert!(!is_running("3006"));
}

#[tokio::test]
async fn a_fork_bomb_is_killed_at_its_time_limit() {
    let sandbox = Sandbox::main().await;
    // Bounded, so that a failure hurts nobody: 2^9 processes that all sleep.
    let command = "f() { local n=$1; [ $n = 0 ] && exec sleep 3007; f $((n-1)) & f $((n-1)) & wait; }; f 9";
    let outcome = sandbox.client.run("r1", &timed(command, 1500)).await;
    assert!(outcome.exit.unwrap().timed_out);
    assert!(!is_running("3007"));
}

#[tokio::test]
async fn a_killed_shim_ends_its_run_by_signal_and_leaves_no_orphan() {
    let sandbox = Sandbox::main().await;
    let other = sandbox.client.start("other", &bash("sleep 3008")).await.unwrap();
    let outcome = sandbox.run("r1", "setsid sleep 3009 & setsid sleep 3010 & kill -KILL $PPID; sleep 3011").await;
    assert_eq!(outcome.exit, Some(Exit { code: 137, signal: Some(9), ..Exit::default() }));
    for word in ["3009", "3010", "3011"] {
        assert!(!is_running(word), "{word} is still running");
    }
    assert!(eventually(SOON, || is_running("3008")).await, "the other run is not touched");
    drop(other);
    assert_eq!(sandbox.run("r2", "echo fine").await.text(), "fine\n");
}

#[tokio::test]
async fn a_stopped_shim_does_not_escape_its_time_limit() {
    let sandbox = Sandbox::main().await;
    let outcome = sandbox.client.run("r1", &timed("kill -STOP $PPID; sleep 3012 & exit 0", 500)).await;
    assert!(outcome.exit.unwrap().timed_out);
    assert!(!is_running("3012"));
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_told() {
    let sandbox = Sandbox::main().await;
    let nul = sandbox.client.start("r1", &bash("echo \0")).await.err().unwrap();
    assert_eq!(nul.code, sandboxd_protocol::ErrorCode::BadRequest);
    let name = sandbox.client.start("r%201", &bash("true")).await.err().unwrap();
    assert_eq!(name.code, sandboxd_protocol::ErrorCode::BadRequest);
    let large = sandbox.client.start("r1", &bash(&"x".repeat(9 << 20))).await.err().unwrap();
    assert_eq!(large.code, sandboxd_protocol::ErrorCode::TooLarge);
    let mut environment: RunRequest = bash("true");
    environment.env.insert("A".into(), "x".repeat(200_000));
    let environment = sandbox.client.start("r1", &environment).await.err().unwrap();
    assert_eq!(environment.code, sandboxd_protocol::ErrorCode::BadRequest);
    // Nothing of all that took the id.
    assert_eq!(sandbox.run("r1", "echo fine").await.text(), "fine\n");
}
