//! The Kubernetes runtime against a cluster whose operator watches the namespace `$SANDBOX_NAMESPACE`, where the template
//! `default` works and nobody else makes sandboxes. Run with `--ignored`; `$KUBECONFIG` names the cluster.

#![expect(clippy::unwrap_used, reason = "test code outside of test functions")]

use futures_util::{TryStreamExt, future::join_all, stream};
use sandbox_runtime::{
    AcquireError, ContainerKey, ContainerKind, ContainerSpec, Limits, RunError, RunKind, RunRequest, Sandboxes,
    kubernetes::{KubernetesConfig, KubernetesRuntime},
};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

const DEADLINE: Duration = Duration::from_mins(2);

fn namespace() -> String {
    std::env::var("SANDBOX_NAMESPACE").unwrap()
}

async fn sandboxes(template: Option<&str>) -> Sandboxes {
    let config = KubernetesConfig { namespace: namespace(), template: template.map(str::to_owned) };
    Sandboxes::new(Arc::new(KubernetesRuntime::new(config).await.unwrap()))
}

fn spec(id: &str) -> ContainerSpec {
    let key = ContainerKey { kind: ContainerKind::Explicit, workspace: "cluster-test", user: None, id };
    ContainerSpec { name: key.name(), owner: key.owner(), lifetime: Some(Duration::from_hours(720)) }
}

fn bash(command: &str) -> RunRequest {
    let run = RunKind::Bash { command: command.to_owned(), restart: false };
    RunRequest { run, env: BTreeMap::new(), limits: Limits { timeout_ms: 60_000, output_bytes: 1 << 20 } }
}

async fn kubectl(arguments: &[&str]) -> String {
    let namespace = namespace();
    let output = tokio::process::Command::new("kubectl").args(["-n", &namespace]).args(arguments).output();
    let output = output.await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster"]
async fn a_first_use_makes_one_sandbox_that_runs_and_keeps_files() {
    let (one, two) = (sandboxes(None).await, sandboxes(None).await);
    assert_eq!(one.problems().await, Vec::<String>::new());
    let spec = spec("first");
    assert_eq!(one.find(&spec).await, Ok(false));
    let uses = (0..20).map(|n| {
        let (sandboxes, spec) = (if n % 2 == 0 { &one } else { &two }, &spec);
        async move {
            let sandbox = sandboxes.acquire(spec, DEADLINE).await.unwrap();
            sandbox.run(&format!("r{n}"), &bash(&format!("echo {n} | tee -a n"))).await.unwrap().stdout
        }
    });
    for (n, out) in join_all(uses).await.into_iter().enumerate() {
        assert_eq!(out, format!("{n}\n"));
    }
    let pods = kubectl(&["get", "pods", "-o", "name"]).await;
    assert_eq!(pods.lines().filter(|pod| pod.contains("/first-")).count(), 1, "{pods}");
    assert_eq!(one.find(&spec).await, Ok(true));

    let sandbox = two.acquire(&spec, DEADLINE).await.unwrap();
    let big = bytes::Bytes::from(vec![7; 1 << 20]);
    let pieces = (0..30).map(|_| Ok(big.clone())).collect::<Vec<_>>();
    let stat = sandbox.write_file("/mnt/user-data/uploads/big", stream::iter(pieces)).await.unwrap();
    assert_eq!(stat.size, 30 << 20);
    let sum =
        sandbox.run("sum", &bash("wc -c < $INPUT_DIR/big; wc -l < n; cp $INPUT_DIR/big $OUTPUT_DIR")).await.unwrap();
    assert_eq!((&*sum.stdout, sum.exit.outputs), (b"31457280\n20\n".as_slice(), 1));
    let sealed = sandbox.seal("sum").await.unwrap();
    let file = sandbox.read_file(&sealed[0].path).await.unwrap();
    let read = file.body.try_fold(0, |sum, data| async move { Ok(sum + data.len()) }).await.unwrap();
    assert_eq!(read, 30 << 20);

    let mut times: Vec<Duration> = Vec::new();
    for n in 0..100 {
        let began = Instant::now();
        sandbox.run(&format!("t{n}"), &bash("true")).await.unwrap();
        times.push(began.elapsed());
    }
    times.sort();
    println!("true over exec: p50 {:?}, p95 {:?}", times[50], times[95]);
    kubectl(&["delete", "sandbox", spec.name.as_str()]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster"]
async fn a_deleted_pod_means_unknown_for_what_ran_and_the_next_use_gets_another() {
    let sandboxes = sandboxes(None).await;
    let spec = spec("deleted");
    let sandbox = sandboxes.acquire(&spec, DEADLINE).await.unwrap();
    sandbox.run("keep", &bash("echo kept > file")).await.unwrap();
    let slow = bash("touch started; sleep 50");
    let running = sandbox.run("slow", &slow);
    let deleting = async {
        // Each look is a run of its own: the same id would join the first.
        let mut looks = 0;
        while sandbox.run(&format!("look-{looks}"), &bash("ls started")).await.unwrap().exit.code != 0 {
            looks += 1;
        }
        let pod = kubectl(&["get", "pods", "-o", "name"]).await;
        let pods: Vec<_> = pod.lines().filter(|name| name.contains("deleted")).collect();
        kubectl(&[&["delete", "--wait=false"], &pods[..]].concat()).await;
    };
    let (outcome, ()) = tokio::join!(running, deleting);
    match outcome {
        Err(RunError::Unknown(_)) => {}
        Ok(outcome) => assert_ne!(outcome.exit.code, 0, "it was killed with its pod"),
        Err(other) => assert_eq!(other, RunError::Unknown(String::new())),
    }
    // Sent while the pod is going, it may be lost with its stream: then it is unknown, and another may be sent.
    let mut outcome = sandbox.run("next-0", &bash("cat file")).await;
    for n in 1..10 {
        if let Err(RunError::Unknown(_)) = outcome {
            outcome = sandbox.run(&format!("next-{n}"), &bash("cat file")).await;
        }
    }
    let outcome = outcome.unwrap();
    assert_eq!(&*outcome.stdout, b"kept\n");
    kubectl(&["delete", "sandbox", spec.name.as_str()]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster"]
async fn a_missing_template_fails_at_once_and_keeps_no_server_from_being_ready() {
    let sandboxes = sandboxes(Some("no-such-template")).await;
    assert_eq!(sandboxes.problems().await, Vec::<String>::new());
    let start = Instant::now();
    let spec = spec("missing");
    let error = sandboxes.acquire(&spec, DEADLINE).await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable { reason: sandbox_runtime::UnavailableReason::Template, .. }));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    kubectl(&["delete", "sandbox", spec.name.as_str()]).await;
}
