//! Whether the server lives, and whether it can work. In public one word; in detail on a port of its own, since the detail names
//! objects of the cluster.

use crate::{App, failure::Failure};
use axum::{Json, extract::State, response::IntoResponse};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

/// The checks of one look end after this time.
const CHECK_LIMIT: Duration = Duration::from_secs(5);
/// A look serves all who ask within this time, so that nobody can have the cluster asked at will.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// The version that scrapers ask for.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The last look.
#[derive(Default)]
pub struct Readiness(Mutex<Option<Look>>);

struct Look {
    at: Instant,
    problems: Vec<String>,
}

/// `GET /healthz`: the process answers.
pub async fn live() -> &'static str {
    "ok\n"
}

/// `GET /readyz` of the API: 200, or 503, and a word.
pub async fn ready(State(app): State<Arc<App>>) -> (StatusCode, &'static str) {
    if problems(&app).await.is_empty() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

/// `GET /readyz` beside the metrics: 200, or 503 with a sentence for each thing that is missing.
pub async fn ready_in_detail(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let problems = problems(&app).await;
    let status = if problems.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body =
        json!({ "ready": problems.is_empty(), "problems": problems, "limitations": app.sandboxes.limitations() });
    (status, Json(body))
}

/// `GET /metrics`.
pub async fn metrics(State(app): State<Arc<App>>) -> Result<impl IntoResponse, Failure> {
    let page = app.metrics.render(&app.sandboxes).map_err(|error| Failure::internal("the metrics", &error))?;
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS))], page))
}

async fn problems(app: &App) -> Vec<String> {
    let mut last = app.readiness.0.lock().await;
    let mut problems = match &*last {
        Some(look) if look.at.elapsed() < SHARED_FOR => look.problems.clone(),
        Some(_) | None => {
            let problems = look(app).await;
            let before = last.as_ref().map(|look| look.problems.as_slice()).unwrap_or_default();
            if before != problems {
                log(&problems);
            }
            *last = Some(Look { at: Instant::now(), problems: problems.clone() });
            problems
        }
    };
    if app.stop.is_cancelled() {
        problems.push("the server is stopping".to_owned());
    }
    problems
}

fn log(problems: &[String]) {
    if problems.is_empty() {
        tracing::info!("ready again");
    } else {
        tracing::warn!(problems = problems.join("; "), "not ready");
    }
}

async fn look(app: &App) -> Vec<String> {
    let late = |what: &str| format!("{what} within {} seconds", CHECK_LIMIT.as_secs());
    let sandboxes = async {
        let looked = timeout(CHECK_LIMIT, app.sandboxes.problems()).await;
        looked.unwrap_or_else(|_| vec![late("the checks of the sandboxes did not end")])
    };
    let files = async {
        match timeout(CHECK_LIMIT, app.files.check()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                Some(format!("the file store cannot be used: {error}{cause}").chars().take(300).collect())
            }
            Err(_) => Some(late("the file store does not answer")),
        }
    };
    let (mut problems, files) = tokio::join!(sandboxes, files);
    problems.extend(files);
    problems
}
