use super::*;
use serde_json::{Value, json};
use std::future::Future;
use tokio::sync::mpsc;

/// How long anything may take that should happen at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers writes with 201, and a watch with what the test sends it, piece by piece.
struct Upstream {
    address: String,
    pieces: mpsc::Sender<&'static str>,
    requests: mpsc::Receiver<String>,
}

async fn upstream() -> Upstream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (pieces, to_send) = mpsc::channel::<&'static str>(16);
    let (seen, requests) = mpsc::channel(16);
    let to_send = Arc::new(tokio::sync::Mutex::new(to_send));
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let (to_send, seen) = (Arc::clone(&to_send), seen.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (to_send, seen) = (Arc::clone(&to_send), seen.clone());
                async move {
                    let line = format!("{} {}", request.method(), request.uri());
                    seen.send(line).await.unwrap();
                    if writes(request.method().as_str()) {
                        return anyhow::Ok(plain(StatusCode::CREATED, "made".to_owned()));
                    }
                    let pieces = stream::unfold(to_send, |to_send| async move {
                        let piece = to_send.lock().await.recv().await?;
                        Some((Ok(Bytes::from(piece)), to_send))
                    });
                    Ok(Response::new(stream_body(pieces)))
                }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(connection), service));
        }
    });
    Upstream { address, pieces, requests }
}

/// The proxy before an upstream, and a client of it.
async fn proxied() -> (String, reqwest::Client, Upstream) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let upstream = upstream().await;
    let mut config = kube::Config::new(upstream.address.parse().unwrap());
    config.default_retry = false;
    let proxy = Arc::new(Proxy::new(kube::Client::try_from(config).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(proxy.serve(listener));
    (address, reqwest::Client::new(), upstream)
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it should have happened by now")
}

async fn set(http: &reqwest::Client, proxy: &str, faults: Value) {
    let answer = http.put(format!("{proxy}/_faults")).json(&faults).send().await.unwrap();
    assert_eq!(answer.status(), 204, "{}", answer.text().await.unwrap());
}

async fn log(http: &reqwest::Client, proxy: &str) -> Value {
    http.get(format!("{proxy}/_log")).send().await.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn watch_events_come_one_by_one_while_the_answer_is_open() {
    let (proxy, http, upstream) = proxied().await;
    let mut watch = soon(http.get(format!("{proxy}/api/v1/pods?watch=true")).send()).await.unwrap();
    for piece in ["one", "two"] {
        upstream.pieces.send(piece).await.unwrap();
        assert_eq!(soon(watch.chunk()).await.unwrap().unwrap(), piece);
    }
    assert_eq!(log(&http, &proxy).await["open_watches"], 1);
}

#[tokio::test]
async fn a_delay_holds_events_back_and_keeps_their_order() {
    let (proxy, http, upstream) = proxied().await;
    set(&http, &proxy, json!({"watchDelayMs": 300})).await;
    let mut watch = soon(http.get(format!("{proxy}/api/v1/pods?watch=true")).send()).await.unwrap();
    let start = Instant::now();
    upstream.pieces.send("one").await.unwrap();
    upstream.pieces.send("two").await.unwrap();
    let mut text = Vec::new();
    while text.len() < 6 {
        text.extend(soon(watch.chunk()).await.unwrap().unwrap());
    }
    assert_eq!(text, b"onetwo");
    // Both waited at the same time.
    assert!(start.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn a_cut_breaks_the_watches_that_are_open() {
    let (proxy, http, upstream) = proxied().await;
    let mut watch = soon(http.get(format!("{proxy}/api/v1/pods?watch=true")).send()).await.unwrap();
    upstream.pieces.send("one").await.unwrap();
    assert_eq!(soon(watch.chunk()).await.unwrap().unwrap(), "one");
    http.post(format!("{proxy}/_cut")).send().await.unwrap();
    assert!(soon(watch.chunk()).await.is_err());
    assert_eq!(log(&http, &proxy).await["open_watches"], 0);
}

#[tokio::test]
async fn an_injected_error_keeps_the_write_from_the_server_or_only_its_answer_from_the_client() {
    let (proxy, http, mut upstream) = proxied().await;
    let faults = json!({"answers": [
        {"on": {"path": "/pods$"}, "times": 1, "with": 429, "retryAfter": 3},
        {"on": {"path": "/pods$"}, "times": 1, "with": 500, "when": "after"},
    ]});
    set(&http, &proxy, faults).await;
    let url = format!("{proxy}/api/v1/namespaces/n/pods");
    let refused = soon(http.post(format!("{url}?")).body("{}").send()).await.unwrap();
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"3".parse().unwrap()));
    assert!(upstream.requests.try_recv().is_err());
    assert_eq!(soon(http.post(&url).body("{}").send()).await.unwrap().status(), 500);
    assert_eq!(soon(upstream.requests.recv()).await.unwrap(), "POST /api/v1/namespaces/n/pods");
    assert_eq!(soon(http.post(&url).body("{}").send()).await.unwrap().status(), 201);
    let log = log(&http, &proxy).await;
    let seen: Vec<_> =
        log["writes"].as_array().unwrap().iter().map(|it| (&it["n"], &it["status"], &it["fault"])).collect();
    let expected = [
        (json!(1), Value::Null, json!("429 before")),
        (json!(2), json!(201), json!("500 after")),
        (json!(3), json!(201), Value::Null),
    ];
    assert_eq!(seen, expected.iter().map(|(n, status, fault)| (n, status, fault)).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_killed_sender_gets_no_answer_and_its_last_write_arrives_only_if_it_should() {
    for (when, arrives) in [("before", false), ("after", true)] {
        let (proxy, http, mut upstream) = proxied().await;
        let mut victim = tokio::process::Command::new("sleep").arg("600").kill_on_drop(true).spawn().unwrap();
        set(&http, &proxy, json!({"signal": {"pid": victim.id(), "nth": 1, "when": when}})).await;
        assert!(soon(http.post(format!("{proxy}/api/v1/namespaces")).body("{}").send()).await.is_err());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&soon(victim.wait()).await.unwrap()), Some(9));
        assert_eq!(upstream.requests.try_recv().is_ok(), arrives, "{when}");
    }
}

#[tokio::test]
async fn a_sender_that_is_stopped_stands_still_before_it_gets_its_answer() {
    let (proxy, http, _upstream) = proxied().await;
    let mut victim = tokio::process::Command::new("sleep").arg("600").kill_on_drop(true).spawn().unwrap();
    let pid = i32::try_from(victim.id().unwrap()).unwrap();
    set(&http, &proxy, json!({"signal": {"pid": pid, "signal": "STOP", "nth": 1, "when": "after"}})).await;
    assert_eq!(soon(http.post(format!("{proxy}/api/v1/namespaces")).body("{}").send()).await.unwrap().status(), 201);
    assert!(is_at_rest(pid, Signal::Stop) && !is_at_rest(pid, Signal::Kill));
    victim.kill().await.unwrap();
    assert!(is_at_rest(pid, Signal::Kill));
}

#[tokio::test]
async fn a_hanging_write_ends_with_its_clients_patience() {
    let (proxy, http, mut upstream) = proxied().await;
    set(&http, &proxy, json!({"answers": [{"times": 1, "with": "hang"}]})).await;
    let url = format!("{proxy}/api/v1/namespaces");
    let impatient = http.post(&url).body("{}").timeout(Duration::from_millis(200)).send().await;
    assert!(impatient.unwrap_err().is_timeout());
    assert_eq!(soon(http.post(&url).body("{}").send()).await.unwrap().status(), 201);
    assert_eq!(soon(upstream.requests.recv()).await.unwrap(), "POST /api/v1/namespaces");
    assert!(upstream.requests.try_recv().is_err());
}
