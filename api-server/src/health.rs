//! Whether the server lives, and whether it can work.

use crate::App;
use axum::{Json, extract::State};
use http::StatusCode;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// The checks of one call end after this time.
const CHECK_LIMIT: Duration = Duration::from_secs(5);

/// `GET /healthz`: the process answers.
pub async fn live() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: 200, or 503 with a sentence for each thing that is missing.
pub async fn ready(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let checks = async {
        let mut problems = app.sandboxes.problems().await;
        if let Err(error) = app.files.check().await {
            problems.push(format!("the file store cannot be used: {error}"));
        }
        problems
    };
    let late = || vec![format!("the checks did not end within {} seconds", CHECK_LIMIT.as_secs())];
    let mut problems = tokio::time::timeout(CHECK_LIMIT, checks).await.unwrap_or_else(|_| late());
    if app.stop.is_cancelled() {
        problems.push("the server is stopping".to_owned());
    }
    let status = if problems.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body =
        json!({ "ready": problems.is_empty(), "problems": problems, "limitations": app.sandboxes.limitations() });
    (status, Json(body))
}
