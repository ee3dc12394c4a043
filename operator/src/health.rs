//! `/healthz`, `/readyz` and `/metrics`.
//!
//! Ready: every watch has had its first list, and none is refused for want of a right; whether this operator leads does not matter.
//! Healthy: no loop that must turn is stuck.

use crate::metrics::Metrics;
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use futures_util::Stream;
use kube::runtime::watcher;
use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};
use tokio::{net::TcpListener, time::Instant};
use tokio_util::sync::CancellationToken;

/// A refusal is forgotten when it was not repeated for so long: a watch is tried at least once a minute, and one that was granted at
/// last is silent until something changes.
const REFUSAL_IS_FORGOTTEN: Duration = Duration::from_secs(90);

/// What is not ready yet, and which loops turn.
#[derive(Debug, Default)]
pub struct Readiness {
    state: Mutex<Readings>,
}

#[derive(Debug, Default)]
struct Readings {
    /// Namespaces whose watches have not begun.
    awaited: BTreeSet<String>,
    watches: Vec<WatchState>,
    pulses: Vec<PulseState>,
}

#[derive(Debug)]
struct WatchState {
    namespace: String,
    resource: String,
    listed: bool,
    failure: Option<String>,
    refusal: Option<(&'static str, Instant)>,
}

#[derive(Debug)]
struct PulseState {
    name: String,
    limit: Duration,
    last: Instant,
}

impl Readiness {
    /// Not ready before each of these namespaces has a watch.
    pub fn expecting(namespaces: impl IntoIterator<Item = String>) -> Self {
        let readings = Readings { awaited: namespaces.into_iter().collect(), ..Readings::default() };
        Self { state: Mutex::new(readings) }
    }

    /// A watch of a resource (its plural name, with the group if it has one) that begins now.
    pub fn watch(self: &Arc<Self>, namespace: &str, resource: &str) -> WatchHandle {
        let mut readings = self.lock();
        readings.awaited.remove(namespace);
        readings.watches.push(WatchState {
            namespace: namespace.to_owned(),
            resource: resource.to_owned(),
            listed: false,
            failure: None,
            refusal: None,
        });
        WatchHandle { readiness: Arc::clone(self), index: readings.watches.len().saturating_sub(1) }
    }

    /// A loop that is stuck when it has not turned for so long.
    pub fn pulse(self: &Arc<Self>, name: &str, limit: Duration) -> Pulse {
        let mut readings = self.lock();
        readings.pulses.push(PulseState { name: name.to_owned(), limit, last: Instant::now() });
        Pulse { readiness: Arc::clone(self), index: readings.pulses.len().saturating_sub(1) }
    }

    /// What is missing, a line each; empty when ready.
    pub fn missing(&self) -> Vec<String> {
        let readings = self.lock();
        let awaited =
            readings.awaited.iter().map(|namespace| format!("namespace {namespace}: its watches have not begun"));
        awaited.chain(readings.watches.iter().filter_map(|watch| missing(watch, Instant::now()))).collect()
    }

    /// Loops that do not turn, a line each; empty when healthy.
    pub fn stuck(&self) -> Vec<String> {
        let readings = self.lock();
        let stuck = readings.pulses.iter().filter(|pulse| pulse.last.elapsed() > pulse.limit);
        stuck.map(|pulse| format!("{} has not turned for {} s", pulse.name, pulse.last.elapsed().as_secs())).collect()
    }

    /// Nothing is left half-written in it, so a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, Readings> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn missing(watch: &WatchState, now: Instant) -> Option<String> {
    let WatchState { namespace, resource, listed, failure, refusal } = watch;
    match (refusal, failure) {
        (Some((verb, since)), _) if now.duration_since(*since) < REFUSAL_IS_FORGOTTEN => Some(format!(
            "missing permission: {verb} {resource} in namespace {namespace}; a Role there has to grant it to the operator"
        )),
        (_, Some(failure)) if !listed => {
            Some(format!("no first list yet of {resource} in namespace {namespace}: {failure}"))
        }
        (_, _) if !listed => Some(format!("no first list yet of {resource} in namespace {namespace}")),
        (_, _) => None,
    }
}

/// One watch, as far as readiness goes.
#[derive(Clone, Debug)]
pub struct WatchHandle {
    readiness: Arc<Readiness>,
    index: usize,
}

impl WatchHandle {
    /// It has its first list.
    pub fn listed(&self) {
        self.change(|watch| watch.listed = true);
        self.recovered();
    }

    /// It was interrupted, and is tried again.
    pub fn failed(&self, words: &str) {
        self.change(|watch| watch.failure = Some(words.to_owned()));
    }

    /// The API server does not permit this verb.
    pub fn refused(&self, verb: &'static str) {
        self.change(|watch| watch.refusal = Some((verb, Instant::now())));
    }

    /// It goes on.
    pub fn recovered(&self) {
        self.change(|watch| {
            watch.failure = None;
            watch.refusal = None;
        });
    }

    /// Takes in what a watch says.
    pub fn observe<K>(&self, event: &Result<watcher::Event<K>, watcher::Error>) {
        match event {
            Ok(watcher::Event::InitDone) => self.listed(),
            Ok(watcher::Event::Init) => {}
            Ok(watcher::Event::InitApply(_) | watcher::Event::Apply(_) | watcher::Event::Delete(_)) => self.recovered(),
            Err(error) => match refused_verb(error) {
                Some(verb) => self.refused(verb),
                None => self.failed(&error.to_string()),
            },
        }
    }

    fn change(&self, change: impl FnOnce(&mut WatchState)) {
        if let Some(watch) = self.readiness.lock().watches.get_mut(self.index) {
            change(watch);
        }
    }
}

/// The verb that is not permitted, if that is why a watch failed.
fn refused_verb(error: &watcher::Error) -> Option<&'static str> {
    let forbidden = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 403);
    match error {
        watcher::Error::InitialListFailed(error) => forbidden(error).then_some("list"),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
            forbidden(error).then_some("watch")
        }
        watcher::Error::WatchError(status) => (status.code == 403).then_some("watch"),
        watcher::Error::NoResourceVersion => None,
    }
}

/// A loop that must turn.
#[derive(Clone, Debug)]
pub struct Pulse {
    readiness: Arc<Readiness>,
    index: usize,
}

impl Pulse {
    /// It turned.
    pub fn beat(&self) {
        if let Some(pulse) = self.readiness.lock().pulses.get_mut(self.index) {
            pulse.last = Instant::now();
        }
    }

    /// A stream of nothing that beats while it is polled: merged into another, it shows that that one is polled.
    pub fn beats<T>(self, every: Duration) -> impl Stream<Item = T> + Send + 'static
    where
        T: Send + 'static,
    {
        let mut interval = tokio::time::interval(every);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        futures_util::stream::poll_fn(move |context| {
            while interval.poll_tick(context).is_ready() {
                self.beat();
            }
            Poll::Pending
        })
    }
}

#[derive(Clone)]
struct Shared {
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
}

/// Serves until told to stop.
pub async fn serve(
    listener: TcpListener,
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> io::Result<()> {
    let router = Router::new()
        .route("/healthz", get(|State(shared): State<Shared>| async move { lines(&shared.readiness.stuck()) }))
        .route("/readyz", get(|State(shared): State<Shared>| async move { lines(&shared.readiness.missing()) }))
        .route("/metrics", get(metrics_text))
        .with_state(Shared { readiness, metrics });
    axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await }).await
}

async fn metrics_text(State(shared): State<Shared>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], shared.metrics.render())
}

fn lines(wrong: &[String]) -> (StatusCode, String) {
    if wrong.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, wrong.join("\n") + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    fn api_error(code: u16) -> kube::Error {
        let status = json!({ "code": code, "reason": "r", "message": "words of the server" });
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    type Event = watcher::Event<()>;

    #[tokio::test]
    async fn each_thing_that_is_missing_has_a_line() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Arc::new(Readiness::expecting(["a".to_owned(), "b".to_owned()]));
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(listener, Arc::clone(&readiness), Arc::default(), stop.clone()));
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let (pods, claims) = (readiness.watch("a", "pods"), readiness.watch("a", "persistentvolumeclaims"));
        pods.observe::<()>(&Err(watcher::Error::InitialListFailed(api_error(403))));
        let answer = get(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503"));
        let body = answer.split("\r\n\r\n").nth(1).unwrap();
        assert_eq!(
            body.lines().collect::<Vec<_>>(),
            [
                "namespace b: its watches have not begun",
                "missing permission: list pods in namespace a; a Role there has to grant it to the operator",
                "no first list yet of persistentvolumeclaims in namespace a",
            ]
        );
        readiness.watch("b", "pods").listed();
        pods.observe(&Ok(Event::InitDone));
        claims.observe(&Ok(Event::InitDone));
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let metrics = get(address, "/metrics").await;
        assert!(metrics.contains("application/openmetrics-text") && metrics.contains("codeexec_operator_leader 0"));
        stop.cancel();
        server.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_goes_with_the_next_news_or_when_it_is_not_repeated() {
        let readiness = Arc::new(Readiness::expecting([]));
        let watch = readiness.watch("a", "pods");
        watch.observe(&Ok(Event::InitDone));
        let refuse = || watch.observe::<()>(&Err(watcher::Error::WatchStartFailed(api_error(403))));
        refuse();
        assert!(readiness.missing()[0].contains("watch pods in namespace a"));
        watch.observe(&Ok(Event::Apply(())));
        assert!(readiness.missing().is_empty());
        refuse();
        tokio::time::advance(Duration::from_secs(89)).await;
        assert_eq!(readiness.missing().len(), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(readiness.missing().is_empty());
    }

    #[test]
    fn an_interruption_after_the_first_list_leaves_it_ready() {
        let readiness = Arc::new(Readiness::expecting([]));
        let watch = readiness.watch("a", "pods");
        let interrupt = || watch.observe::<()>(&Err(watcher::Error::InitialListFailed(api_error(500))));
        interrupt();
        assert!(readiness.missing()[0].contains("words of the server"), "{:?}", readiness.missing());
        watch.observe(&Ok(Event::InitDone));
        interrupt();
        assert!(readiness.missing().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_is_no_longer_polled_is_unhealthy() {
        let readiness = Arc::new(Readiness::expecting([]));
        let mut beats = readiness.pulse("the watches of a", Duration::from_mins(1)).beats::<()>(Duration::from_secs(5));
        let polled = tokio::time::timeout(Duration::from_mins(10), beats.next()).await;
        assert!(polled.is_err(), "it yields nothing");
        assert!(readiness.stuck().is_empty());
        tokio::time::advance(Duration::from_secs(66)).await;
        assert_eq!(readiness.stuck(), ["the watches of a has not turned for 66 s"]);
        let _ = tokio::time::timeout(Duration::from_secs(1), beats.next()).await;
        assert!(readiness.stuck().is_empty());
    }
}
