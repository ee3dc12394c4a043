//! `/healthz`, `/readyz` and `/metrics`.

use crate::metrics::Metrics;
use axum::{Router, extract::State, http::StatusCode, routing::get};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What is not ready yet, counted.
#[derive(Debug)]
pub struct Readiness {
    waiting: AtomicUsize,
}

impl Readiness {
    /// Ready after so many calls of [`Readiness::one_is_ready`].
    pub fn after(waiting: usize) -> Self {
        Self { waiting: AtomicUsize::new(waiting) }
    }

    /// The watches of one more namespace have their first list.
    pub fn one_is_ready(&self) {
        let _ = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| waiting.checked_sub(1));
    }

    fn is_ready(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
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
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(|State(shared): State<Shared>| async move { shared.metrics.render() }))
        .with_state(Shared { readiness, metrics });
    axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await }).await
}

async fn readyz(State(shared): State<Shared>) -> (StatusCode, &'static str) {
    if shared.readiness.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "waiting for the first list of sandboxes, templates, pods and claims\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[tokio::test]
    async fn it_is_ready_once_every_namespace_is() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Arc::new(Readiness::after(2));
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(listener, Arc::clone(&readiness), Arc::default(), stop.clone()));
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        readiness.one_is_ready();
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        readiness.one_is_ready();
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/metrics").await.contains("codeexec_operator_passes_total 0"));
        stop.cancel();
        server.await.unwrap().unwrap();
    }
}
