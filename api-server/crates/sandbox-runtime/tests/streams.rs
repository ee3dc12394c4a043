//! What a run is worth when streams break: a `sandboxd` in this process that fails on purpose.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test code outside of test functions")]

#[path = "streams/cells.rs"]
mod cells;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sandbox_runtime::{
    AcquireError, Acquired, ByteStream, ContainerKey, ContainerKind, ContainerSpec, Exit, FileError, Half, InstanceId,
    Limits, Loss, OpenError, RunError, RunKind, RunRequest, Runtime, Sandbox, Sandboxes, Start,
};
use sandboxd_protocol::{ErrorBody, ErrorCode, Frame};
use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    sync::{Notify, watch},
};

/// What stdout of the one run is in the end.
const OUTPUT: &str = "hello, world";

/// How the next request is answered.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The run from the offset asked for, with its exit.
    Whole,
    /// The first bytes of the run, then the stream is cut.
    PartThenCut,
    /// The stream is cut before an answer.
    Cut,
    /// The run starts and never ends.
    Hang,
    /// No head of an answer ever comes.
    Silence,
    Refuse(ErrorCode),
    /// More output than anybody asked for.
    Flood,
    /// An answer that ends without an exit.
    NoExit,
    /// Bytes that are no frames.
    Garbage,
    /// Two calls after those that are known, of the tool `t`; then nothing.
    Calls,
}

#[derive(Default)]
struct Fake {
    hello: Mutex<VecDeque<&'static str>>,
    acts: Mutex<VecDeque<Act>>,
    /// `METHOD /path?query` of every request.
    log: Mutex<Vec<String>>,
    heard: Notify,
    opened: Mutex<Vec<(String, Half)>>,
    forgotten: Mutex<usize>,
    /// Idle timeout; an hour when it is unset.
    idle: Mutex<Option<Duration>>,
    /// When it was marked as used, and whether it had to be.
    marks: Mutex<Vec<(tokio::time::Instant, bool)>>,
    /// As many opens meet a container that does not run.
    not_running: Mutex<usize>,
    loss: Mutex<Option<Loss>>,
    replaced: Mutex<Vec<InstanceId>>,
    now: Mutex<usize>,
    most: Mutex<usize>,
}

const HELLO: &str = "sandboxd proto=1 boot=0a\n";

impl Fake {
    fn new(acts: impl IntoIterator<Item = Act>) -> Arc<Self> {
        Arc::new(Self { acts: Mutex::new(acts.into_iter().collect()), ..Self::default() })
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn count(&self, method: &str) -> usize {
        self.log().iter().filter(|line| line.starts_with(method)).count()
    }

    async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let waited = tokio::time::timeout(Duration::from_mins(5), async {
            loop {
                let heard = self.heard.notified();
                if condition(self) {
                    return;
                }
                heard.await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("never happened; heard {:?}", self.log()));
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        cut: watch::Sender<bool>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, io::Error>>, Infallible> {
        let uri = request.uri().path_and_query().unwrap().to_string();
        let method = request.method().clone();
        if method == Method::PUT || method == Method::POST {
            let _ = request.into_body().collect().await;
        }
        self.log.lock().unwrap().push(format!("{method} {uri}"));
        self.heard.notify_waiters();
        if method == Method::DELETE {
            return Ok(Response::builder().status(204).body(full("")).unwrap());
        }
        let act = self.acts.lock().unwrap().pop_front().unwrap_or(Act::Whole);
        if method == Method::POST && matches!(act, Act::Whole) {
            return Ok(Response::builder().status(204).body(full("")).unwrap());
        }
        let number = |name| uri.split_once(name).map_or(0, |(_, n)| n.split('&').next().unwrap().parse().unwrap());
        let from: usize = number("out=");
        let out = |text: &str| Frame::Stdout(Bytes::copy_from_slice(text.as_bytes())).encode();
        let exit = Frame::Exit(Exit { code: 7, ..Exit::default() }).encode();
        let mut pieces = vec![Frame::Started.encode()];
        match act {
            Act::Whole => pieces.extend([out(&OUTPUT[from..]), exit]),
            Act::PartThenCut | Act::Hang => pieces.push(out(&OUTPUT[from..(from + 3).min(OUTPUT.len())])),
            Act::Flood => pieces.extend((0..100).map(|_| out(OUTPUT))),
            Act::Calls => pieces.push(calls(number("calls="))),
            Act::NoExit => {}
            Act::Garbage => pieces.push(Bytes::from_static(b"?garbage")),
            Act::Cut => {
                cut.send_replace(true);
                return std::future::pending().await;
            }
            Act::Silence => return std::future::pending().await,
            Act::Refuse(code) => {
                let body = ErrorBody { code, message: "refused".into() };
                let body = full(&serde_json::to_string(&body).unwrap());
                return Ok(Response::builder().status(code.status()).body(body).unwrap());
            }
        }
        let ends = matches!(act, Act::Whole | Act::NoExit | Act::Flood | Act::Garbage);
        let rest = async move {
            if matches!(act, Act::PartThenCut) {
                cut.send_replace(true);
            }
            std::future::pending::<()>().await;
        };
        let now = Busy::new(self);
        let frames = stream::iter(pieces.into_iter().map(|piece| Ok(http_body::Frame::data(piece))));
        let tail = stream::once(rest).filter_map(|()| async { None }).take(usize::from(!ends));
        let body = StreamBody::new(frames.chain(tail).inspect(move |_| now.hold()).boxed());
        Ok(Response::new(body.boxed_unsync()))
    }
}

fn calls(from: usize) -> Bytes {
    let call = |id: usize| format!(r#"{{"call_id":{id},"name":"t","input":{{"n":{id}}}}}"#);
    Frame::Calls(format!("[{},{}]", call(from), call(from + 1)).into()).encode()
}

/// Counts answers that are under way.
struct Busy(Arc<Fake>);

impl Busy {
    fn new(fake: Arc<Fake>) -> Self {
        let now = {
            let mut now = fake.now.lock().unwrap();
            *now += 1;
            *now
        };
        let mut most = fake.most.lock().unwrap();
        *most = now.max(*most);
        drop(most);
        Self(fake)
    }

    fn hold(&self) {
        self.0.heard.notify_waiters();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.now.lock().unwrap() -= 1;
    }
}

fn full(text: &str) -> UnsyncBoxBody<Bytes, io::Error> {
    Full::new(Bytes::copy_from_slice(text.as_bytes())).map_err(|never| match never {}).boxed_unsync()
}

struct FakeRuntime(Arc<Fake>);

#[async_trait::async_trait]
impl Runtime for FakeRuntime {
    async fn find(&self, _: &ContainerSpec) -> Result<bool, AcquireError> {
        self.0.marks.lock().unwrap().push((tokio::time::Instant::now(), false));
        Ok(true)
    }

    async fn mark(&self, _: &ContainerSpec) -> Result<(), AcquireError> {
        self.0.marks.lock().unwrap().push((tokio::time::Instant::now(), true));
        self.0.heard.notify_waiters();
        Ok(())
    }

    async fn loss(&self, _: &InstanceId) -> Option<Loss> {
        self.0.loss.lock().unwrap().clone()
    }

    async fn acquire(&self, _: &ContainerSpec, _: Duration) -> Result<Acquired, AcquireError> {
        let uid = format!("uid-{}", self.0.forgotten.lock().unwrap());
        let idle_timeout = self.0.idle.lock().unwrap().unwrap_or(Duration::from_hours(1));
        Ok(Acquired { instance: InstanceId { name: "pod".into(), uid }, idle_timeout, start: Start::Reused })
    }

    async fn open(&self, instance: &InstanceId, half: Half) -> Result<Box<dyn ByteStream>, OpenError> {
        {
            let mut not_running = self.0.not_running.lock().unwrap();
            if *not_running > 0 {
                *not_running -= 1;
                return Err(OpenError::NotRunning("container not found".into()));
            }
        }
        let (ours, mut theirs) = tokio::io::duplex(256 * 1024);
        self.0.opened.lock().unwrap().push((instance.uid.clone(), half));
        let fake = self.0.clone();
        let hello = fake.hello.lock().unwrap().pop_front().unwrap_or(HELLO);
        tokio::spawn(async move {
            theirs.write_all(hello.as_bytes()).await.unwrap();
            let (cut, mut is_cut) = watch::channel(false);
            let service = service_fn(move |request| fake.clone().answer(request, cut.clone()));
            let mut builder = http2::Builder::new(TokioExecutor::new());
            let connection = builder.timer(TokioTimer::new()).serve_connection(TokioIo::new(theirs), service);
            tokio::select! {
                _ = connection => {}
                _ = is_cut.wait_for(|cut| *cut) => {}
            }
        });
        Ok(Box::new(ours))
    }

    fn forget(&self, _: &InstanceId) {
        *self.0.forgotten.lock().unwrap() += 1;
    }

    async fn replace(&self, instance: &InstanceId) {
        self.0.replaced.lock().unwrap().push(instance.clone());
    }

    async fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    async fn shut_down(&self) {}
}

async fn sandbox(fake: &Arc<Fake>) -> Sandbox {
    let key = ContainerKey { kind: ContainerKind::Explicit, workspace: "w", user: None, id: "c" };
    let spec = ContainerSpec { name: key.name(), owner: key.owner(), lifetime: None };
    let sandboxes = Sandboxes::new(Arc::new(FakeRuntime(fake.clone())));
    sandboxes.acquire(&spec, Duration::from_secs(1)).await.unwrap()
}

fn request(timeout_ms: u64, output_bytes: u64) -> RunRequest {
    let run = RunKind::Bash { command: "true".into(), restart: false };
    RunRequest { run, env: BTreeMap::new(), limits: Limits { timeout_ms, output_bytes } }
}

async fn run(fake: &Arc<Fake>) -> Result<sandbox_runtime::RunOutcome, RunError> {
    sandbox(fake).await.run("r1", &request(60_000, 1000)).await
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_lost_with_its_stream_is_joined_and_its_output_is_whole() {
    for acts in [vec![Act::Cut], vec![Act::PartThenCut], vec![Act::PartThenCut, Act::PartThenCut], vec![Act::NoExit]] {
        let fake = Fake::new(acts.clone());
        let outcome = run(&fake).await.unwrap();
        assert_eq!((&*outcome.stdout, outcome.exit.code), (OUTPUT.as_bytes(), 7), "{acts:?}");
        assert_eq!((fake.count("PUT"), fake.count("GET")), (1, acts.len()), "{acts:?} {:?}", fake.log());
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_sent_again_only_when_the_same_start_never_saw_it() {
    let fake = Fake::new([Act::Cut, Act::Refuse(ErrorCode::NotFound), Act::Whole]);
    assert_eq!(run(&fake).await.unwrap().exit.code, 7);
    assert_eq!(fake.log(), ["PUT /runs/r1", "GET /runs/r1?out=0&err=0", "PUT /runs/r1"]);

    let fake = Fake::new([Act::Cut, Act::Refuse(ErrorCode::Gone)]);
    assert!(matches!(run(&fake).await, Err(RunError::Unknown(_))));
    assert_eq!(fake.count("PUT"), 1);
}

#[tokio::test(start_paused = true)]
async fn another_start_means_unknown_and_nothing_is_run_again() {
    for act in [Act::Cut, Act::PartThenCut] {
        let fake = Fake::new([act]);
        fake.hello.lock().unwrap().extend([HELLO, "sandboxd proto=1 boot=0b\n"]);
        assert!(matches!(run(&fake).await, Err(RunError::Unknown(_))), "{act:?}");
        assert_eq!(fake.log(), ["PUT /runs/r1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_again_and_again_ends_in_a_replaced_sandbox() {
    let fake = Fake::new([Act::Cut; 10]);
    assert!(matches!(run(&fake).await, Err(RunError::Unknown(_))));
    assert_eq!(fake.replaced.lock().unwrap().len(), 1);
    assert_eq!(fake.count("PUT"), 1);
    assert_eq!(fake.opened.lock().unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_did_not_run_is_told_as_such() {
    let fake = Fake::new([Act::Refuse(ErrorCode::TooManyRequests)]);
    assert_eq!(run(&fake).await.unwrap_err(), RunError::TooManyRequests);
    for code in [ErrorCode::Conflict, ErrorCode::Unavailable, ErrorCode::TooLarge] {
        let fake = Fake::new([Act::Refuse(code)]);
        assert_eq!(run(&fake).await.unwrap_err(), RunError::Unavailable("refused".into()), "{code:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopping_sandbox_is_left_for_the_next_start() {
    let fake = Fake::new([Act::Refuse(ErrorCode::Draining), Act::Whole]);
    assert_eq!(run(&fake).await.unwrap().exit.code, 7);
    let opened = fake.opened.lock().unwrap().clone();
    assert_eq!(opened, [("uid-0".to_owned(), Half::Main), ("uid-1".to_owned(), Half::Main)]);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_does_not_end_a_run_in_time_is_cut_and_replaced() {
    for act in [Act::Hang, Act::Silence] {
        let fake = Fake::new([act]);
        let start = tokio::time::Instant::now();
        assert!(matches!(run(&fake).await, Err(RunError::Unknown(_))), "{act:?}");
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(65) && took < Duration::from_secs(67), "{took:?}");
        assert_eq!(fake.replaced.lock().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn more_than_was_asked_for_and_what_is_no_frame_are_not_accepted() {
    for act in [Act::Flood, Act::Garbage] {
        let fake = Fake::new([act]);
        assert!(matches!(run(&fake).await, Err(RunError::Unknown(_))), "{act:?}");
        assert_eq!(fake.replaced.lock().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_started_again_is_waited_for_and_not_replaced() {
    let fake = Fake::new([]);
    *fake.not_running.lock().unwrap() = 5;
    assert_eq!(run(&fake).await.unwrap().exit.code, 7);
    assert!(fake.replaced.lock().unwrap().is_empty());
    assert_eq!((fake.count("PUT"), *fake.forgotten.lock().unwrap()), (1, 5));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_never_runs_ends_in_a_replaced_sandbox() {
    let fake = Fake::new([]);
    *fake.not_running.lock().unwrap() = usize::MAX;
    assert!(matches!(run(&fake).await, Err(RunError::Unavailable(_))));
    assert_eq!(fake.replaced.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_says_why_and_the_run_is_not_sent_again() {
    let fake = Fake::new([Act::PartThenCut]);
    fake.hello.lock().unwrap().extend([HELLO, "sandboxd proto=1 boot=0b\n"]);
    let loss = Loss::OutOfMemory { limit: Some("96Mi".into()) };
    *fake.loss.lock().unwrap() = Some(loss.clone());
    assert_eq!(run(&fake).await.unwrap_err(), RunError::Lost(loss));
    assert_eq!(fake.log(), ["PUT /runs/r1"]);
}

/// Marks since `start`, in seconds, and whether each had to be.
fn marks(fake: &Fake, start: tokio::time::Instant) -> Vec<(u64, bool)> {
    let marks = fake.marks.lock().unwrap();
    marks.iter().map(|(at, must)| (at.duration_since(start).as_secs(), *must)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_long_quiet_use_is_marked_each_quarter_and_once_at_its_end() {
    let fake = Fake::new([Act::Hang]);
    *fake.idle.lock().unwrap() = Some(Duration::from_mins(1));
    let sandbox = sandbox(&fake).await;
    let (start, request) = (tokio::time::Instant::now(), request(35_000, 1000));
    assert!(sandbox.run("r1", &request).await.is_err());
    fake.until(|fake| fake.marks.lock().unwrap().iter().any(|(_, must)| *must)).await;
    assert_eq!(marks(&fake, start), [(15, false), (30, false), (40, true)]);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(marks(&fake, start).len(), 3, "nothing keeps it awake after its end");
}

#[tokio::test(start_paused = true)]
async fn a_short_use_costs_no_mark() {
    let fake = Fake::new([]);
    *fake.idle.lock().unwrap() = Some(Duration::from_mins(1));
    sandbox(&fake).await.run("r1", &request(1000, 1000)).await.unwrap();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(fake.marks.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slow_upload_keeps_its_sandbox_awake() {
    let fake = Fake::new([]);
    *fake.idle.lock().unwrap() = Some(Duration::from_mins(1));
    let sandbox = sandbox(&fake).await;
    let start = tokio::time::Instant::now();
    let body = stream::iter(0..4).then(|_| async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok(Bytes::from_static(b"part"))
    });
    // The fake's answer is no stat; what counts is the time under way.
    assert!(sandbox.write_file("/tmp/x", body).await.is_err());
    fake.until(|fake| fake.marks.lock().unwrap().iter().any(|(_, must)| *must)).await;
    assert_eq!(marks(&fake, start), [(15, false), (30, false), (40, true)]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_is_deleted() {
    let fake = Fake::new([Act::Hang]);
    let sandbox = sandbox(&fake).await;
    let request = request(60_000, 1000);
    let mut running = Box::pin(sandbox.run("r1", &request));
    tokio::select! {
        outcome = &mut running => panic!("ended: {outcome:?}"),
        () = fake.until(|fake| fake.count("PUT") == 1) => {}
    }
    drop(running);
    fake.until(|fake| fake.log().contains(&"DELETE /runs/r1".to_owned())).await;
    assert_eq!(fake.opened.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_say_hello_is_no_sandbox() {
    for hello in [
        "HTTP/1.1 400 Bad Request\n",
        "sandboxd proto=2 boot=0a\n",
        "no line at all, and longer than a hello may ever be",
    ] {
        let fake = Fake::new([]);
        fake.hello.lock().unwrap().extend([hello; 20]);
        assert!(matches!(run(&fake).await, Err(RunError::Unavailable(_))), "{hello:?}");
        assert!(fake.log().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_stream_is_closed_and_opened_again_without_counting_as_cut() {
    let fake = Fake::new([]);
    let sandbox = sandbox(&fake).await;
    for round in 1..=5 {
        sandbox.run("r1", &request(1000, 1000)).await.unwrap();
        sandbox.run("r2", &request(1000, 1000)).await.unwrap();
        assert_eq!(fake.opened.lock().unwrap().len(), round);
        tokio::time::sleep(Duration::from_secs(61)).await;
    }
    assert!(fake.replaced.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn at_most_31_requests_are_under_way_and_the_rest_wait() {
    let fake = Fake::new([Act::Hang; 40]);
    let sandbox = sandbox(&fake).await;
    let runs: Vec<_> = (0..40)
        .map(|n| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move { sandbox.run(&format!("r{n}"), &request(60_000, 1000)).await })
        })
        .collect();
    fake.until(|fake| fake.count("PUT") == 31).await;
    assert!(runs.iter().all(|run| !run.is_finished()));
    assert_eq!((fake.count("PUT"), *fake.most.lock().unwrap()), (31, 31));
    for run in runs {
        run.abort();
        assert!(run.now_or_never().is_none_or(|outcome| outcome.is_err()));
    }
    fake.until(|fake| fake.count("DELETE") >= 31).await;
}

#[tokio::test(start_paused = true)]
async fn the_callers_own_failing_body_is_told_from_the_sandboxs() {
    let fake = Fake::new([Act::Silence]);
    let sandbox = sandbox(&fake).await;
    let body = stream::iter([Ok(Bytes::from_static(b"part")), Err(io::Error::other("client went away"))]);
    match sandbox.write_file("/tmp/x", body).await {
        Err(FileError::Source(error)) => assert_eq!(error.to_string(), "client went away"),
        other => panic!("{other:?}"),
    }
    assert_eq!(fake.opened.lock().unwrap()[0].1, Half::Files);
}

#[tokio::test(start_paused = true)]
async fn file_refusals_keep_their_meaning() {
    let meaning = |error: &FileError| match error {
        FileError::NotFound => "not found",
        FileError::Forbidden(_) => "forbidden",
        FileError::NoSpace => "no space",
        FileError::TooLarge => "too large",
        FileError::Changed => "changed",
        FileError::NoSandbox(_) => "no sandbox",
        FileError::Unavailable(_) => "unavailable",
        FileError::Source(_) => "source",
    };
    for (code, expected) in [
        (ErrorCode::NotFound, "not found"),
        (ErrorCode::Forbidden, "forbidden"),
        (ErrorCode::NoSpace, "no space"),
        (ErrorCode::Mismatch, "changed"),
        (ErrorCode::TooLarge, "too large"),
    ] {
        let fake = Fake::new([Act::Refuse(code)]);
        let error = sandbox(&fake).await.read_file("/tmp/x").await.unwrap_err();
        assert_eq!(meaning(&error), expected);
    }
    let fake = Fake::new([]);
    assert!(matches!(sandbox(&fake).await.seal("../x").await, Err(FileError::NotFound)));
    assert!(fake.log().is_empty());
}
