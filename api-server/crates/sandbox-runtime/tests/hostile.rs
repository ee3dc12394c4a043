//! A `sandboxd` that wants to harm the server (attack 7): whatever it sends, its requests end, memory is bounded, and the other
//! sandboxes do not notice. A process of its own, since its memory is looked at.

#![expect(clippy::unwrap_used, reason = "test code outside of test functions")]

use bytes::Bytes;
use futures_util::future::join_all;
use http::Response;
use http_body_util::Full;
use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandbox_runtime::{
    AcquireError, Acquired, ByteStream, ContainerKey, ContainerKind, ContainerSpec, Exit, Half, InstanceId, Limits,
    OpenError, RunKind, RunRequest, Runtime, Sandboxes, Start,
};
use sandboxd_protocol::Frame;
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const HELLO: &[u8] = b"sandboxd proto=1 boot=0a\n";
/// How much more memory all of them together may cost, in bytes.
const BOUND: u64 = 16 << 20;

/// What it sends, once and then for ever. The client's first request has the stream 1.
struct Attack {
    name: &'static str,
    once: Vec<u8>,
    ever: Vec<u8>,
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length, [kind, flags].as_slice(), &stream.to_be_bytes(), payload].concat()
}

fn attacks() -> Vec<Attack> {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const PRIORITY: u8 = 2;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PUSH_PROMISE: u8 = 5;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    const WINDOW_UPDATE: u8 = 8;
    const CONTINUATION: u8 = 9;
    const END_HEADERS: u8 = 4;
    let start = [HELLO, &frame(SETTINGS, 0, 0, &[])].concat();
    let answered = [start.clone(), frame(HEADERS, END_HEADERS, 1, &[0x88])].concat();
    // A literal header of its own name, never indexed.
    let header = [&[0x10, 2], b"xx".as_slice(), &[100], &[b'v'; 100]].concat();
    let attack = |name, once: &[u8], ever: Vec<u8>| Attack { name, once: once.to_vec(), ever };
    vec![
        attack("a hello that never ends", b"", vec![b'x'; 4096]),
        attack("no HTTP/2", HELLO, vec![0xff; 4096]),
        attack(
            "headers that never end",
            &start,
            [frame(HEADERS, 0, 1, &header), frame(CONTINUATION, 0, 1, &header)].concat(),
        ),
        attack(
            "continuations",
            &[start.clone(), frame(HEADERS, 0, 1, &header)].concat(),
            frame(CONTINUATION, 0, 1, &header),
        ),
        attack(
            "empty continuations",
            &[start.clone(), frame(HEADERS, 0, 1, &[])].concat(),
            frame(CONTINUATION, 0, 1, &[]),
        ),
        attack("informational answers", &start, frame(HEADERS, END_HEADERS, 1, &[0x08, 3, b'1', b'0', b'3'])),
        attack("pings", &start, frame(PING, 0, 0, &[1; 8])),
        attack("settings", &start, frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9])),
        attack("window updates", &start, frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        attack("priorities", &start, frame(PRIORITY, 0, 3, &[0, 0, 0, 1, 7])),
        attack("resets", &start, frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])),
        attack("pushes", &start, frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x88])),
        attack("goodbyes", &start, frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0])),
        attack("unknown frames", &start, frame(0x77, 0, 1, &[0; 1000])),
        attack("a body beyond every window", &answered, frame(DATA, 0, 1, &[0; 16_384])),
        attack("a body of nothing", &answered, frame(DATA, 0, 1, &[])),
        attack("padding", &answered, frame(DATA, 8, 1, &[[255].as_slice(), &[0; 255]].concat())),
    ]
}

async fn send(attack: Arc<Attack>, stream: DuplexStream) {
    let (mut read, mut write) = tokio::io::split(stream);
    let reading = async {
        let mut buffer = [0; 4096];
        while read.read(&mut buffer).await.is_ok_and(|n| n > 0) {}
    };
    let mut writing = async || -> std::io::Result<Infallible> {
        write.write_all(&attack.once).await?;
        // Answers to a request come after it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let many = attack.ever.repeat(16_384 / attack.ever.len() + 1);
        loop {
            write.write_all(&many).await?;
        }
    };
    tokio::select! {
        () = reading => {}
        _ended = writing() => {}
    }
}

async fn serve_well(mut stream: DuplexStream) {
    stream.write_all(HELLO).await.unwrap();
    let answer = || Bytes::from([Frame::Started.encode(), Frame::Exit(Exit::default()).encode()].concat());
    let service = service_fn(move |_| async move { Ok::<_, Infallible>(Response::new(Full::new(answer()))) });
    // It ends when the client has what it wants.
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

/// Every sandbox is what the workspace of its name says: an attack by its number, or a good one.
struct Hostile(Vec<Arc<Attack>>);

#[async_trait::async_trait]
impl Runtime for Hostile {
    async fn find(&self, _: &ContainerSpec) -> Result<bool, AcquireError> {
        Ok(true)
    }

    async fn acquire(&self, spec: &ContainerSpec, _: Duration) -> Result<Acquired, AcquireError> {
        let instance = InstanceId { name: spec.name.as_str().to_owned(), uid: spec.name.as_str().to_owned() };
        Ok(Acquired { instance, idle_timeout: Duration::from_hours(1), start: Start::Reused })
    }

    async fn open(&self, instance: &InstanceId, _: Half) -> Result<Box<dyn ByteStream>, OpenError> {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let attack = (0..self.0.len()).find(|n| spec(&n.to_string()).name.as_str() == instance.name);
        match attack {
            Some(n) => tokio::spawn(send(self.0[n].clone(), theirs)),
            None => tokio::spawn(serve_well(theirs)),
        };
        Ok(Box::new(ours))
    }

    fn forget(&self, _: &InstanceId) {}

    async fn replace(&self, _: &InstanceId) {}

    async fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    async fn shut_down(&self) {}
}

fn spec(id: &str) -> ContainerSpec {
    let key = ContainerKey { kind: ContainerKind::Explicit, workspace: "w", user: None, id };
    ContainerSpec { name: key.name(), owner: key.owner(), lifetime: None }
}

fn request(timeout_ms: u64) -> RunRequest {
    let run = RunKind::Bash { command: "true".into(), restart: false };
    RunRequest { run, env: BTreeMap::new(), limits: Limits { timeout_ms, output_bytes: 1000 } }
}

/// The highest memory of this process so far, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_sandbox_costs_bounded_memory_and_harms_no_other() {
    let attacks: Vec<_> = attacks().into_iter().map(Arc::new).collect();
    let sandboxes = Sandboxes::new(Arc::new(Hostile(attacks.clone())));
    let good = sandboxes.acquire(&spec("good"), Duration::from_secs(1)).await.unwrap();
    good.run("first", &request(60_000)).await.unwrap();
    let resting = peak();
    let hostile = attacks.iter().enumerate().map(|(n, attack)| {
        let (sandboxes, name) = (sandboxes.clone(), attack.name);
        tokio::spawn(async move {
            let sandbox = sandboxes.acquire(&spec(&n.to_string()), Duration::from_secs(1)).await.unwrap();
            let began = Instant::now();
            let ended = tokio::time::timeout(Duration::from_mins(2), sandbox.run("r", &request(500))).await;
            let outcome = ended.unwrap_or_else(|_| unreachable!("{name}: a request for ever"));
            println!("{name}: {:?} after {:?}", outcome.as_ref().err(), began.elapsed());
            assert!(outcome.is_err(), "{name}: {outcome:?}");
        })
    });
    let mut hostile = join_all(hostile);
    let mut served = 0;
    let ended = loop {
        let (id, request) = (format!("good-{served}"), request(60_000));
        tokio::select! {
            ended = &mut hostile => break ended,
            answered = good.run(&id, &request) => { answered.unwrap(); }
        }
        served += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    for attack in ended {
        attack.unwrap();
    }
    let more = peak().saturating_sub(resting);
    println!("{} attacks: {} KiB more; {served} good requests meanwhile", attacks.len(), more >> 10);
    assert!(more < BOUND, "{} KiB more", more >> 10);
    assert!(served > 0);
}
