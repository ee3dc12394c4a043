//! What a failed sampling means: for the client in words that give nothing away, for the turn machine whether to try again.

use std::time::Duration;

use engine::ModelFailure;
use jiff::Timestamp;
use serde_json::Value;
use wire::{ApiError, ErrorType};

/// A longer wait is the client's affair: it has been told how long.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Nobody waits longer than a day.
const MAX_RETRY_AFTER: f64 = 86_400.0;
/// Characters of an upstream's own words that are shown or logged.
const SHOWN: usize = 1_000;

const MISCONFIGURED: &str =
    "The model cannot be used: its upstream refuses this server. Ask the operator of this server.";

/// Why a sampling failed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The upstream says so, by status or by an `error` event that stands for one.
    Answer {
        /// HTTP status.
        status: u16,
        /// The upstream's words.
        message: String,
        /// How long it wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// No connection; the cause for the log.
    Unreachable(String),
    /// Nothing came for too long.
    Silent(Duration),
    /// The connection broke; the cause for the log.
    Broken(String),
    /// The stream ended before its end.
    Cut,
    /// What came is not what the upstream's dialect says; in words for the log.
    Malformed(&'static str),
}

impl Fault {
    /// For the client and for the turn machine. What is in `secrets` is not shown.
    pub(crate) fn failure(&self, secrets: &[String]) -> ModelFailure {
        let (error, retryable) = match self {
            Self::Answer { status, message, retry_after } => {
                let (error, retryable) = answered(*status, &shown(message, secrets));
                let soon = retry_after.is_none_or(|wait| wait <= LONGEST_WAIT);
                (ApiError { retry_after: *retry_after, ..error }, retryable && soon)
            }
            Self::Unreachable(_) => (api("The model's server cannot be reached; try again later."), true),
            Self::Silent(gap) => {
                let text = format!("The model's server said nothing for {} seconds.", gap.as_secs());
                (ApiError::new(ErrorType::Timeout, text), false)
            }
            Self::Broken(_) | Self::Cut => (api("The model's answer ended early."), true),
            Self::Malformed(_) => (api("The model's server sent an answer that this server cannot read."), false),
        };
        ModelFailure { error, retryable }
    }

    /// For the log, without `secrets`.
    pub(crate) fn detail(&self, secrets: &[String]) -> String {
        match self {
            Self::Answer { status, message, .. } => format!("status {status}: {}", shown(message, secrets)),
            Self::Unreachable(cause) => format!("no connection: {}", shown(cause, secrets)),
            Self::Silent(gap) => format!("nothing came for {} s", gap.as_secs()),
            Self::Broken(cause) => format!("the connection broke: {}", shown(cause, secrets)),
            Self::Cut => "the stream ended before its end".to_owned(),
            Self::Malformed(what) => (*what).to_owned(),
        }
    }
}

fn api(message: &str) -> ApiError {
    ApiError::new(ErrorType::Api, message)
}

fn answered(status: u16, message: &str) -> (ApiError, bool) {
    let or = |words: &str| if message.is_empty() { words.to_owned() } else { message.to_owned() };
    match status {
        400 | 422 => (ApiError::invalid(or("The model's server refused the request as invalid.")), false),
        413 => (ApiError::new(ErrorType::RequestTooLarge, "The request is too large for the model."), false),
        429 => (ApiError::new(ErrorType::RateLimit, "The model's rate limit is reached; try again later."), true),
        503 | 529 => (ApiError::new(ErrorType::Overloaded, "The model is overloaded; try again later."), true),
        408 | 504 => (ApiError::new(ErrorType::Timeout, "The model's server took too long."), false),
        500..600 => (api("The model's server failed; try again."), true),
        // Credentials, account, address or model name: of this server's settings, and nothing that the client can mend.
        _ => (api(MISCONFIGURED), false),
    }
}

/// The words without secrets, and not too many.
fn shown(message: &str, secrets: &[String]) -> String {
    let clean = secrets.iter().fold(message.to_owned(), |text, secret| text.replace(secret.as_str(), "***"));
    clean.chars().filter(|letter| !letter.is_control() || *letter == '\n').take(SHOWN).collect()
}

/// What an error body says, in any of the forms that upstreams use; empty when it says nothing in words.
pub(crate) fn message_of(body: &[u8]) -> String {
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return String::new() };
    let places = [&body["error"]["message"], &body["message"], &body["detail"], &body["error"]];
    places.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
}

/// The status that an `error` event's type stands for.
pub(crate) fn status_of_type(name: &str) -> u16 {
    ErrorType::parse(name).map_or(500, ErrorType::status)
}

/// Reads `retry-after-ms`, else `retry-after`: seconds, or a date.
pub(crate) fn retry_after(headers: &http::HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let millis = || Some(text("retry-after-ms")?.parse::<f64>().ok()? / 1000.0);
    let seconds = || text("retry-after")?.parse::<f64>().ok();
    let date = || {
        let date = jiff::fmt::rfc2822::parse(text("retry-after")?).ok()?.timestamp();
        Some(date.duration_since(now).as_secs_f64())
    };
    let seconds = millis().or_else(seconds).or_else(date)?;
    Duration::try_from_secs_f64(seconds.clamp(0.0, MAX_RETRY_AFTER)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_is_told_in_its_own_way() {
        let rows = [
            (400, ErrorType::InvalidRequest, false),
            (401, ErrorType::Api, false),
            (402, ErrorType::Api, false),
            (403, ErrorType::Api, false),
            (404, ErrorType::Api, false),
            (302, ErrorType::Api, false),
            (413, ErrorType::RequestTooLarge, false),
            (422, ErrorType::InvalidRequest, false),
            (429, ErrorType::RateLimit, true),
            (500, ErrorType::Api, true),
            (502, ErrorType::Api, true),
            (503, ErrorType::Overloaded, true),
            (504, ErrorType::Timeout, false),
            (529, ErrorType::Overloaded, true),
        ];
        for (status, kind, retryable) in rows {
            let fault = Fault::Answer { status, message: "the key sk-1 of http://inner".into(), retry_after: None };
            let failure = fault.failure(&["sk-1".into(), "http://inner".into()]);
            assert_eq!((failure.error.kind, failure.retryable), (kind, retryable), "{status}");
            for secret in ["sk-1", "inner"] {
                assert!(!failure.error.message.contains(secret), "{status}: {}", failure.error.message);
            }
            let own_words = failure.error.message.contains("the key");
            assert_eq!(own_words, kind == ErrorType::InvalidRequest, "{status}: {}", failure.error.message);
            assert!(failure.error.message.ends_with('.') || own_words);
        }
    }

    #[test]
    fn a_long_wait_is_passed_on_and_not_waited_for() {
        for (seconds, retryable) in [(2, true), (10, true), (11, false)] {
            let wait = Some(Duration::from_secs(seconds));
            let failure = Fault::Answer { status: 429, message: String::new(), retry_after: wait }.failure(&[]);
            assert_eq!((failure.retryable, failure.error.retry_after), (retryable, wait));
        }
    }

    #[test]
    fn waits_are_read_in_every_form() {
        let now: Timestamp = "2026-12-01T10:00:00Z".parse().unwrap();
        let read = |name: &'static str, value: &str| {
            let headers = [(http::HeaderName::from_static(name), value.parse().unwrap())].into_iter().collect();
            retry_after(&headers, now).map(|wait| wait.as_millis())
        };
        assert_eq!(read("retry-after", "7"), Some(7_000));
        assert_eq!(read("retry-after", "0.5"), Some(500));
        assert_eq!(read("retry-after-ms", "250"), Some(250));
        assert_eq!(read("retry-after", "Tue, 01 Dec 2026 10:00:30 GMT"), Some(30_000));
        assert_eq!(read("retry-after", "Tue, 01 Dec 2026 09:00:00 GMT"), Some(0));
        assert_eq!(read("retry-after", "1e300"), Some(86_400_000));
        for nothing in ["soon", "", "NaN"] {
            assert_eq!(read("retry-after", nothing), None, "{nothing}");
        }
        assert_eq!(retry_after(&http::HeaderMap::new(), now), None);
    }

    #[test]
    fn an_error_bodys_words_are_found_in_every_form() {
        for (body, words) in [
            (r#"{"type":"error","error":{"type":"invalid_request_error","message":"a"}}"#, "a"),
            (r#"{"object":"error","message":"b","code":400}"#, "b"),
            (r#"{"detail":"c"}"#, "c"),
            (r#"{"error":"d"}"#, "d"),
            (r#"{"detail":[{"loc":1}]}"#, ""),
            ("<html>", ""),
            ("", ""),
        ] {
            assert_eq!(message_of(body.as_bytes()), words, "{body}");
        }
    }

    #[test]
    fn of_an_upstreams_words_not_too_many_are_shown() {
        let message = "x\u{1b}[31m".repeat(5_000);
        let failure = Fault::Answer { status: 400, message, retry_after: None }.failure(&[]);
        assert_eq!(failure.error.message.chars().count(), SHOWN);
        assert!(!failure.error.message.contains('\u{1b}'));
    }
}
