//! Every route.

use crate::{
    App,
    files::{self, MAX_FILE, UPLOAD_OVERHEAD},
    health, messages, models,
    request::{self, Context},
};
use axum::{
    Extension, Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{MethodRouter, get, post},
};
use http::Method;
use std::sync::Arc;

/// The router of one server's API.
pub fn router(app: &Arc<App>) -> Router {
    let upload_limit = DefaultBodyLimit::max(usize::try_from(MAX_FILE + UPLOAD_OVERHEAD).unwrap_or(usize::MAX));
    let api = Router::new()
        // Anthropic surface
        .route("/v1/messages", only(post(messages::create), "POST"))
        .route("/v1/messages/count_tokens", only(post(messages::count_tokens), "POST"))
        .route("/v1/models", only(get(models::list), "GET"))
        // A name may hold slashes.
        .route("/v1/models/{*id}", only(get(models::retrieve), "GET"))
        .route("/v1/files", only(post(files::upload), "POST").layer(upload_limit))
        .route("/v1/files/{id}", only(get(files::retrieve_metadata), "GET"))
        .route("/v1/files/{id}/content", only(get(files::download), "GET"))
        // Zylon surface
        .route("/api/gpt/v1/messages", only(post(messages::create), "POST"))
        .route("/api/gpt/v1/messages/count_tokens", only(post(messages::count_tokens), "POST"))
        .route("/api/gpt/v1/messages/validate", only(post(messages::validate), "POST"))
        .route("/api/gpt/v1/models", only(get(models::list), "GET"))
        .route("/api/gpt/v1/models/{*id}", only(get(models::retrieve), "GET"))
        .fallback(request::unknown_route)
        .layer(middleware::from_fn_with_state(Arc::clone(app), request::authenticate));
    Router::new()
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready))
        .merge(api)
        .with_state(Arc::clone(app))
        .layer(middleware::from_fn_with_state(Arc::clone(app), request::outermost))
}

/// The router of the port for those who run the server: nothing of the API, and no key.
pub fn inside(app: &Arc<App>) -> Router {
    Router::new()
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready_in_detail))
        .route("/metrics", get(health::metrics))
        .with_state(Arc::clone(app))
}

/// A route whose other methods answer 405 in the surface's envelope.
fn only(route: MethodRouter<Arc<App>>, allowed: &'static str) -> MethodRouter<Arc<App>> {
    route.fallback(move |Extension(context): Extension<Context>, method: Method| async move {
        request::wrong_method(&context, &method, allowed)
    })
}
