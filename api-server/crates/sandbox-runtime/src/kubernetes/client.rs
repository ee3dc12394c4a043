//! The client of the Kubernetes API.

use super::KubernetesError;
use crate::{AcquireError, UnavailableReason};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioExecutor};
use kube::{Client, Config, client::ConfigExt};
use std::time::Duration;
use tokio::time::timeout;
use tower::{BoxError, ServiceBuilder};

/// Time to connect to the API server.
const CONNECT: Duration = Duration::from_secs(10);
/// Time between signs of life on a quiet connection.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Time for one call that is not a watch.
const CALL: Duration = Duration::from_secs(15);

/// A client without Nagle's algorithm: with it, as kube's own client has it, each request that leaves in two writes costs
/// 40 ms.
pub(super) async fn connect() -> Result<Client, KubernetesError> {
    let config = Config::infer().await.map_err(|e| KubernetesError::Config(e.to_string()))?;
    let namespace = config.default_namespace.clone();
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    http.set_keepalive(Some(KEEP_ALIVE));
    let client_error = |e: kube::Error| KubernetesError::Config(e.to_string());
    let https = config.rustls_https_connector_with_connector(http).map_err(client_error)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(client_error)?)
        .map_err(BoxError::from)
        .service(hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(https));
    Ok(Client::new(service, namespace))
}

/// Why a call failed, as far as it matters for what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallError {
    NotFound(String),
    AlreadyExists,
    /// RBAC or an admission policy.
    Denied(String),
    Quota(String),
    /// The object is refused as it is.
    Invalid(String),
    /// The resource version is too old.
    Expired,
    /// May work the next time.
    Transient(String),
}

impl CallError {
    /// What it means to who wants a sandbox.
    pub(super) fn into_acquire(self, what: &str) -> AcquireError {
        let (reason, message) = match self {
            Self::Denied(message) => (UnavailableReason::Denied, message),
            Self::Quota(message) => (UnavailableReason::Quota, message),
            Self::Invalid(message) => (UnavailableReason::Template, message),
            Self::NotFound(message) | Self::Transient(message) => (UnavailableReason::Runtime, message),
            Self::AlreadyExists => (UnavailableReason::Runtime, "it already exists".to_owned()),
            Self::Expired => (UnavailableReason::Runtime, "its version is too old".to_owned()),
        };
        AcquireError::unavailable(reason, format!("cannot {what}: {message}"))
    }
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = error else { return Self::Transient(error.to_string()) };
        classify(status.code, &status.reason, status.message.clone())
    }
}

/// What an answer of the API server means.
pub(super) fn classify(code: u16, reason: &str, message: String) -> CallError {
    match (code, reason) {
        (403, _) if message.contains("exceeded quota") => CallError::Quota(message),
        (401 | 403, _) => CallError::Denied(message),
        (404, _) => CallError::NotFound(message),
        (409, "AlreadyExists") => CallError::AlreadyExists,
        (410, _) => CallError::Expired,
        (400 | 422, _) => CallError::Invalid(message),
        _ => CallError::Transient(message),
    }
}

/// A call with its deadline.
pub(super) async fn call<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, CallError> {
    match timeout(CALL, call).await {
        Ok(result) => result.map_err(CallError::from),
        Err(_) => Err(CallError::Transient("the Kubernetes API did not answer in time".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_what_may_work_the_next_time() {
        let text = |message: &str| message.to_owned();
        for (code, reason, message, expected) in [
            (
                403,
                "Forbidden",
                "x is forbidden: exceeded quota: q",
                CallError::Quota(text("x is forbidden: exceeded quota: q")),
            ),
            (403, "Forbidden", "cannot create", CallError::Denied(text("cannot create"))),
            (404, "NotFound", "m", CallError::NotFound(text("m"))),
            (409, "AlreadyExists", "m", CallError::AlreadyExists),
            (409, "Conflict", "m", CallError::Transient(text("m"))),
            (410, "Expired", "m", CallError::Expired),
            (422, "Invalid", "m", CallError::Invalid(text("m"))),
            (429, "TooManyRequests", "m", CallError::Transient(text("m"))),
            (503, "ServiceUnavailable", "m", CallError::Transient(text("m"))),
        ] {
            assert_eq!(classify(code, reason, text(message)), expected, "{code}");
        }
    }
}
