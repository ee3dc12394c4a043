//! Streams that are cut at any byte: every call ends with its result, and what it did was done once.
//!
//! `CUTS_SEED` repeats a sequence. The test against a cluster is run with `--ignored`, as those of `cluster.rs` are.

#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "test code outside of test functions")]

mod listening;
mod stream;

use futures_util::{StreamExt, stream as streams};
use listening::Listening;
use sandbox_runtime::{
    ContainerKey, ContainerKind, ContainerSpec, Limits, RunError, RunKind, RunRequest, Runtime, Sandboxes,
    kubernetes::{KubernetesConfig, KubernetesRuntime},
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use stream::{Cutting, Plan, Recorded};

const CALLS: usize = 1000;
/// Over `pods/exec`, where a stream costs the machine a hundred times as much; `LONG=1` makes it as many.
const FEWER_CALLS: usize = 240;
/// At a time: `sandboxd` takes eight connections, and each call may have a living one and two cut ones that live on for a moment.
const SIDE_BY_SIDE: usize = 2;
const DEADLINE: Duration = Duration::from_mins(2);

/// Where in a call its stream is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Before,
    During,
    After,
}

const PHASES: [Phase; 3] = [Phase::Before, Phase::During, Phase::After];

/// `SplitMix64`: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros().try_into().unwrap();
        let seed = std::env::var("CUTS_SEED").map_or_else(|_| now(), |seed| seed.parse().unwrap());
        println!("CUTS_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    /// A cut in this phase of a call that went like this one.
    fn cut(&mut self, phase: Phase, whole: &Recorded) -> Plan {
        match phase {
            Phase::Before if self.below(2) == 0 => Plan::Written(self.below(whole.written)),
            Phase::Before => Plan::Read(self.below(whole.read_until_started), Duration::ZERO),
            Phase::During => Plan::Read(whole.read_until_started, Duration::from_millis(self.below(40))),
            Phase::After => {
                let exit = whole.read - whole.read_until_started;
                Plan::Read(whole.read_until_started + 1 + self.below(exit), Duration::ZERO)
            }
        }
    }
}

fn bash(command: &str) -> RunRequest {
    let run = RunKind::Bash { command: command.to_owned(), restart: false };
    RunRequest { run, env: BTreeMap::new(), limits: Limits { timeout_ms: 30_000, output_bytes: 1 << 20 } }
}

fn append(id: &str) -> RunRequest {
    bash(&format!("echo {id} >> log; sleep 0.05; echo done"))
}

fn spec() -> ContainerSpec {
    let key = ContainerKey { kind: ContainerKind::Explicit, workspace: "cluster-test", user: None, id: "cuts" };
    ContainerSpec { name: key.name(), owner: key.owner(), lifetime: Some(Duration::from_hours(720)) }
}

/// One call over streams of its own, the first of which are cut as planned.
async fn call(
    runtime: &Arc<dyn Runtime>,
    id: &str,
    request: &RunRequest,
    plans: Vec<Plan>,
) -> (Result<(), RunError>, Recorded) {
    let cutting = Arc::new(Cutting::new(runtime.clone(), plans));
    let sandboxes = Sandboxes::new(cutting.clone());
    let sandbox = sandboxes.acquire(&spec(), DEADLINE).await.unwrap();
    let outcome = tokio::time::timeout(Duration::from_mins(2), sandbox.run(id, request)).await;
    let outcome = outcome.unwrap_or_else(|_| panic!("{id} hangs"));
    let checked = outcome.map(|outcome| {
        assert_eq!((&*outcome.stdout, outcome.exit.code), (b"done\n".as_slice(), 0), "{id}: {outcome:?}");
    });
    let recorded = cutting.recorded();
    sandboxes.shut_down().await;
    (checked, recorded)
}

/// How often each id stands in the log.
async fn log(runtime: &Arc<dyn Runtime>) -> HashMap<String, usize> {
    let sandboxes = Sandboxes::new(Arc::new(Cutting::new(runtime.clone(), Vec::new())));
    let sandbox = sandboxes.acquire(&spec(), DEADLINE).await.unwrap();
    let text = sandbox.run("log", &bash("cat log")).await.unwrap().stdout;
    sandboxes.shut_down().await;
    let mut counts = HashMap::new();
    for line in String::from_utf8(text.to_vec()).unwrap().lines() {
        *counts.entry(line.to_owned()).or_insert(0) += 1;
    }
    counts
}

async fn every_cut_call_has_its_result(runtime: Arc<dyn Runtime>, calls: usize) {
    let (first, whole) = call(&runtime, "whole", &append("whole"), Vec::new()).await;
    first.unwrap();
    println!("a call that is not cut: {whole:?}");
    let mut random = Random::seeded();
    let plans: Vec<_> = (0..calls)
        .map(|n| {
            let phase = PHASES[n % PHASES.len()];
            let mut plans = vec![random.cut(phase, &whole)];
            // Some are cut once more while they join again; a third cut within a minute would count as a broken sandbox.
            if random.below(4) == 0 {
                plans.push(Plan::Read(random.below(whole.read), Duration::ZERO));
            }
            (n, phase, plans)
        })
        .collect();
    let ended: Vec<_> = streams::iter(plans)
        .map(|(n, phase, plans)| {
            let runtime = runtime.clone();
            async move {
                let id = format!("cut-{n}");
                let (outcome, recorded) = call(&runtime, &id, &append(&id), plans.clone()).await;
                (id, phase, plans, outcome, recorded.cuts)
            }
        })
        .buffer_unordered(SIDE_BY_SIDE)
        .collect()
        .await;
    let log = log(&runtime).await;
    let mut tally: HashMap<Phase, [usize; 3]> = HashMap::new();
    for (id, phase, plans, outcome, cuts) in &ended {
        let [made, cut, successes] = tally.entry(*phase).or_default();
        *made += 1;
        *cut += cuts.min(&1);
        *successes += usize::from(outcome.is_ok());
        assert_eq!(outcome, &Ok(()), "{id} {plans:?}");
        assert_eq!(log.get(id), Some(&1), "{id} {plans:?}");
    }
    for phase in PHASES {
        let [made, cut, successes] = tally[&phase];
        println!("{phase:?}: {made} calls, {cut} with a cut, {successes} successes, {} unknown", made - successes);
        assert!(cut >= calls / 5, "too few cuts {phase:?}: {cut}");
    }
    assert_eq!(log.len(), calls + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_calls_with_cut_streams_each_do_their_work_once() {
    let listening = Listening::start();
    every_cut_call_has_its_result(listening, CALLS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster"]
async fn calls_over_cut_exec_streams_each_do_their_work_once() {
    let namespace = std::env::var("SANDBOX_NAMESPACE").unwrap();
    let config = KubernetesConfig { namespace: namespace.clone(), template: None };
    let runtime = Arc::new(KubernetesRuntime::new(config).await.unwrap());
    let calls = if std::env::var("LONG").is_ok_and(|long| long == "1") { CALLS } else { FEWER_CALLS };
    every_cut_call_has_its_result(runtime, calls).await;
    let name = spec().name;
    let deleted =
        tokio::process::Command::new("kubectl").args(["-n", &namespace, "delete", "sandbox", name.as_str()]).status();
    assert!(deleted.await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_sandboxd_is_killed_a_call_succeeds_once_or_says_that_nobody_knows() {
    let listening = Listening::start();
    let runtime: Arc<dyn Runtime> = listening.clone();
    let mut random = Random::seeded();
    let (mut successes, mut unknown) = (Vec::new(), Vec::new());
    for n in 0..100 {
        let (id, wait) = (format!("kill-{n}"), Duration::from_millis(random.below(80)));
        let request = append(&id);
        let killing = async {
            tokio::time::sleep(wait).await;
            listening.kill();
        };
        let ((outcome, _), ()) = tokio::join!(call(&runtime, &id, &request, Vec::new()), killing);
        match outcome {
            Ok(()) => successes.push(id),
            Err(RunError::Unknown(_)) => unknown.push(id),
            Err(other) => panic!("{id}: {other}"),
        }
    }
    println!("killed: {} successes, {} unknown", successes.len(), unknown.len());
    let log = log(&runtime).await;
    assert!(log.values().all(|times| *times == 1), "{log:?}");
    assert!(successes.iter().all(|id| log.contains_key(id)));
    assert!(log.keys().all(|id| successes.contains(id) || unknown.contains(id)));
    assert!(!successes.is_empty() && !unknown.is_empty());
}
