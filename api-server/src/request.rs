//! What every request has: an id, a surface, an identity, one log line, and an error body in the surface's envelope.

use crate::{
    App,
    auth::{Identity, Refusal},
    body, entropy,
    failure::Failure,
};
use axum::{
    Json,
    extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderName, HeaderValue, Method, request::Parts};
use std::{sync::Arc, time::Instant};
use tracing::Instrument;
use wire::{ApiError, ApiVersion, ErrorType, IdSeed, Surface};

static REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Id and surface of the request at hand.
#[derive(Clone, Debug)]
pub struct Context {
    /// `req_...`, in the `request-id` header, in errors and in the log.
    pub id: String,
    /// Whose contract the route follows.
    pub surface: Surface,
}

/// A new id's time and randomness.
pub fn new_seed() -> IdSeed {
    IdSeed { millis: entropy::now_millis(), random: entropy::random() }
}

fn surface_of(path: &str) -> Surface {
    if path.starts_with("/api/") { Surface::Zylon } else { Surface::Anthropic }
}

/// Outermost: gives the request its id, its log line and its place in the metrics, and errors their body.
pub async fn outermost(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let context = Context { id: new_seed().request(), surface: surface_of(request.uri().path()) };
    let method = request.method().clone();
    // Only the template of the route is logged: paths hold ids, and queries hold anything.
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    request.extensions_mut().insert(context.clone());
    let span = tracing::info_span!("request", request.id = context.id);
    async {
        let mut response = next.run(request).await;
        if let Some(error) = response.extensions_mut().remove::<ApiError>() {
            let body = Json(error.body(context.surface, &context.id)).into_response();
            response.headers_mut().extend(body.headers().clone());
            *response.body_mut() = body.into_body();
        }
        if let Ok(id) = HeaderValue::from_str(&context.id) {
            response.headers_mut().insert(REQUEST_ID.clone(), id);
        }
        app.metrics.answered(&route, &method, response.status(), started.elapsed());
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let key = response.extensions().get::<Identity>().map(|identity| identity.key_id.clone());
        let http = (method.as_str(), response.status().as_u16());
        tracing::info!(
            http.method = http.0,
            http.route = route,
            http.status = http.1,
            key.id = key,
            duration_ms,
            "answered"
        );
        response
    }
    .instrument(span)
    .await
}

/// Before every API route: who calls. Routes behind it take an [`Identity`] extension.
pub async fn authenticate(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    match app.auth.identify(request.headers()) {
        Ok(identity) => {
            request.extensions_mut().insert(identity.clone());
            let mut response = next.run(body::heard_out(request)).await;
            response.extensions_mut().insert(identity);
            response
        }
        Err(refusal) => Failure(refused(refusal)).into_response(),
    }
}

fn refused(refusal: Refusal) -> ApiError {
    let (kind, message) = match refusal {
        Refusal::NoKey => {
            (ErrorType::Authentication, "No API key was sent: use the header `x-api-key` or `authorization: Bearer`.")
        }
        Refusal::WrongKey => (ErrorType::Authentication, "invalid x-api-key: no such API key."),
        Refusal::ForeignHost => (
            ErrorType::Permission,
            "This server runs without API keys and answers only to its own loopback address in `Host`.",
        ),
        Refusal::FromWebPage => (
            ErrorType::Permission,
            "This server runs without API keys and takes no requests from web pages; send JSON, and no `Origin`.",
        ),
    };
    ApiError::new(kind, message)
}

/// The `anthropic-version` header: required on the Anthropic surface, ignored on the other.
pub struct Version(pub ApiVersion);

impl<S: Sync> FromRequestParts<S> for Version {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        if surface_of(parts.uri.path()) == Surface::Zylon {
            return Ok(Self(ApiVersion::Previous));
        }
        let value = parts.headers.get("anthropic-version").ok_or_else(|| {
            ApiError::invalid("anthropic-version: the header is required, such as `anthropic-version: 2023-06-01`")
        })?;
        Ok(Self(ApiVersion::parse(value.to_str().unwrap_or_default())?))
    }
}

/// The last variable part of a path, decoded. One that is no UTF-8 leads nowhere.
pub struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let path = RawPathParams::from_request_parts(parts, state).await;
        let path = path.map_err(|_| ApiError::new(ErrorType::NotFound, "There is nothing at this path."))?;
        Ok(Self(path.iter().last().map(|(_, value)| value.to_owned()).unwrap_or_default()))
    }
}

/// 404 for a path that leads nowhere.
pub async fn unknown_route(request: Request) -> Failure {
    let path: String = request.uri().path().chars().take(200).collect();
    Failure(ApiError::new(ErrorType::NotFound, format!("There is nothing at {path}.")))
}

/// 405; the type follows the status's nearest kind.
pub fn wrong_method(context: &Context, method: &Method, allowed: &'static str) -> Response {
    let message = format!("{method} is not possible here; use {allowed}.");
    let body = ApiError::invalid(message).body(context.surface, &context.id);
    (http::StatusCode::METHOD_NOT_ALLOWED, [(http::header::ALLOW, allowed)], Json(body)).into_response()
}
