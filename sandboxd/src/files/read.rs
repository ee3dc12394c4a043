//! `GET` and `HEAD /file`.

use crate::{
    files::{blocking, claim::OpenFile, refused},
    http::{self, Body},
};
use bytes::Bytes;
use hyper::{
    HeaderMap, Response,
    header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderValue, IF_MATCH, RANGE},
};
use sandboxd_protocol::{ErrorBody, ErrorCode, FileStat, HEADER_MODIFIED_MS};
use std::{fs::File, io, os::unix::fs::FileExt as _, sync::Arc};

/// Bytes read at a time: larger pieces delay what else is on the connection.
const READ: u64 = 64 * 1024;

/// Which bytes of a file are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    All,
    /// From, and one past the last.
    Part(u64, u64),
    /// Not one byte of the range is in the file.
    Nothing,
}

/// Reads a `range` header. As HTTP has it, what is not understood is as if it were not there; several ranges are not understood.
pub(crate) fn wanted(range: Option<&str>, size: u64) -> Wanted {
    let Some((first, last)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return Wanted::All;
    };
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first > last => Wanted::All,
        (Some(first), Some(_)) if first >= size => Wanted::Nothing,
        (Some(first), Some(last)) => Wanted::Part(first, size.min(last.saturating_add(1))),
        (Some(first), None) if last.is_empty() && first >= size => Wanted::Nothing,
        (Some(first), None) if last.is_empty() => Wanted::Part(first, size),
        (None, Some(count)) if first.is_empty() && (count == 0 || size == 0) => Wanted::Nothing,
        (None, Some(count)) if first.is_empty() => Wanted::Part(size.saturating_sub(count), size),
        _ => Wanted::All,
    }
}

/// The answer for an open file. Its length is fixed now: what grows is cut, and what shrinks breaks the answer.
pub(crate) fn answer(open: OpenFile, request: &HeaderMap, head: bool) -> Result<Response<Body>, ErrorBody> {
    let OpenFile { file, stat: FileStat { size, etag, modified_ms } } = open;
    if http::text(request, IF_MATCH.as_str()).is_some_and(|expected| expected != "*" && expected != etag) {
        return Err(refused(ErrorCode::Mismatch, "the file has changed"));
    }
    let (code, from, to) = match wanted(http::text(request, RANGE.as_str()), size) {
        Wanted::All => (200, 0, size),
        Wanted::Part(from, to) => (206, from, to),
        Wanted::Nothing => {
            return Err(refused(ErrorCode::BadRequest, format!("the range is not in the file of {size} bytes")));
        }
    };
    let body = if head { http::full(Bytes::new()) } else { content(file, from, to) };
    let mut response = Response::new(body);
    *response.status_mut() = http::status(code);
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(to - from));
    headers.insert(HEADER_MODIFIED_MS, HeaderValue::from(modified_ms));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Ok(etag) = HeaderValue::try_from(etag) {
        headers.insert(ETAG, etag);
    }
    if code == 206
        && let Ok(range) = HeaderValue::try_from(format!("bytes {from}-{}/{size}", to - 1))
    {
        headers.insert(CONTENT_RANGE, range);
    }
    Ok(response)
}

fn content(file: File, from: u64, to: u64) -> Body {
    http::streamed((Arc::new(file), from), move |(file, at)| async move {
        if at >= to {
            return None;
        }
        let reader = Arc::clone(&file);
        let piece = blocking(move || read_piece(&reader, at, to))
            .await
            .unwrap_or_else(|why| Err(io::Error::other(why.message)));
        let next = piece.as_ref().map_or(to, |piece| at + piece.len() as u64);
        Some((piece, (file, next)))
    })
}

fn read_piece(file: &File, at: u64, to: u64) -> io::Result<Bytes> {
    let mut buffer = vec![0; usize::try_from((to - at).min(READ)).unwrap_or(0)];
    // An end before its time would look like the end of the file.
    file.read_exact_at(&mut buffer, at)?;
    Ok(buffer.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_the_file() {
        for (range, expected) in [
            (None, Wanted::All),
            (Some("bytes=0-0"), Wanted::Part(0, 1)),
            (Some("bytes=2-"), Wanted::Part(2, 10)),
            (Some("bytes=2-99"), Wanted::Part(2, 10)),
            (Some("bytes=-3"), Wanted::Part(7, 10)),
            (Some("bytes=-99"), Wanted::Part(0, 10)),
            (Some("bytes=10-"), Wanted::Nothing),
            (Some("bytes=10-12"), Wanted::Nothing),
            (Some("bytes=-0"), Wanted::Nothing),
            (Some("bytes=5-2"), Wanted::All),
            (Some("bytes=0-1,3-4"), Wanted::All),
            (Some("bytes=-"), Wanted::All),
            (Some("bytes=+1-2"), Wanted::All),
            (Some("lines=1-2"), Wanted::All),
            (Some("bytes=0-18446744073709551615"), Wanted::Part(0, 10)),
        ] {
            assert_eq!(wanted(range, 10), expected, "{range:?}");
        }
        assert_eq!(wanted(Some("bytes=0-"), 0), Wanted::Nothing);
    }
}
