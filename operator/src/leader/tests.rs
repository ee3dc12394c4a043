//! Candidates against a Lease in memory, on paused time: every answer can be late or lost, and every process stopped.

use super::*;
use crate::health::Readiness;
use proptest::prelude::*;
use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep},
};

const TIMING: Timing = Timing {
    duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};
const STEP: Duration = Duration::from_millis(250);

/// What the network does to one candidate's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Good,
    /// The server has it so late, and the answer takes as long again.
    Slow(Duration),
    Refused,
    LosesRequests,
    LosesAnswers,
}

#[derive(Clone, Debug)]
struct MemoryLease {
    found: Arc<Mutex<(Option<Found>, u64)>>,
    network: Arc<Mutex<Network>>,
}

impl MemoryLease {
    fn beside(&self) -> Self {
        Self { found: Arc::clone(&self.found), network: Arc::new(Mutex::new(Network::Good)) }
    }

    fn new() -> Self {
        Self { found: Arc::default(), network: Arc::new(Mutex::new(Network::Good)) }
    }

    fn set(&self, network: Network) {
        *self.network.lock().unwrap() = network;
    }

    fn holder(&self) -> Option<String> {
        self.found.lock().unwrap().0.as_ref().map(|found| found.lease.holder.clone())
    }

    fn delete(&self) {
        self.found.lock().unwrap().0 = None;
    }

    /// The request goes its way whether or not its sender still waits for the answer.
    async fn over_the_network<T: Send + 'static>(
        &self,
        serve: impl FnOnce() -> Result<T, LeaseError> + Send + 'static,
    ) -> Result<T, LeaseError> {
        let network = *self.network.lock().unwrap();
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            match network {
                Network::Good => drop(answer.send(serve())),
                Network::Slow(delay) => {
                    sleep(delay).await;
                    let result = serve();
                    sleep(delay).await;
                    drop(answer.send(result));
                }
                Network::Refused => drop(answer.send(Err(LeaseError::Failed("connection refused".to_owned())))),
                Network::LosesRequests => std::future::pending().await,
                Network::LosesAnswers => {
                    drop(serve());
                    std::future::pending::<()>().await;
                }
            }
        });
        answered.await.unwrap()
    }
}

impl LeaseStore for MemoryLease {
    async fn read(&self) -> Result<Option<Found>, LeaseError> {
        let found = Arc::clone(&self.found);
        self.over_the_network(move || Ok(found.lock().unwrap().0.clone())).await
    }

    async fn write(&self, lease: &Lease, version: Option<&str>) -> Result<String, LeaseError> {
        let (found, lease, version) = (Arc::clone(&self.found), lease.clone(), version.map(str::to_owned));
        self.over_the_network(move || {
            let mut found = found.lock().unwrap();
            if found.0.as_ref().map(|found| &found.version) != version.as_ref() {
                return Err(LeaseError::Outdated);
            }
            found.1 += 1;
            let version = found.1.to_string();
            found.0 = Some(Found { lease, version: version.clone() });
            Ok(version)
        })
        .await
    }
}

/// A clock of its own origin and speed, and a time of day that is far off.
#[derive(Clone, Copy, Debug)]
struct SkewedClock {
    started: Instant,
    origin: Duration,
    speed: f64,
    wall: i64,
}

impl Clock for SkewedClock {
    fn now(&self) -> Duration {
        self.origin + self.started.elapsed().mul_f64(self.speed)
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + self.wall).unwrap()
    }
}

/// A process that can be stopped: nothing in it runs, while time and the network go on.
struct Stoppable<F> {
    inner: Pin<Box<F>>,
    stop: Arc<Stop>,
}

#[derive(Default)]
struct Stop {
    stopped: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Stop {
    fn set(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }
}

impl<F: Future> Future for Stoppable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if self.stop.stopped.load(Ordering::SeqCst) {
            *self.stop.waker.lock().unwrap() = Some(context.waker().clone());
            return Poll::Pending;
        }
        self.inner.as_mut().poll(context)
    }
}

/// One process.
struct Process {
    lease: MemoryLease,
    gate: Gate,
    leading: Leading,
    release: CancellationToken,
    stop: Arc<Stop>,
    task: JoinHandle<Result<(), Lost>>,
}

fn clock(origin: u64, speed: f64, wall: i64) -> SkewedClock {
    SkewedClock { started: Instant::now(), origin: Duration::from_secs(origin), speed, wall }
}

fn start(name: &str, lease: &MemoryLease, clock: SkewedClock) -> Process {
    let (sender, leading) = Leading::new();
    let (gate, release, stop) = (Gate::closed(Arc::new(clock)), CancellationToken::new(), Arc::<Stop>::default());
    let lease = lease.beside();
    let election = Election {
        store: lease.clone(),
        timing: TIMING.checked().unwrap(),
        identity: name.to_owned(),
        gate: gate.clone(),
        spread: Duration::from_millis(300),
    };
    let pulse = Arc::new(Readiness::expecting([])).pulse("election", Duration::from_secs(30));
    let run = election.run(sender, pulse, release.clone());
    let task = tokio::spawn(Stoppable { inner: Box::pin(run), stop: Arc::clone(&stop) });
    Process { lease, gate, leading, release, stop, task }
}

impl Process {
    /// How long it took until this process could write.
    async fn leads(&mut self) -> Duration {
        let asked = Instant::now();
        tokio::time::timeout(Duration::from_mins(2), self.leading.begun()).await.unwrap();
        assert!(self.gate.is_open());
        asked.elapsed()
    }
}

/// A leader and a standby that has seen it.
async fn a_pair() -> (Process, Process) {
    let lease = MemoryLease::new();
    let mut first = start("first", &lease, clock(5, 1.0, 0));
    assert_eq!(first.leads().await, Duration::ZERO, "an unheld lease is taken at once");
    let second = start("second", &lease, clock(900_000, 1.0, -86_400));
    sleep(Duration::from_secs(7)).await;
    assert!(!second.gate.is_open());
    (first, second)
}

#[tokio::test(start_paused = true)]
async fn a_leader_leads_on_while_it_renews() {
    let (first, second) = a_pair().await;
    for _ in 0..600 {
        sleep(Duration::from_secs(1)).await;
        assert!(first.gate.is_open() && !second.gate.is_open());
    }
    assert!(first.gate.left() >= Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_followed_within_the_lease_time() {
    let (first, mut second) = a_pair().await;
    first.task.abort();
    let took = second.leads().await;
    assert!(took <= TIMING.duration + TIMING.retry + Duration::from_secs(1), "{took:?}");
    assert!(!first.gate.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_told_to_stop_is_followed_at_once() {
    let (first, mut second) = a_pair().await;
    first.release.cancel();
    let took = second.leads().await;
    assert!(took <= TIMING.retry + Duration::from_secs(1), "{took:?}");
    assert_eq!(first.task.await.unwrap(), Ok(()));
    assert!(!first.gate.is_open());
    assert_eq!(second.lease.holder().as_deref(), Some("second"));
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_released_also_when_the_last_renewals_answer_was_lost() {
    let (first, mut second) = a_pair().await;
    first.lease.set(Network::LosesAnswers);
    sleep(Duration::from_secs(3)).await;
    first.lease.set(Network::Good);
    first.release.cancel();
    assert_eq!(first.task.await.unwrap(), Ok(()));
    assert!(second.leads().await <= TIMING.retry + Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_is_told_to_stop_ends_and_leaves_the_lease_alone() {
    let (first, second) = a_pair().await;
    second.release.cancel();
    assert_eq!(second.task.await.unwrap(), Ok(()));
    assert_eq!(first.lease.holder().as_deref(), Some("first"));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_stopped_past_its_lease_writes_nothing_and_ends() {
    let (first, mut second) = a_pair().await;
    first.stop.set(true);
    second.leads().await;
    let version = || second.lease.found.lock().unwrap().1;
    sleep(Duration::from_secs(1)).await;
    let before = version();
    assert!(!first.gate.is_open());
    first.stop.set(false);
    assert_eq!(first.task.await.unwrap(), Err(Lost::NotRenewed(TIMING.renew_deadline)));
    assert!(!first.gate.is_open() && second.gate.is_open());
    assert_eq!(version(), before, "not even the lease was written");
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_api_server_ends_before_its_lease_does() {
    for network in [Network::Refused, Network::LosesRequests] {
        let (first, mut second) = a_pair().await;
        first.lease.set(network);
        let (lost, since) = (first.task, Instant::now());
        assert_eq!(lost.await.unwrap(), Err(Lost::NotRenewed(TIMING.renew_deadline)));
        let took = since.elapsed();
        assert!(took <= TIMING.renew_deadline + TIMING.retry, "{took:?}");
        assert!(second.leads().await <= TIMING.duration);
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_interruption_is_forgiven() {
    let (first, second) = a_pair().await;
    for network in [Network::Refused, Network::LosesRequests, Network::LosesAnswers, Network::Slow(STEP * 8)] {
        first.lease.set(network);
        sleep(Duration::from_secs(3)).await;
        first.lease.set(Network::Good);
        sleep(Duration::from_secs(12)).await;
        assert!(first.gate.is_open() && !second.gate.is_open(), "{network:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_takes_by_force_is_lost() {
    let (first, _second) = a_pair().await;
    {
        let mut found = first.lease.found.lock().unwrap();
        found.1 += 1;
        let version = found.1.to_string();
        let taken = found.0.as_mut().unwrap();
        taken.version = version;
        taken.lease.holder = "somebody".to_owned();
    }
    assert_eq!(first.task.await.unwrap(), Err(Lost::Taken("somebody".to_owned())));
    assert!(!first.gate.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_made_again_by_its_holder() {
    let (first, second) = a_pair().await;
    first.lease.delete();
    for _ in 0..40 {
        sleep(Duration::from_secs(1)).await;
        assert!(first.gate.is_open() && !second.gate.is_open());
    }
    assert_eq!(first.lease.holder().as_deref(), Some("first"));
}

#[test]
fn times_that_could_make_two_leaders_are_refused() {
    let timing = |duration: u64, renew_deadline: u64, retry: u64| Timing {
        duration: Duration::from_millis(duration),
        renew_deadline: Duration::from_millis(renew_deadline),
        retry: Duration::from_millis(retry),
    };
    assert!(timing(15_000, 10_000, 2_000).checked().is_ok());
    assert!(timing(3_000, 2_000, 500).checked().is_ok());
    let rows =
        [(15_500, 10_000, 2_000), (0, 0, 0), (15_000, 13_000, 2_000), (15_000, 2_000, 2_000), (15_000, 10_000, 0)];
    for (duration, renew_deadline, retry) in rows {
        let refused = timing(duration, renew_deadline, retry).checked().unwrap_err();
        assert!(refused.contains("lease duration") || refused.contains("renew deadline"), "{refused}");
    }
}

/// What happens to one of the two processes.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Stopped,
    Continued,
    Network(Network),
    Killed,
    Terminated,
}

fn happening() -> impl Strategy<Value = Happening> {
    let network = prop_oneof![
        3 => Just(Network::Good),
        2 => (1_u64..9_000).prop_map(|millis| Network::Slow(Duration::from_millis(millis))),
        1 => Just(Network::Refused),
        1 => Just(Network::LosesRequests),
        1 => Just(Network::LosesAnswers),
    ];
    prop_oneof![
        3 => Just(Happening::Stopped),
        4 => Just(Happening::Continued),
        5 => network.prop_map(Happening::Network),
        1 => Just(Happening::Killed),
        1 => Just(Happening::Terminated),
    ]
}

/// The two processes of a deployment: one that ends is started anew, under a new name.
struct Deployment {
    lease: MemoryLease,
    clocks: [SkewedClock; 2],
    running: [Process; 2],
    /// Also the gates of processes that have ended: some request of theirs may still ask.
    gates: Vec<Gate>,
    led: usize,
}

impl Deployment {
    fn new(clocks: [SkewedClock; 2]) -> Self {
        let lease = MemoryLease::new();
        let running = [start("p0", &lease, clocks[0]), start("p1", &lease, clocks[1])];
        let gates = running.iter().map(|process| process.gate.clone()).collect();
        Self { lease, clocks, running, gates, led: 0 }
    }

    fn happens(&self, who: usize, what: Happening) {
        let process = &self.running[who];
        match what {
            Happening::Stopped => process.stop.set(true),
            Happening::Continued => process.stop.set(false),
            Happening::Network(network) => process.lease.set(network),
            Happening::Killed => process.task.abort(),
            Happening::Terminated => process.release.cancel(),
        }
    }

    /// Lets time pass, and looks at the gates all the while.
    async fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            sleep(STEP).await;
            let open = self.gates.iter().filter(|gate| gate.is_open()).count();
            assert!(open <= 1, "{open} lead at once");
            self.led += open;
            for who in 0..2 {
                if self.running[who].task.is_finished() {
                    self.running[who] = start(&format!("p{}", self.gates.len()), &self.lease, self.clocks[who]);
                    self.gates.push(self.running[who].gate.clone());
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn two_candidates_never_both_lead_and_in_the_end_one_does(
        origins in prop::array::uniform2(0_u64..1_000_000),
        speeds in prop::array::uniform2(0.97_f64..1.03),
        walls in prop::array::uniform2(-1_000_000_i64..1_000_000),
        script in prop::collection::vec((0_usize..2, happening(), 0_u64..20_000), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let clocks = [clock(origins[0], speeds[0], walls[0]), clock(origins[1], speeds[1], walls[1])];
            let mut deployment = Deployment::new(clocks);
            for (who, what, millis) in script {
                deployment.happens(who, what);
                deployment.pass(Duration::from_millis(millis)).await;
            }
            for who in 0..2 {
                deployment.happens(who, Happening::Continued);
                deployment.happens(who, Happening::Network(Network::Good));
            }
            deployment.pass(Duration::from_mins(1)).await;
            deployment.led = 0;
            deployment.pass(STEP * 40).await;
            assert_eq!(deployment.led, 40, "one leads all the time");
        });
    }
}
