//! `init`, `attach` and the checks of who is at the other end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test ends by a panic")]

mod common;

use common::{BINARY, Client, Ended, SOON, Sandbox, bash, eventually};
use std::{
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

async fn attached(command: &mut Command) -> (Ended, Client) {
    let ((stdin, to), (from, stdout)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let process = Ended(command.stdin(stdin).stdout(stdout).spawn().unwrap());
    // The command holds them too.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    (process, Client::over_pipes(from, to).await)
}

#[tokio::test]
async fn attach_joins_the_socket_and_ends_with_either_side() {
    let mut sandbox = Sandbox::listening("main", &[]).await;
    let mut command = Command::new(BINARY);
    command.args(["attach", "--socket"]).arg(sandbox.socket());
    command.arg("--server-pid").arg(sandbox.process.0.id().to_string());
    let (mut first, client) = attached(&mut command).await;
    assert_eq!(client.hello, sandbox.client.hello);
    let long = format!("echo {} | wc -c", "x".repeat(300_000));
    assert_eq!(client.run("r1", &bash(&long)).await.text(), "300001\n");
    client.cut().await;
    assert!(first.ended_within(SOON).await);

    let (mut second, _client) = attached(&mut command).await;
    sandbox.process.terminate();
    assert!(sandbox.process.ended_within(SOON).await);
    assert!(second.ended_within(SOON).await);
}

#[tokio::test]
async fn attach_refuses_a_server_that_is_not_pid_1() {
    let sandbox = Sandbox::listening("main", &[]).await;
    let output = Command::new(BINARY).args(["attach", "--socket"]).arg(sandbox.socket()).output().unwrap();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty(), "nothing of a false server may pass");
    assert!(String::from_utf8_lossy(&output.stderr).contains("belongs to process"));
}

/// In a PID namespace of its own, as in a container.
#[tokio::test]
async fn as_pid_1_it_answers_only_those_from_outside_and_ignores_their_sigterm() {
    let claim = common::make_claim();
    let socket = claim.path().join("s");
    let isolate = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let mut server = Command::new("unshare");
    server.args(isolate).arg(BINARY).args(["serve", "--half", "main", "--socket"]).arg(&socket);
    let child = server.arg("--claim").arg(claim.path()).spawn().unwrap();
    let mut outer = Ended(child);
    assert!(eventually(SOON, || socket.exists()).await);
    let children = format!("/proc/{0}/task/{0}/children", outer.0.id());
    let server = std::fs::read_to_string(children).unwrap().trim().to_owned();

    // `nsenter` joins the namespace like an exec from outside: its child has no parent in there.
    let mut enter = Command::new("nsenter");
    enter.args([
        "--user",
        "--preserve-credentials",
        "--pid",
        "--mount",
        "--target",
        &server,
        BINARY,
        "attach",
        "--socket",
    ]);
    enter.arg(&socket);
    let (_attach, client) = attached(&mut enter).await;
    let inside = format!(
        "kill -TERM 1; cat /proc/$PPID/mem /proc/1/mem 2>&1 >/dev/null | head -c 1 | wc -c; ls /proc/1/fd >/dev/null 2>&1 || :; \
         timeout 5 {BINARY} attach --socket {} </dev/zero | wc -c",
        socket.display()
    );
    let outcome = client.run("r1", &bash(&inside)).await;
    assert_eq!(outcome.text().lines().last(), Some("0"), "no hello for code of the sandbox: {outcome:?}");
    assert_eq!(client.run("r2", &bash("echo still here")).await.text(), "still here\n");

    // From outside the namespace SIGTERM counts.
    let server = rustix::process::Pid::from_raw(server.parse().unwrap()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::TERM).unwrap();
    assert!(outer.ended_within(SOON).await);
}

#[test]
fn init_copies_the_binary_and_makes_the_folders_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let (binary, claim) = (folder.path().join("sandboxd"), folder.path().join("claim"));
    std::fs::create_dir(&claim).unwrap();
    for _ in 0..2 {
        let status =
            Command::new(BINARY).arg("init").arg("--binary-to").arg(&binary).arg("--claim").arg(&claim).status();
        assert!(status.unwrap().success());
    }
    assert_eq!(std::fs::metadata(&binary).unwrap().permissions().mode() & 0o7777, 0o111);
    assert_eq!(std::fs::metadata(&binary).unwrap().len(), std::fs::metadata(BINARY).unwrap().len());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
    for name in sandboxd_protocol::layout::claim_folders() {
        assert!(claim.join(name).is_dir(), "{name}");
    }
}

#[test]
fn init_tells_in_one_sentence_why_it_cannot() {
    let folder = tempfile::tempdir().unwrap();
    let init = |claim: &std::path::Path| {
        let binary = folder.path().join("sandboxd");
        let output = Command::new(BINARY).arg("init").arg("--binary-to").arg(binary).arg("--claim").arg(claim).output();
        let output = output.unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(init(&folder.path().join("missing")).contains("No such file"));
    std::fs::write(folder.path().join("workspace"), "").unwrap();
    let message = init(folder.path());
    assert!(message.contains("workspace is in the way") && message.lines().count() == 1, "{message}");
    std::fs::remove_file(folder.path().join("workspace")).unwrap();
    std::os::unix::fs::symlink("/", folder.path().join("workspace")).unwrap();
    assert!(init(folder.path()).contains("is in the way"));
}
