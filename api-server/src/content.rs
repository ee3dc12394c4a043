//! The content of a file as HTTP has it: conditions, ranges, and headers that keep it inert in a browser.

use crate::failure::Failure;
use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use std::{fmt::Write as _, io, ops::Range, pin::Pin};
use wire::ApiError;

/// The type of what has none.
pub const UNNAMED_TYPE: &str = "application/octet-stream";
/// Types that a browser shows and never runs. SVG and HTML run, and PDF may.
const HARMLESS: &[&str] = &[
    "application/json",
    "image/avif",
    "image/bmp",
    "image/gif",
    "image/jpeg",
    "image/png",
    "image/webp",
    "text/csv",
    "text/markdown",
    "text/plain",
];

/// The bytes of an answer.
pub type Bytestream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// What is known of a content before it is read.
#[derive(Clone, Debug)]
pub struct Content {
    /// Entity tag, quotes included; another content has another one.
    pub etag: String,
    /// Length in bytes.
    pub size: u64,
    /// Media type.
    pub mime_type: String,
    /// Name to be saved under.
    pub name: String,
    /// Whether the client wants to see it rather than to save it.
    pub inline: bool,
}

/// What a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// 200
    Whole,
    /// 206 with these bytes, at least one.
    Part(Range<u64>),
    /// 304
    NotModified,
    /// 412
    Changed,
    /// 416: not one byte of the range is there.
    OutOfRange,
    /// 416: several ranges, which would be answered with a body of many parts.
    SeveralRanges,
}

/// Whether the query asks to see a file rather than to save it.
pub fn wants_inline(query: &[(String, String)]) -> bool {
    query.iter().any(|(key, value)| key == "disposition" && value.eq_ignore_ascii_case("inline"))
}

/// Decides by the conditions and the range of a request, in the order of RFC 9110.
pub fn verdict(method: &Method, headers: &HeaderMap, etag: &str, size: u64) -> Verdict {
    if headers.contains_key(header::IF_MATCH) && !names_tag(headers, &header::IF_MATCH, |tag| tag == etag) {
        return Verdict::Changed;
    }
    let weak = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag) == etag;
    if names_tag(headers, &header::IF_NONE_MATCH, weak) {
        return Verdict::NotModified;
    }
    let meant_for_another = headers.get(header::IF_RANGE).is_some_and(|tag| tag.as_bytes() != etag.as_bytes());
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    // Only GET has ranges.
    match range.filter(|_| method == Method::GET && !meant_for_another) {
        Some(range) => part(range, size),
        None => Verdict::Whole,
    }
}

/// Whether a header that lists entity tags holds a fitting one, or a star.
pub fn names_tag(headers: &HeaderMap, name: &HeaderName, fits: impl Fn(&str) -> bool) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).any(|tag| tag == "*" || fits(tag))
}

/// Reads a `range` header. What is not understood is as if it were not there.
fn part(range: &str, size: u64) -> Verdict {
    let Some((unit, set)) = range.split_once('=') else { return Verdict::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Verdict::Whole;
    }
    if set.contains(',') {
        return Verdict::SeveralRanges;
    }
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let Some((first, last)) = set.trim().split_once('-') else { return Verdict::Whole };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..size.min(last.saturating_add(1)),
        (Some(first), None) if last.is_empty() => first..size,
        (None, Some(count)) if first.is_empty() => size.saturating_sub(count)..size,
        _ => return Verdict::Whole,
    };
    if range.is_empty() { Verdict::OutOfRange } else { Verdict::Part(range) }
}

/// Answers a GET or HEAD; `open` is asked for bytes only when some are sent.
pub async fn answer<F>(
    method: &Method,
    headers: &HeaderMap,
    content: &Content,
    open: impl FnOnce(Range<u64>) -> F,
) -> Result<Response, Failure>
where
    F: Future<Output = Result<Bytestream, Failure>>,
{
    let (status, range) = match verdict(method, headers, &content.etag, content.size) {
        Verdict::Whole => (StatusCode::OK, 0..content.size),
        Verdict::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Verdict::NotModified => return Ok(described(StatusCode::NOT_MODIFIED, content, content.size, Body::empty())),
        Verdict::Changed => return Ok(precondition_failed()),
        Verdict::OutOfRange => {
            let size = content.size;
            return Ok(unsatisfiable(size, format!("range: not in the file, which has {size} bytes")));
        }
        Verdict::SeveralRanges => {
            return Ok(unsatisfiable(content.size, "range: one range at a time is served; ask for each".to_owned()));
        }
    };
    let size = range.end - range.start;
    let body =
        if method == Method::HEAD || size == 0 { Body::empty() } else { Body::from_stream(open(range.clone()).await?) };
    let mut response = described(status, content, size, body);
    if status == StatusCode::PARTIAL_CONTENT {
        let value = format!("bytes {}-{}/{}", range.start, range.end - 1, content.size);
        insert(response.headers_mut(), header::CONTENT_RANGE, &value);
    }
    Ok(response)
}

/// 412
pub fn precondition_failed() -> Response {
    let error = ApiError::invalid("The file is not what the request's If-Match or If-None-Match asks for.");
    Failure::from(error).with_status(StatusCode::PRECONDITION_FAILED)
}

fn unsatisfiable(size: u64, message: String) -> Response {
    let mut response = Failure::from(ApiError::invalid(message)).with_status(StatusCode::RANGE_NOT_SATISFIABLE);
    insert(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size}"));
    response
}

fn described(status: StatusCode, content: &Content, size: u64, body: Body) -> Response {
    let Content { etag, size: _, mime_type, name, inline } = content;
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(UNNAMED_TYPE));
    insert(headers, header::CONTENT_TYPE, mime_type);
    headers.insert(header::CONTENT_LENGTH, size.into());
    insert(headers, header::ETAG, etag);
    insert(headers, header::CONTENT_DISPOSITION, &disposition(*inline && is_harmless(mime_type), name));
    // Whatever a sandbox made must stay inert in a browser.
    for (name, value) in [
        ("accept-ranges", "bytes"),
        ("cache-control", "private, no-store"),
        ("content-security-policy", "sandbox; default-src 'none'"),
        ("cross-origin-resource-policy", "same-origin"),
        ("x-content-type-options", "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A value that cannot be sent leaves what was there.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn is_harmless(mime_type: &str) -> bool {
    let essence = mime_type.split(';').next().unwrap_or_default().trim();
    HARMLESS.iter().any(|known| known.eq_ignore_ascii_case(essence))
}

/// `Content-Disposition` of RFC 6266: a plain name for old clients, the true one in UTF-8.
fn disposition(inline: bool, name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '%') || c == ' ' { c } else { '_' })
        .collect();
    let kind = if inline { "inline" } else { "attachment" };
    format!("{kind}; filename=\"{plain}\"; filename*=UTF-8''{}", encoded(name.as_bytes(), b"!#$&+-.^_`|~"))
}

/// Percent-encodes all but letters, digits and these.
pub fn encoded(bytes: &[u8], kept: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || kept.contains(byte) {
            text.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn conditions_and_ranges_follow_rfc_9110() {
        type Row = (&'static [(&'static str, &'static str)], Verdict);
        let rows: [Row; 26] = [
            (&[], Verdict::Whole),
            (&[("range", "bytes=0-0")], Verdict::Part(0..1)),
            (&[("range", "bytes=2-")], Verdict::Part(2..10)),
            (&[("range", "bytes=2-99")], Verdict::Part(2..10)),
            (&[("range", "bytes=-3")], Verdict::Part(7..10)),
            (&[("range", "bytes=-99")], Verdict::Part(0..10)),
            (&[("range", "bytes=0-18446744073709551615")], Verdict::Part(0..10)),
            (&[("range", "Bytes=0-1")], Verdict::Part(0..2)),
            (&[("range", "bytes=10-")], Verdict::OutOfRange),
            (&[("range", "bytes=-0")], Verdict::OutOfRange),
            (&[("range", "bytes=5-2")], Verdict::Whole),
            (&[("range", "bytes=+1-2")], Verdict::Whole),
            (&[("range", "bytes=-")], Verdict::Whole),
            (&[("range", "lines=1-2")], Verdict::Whole),
            (&[("range", "bytes=0-1,3-4")], Verdict::SeveralRanges),
            (&[("if-none-match", "\"t\"")], Verdict::NotModified),
            (&[("if-none-match", "\"x\", W/\"t\"")], Verdict::NotModified),
            (&[("if-none-match", "*")], Verdict::NotModified),
            (&[("if-none-match", "\"x\"")], Verdict::Whole),
            (&[("if-none-match", "\"t\""), ("range", "bytes=0-1")], Verdict::NotModified),
            (&[("if-match", "\"x\"")], Verdict::Changed),
            (&[("if-match", "W/\"t\"")], Verdict::Changed),
            (&[("if-match", "\"x\", \"t\""), ("if-none-match", "\"t\"")], Verdict::NotModified),
            (&[("if-match", "*"), ("range", "bytes=9-")], Verdict::Part(9..10)),
            (&[("if-range", "\"t\""), ("range", "bytes=0-1")], Verdict::Part(0..2)),
            (&[("if-range", "\"x\""), ("range", "bytes=0-1")], Verdict::Whole),
        ];
        for (pairs, expected) in rows {
            assert_eq!(verdict(&Method::GET, &headers(pairs), "\"t\"", 10), expected, "{pairs:?}");
        }
        assert_eq!(verdict(&Method::HEAD, &headers(&[("range", "bytes=0-1")]), "\"t\"", 10), Verdict::Whole);
        assert_eq!(verdict(&Method::GET, &headers(&[("range", "bytes=0-")]), "\"t\"", 0), Verdict::OutOfRange);
    }

    #[test]
    fn any_name_makes_a_legal_disposition_that_carries_it_whole() {
        for (name, expected) in [
            ("r.bin", "attachment; filename=\"r.bin\"; filename*=UTF-8''r.bin"),
            ("a b.txt", "attachment; filename=\"a b.txt\"; filename*=UTF-8''a%20b.txt"),
            ("100%.txt", "attachment; filename=\"100_.txt\"; filename*=UTF-8''100%25.txt"),
            ("q\"uote", "attachment; filename=\"q_uote\"; filename*=UTF-8''q%22uote"),
            ("報.csv", "attachment; filename=\"_.csv\"; filename*=UTF-8''%E5%A0%B1.csv"),
            ("line\nbreak", "attachment; filename=\"line_break\"; filename*=UTF-8''line%0Abreak"),
        ] {
            assert_eq!(disposition(false, name), expected);
            assert!(HeaderValue::from_str(&disposition(true, name)).is_ok());
        }
    }

    #[test]
    fn only_what_cannot_run_is_shown() {
        for (mime_type, shown) in [
            ("image/png", true),
            ("Text/Plain; charset=utf-8", true),
            ("text/html", false),
            ("image/svg+xml", false),
            ("application/pdf", false),
            ("text/html, text/plain", false),
            ("", false),
        ] {
            assert_eq!(is_harmless(mime_type), shown, "{mime_type}");
        }
    }
}
