//! What an S3 store says when it does not do what was asked.

use std::{error::Error, io};

use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};

use crate::StoreError;

/// Turns the error of a request into the store's.
pub(super) fn failed<E>(doing: &'static str, error: SdkError<E>) -> StoreError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let status = error.raw_response().map(|response| response.status().as_u16());
    let kind = kind(error.code(), status);
    let source = io::Error::other(DisplayErrorContext(error).to_string());
    match kind {
        Kind::NotFound => StoreError::NotFound,
        Kind::Full => StoreError::NoSpace,
        Kind::Taken => StoreError::Io { doing, source: io::Error::new(io::ErrorKind::AlreadyExists, source) },
        Kind::Busy => StoreError::Unavailable { doing, source },
        Kind::NoBucket => StoreError::Io { doing: "the bucket does not exist", source },
        Kind::Denied => StoreError::Io { doing: "the credentials are wrong or do not allow this", source },
        Kind::Other => StoreError::Io { doing, source },
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    NotFound,
    Taken,
    Full,
    Busy,
    NoBucket,
    Denied,
    Other,
}

/// By the code, and where there is none that is known (none comes after HEAD, or without any answer) by the status.
fn kind(code: Option<&str>, status: Option<u16>) -> Kind {
    code.and_then(of_code).unwrap_or_else(|| of_status(status))
}

fn of_code(code: &str) -> Option<Kind> {
    Some(match code {
        "NoSuchBucket" => Kind::NoBucket,
        "NoSuchKey" | "NotFound" | "NoSuchUpload" => Kind::NotFound,
        "PreconditionFailed" | "ConditionalRequestConflict" => Kind::Taken,
        "QuotaExceeded" | "XMinioStorageFull" | "InsufficientStorage" => Kind::Full,
        "AccessDenied" | "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken" => {
            Kind::Denied
        }
        "SlowDown" | "ServiceUnavailable" | "InternalError" | "RequestTimeout" | "Throttling" => Kind::Busy,
        _ => return None,
    })
}

fn of_status(status: Option<u16>) -> Kind {
    match status {
        Some(401 | 403) => Kind::Denied,
        Some(404) => Kind::NotFound,
        Some(412) => Kind::Taken,
        Some(507) => Kind::Full,
        None | Some(429 | 500..) => Kind::Busy,
        Some(_) => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_by_its_code_and_without_one_by_its_status() {
        for (code, status, expected) in [
            (Some("NoSuchKey"), Some(404), Kind::NotFound),
            (Some("NoSuchBucket"), Some(404), Kind::NoBucket),
            (None, Some(404), Kind::NotFound),
            (Some("SlowDown"), Some(503), Kind::Busy),
            (None, Some(502), Kind::Busy),
            (None, None, Kind::Busy),
            (Some("SignatureDoesNotMatch"), Some(403), Kind::Denied),
            (None, Some(403), Kind::Denied),
            (Some("PreconditionFailed"), Some(412), Kind::Taken),
            (Some("XMinioStorageFull"), Some(507), Kind::Full),
            (Some("MalformedXML"), Some(400), Kind::Other),
        ] {
            assert_eq!(kind(code, status), expected, "{code:?} {status:?}");
        }
    }
}
