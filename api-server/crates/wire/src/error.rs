//! Errors as clients see them, in the envelopes of both surfaces.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{ErrorDetail, Surface};

/// `error.type`, which stands for one HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
pub enum ErrorType {
    /// 400
    #[serde(rename = "invalid_request_error")]
    InvalidRequest,
    /// 401
    #[serde(rename = "authentication_error")]
    Authentication,
    /// 402
    #[serde(rename = "billing_error")]
    Billing,
    /// 403
    #[serde(rename = "permission_error")]
    Permission,
    /// 404
    #[serde(rename = "not_found_error")]
    NotFound,
    /// 409
    #[serde(rename = "conflict_error")]
    Conflict,
    /// 413
    #[serde(rename = "request_too_large")]
    RequestTooLarge,
    /// 429
    #[serde(rename = "rate_limit_error")]
    RateLimit,
    /// 500
    #[serde(rename = "api_error")]
    Api,
    /// 504
    #[serde(rename = "timeout_error")]
    Timeout,
    /// 529
    #[serde(rename = "overloaded_error")]
    Overloaded,
}

impl ErrorType {
    /// Every type.
    pub const ALL: [Self; 11] = [
        Self::InvalidRequest,
        Self::Authentication,
        Self::Billing,
        Self::Permission,
        Self::NotFound,
        Self::Conflict,
        Self::RequestTooLarge,
        Self::RateLimit,
        Self::Api,
        Self::Timeout,
        Self::Overloaded,
    ];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request_error",
            Self::Authentication => "authentication_error",
            Self::Billing => "billing_error",
            Self::Permission => "permission_error",
            Self::NotFound => "not_found_error",
            Self::Conflict => "conflict_error",
            Self::RequestTooLarge => "request_too_large",
            Self::RateLimit => "rate_limit_error",
            Self::Api => "api_error",
            Self::Timeout => "timeout_error",
            Self::Overloaded => "overloaded_error",
        }
    }

    /// Reads the wire name; `None` for one that this server does not know.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The HTTP status that goes with it.
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::Authentication => 401,
            Self::Billing => 402,
            Self::Permission => 403,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::RequestTooLarge => 413,
            Self::RateLimit => 429,
            Self::Api => 500,
            Self::Timeout => 504,
            Self::Overloaded => 529,
        }
    }

    /// The type that an HTTP status stands for: of an upstream's answer, or of a scripted failure.
    pub fn of_status(status: u16) -> Self {
        match status {
            401 => Self::Authentication,
            402 => Self::Billing,
            403 => Self::Permission,
            404 => Self::NotFound,
            409 => Self::Conflict,
            413 => Self::RequestTooLarge,
            429 => Self::RateLimit,
            408 | 504 => Self::Timeout,
            503 | 529 => Self::Overloaded,
            400..500 => Self::InvalidRequest,
            _ => Self::Api,
        }
    }
}

/// An error for the client: everything in it is public.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}: {message}", kind.name())]
pub struct ApiError {
    /// What kind of error, and so which status.
    pub kind: ErrorType,
    /// The text; for a request that does not validate, `<path>: <reason>`.
    pub message: String,
    /// `error.details.error_code`, if there is one.
    pub error_code: Option<&'static str>,
    /// After which time the same request may succeed; the `retry-after` header, in whole seconds.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// An error without a code.
    pub fn new(kind: ErrorType, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), error_code: None, retry_after: None }
    }

    /// A 400.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorType::InvalidRequest, message)
    }

    /// The same with `details.error_code`.
    #[must_use]
    pub fn with_code(self, error_code: &'static str) -> Self {
        Self { error_code: Some(error_code), ..self }
    }

    /// 404 for a container that never existed, or is another's.
    pub fn container_not_found(id: &str) -> Self {
        Self::new(ErrorType::NotFound, format!("Container `{id}` not found.")).with_code("container_not_found")
    }

    /// 404 for a container past its lifetime.
    pub fn container_expired(id: &str) -> Self {
        let message = format!("Container `{id}` has expired. Send the request without `container` to get a new one.");
        Self::new(ErrorType::NotFound, message).with_code("container_expired")
    }

    /// 404 for a file that does not exist, or is another's.
    pub fn file_not_found(id: &str) -> Self {
        Self::new(ErrorType::NotFound, format!("File `{id}` not found."))
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.kind.status()
    }

    /// The object under `error`.
    pub fn object(&self, surface: Surface) -> ErrorObject {
        let details = self.error_code.map(|error_code| ErrorDetails { error_code: error_code.to_owned() });
        let detail = || ErrorDetail {
            code: self.error_code.unwrap_or_else(|| self.kind.name()).to_owned(),
            explanation: self.message.clone(),
        };
        ErrorObject {
            kind: self.kind,
            message: self.message.clone(),
            details,
            detail: (surface == Surface::Zylon).then(detail),
        }
    }

    /// The whole body, of a JSON answer or of an `error` event.
    pub fn body(&self, surface: Surface, request_id: &str) -> ErrorBody {
        ErrorBody {
            kind: ErrorBodyType::Error,
            error: self.object(surface),
            request_id: request_id.to_owned(),
            detail: (surface == Surface::Zylon).then(|| self.message.clone()),
        }
    }
}

/// The body of an answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct ErrorBody {
    /// Always `error`.
    #[serde(rename = "type")]
    pub kind: ErrorBodyType,
    /// What went wrong.
    pub error: ErrorObject,
    /// `req_...`, as in the `request-id` header and in the server's log.
    pub request_id: String,
    /// The message again; on the Zylon surface only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The constant `type` of [`ErrorBody`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ErrorBodyType {
    /// `error`
    Error,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ErrorObject {
    /// The kind, which stands for the status.
    #[serde(rename = "type")]
    pub kind: ErrorType,
    /// A sentence; of a request that does not validate, `<path>: <reason>`.
    pub message: String,
    /// For programs, where the kind does not say enough.
    pub details: Option<ErrorDetails>,
    /// The same for clients of the Zylon surface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<ErrorDetail>,
}

/// `error.details`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ErrorDetails {
    /// Such as `container_expired`.
    pub error_code: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_names_its_status() {
        for kind in ErrorType::ALL {
            assert_eq!(ErrorType::of_status(kind.status()), kind);
            assert_eq!(ErrorType::parse(kind.name()), Some(kind));
            assert_eq!(serde_json::json!(kind), kind.name());
        }
        assert_eq!(ErrorType::parse("tired_error"), None);
        assert_eq!(ErrorType::of_status(422), ErrorType::InvalidRequest);
        assert_eq!(ErrorType::of_status(502), ErrorType::Api);
    }

    #[test]
    fn both_envelopes_carry_type_and_request_id() {
        let print = |body: &ErrorBody| serde_json::to_string(body).unwrap();
        let error = ApiError::container_not_found("container_01Nope");
        assert_eq!(
            print(&error.body(Surface::Anthropic, "req_01Err")),
            r#"{"type":"error","error":{"type":"not_found_error","message":"Container `container_01Nope` not found.","details":{"error_code":"container_not_found"}},"request_id":"req_01Err"}"#
        );
        assert_eq!(
            print(&ApiError::invalid("max_tokens: Field required").body(Surface::Zylon, "req_01Err")),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: Field required","details":null,"detail":{"code":"invalid_request_error","explanation":"max_tokens: Field required"}},"request_id":"req_01Err","detail":"max_tokens: Field required"}"#
        );
    }
}
