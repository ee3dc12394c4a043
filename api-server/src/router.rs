//! Every route.

use crate::{
    App, files, health, messages, models, openapi,
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

/// A path, the methods that it has, and what answers them.
type Route = (&'static str, &'static str, MethodRouter<Arc<App>>);

/// The router of one server's API.
pub fn router(app: &Arc<App>) -> Router {
    let add = |router: Router<Arc<App>>, (path, allowed, handler): Route| router.route(path, only(handler, allowed));
    let api = api()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(request::unknown_route)
        // Each body is limited where it is read.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(Arc::clone(app), request::authenticate));
    open()
        .into_iter()
        .fold(Router::new(), add)
        .merge(api)
        .with_state(Arc::clone(app))
        .layer(middleware::from_fn_with_state(Arc::clone(app), request::outermost))
}

/// Routes that need no key.
fn open() -> Vec<Route> {
    vec![
        ("/healthz", "GET, HEAD", get(health::live)),
        ("/readyz", "GET, HEAD", get(health::ready)),
        ("/openapi.json", "GET, HEAD", get(openapi::document)),
    ]
}

/// Routes of the API: those of the Anthropic surface, then those of the Zylon surface.
fn api() -> Vec<Route> {
    vec![
        ("/v1/messages", "POST", post(messages::create)),
        ("/v1/messages/count_tokens", "POST", post(messages::count_tokens)),
        ("/v1/models", "GET, HEAD", get(models::list)),
        // A name may hold slashes.
        ("/v1/models/{*id}", "GET, HEAD", get(models::retrieve)),
        ("/v1/files", "GET, HEAD, POST", get(files::list).post(files::upload)),
        ("/v1/files/{id}", "DELETE, GET, HEAD", get(files::retrieve_metadata).delete(files::delete)),
        ("/v1/files/{id}/content", "GET, HEAD", get(files::download)),
        ("/api/gpt/v1/messages", "POST", post(messages::create)),
        ("/api/gpt/v1/messages/count_tokens", "POST", post(messages::count_tokens)),
        ("/api/gpt/v1/messages/validate", "POST", post(messages::validate)),
        ("/api/gpt/v1/models", "GET, HEAD", get(models::list)),
        ("/api/gpt/v1/models/{*id}", "GET, HEAD", get(models::retrieve)),
        (
            "/api/gpt/v1/files",
            "DELETE, GET, HEAD, POST",
            get(session::list).post(session::upload).delete(session::delete_prefix),
        ),
        // A key with its slashes, an id, or an id and `/content`, by the method.
        (
            "/api/gpt/v1/files/{*path}",
            "DELETE, GET, HEAD, PUT",
            get(session::get).put(session::put).delete(session::delete),
        ),
        ("/api/v1/app/thread/{thread}/upload-file", "POST", post(session::threads::upload)),
        ("/api/v1/app/thread/{thread}/put-file/{*path}", "PUT", put(session::threads::put)),
        ("/api/v1/app/thread/{thread}/download-file", "GET, HEAD", get(session::threads::download)),
    ]
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Whether a route takes the requests of a described path.
    fn takes(route: &str, path: &str) -> bool {
        let (mut route, mut path) = (route.split('/'), path.split('/'));
        loop {
            match (route.next(), path.next()) {
                (Some(part), Some(_)) if part.starts_with("{*") => return true,
                (Some(part), Some(other)) if part == other || (part.starts_with('{') && other.starts_with('{')) => {}
                (None, None) => return true,
                _ => return false,
            }
        }
    }

    #[test]
    fn every_route_and_method_is_described_and_no_other() {
        let routes: BTreeSet<_> = open()
            .into_iter()
            .chain(api())
            .flat_map(|(path, allowed, _)| allowed.split(", ").map(move |method| (path, method)))
            .collect();
        let route_of = |path: &'static str| {
            let found = routes.iter().find(|(route, _)| takes(route, path));
            found.map_or(path, |(route, _)| *route)
        };
        let described: BTreeSet<_> = openapi::described().map(|(path, method)| (route_of(path), method)).collect();
        assert_eq!(described, routes);
    }
}
