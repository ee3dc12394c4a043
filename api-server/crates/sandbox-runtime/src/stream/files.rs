//! Files, through the `files` half.

use super::{
    FileBody, FileError,
    connection::{Answer, Connection, Refusal, RequestBody, RequestError, chain, request},
    run::is_run_id,
    upload::{Progress, Upload},
};
use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderMap, Method, Request, header};
use http_body_util::BodyExt;
use sandboxd_protocol::{ErrorCode, FileStat, OutputFile, Sealed};
use std::{io, sync::Arc};
use tokio::time::{Duration, Instant, sleep_until, timeout};

/// Time for an answer that needs no transfer.
const ANSWER: Duration = Duration::from_secs(30);
/// Time in which a transfer must move.
const STALL: Duration = Duration::from_mins(1);
/// Longest list of sealed files that is read, in bytes; `sandboxd` lists at most 1000.
const MAX_SEALED: usize = 4 * 1024 * 1024;
const MAX_STAT: usize = 4096;
/// Longest entity tag that is passed on.
const MAX_ETAG: usize = 128;

impl From<RequestError> for FileError {
    fn from(error: RequestError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<Refusal> for FileError {
    fn from(refusal: Refusal) -> Self {
        let Refusal { code, message } = refusal;
        match code {
            ErrorCode::NotFound | ErrorCode::Gone => Self::NotFound,
            ErrorCode::BadRequest | ErrorCode::Forbidden => Self::Forbidden(message),
            ErrorCode::TooLarge => Self::TooLarge,
            ErrorCode::NoSpace => Self::NoSpace,
            ErrorCode::Conflict
            | ErrorCode::Mismatch
            | ErrorCode::TooManyRequests
            | ErrorCode::Unavailable
            | ErrorCode::Draining => Self::Unavailable(message),
        }
    }
}

/// Sends a request without a body; `None` when the path cannot be part of one.
async fn ask(connection: &Arc<Connection>, method: Method, path: &str) -> Result<Answer, FileError> {
    let request = request(method, path, Bytes::new()).map_err(|e| FileError::Forbidden(e.to_string()))?;
    let until = Instant::now() + ANSWER;
    Ok(connection.request(request, until).await?.accepted(until).await??)
}

/// Writes a file. Nothing is committed unless the whole body arrived.
pub(crate) async fn write(
    connection: &Arc<Connection>,
    path: &str,
    body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Result<FileStat, FileError> {
    let progress = Progress::new();
    let body: RequestBody = Upload::new(body, progress.clone()).boxed_unsync();
    let request = Request::put(format!("http://sandboxd/file?path={}", encode(path)))
        .body(body)
        .map_err(|e| FileError::Forbidden(e.to_string()))?;
    // The transfer has no limit of its own: it may take as long as it moves.
    let far = Instant::now() + Duration::from_hours(24);
    let sent = tokio::select! {
        sent = connection.request(request, far) => sent,
        () = stalled(&progress) => return Err(FileError::Unavailable("the transfer stood still".to_owned())),
    };
    if let Some(error) = progress.take_error() {
        return Err(FileError::Source(error));
    }
    let until = Instant::now() + ANSWER;
    let answer = sent?.accepted(until).await??;
    let stat = answer.collect(MAX_STAT, until).await?;
    serde_json::from_slice(&stat).map_err(|e| FileError::Unavailable(format!("unreadable answer: {e}")))
}

async fn stalled(progress: &Progress) {
    loop {
        let until = progress.last() + STALL;
        if until <= Instant::now() {
            return;
        }
        sleep_until(until).await;
    }
}

/// Reads a file; `keep` lives as long as the body.
pub(crate) async fn read(
    connection: &Arc<Connection>,
    path: &str,
    keep: impl Send + 'static,
) -> Result<FileBody, FileError> {
    let answer = ask(connection, Method::GET, &format!("/file?path={}", encode(path))).await?;
    let size = header_text(&answer.headers, &header::CONTENT_LENGTH)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| FileError::Unavailable("an answer without its size".to_owned()))?;
    let etag = header_text(&answer.headers, &header::ETAG)
        .filter(|tag| tag.len() <= MAX_ETAG)
        .ok_or_else(|| FileError::Unavailable("an answer without an entity tag".to_owned()))?
        .to_owned();
    let reading = Reading { answer, left: size, _keep: keep };
    Ok(FileBody { size, etag, body: Box::pin(stream::try_unfold(reading, Reading::next)) })
}

fn header_text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

struct Reading<K> {
    answer: Answer,
    left: u64,
    _keep: K,
}

impl<K> Reading<K> {
    /// The next piece; the end only after exactly the announced size.
    async fn next(mut self) -> io::Result<Option<(Bytes, Self)>> {
        loop {
            let frame = match timeout(STALL, self.answer.body.frame()).await {
                Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the transfer stood still")),
                Ok(None) if self.left == 0 => return Ok(None),
                Ok(None) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ended early")),
                Ok(Some(Err(e))) => return Err(io::Error::new(io::ErrorKind::ConnectionAborted, chain(&e))),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(data) = frame.into_data() else { continue };
            let Some(left) = self.left.checked_sub(data.len() as u64) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "more bytes than announced"));
            };
            self.left = left;
            if !data.is_empty() {
                return Ok(Some((data, self)));
            }
        }
    }
}

/// Seals a run's output folder.
pub(crate) async fn seal(connection: &Arc<Connection>, run: &str) -> Result<Vec<OutputFile>, FileError> {
    legal(run)?;
    let answer = ask(connection, Method::POST, &format!("/seal/{run}")).await?;
    let body = answer.collect(MAX_SEALED, Instant::now() + ANSWER).await?;
    let sealed: Sealed =
        serde_json::from_slice(&body).map_err(|e| FileError::Unavailable(format!("unreadable answer: {e}")))?;
    Ok(sealed.files)
}

/// Forgets a sealed folder.
pub(crate) async fn discard(connection: &Arc<Connection>, run: &str) -> Result<(), FileError> {
    legal(run)?;
    ask(connection, Method::DELETE, &format!("/seal/{run}")).await.map(drop)
}

fn legal(run: &str) -> Result<(), FileError> {
    if is_run_id(run) { Ok(()) } else { Err(FileError::NotFound) }
}

/// A path as part of a query: everything but letters, digits and `/-_.~` in percent form.
fn encode(path: &str) -> String {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out.extend(['%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_any_characters_is_one_query_value() {
        assert_eq!(encode("/tmp/a b&c=d+e%#?.txt"), "/tmp/a%20b%26c%3Dd%2Be%25%23%3F.txt");
        assert_eq!(encode("/é\n"), "/%C3%A9%0A");
    }
}
