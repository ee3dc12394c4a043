//! Forwards requests, streams answers, and does what the rules say.

use super::{
    journal::{Entry, Journal, Place},
    rules::{Faults, Other, Rules, Seen, Signal, Verdict, When, With, status_body, watches, writes},
};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::client::Body as KubeBody;
use rustix::process::{Pid, Signal as OsSignal, kill_process};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::{
    collections::VecDeque,
    future::pending,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

/// How long a process may take to end or to stop.
const REST_DEADLINE: Duration = Duration::from_secs(10);

type Body = UnsyncBoxBody<Bytes, anyhow::Error>;

/// The proxy.
pub struct Proxy {
    client: kube::Client,
    state: Mutex<State>,
    /// Each new value ends the watches that are open.
    cut: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    rules: Rules,
    journal: Journal,
}

impl Proxy {
    /// A proxy to the API server of this client.
    pub fn new(client: kube::Client) -> Self {
        Self { client, state: Mutex::default(), cut: watch::Sender::new(0) }
    }

    /// Nothing is left half-done in it, so a poisoned lock is as good as any.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers connections until the listener fails.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) -> Result<()> {
        loop {
            let (connection, _) = listener.accept().await.context("cannot accept connections")?;
            let proxy = Arc::clone(&self);
            tokio::spawn(async move {
                let service = service_fn(move |request| Arc::clone(&proxy).answer(request));
                // A connection that breaks is the client's affair, or was broken on purpose.
                let _ = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .serve_connection(TokioIo::new(connection), service)
                    .await;
            });
        }
    }

    /// An error closes the connection without an answer.
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        match (&head.method, head.uri.path()) {
            (&Method::PUT, "/_faults") => Ok(self.set_faults(&body)),
            (&Method::GET, "/_log") => self.log(),
            (&Method::DELETE, "/_log") => {
                let mut state = self.state();
                state.journal.clear();
                state.rules.restart_count();
                Ok(plain(StatusCode::NO_CONTENT, String::new()))
            }
            (&Method::POST, "/_cut") => {
                self.cut.send_modify(|cuts| *cuts += 1);
                Ok(plain(StatusCode::NO_CONTENT, String::new()))
            }
            _ => self.pass(Request::from_parts(head, body)).await,
        }
    }

    fn set_faults(&self, body: &[u8]) -> Response<Body> {
        match read::<Faults>(body) {
            Ok(faults) => {
                self.state().rules.set(faults);
                plain(StatusCode::NO_CONTENT, String::new())
            }
            Err(error) => plain(StatusCode::BAD_REQUEST, format!("these are no faults: {error:#}\n")),
        }
    }

    fn log(&self) -> Result<Response<Body>> {
        let text = serde_json::to_string(&self.state().journal)?;
        Ok(json_answer(StatusCode::OK, text))
    }

    async fn pass(self: Arc<Self>, request: Request<Bytes>) -> Result<Response<Body>> {
        let text = String::from_utf8_lossy(request.body()).into_owned();
        // Some clients end every path with a question mark.
        let target = request.uri().path_and_query().map_or("/", |it| it.as_str().trim_end_matches('?')).to_owned();
        let seen = Seen { verb: request.method().as_str(), path: &target, body: &text };
        let (verdict, place) = self.meet(seen, request.headers());
        if let Some((pid, signal, When::Before)) = verdict.signal {
            send_signal(pid, signal).await?;
            if signal == Signal::Kill {
                bail!("its sender was killed");
            }
        }
        if let Some((with, When::Before, retry_after)) = verdict.answer {
            return spoiled(with, seen.verb, retry_after).await;
        }
        if !writes(seen.verb) {
            return self.stream(watches(seen), request).await;
        }
        // A write that has begun is ended, and its answer noted, even when its sender is gone.
        let (verb, proxy) = (seen.verb.to_owned(), Arc::clone(&self));
        let forwarded = tokio::spawn(async move {
            let answer = forward(&proxy.client, request).await?;
            let (head, body) = answer.into_parts();
            let body = body.collect().await?.to_bytes();
            if let Some(place) = place {
                proxy.state().journal.answered(place, head.status.as_u16());
            }
            if let Some((pid, signal, When::After)) = verdict.signal {
                send_signal(pid, signal).await?;
                if signal == Signal::Kill {
                    bail!("its sender was killed");
                }
            }
            anyhow::Ok(Response::from_parts(head, full(body)))
        });
        let answer = forwarded.await.context("forwarding ended early")??;
        match verdict.answer {
            Some((with, _, retry_after)) => spoiled(with, &verb, retry_after).await,
            None => Ok(answer),
        }
    }

    /// Decides, and notes a write.
    fn meet(&self, seen: Seen<'_>, headers: &HeaderMap) -> (Verdict, Option<Place>) {
        let agent = headers.get(header::USER_AGENT).and_then(|it| it.to_str().ok()).unwrap_or_default();
        let mut state = self.state();
        let verdict = state.rules.meet(seen);
        if !writes(seen.verb) {
            state.journal.read();
            return (verdict, None);
        }
        let entry = Entry {
            n: verdict.n,
            at_ms: epoch_ms(),
            verb: seen.verb.to_owned(),
            path: seen.path.to_owned(),
            agent: agent.to_owned(),
            status: None,
            fault: verdict.words(),
        };
        let place = state.journal.begin(entry);
        (verdict, Some(place))
    }

    /// An answer that is passed on as it comes.
    async fn stream(self: Arc<Self>, watch: bool, request: Request<Bytes>) -> Result<Response<Body>> {
        let (mut head, body) = forward(&self.client, request).await?.into_parts();
        let chunks = BodyStream::new(body).map(|frame| Ok(frame?.into_data().unwrap_or_default())).boxed();
        if !watch {
            return Ok(Response::from_parts(head, stream_body(chunks)));
        }
        // Its length is not known: it may be cut.
        head.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(head, stream_body(late(chunks, self))))
    }
}

/// Ends the count of an open watch, however it ends.
struct OpenWatch(Arc<Proxy>);

impl OpenWatch {
    fn new(proxy: Arc<Proxy>) -> Self {
        proxy.state().journal.watch_opened();
        Self(proxy)
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.state().journal.watch_closed();
    }
}

type Chunks = Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>;

/// A watch, of which each piece comes as late as the faults say when it arrives here, in order.
struct Late {
    chunks: Option<Chunks>,
    waiting: VecDeque<(Instant, Result<Bytes>)>,
    cut: watch::Receiver<u64>,
    open: OpenWatch,
}

fn late(chunks: Chunks, proxy: Arc<Proxy>) -> impl Stream<Item = Result<Bytes>> + Send {
    let cut = proxy.cut.subscribe();
    let start = Late { chunks: Some(chunks), waiting: VecDeque::new(), cut, open: OpenWatch::new(proxy) };
    stream::unfold(Some(start), |late| async move {
        let mut late = late?;
        match late.next().await {
            Some(Ok(chunk)) => Some((Ok(chunk), Some(late))),
            Some(Err(error)) => Some((Err(error), None)),
            None => None,
        }
    })
}

impl Late {
    async fn next(&mut self) -> Option<Result<Bytes>> {
        loop {
            let due = self.waiting.front().map(|(due, _)| *due);
            if due.is_none() && self.chunks.is_none() {
                return None;
            }
            tokio::select! {
                biased;
                _ = self.cut.changed() => return Some(Err(anyhow!("the watch was cut"))),
                () = until(due) => return self.waiting.pop_front().map(|(_, chunk)| chunk),
                chunk = next_chunk(&mut self.chunks) => {
                    let delay = Duration::from_millis(self.open.0.state().rules.watch_delay_ms());
                    match chunk {
                        Some(chunk) => self.waiting.push_back((Instant::now() + delay, chunk)),
                        None => self.chunks = None,
                    }
                }
            }
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

async fn next_chunk(chunks: &mut Option<Chunks>) -> Option<Result<Bytes>> {
    match chunks {
        Some(chunks) => chunks.next().await,
        None => pending().await,
    }
}

async fn forward(client: &kube::Client, request: Request<Bytes>) -> Result<Response<KubeBody>> {
    let mut request = request.map(KubeBody::from);
    // They belong to one connection.
    for name in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING] {
        request.headers_mut().remove(name);
    }
    let mut answer = client.send(request).await.context("the API server does not answer")?;
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        answer.headers_mut().remove(name);
    }
    Ok(answer)
}

/// An answer in place of the API server's.
async fn spoiled(with: With, verb: &str, retry_after: Option<u64>) -> Result<Response<Body>> {
    let code = match with {
        With::Status(code) => code,
        With::Other(Other::Hang) => pending().await,
        With::Other(Other::Drop) => bail!("the connection was to be dropped"),
        With::Other(Other::Expired) => {
            let event = json!({ "type": "ERROR", "object": status_body(verb, 410, None) });
            return Ok(json_answer(StatusCode::OK, event.to_string()));
        }
    };
    let mut answer = json_answer(StatusCode::from_u16(code)?, status_body(verb, code, retry_after).to_string());
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    Ok(answer)
}

/// Returns when the process does nothing more: a signal takes a moment to reach every thread.
async fn send_signal(pid: i32, signal: Signal) -> Result<()> {
    let process = Pid::from_raw(pid).context("0 is no process")?;
    let number = match signal {
        Signal::Kill => OsSignal::KILL,
        Signal::Stop => OsSignal::STOP,
    };
    kill_process(process, number).context("the process cannot be signalled")?;
    let deadline = Instant::now() + REST_DEADLINE;
    while !is_at_rest(pid, signal) {
        ensure!(Instant::now() < deadline, "the process goes on in spite of the signal");
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Whether every thread of a process has ended, or is stopped.
fn is_at_rest(pid: i32, signal: Signal) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        // A thread that ends meanwhile is at rest.
        let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else { return true };
        // Its name may hold anything, so the state is what follows the last bracket.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        matches!((state, signal), (Some('Z' | 'X'), _) | (Some('T' | 't'), Signal::Stop))
    })
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    Ok(serde_json::from_slice(body)?)
}

fn epoch_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn stream_body(chunks: impl Stream<Item = Result<Bytes>> + Send + 'static) -> Body {
    StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))).boxed_unsync()
}

fn plain(status: StatusCode, text: String) -> Response<Body> {
    let mut answer = Response::new(full(text.into()));
    *answer.status_mut() = status;
    answer
}

fn json_answer(status: StatusCode, text: String) -> Response<Body> {
    let mut answer = plain(status, text);
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    answer
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
