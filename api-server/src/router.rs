//! Every route.

use crate::{
    App, files, health, messages, models,
    request::{self, Context},
    session,
};
use axum::{
    Extension, Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{MethodRouter, get, post, put},
};
use http::Method;
use std::sync::Arc;

/// The router of one server's API.
pub fn router(app: &Arc<App>) -> Router {
    // Each upload is limited where it is read.
    let unlimited = DefaultBodyLimit::disable;
    let api = Router::new()
        // Anthropic surface
        .route("/v1/messages", only(post(messages::create), "POST"))
        .route("/v1/messages/count_tokens", only(post(messages::count_tokens), "POST"))
        .route("/v1/models", only(get(models::list), "GET"))
        // A name may hold slashes.
        .route("/v1/models/{*id}", only(get(models::retrieve), "GET"))
        .route("/v1/files", only(get(files::list).post(files::upload), "GET, HEAD, POST").layer(unlimited()))
        .route("/v1/files/{id}", only(get(files::retrieve_metadata).delete(files::delete), "DELETE, GET, HEAD"))
        .route("/v1/files/{id}/content", only(get(files::download), "GET, HEAD"))
        // Zylon surface
        .route("/api/gpt/v1/messages", only(post(messages::create), "POST"))
        .route("/api/gpt/v1/messages/count_tokens", only(post(messages::count_tokens), "POST"))
        .route("/api/gpt/v1/messages/validate", only(post(messages::validate), "POST"))
        .route("/api/gpt/v1/models", only(get(models::list), "GET"))
        .route("/api/gpt/v1/models/{*id}", only(get(models::retrieve), "GET"))
        .route(
            "/api/gpt/v1/files",
            only(get(session::list).post(session::upload).delete(session::delete_prefix), "DELETE, GET, HEAD, POST")
                .layer(unlimited()),
        )
        // A key with its slashes, an id, or an id and `/content`, by the method.
        .route(
            "/api/gpt/v1/files/{*path}",
            only(get(session::get).put(session::put).delete(session::delete), "DELETE, GET, HEAD, PUT"),
        )
        .route(
            "/api/v1/app/thread/{thread}/upload-file",
            only(post(session::threads::upload), "POST").layer(unlimited()),
        )
        .route("/api/v1/app/thread/{thread}/put-file/{*path}", only(put(session::threads::put), "PUT"))
        .route("/api/v1/app/thread/{thread}/download-file", only(get(session::threads::download), "GET, HEAD"))
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
