//! What a handler answers when it cannot do what was asked. The middleware of [`crate::request`] writes the body.

use crate::{body, files::MAX_FILE};
use axum::response::{IntoResponse, Response};
use file_store::{StoreError, Whose};
use http::{HeaderValue, StatusCode, header};
use wire::{ApiError, ErrorType};

/// An error on its way to the client; everything in it is public.
#[derive(Debug)]
pub struct Failure(pub ApiError);

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl Failure {
    /// A fault of ours: the cause goes to the log, under the request's id, and not to the client.
    pub fn internal(doing: &'static str, cause: &dyn std::error::Error) -> Self {
        let source = cause.source().map(ToString::to_string);
        tracing::error!(error = %cause, error.source = source, "{doing} failed");
        Self(ApiError::new(ErrorType::Api, "Internal server error"))
    }

    /// What a store says, for a file that the client calls `id`.
    pub fn of_store(error: &StoreError, id: &str) -> Self {
        match error {
            StoreError::NotFound => Self(ApiError::file_not_found(id)),
            StoreError::Expired => {
                Self(ApiError::new(ErrorType::NotFound, format!("File `{id}` has expired.")).with_code("file_expired"))
            }
            StoreError::TooLarge { limit } => Self(too_large(*limit)),
            StoreError::InvalidName(reason) => Self(ApiError::invalid(format!("file: filename {reason}"))),
            StoreError::NoSpace => Self(
                ApiError::invalid("The file store is full; delete files or ask your operator for more space.")
                    .with_code("storage_quota_exceeded"),
            ),
            StoreError::OverTotal { whose, limit } => {
                let whose = match whose {
                    Whose::Workspace => "The files of your workspace",
                    Whose::User => "Your files",
                };
                let text = format!("{whose} may take {} together; delete some first.", bytes(*limit));
                Self(ApiError::invalid(text).with_code("storage_quota_exceeded"))
            }
            StoreError::Body(cause) => body::failure(body::io_kind(cause), MAX_FILE),
            StoreError::Unavailable { source, .. } => {
                tracing::warn!(%error, error.source = %source, "the file store is not available");
                let text = "The file store cannot be reached at the moment; try again.";
                Self(ApiError::new(ErrorType::Overloaded, text))
            }
            StoreError::Io { source, .. } => {
                tracing::error!(%error, error.source = %source, "the file store failed");
                Self(ApiError::new(ErrorType::Api, "The file store failed; ask your operator."))
            }
        }
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{count} bytes"),
        1_000_000..1_000_000_000 => format!("{} MB", count / 1_000_000),
        _ => format!("{} GB", count / 1_000_000_000),
    }
}

/// 413 for a body or file of more than `limit` bytes.
pub fn too_large(limit: u64) -> ApiError {
    let message = format!("Request exceeds the maximum size of {} MB.", limit / 1_000_000);
    ApiError::new(ErrorType::RequestTooLarge, message)
}

impl Failure {
    /// The answer under a status that has no type of its own.
    pub fn with_status(self, status: StatusCode) -> Response {
        let mut response = self.into_response();
        *response.status_mut() = status;
        response
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        let headers = response.headers_mut();
        match self.0.kind {
            ErrorType::Authentication => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ErrorType::RateLimit | ErrorType::Overloaded if self.0.retry_after.is_none() => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
            }
            ErrorType::RateLimit
            | ErrorType::Overloaded
            | ErrorType::InvalidRequest
            | ErrorType::Billing
            | ErrorType::Permission
            | ErrorType::NotFound
            | ErrorType::Conflict
            | ErrorType::RequestTooLarge
            | ErrorType::Api
            | ErrorType::Timeout => {}
        }
        if let Some(wait) = self.0.retry_after {
            // In whole seconds, and never too early.
            let seconds = wait.as_millis().div_ceil(1000);
            if let Ok(value) = HeaderValue::from_str(&seconds.to_string()) {
                headers.insert(header::RETRY_AFTER, value);
            }
        }
        response.extensions_mut().insert(self.0);
        response
    }
}
