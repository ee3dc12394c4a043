//! A gate in front of a client that notes what is sent.

use super::*;
use http::Method;
use std::sync::{Mutex, atomic::AtomicUsize};
use tokio::sync::Notify;
use tower::ServiceExt;

/// A clock that is set by hand.
#[derive(Default)]
struct HandClock(Mutex<Duration>);

impl HandClock {
    fn advance(&self, seconds: u64) {
        *self.0.lock().unwrap() += Duration::from_secs(seconds);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
}

fn request(method: Method, path: &str) -> Request<()> {
    Request::builder().method(method).uri(path).body(()).unwrap()
}

const POD: &str = "/api/v1/namespaces/a/pods/p";

async fn sent(gate: &Gate, requests: &ApiRequests, method: Method) -> bool {
    let sent = Arc::new(AtomicUsize::new(0));
    let server = tower::service_fn({
        let sent = Arc::clone(&sent);
        move |_: Request<()>| {
            sent.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok::<_, BoxError>(Response::new(())))
        }
    });
    let answer = GateLayer::gated(gate.clone(), requests.clone()).layer(server).oneshot(request(method, POD)).await;
    if let Err(error) = &answer {
        assert!(error.is::<NotLeading>(), "{error}");
    }
    assert_eq!(answer.is_ok(), sent.load(Ordering::SeqCst) == 1);
    answer.is_ok()
}

fn counted(requests: &ApiRequests, verb: &'static str, code: &'static str) -> u64 {
    requests.get_or_create(&RequestLabels { verb, resource: "pods".to_owned(), code }).get()
}

#[tokio::test]
async fn writes_pass_only_while_the_lease_lasts_and_reads_always() {
    let (clock, requests) = (Arc::new(HandClock::default()), ApiRequests::default());
    let gate = Gate::closed(Arc::<HandClock>::clone(&clock));
    let writes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    for method in writes.clone() {
        assert!(!sent(&gate, &requests, method).await, "a closed gate");
    }
    gate.open_until(Duration::from_secs(13));
    for method in writes.clone() {
        assert!(sent(&gate, &requests, method).await, "an open gate");
    }
    clock.advance(13);
    for method in writes {
        assert!(!sent(&gate, &requests, method).await, "the time is over, and nobody had to close it");
    }
    assert!(sent(&gate, &requests, Method::GET).await);
    assert_eq!(counted(&requests, "patch", "held"), 2);
    assert_eq!(counted(&requests, "patch", "2xx"), 1);
    assert_eq!(counted(&requests, "get", "2xx"), 1);
}

#[tokio::test]
async fn without_leader_election_it_is_never_closed() {
    let clock = Arc::new(HandClock::default());
    let gate = Gate::always_open(Arc::<HandClock>::clone(&clock));
    clock.advance(u64::from(u32::MAX));
    assert!(sent(&gate, &ApiRequests::default(), Method::DELETE).await);
}

/// A server that sends a request on only when it has a connection.
async fn with_a_late_connection(gate: &Gate, clock: &HandClock, pass: u64) -> (Result<Response<()>, BoxError>, bool) {
    let (connected, was_sent) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let server = tower::service_fn({
        let (connected, was_sent) = (Arc::clone(&connected), Arc::clone(&was_sent));
        move |_: Request<()>| {
            let (connected, was_sent) = (Arc::clone(&connected), Arc::clone(&was_sent));
            async move {
                connected.notified().await;
                was_sent.fetch_add(1, Ordering::SeqCst);
                Ok::<_, BoxError>(Response::new(()))
            }
        }
    });
    let call = GateLayer::gated(gate.clone(), ApiRequests::default()).layer(server).oneshot(request(Method::POST, POD));
    let mut call = tokio::spawn(call);
    assert!(futures_util::poll!(&mut call).is_pending());
    tokio::task::yield_now().await;
    // The process is stopped here: the clock goes on, no timer fires, and then the connection is there.
    clock.advance(pass);
    connected.notify_one();
    let answer = call.await.unwrap();
    (answer, was_sent.load(Ordering::SeqCst) == 1)
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_a_connection_is_given_up_with_the_lease() {
    let clock = Arc::new(HandClock::default());
    let gate = Gate::closed(Arc::<HandClock>::clone(&clock));
    gate.open_until(Duration::from_secs(13));
    let (answer, was_sent) = with_a_late_connection(&gate, &clock, 12).await;
    assert!(answer.is_ok() && was_sent);
    let (answer, was_sent) = with_a_late_connection(&gate, &clock, 2).await;
    assert!(answer.unwrap_err().is::<NotLeading>() && !was_sent);
}

#[tokio::test]
async fn a_request_that_its_caller_gives_up_is_counted_as_unanswered() {
    let requests = ApiRequests::default();
    let server = tower::service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, BoxError>>());
    let mut client = GateLayer::counted(requests.clone()).layer(server);
    let mut call = client.call(request(Method::GET, POD));
    assert!(futures_util::poll!(&mut call).is_pending());
    drop(call);
    assert_eq!(counted(&requests, "get", "none"), 1);
}

#[tokio::test]
async fn a_client_of_the_cluster_says_why_a_write_was_not_sent() {
    let server = tower::service_fn(|_: Request<kube::client::Body>| {
        std::future::ready(Ok::<_, BoxError>(Response::new(kube::client::Body::empty())))
    });
    let gate = Gate::closed(Arc::new(BootClock));
    let client = kube::Client::new(GateLayer::gated(gate, ApiRequests::default()).layer(server), "a");
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::default_namespaced(client);
    let error = pods.delete("p", &kube::api::DeleteParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Service(inner) if inner.is::<NotLeading>()), "{error:?}");
    assert!(error.to_string().contains("not sent"), "{error}");
}

#[test]
fn the_clock_since_the_start_of_the_machine_never_goes_back() {
    let (first, second) = (BootClock.now(), BootClock.now());
    assert!(first > Duration::ZERO && second >= first);
}
