//! Against a real HTTP server that answers as it is told.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::serve::ListenerExt as _;
use engine::{BlockDelta, ModelFailure, ModelMessage, ModelRequest, OpenBlock};
use serde_json::json;
use wire::{ErrorType, Role};

use super::*;
use crate::upstream::{Address, Dialect, KeyHeader, MaxTokensField, Upstream};

const KEY: &str = "sk-upstream-secret";
/// No proof of speed: a machine may be busy.
const GUARD: Duration = Duration::from_mins(1);

/// What the server does in the course of an answer.
#[derive(Clone)]
enum Part {
    Bytes(String),
    /// Breaks the connection off.
    Cut,
    /// Says nothing more.
    Hang,
}

struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    parts: Vec<Part>,
}

fn reply(status: u16, parts: Vec<Part>) -> Reply {
    let kind = if status == 200 { "text/event-stream" } else { "application/json" };
    Reply { status, headers: vec![("content-type", kind.to_owned())], parts }
}

struct Asked {
    path: String,
    headers: HeaderMap,
    body: Value,
}

/// Gives its replies one after the other.
struct Server {
    base_url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<AtomicUsize>,
    /// Answers whose reader has gone away, or that were sent whole.
    dropped: Arc<AtomicUsize>,
}

struct CountDrop(Arc<AtomicUsize>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Server {
    async fn start(replies: Vec<Reply>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, connections, dropped) = <(Arc<Mutex<Vec<Asked>>>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let replies = Arc::new(Mutex::new(VecDeque::from(replies)));
        let (record, gone) = (Arc::clone(&asked), Arc::clone(&dropped));
        let answer = move |request: axum::extract::Request| {
            let (record, replies, gone) = (Arc::clone(&record), Arc::clone(&replies), Arc::clone(&gone));
            async move {
                let (head, body) = request.into_parts();
                let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
                let body = serde_json::from_slice(&body).unwrap();
                record.lock().unwrap().push(Asked { path: head.uri.path().into(), headers: head.headers, body });
                let Reply { status, headers, parts } = replies.lock().unwrap().pop_front().expect("asked too often");
                let guard = CountDrop(gone);
                let parts = stream::unfold((VecDeque::from(parts), guard), |(mut parts, guard)| async {
                    let piece = match parts.pop_front()? {
                        Part::Bytes(text) => Ok(Bytes::from(text)),
                        Part::Cut => {
                            // What came before is on its way by then: the body was not ready.
                            tokio::time::sleep(Duration::from_millis(50)).await;
                            Err(std::io::Error::other("cut"))
                        }
                        Part::Hang => std::future::pending().await,
                    };
                    Some((piece, (parts, guard)))
                });
                let mut response = Response::builder().status(status);
                for (name, value) in headers {
                    response = response.header(name, value);
                }
                response.body(Body::from_stream(parts)).unwrap()
            }
        };
        let count = Arc::clone(&connections);
        let listener = listener.tap_io(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
        Self { base_url, asked, connections, dropped }
    }

    fn upstream(&self) -> Upstream {
        Upstream::http(&Address {
            dialect: Dialect::Anthropic,
            base_url: self.base_url.clone(),
            model: "real-model".into(),
            key: Some(KEY.into()),
            key_header: None,
            max_tokens_field: MaxTokensField::default(),
            headers: vec![("x-team".into(), "blue".into())],
        })
        .unwrap()
    }

    fn asked(&self) -> std::sync::MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap()
    }
}

fn events(events: &[Value]) -> Part {
    let frame = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    Part::Bytes(events.iter().map(frame).collect())
}

fn beginning_of_text() -> Part {
    events(&[
        json!({ "type": "message_start", "message": { "usage": { "input_tokens": 3, "output_tokens": 1 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "Hello" } }),
    ])
}

fn end_of_text() -> Part {
    events(&[
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 2 } }),
        json!({ "type": "message_stop" }),
    ])
}

fn whole_text() -> Reply {
    reply(200, vec![beginning_of_text(), end_of_text()])
}

fn request() -> ModelRequest {
    ModelRequest {
        model: "alias".into(),
        max_tokens: 64,
        system: Vec::new(),
        messages: vec![ModelMessage { role: Role::User, content: vec![json!({ "type": "text", "text": "hi" })] }],
        tools: Vec::new(),
        tool_choice: None,
        stop_sequences: Vec::new(),
        options: serde_json::Map::new(),
    }
}

async fn all(sampling: Sampling) -> Vec<ModelEvent> {
    tokio::time::timeout(GUARD, sampling.collect()).await.expect("the sampling ends")
}

async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(GUARD, wait).await.expect("it becomes so");
}

fn failure(events: &[ModelEvent]) -> &ModelFailure {
    match events.last() {
        Some(ModelEvent::Fail(failure)) => failure,
        other => panic!("no failure at the end: {other:?}"),
    }
}

#[tokio::test]
async fn a_sampling_is_one_request_and_its_events() {
    let server = Server::start(vec![whole_text()]).await;
    let betas = ["interleaved-thinking-2025-05-14".to_owned(), "code-execution-2025-08-25".to_owned()];
    let said = all(server.upstream().sample(&request(), &betas)).await;
    assert_eq!(said.len(), 5, "{said:?}");
    assert_eq!(
        said[1..4],
        [ModelEvent::Open(OpenBlock::Text), ModelEvent::Delta(BlockDelta::Text("Hello".into())), ModelEvent::Close,]
    );
    let asked = server.asked();
    assert_eq!((asked.len(), asked[0].path.as_str()), (1, "/v1/messages"));
    for (name, value) in [
        ("x-api-key", KEY),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "interleaved-thinking-2025-05-14"),
        ("content-type", "application/json"),
        ("x-team", "blue"),
    ] {
        assert_eq!(asked[0].headers[name], value);
    }
    assert!(!asked[0].headers.contains_key("authorization"));
    assert_eq!((&asked[0].body["model"], &asked[0].body["stream"]), (&json!("real-model"), &json!(true)));
}

#[tokio::test]
async fn samplings_share_a_connection() {
    const SAMPLINGS: usize = 10;
    let answer = || {
        let mut answer = whole_text();
        // A comment after the last event: the end of the body comes later than the end of the message.
        answer.parts.push(Part::Bytes(": bye\n\n".into()));
        answer
    };
    let server = Server::start((0..SAMPLINGS).map(|_| answer()).collect()).await;
    let upstream = server.upstream();
    for sampling in 1..=SAMPLINGS {
        all(upstream.sample(&request(), &[])).await;
        until(|| server.dropped.load(Ordering::SeqCst) == sampling).await;
        // The client reads the rest in a task of its own, which nobody sees the end of.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let connections = server.connections.load(Ordering::SeqCst);
    assert!(connections < SAMPLINGS, "each of {SAMPLINGS} samplings made a connection of its own");
}

#[tokio::test]
async fn a_failing_status_is_told_without_the_upstreams_secrets() {
    let body =
        json!({ "type": "error", "error": { "type": "x", "message": format!("key {KEY} at http://inner.example") } });
    for (status, kind, retryable) in [
        (400, ErrorType::InvalidRequest, false),
        (401, ErrorType::Api, false),
        (403, ErrorType::Api, false),
        (429, ErrorType::RateLimit, true),
        (500, ErrorType::Api, true),
        (529, ErrorType::Overloaded, true),
    ] {
        let mut answer = reply(status, vec![Part::Bytes(body.to_string())]);
        answer.headers.push(("retry-after", "3".into()));
        let server = Server::start(vec![answer]).await;
        let said = all(server.upstream().sample(&request(), &[])).await;
        let failure = failure(&said);
        assert_eq!((failure.error.kind, failure.retryable), (kind, retryable), "{status}");
        assert_eq!(failure.error.retry_after, Some(Duration::from_secs(3)));
        assert!(!failure.error.message.contains(KEY), "{}", failure.error.message);
        assert_eq!(said.len(), 1);
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_fails_after_what_it_said() {
    let broken = reply(200, vec![beginning_of_text(), Part::Cut]);
    let ended = reply(200, vec![beginning_of_text()]);
    let error = json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } });
    let error = reply(200, vec![beginning_of_text(), events(&[error])]);
    let nonsense = reply(200, vec![beginning_of_text(), Part::Bytes("data: <html>\n\n".into())]);
    for (name, answer, kind, retryable) in [
        ("cut", broken, ErrorType::Api, true),
        ("no end", ended, ErrorType::Api, true),
        ("error event", error, ErrorType::Overloaded, true),
        ("not json", nonsense, ErrorType::Api, false),
    ] {
        let server = Server::start(vec![answer]).await;
        let said = all(server.upstream().sample(&request(), &[])).await;
        let failure = failure(&said);
        assert_eq!((failure.error.kind, failure.retryable), (kind, retryable), "{name}");
        assert_eq!(said.len(), 4, "start, open, delta, failure: {said:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_says_nothing_is_given_up() {
    crate::install_tls();
    // What comes before the silence must come within it, on a busy machine too.
    let gap = Duration::from_secs(3);
    let case = async |name: &str, parts: Vec<Part>, events: usize| {
        let parts = parts.into_iter().chain([Part::Hang]).collect();
        let server = Server::start(vec![reply(200, parts)]).await;
        let limits = Limits { gap, ..LIMITS };
        let http = Http::with_limits(HeaderMap::new(), Vec::new(), "m".into(), limits).unwrap();
        let reader = crate::anthropic::Stream::default();
        let url = format!("{}/v1/messages", server.base_url);
        let said = all(Arc::new(http).stream(&url, &json!({}), None, reader)).await;
        let failure = failure(&said);
        assert_eq!((failure.error.kind, failure.retryable, said.len()), (ErrorType::Timeout, false, events), "{name}");
    };
    let (start, middle) = (case("from the start", vec![], 1), case("in the middle", vec![beginning_of_text()], 4));
    futures_util::future::join(start, middle).await;
}

#[tokio::test]
async fn an_answer_without_end_is_given_up() {
    crate::install_tls();
    let more = json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "word " } });
    let parts =
        std::iter::once(beginning_of_text()).chain((0..100).map(|_| events(std::slice::from_ref(&more)))).collect();
    let server = Server::start(vec![reply(200, parts)]).await;
    let limits = Limits { bytes: 2_000, ..LIMITS };
    let http = Http::with_limits(HeaderMap::new(), Vec::new(), "m".into(), limits).unwrap();
    let reader = crate::anthropic::Stream::default();
    let said = all(Arc::new(http).stream(&format!("{}/v1/messages", server.base_url), &json!({}), None, reader)).await;
    assert_eq!((failure(&said).error.kind, failure(&said).retryable), (ErrorType::Api, false));
    assert!(said.len() < 50, "{}", said.len());
}

#[tokio::test]
async fn an_upstream_that_is_not_there_or_is_something_else_is_told() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let server = Server { base_url: nobody.clone(), ..Server::start(Vec::new()).await };
    let said = all(server.upstream().sample(&request(), &[])).await;
    assert!(failure(&said).retryable);
    assert!(
        failure(&said).error.message.contains("cannot be reached") && !failure(&said).error.message.contains("127.")
    );

    let mut page = reply(200, vec![Part::Bytes("<html>Log in</html>".into())]);
    page.headers[0].1 = "text/html; charset=utf-8".into();
    let server = Server::start(vec![page]).await;
    let said = all(server.upstream().sample(&request(), &[])).await;
    assert_eq!((failure(&said).error.kind, failure(&said).retryable), (ErrorType::Api, false));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::start(vec![whole_text()]).await;
    let mut answer = reply(307, Vec::new());
    answer.headers.push(("location", format!("{}/v1/messages", elsewhere.base_url)));
    let server = Server::start(vec![answer]).await;
    let said = all(server.upstream().sample(&request(), &[])).await;
    assert_eq!((failure(&said).error.kind, failure(&said).retryable), (ErrorType::Api, false));
    assert!(elsewhere.asked().is_empty(), "the key stays where it belongs");
}

#[tokio::test]
async fn a_sampling_that_is_dropped_ends_at_the_upstream() {
    let server = Server::start(vec![reply(200, vec![beginning_of_text(), Part::Hang])]).await;
    let mut sampling = server.upstream().sample(&request(), &[]);
    let first = tokio::time::timeout(GUARD, sampling.next()).await.unwrap();
    assert!(matches!(first, Some(ModelEvent::Start { .. })));
    drop(sampling);
    until(|| server.dropped.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn tokens_are_counted_by_the_upstream_where_it_can() {
    let count = |status, body: Value| reply(status, vec![Part::Bytes(body.to_string())]);
    let server = Server::start(vec![
        count(200, json!({ "input_tokens": 2095 })),
        count(404, json!({ "detail": "Not Found" })),
        count(401, json!({ "error": { "message": KEY } })),
        count(200, json!({})),
    ])
    .await;
    let upstream = server.upstream();
    assert_eq!(upstream.count_tokens(&request(), &[]).await, Ok(2095));
    assert!(upstream.count_tokens(&request(), &[]).await.unwrap() > 0, "an estimate");
    for _ in 0..2 {
        let error = upstream.count_tokens(&request(), &[]).await.unwrap_err();
        assert!(error.kind == ErrorType::Api && !error.message.contains(KEY), "{error}");
    }
    let asked = server.asked();
    assert_eq!(asked[0].path, "/v1/messages/count_tokens");
    assert!(asked[0].body.get("max_tokens").is_none() && asked[0].body.get("stream").is_none());
}

#[tokio::test]
async fn the_key_may_go_as_a_bearer_token() {
    let server = Server::start(vec![whole_text()]).await;
    let address = Address {
        dialect: Dialect::Anthropic,
        base_url: server.base_url.clone(),
        model: "m".into(),
        key: Some(KEY.into()),
        key_header: Some(KeyHeader::Bearer),
        max_tokens_field: MaxTokensField::default(),
        headers: Vec::new(),
    };
    all(Upstream::http(&address).unwrap().sample(&request(), &[])).await;
    let asked = server.asked();
    assert_eq!(asked[0].headers["authorization"], format!("Bearer {KEY}"));
    assert!(!asked[0].headers.contains_key("x-api-key"));
}

#[tokio::test]
async fn a_chat_is_asked_and_read_in_its_own_dialect() {
    let chunk = |delta: Value, reason: Option<&str>| {
        format!("data: {}\n\n", json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }] }))
    };
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 9, "completion_tokens": 2 } });
    let text = [
        chunk(json!({ "role": "assistant", "content": "Hel" }), None),
        chunk(json!({ "content": "lo" }), None),
        chunk(json!({}), Some("stop")),
        format!("data: {usage}\n\ndata: [DONE]\n\n"),
    ];
    let server = Server::start(vec![reply(200, text.map(Part::Bytes).to_vec())]).await;
    let address = Address {
        dialect: Dialect::OpenAi,
        base_url: server.base_url.clone(),
        model: "real-model".into(),
        key: Some(KEY.into()),
        key_header: None,
        max_tokens_field: MaxTokensField::MaxCompletionTokens,
        headers: Vec::new(),
    };
    let upstream = Upstream::http(&address).unwrap();
    let said = all(upstream.sample(&request(), &["interleaved-thinking-2025-05-14".to_owned()])).await;
    assert_eq!(said.len(), 6, "{said:?}");
    let Some(ModelEvent::End { usage, .. }) = said.last() else { panic!("no end: {said:?}") };
    assert_eq!((usage.input_tokens, usage.output_tokens), (9, 2));

    let picture = json!({ "type": "image", "source": { "type": "file", "file_id": "file_x" } });
    let unsayable =
        ModelRequest { messages: vec![ModelMessage { role: Role::User, content: vec![picture] }], ..request() };
    let said = all(upstream.sample(&unsayable, &[])).await;
    assert_eq!((failure(&said).error.status(), failure(&said).retryable), (400, false));

    let asked = server.asked();
    assert_eq!((asked.len(), asked[0].path.as_str()), (1, "/v1/chat/completions"));
    assert_eq!(asked[0].headers["authorization"], format!("Bearer {KEY}"));
    for absent in ["x-api-key", "anthropic-version", "anthropic-beta"] {
        assert!(!asked[0].headers.contains_key(absent), "{absent}");
    }
    assert_eq!((&asked[0].body["model"], &asked[0].body["max_completion_tokens"]), (&json!("real-model"), &json!(64)));
}
