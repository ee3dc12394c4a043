//! Files, through the `files` half.

use super::{
    FileBody, FileError, FileRange, TreeQuery, WriteIf,
    connection::{Answer, Connection, Refusal, RequestBody, RequestError, chain, request},
    run::is_run_id,
    upload::{Progress, Upload},
};
use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderMap, HeaderValue, Method, Request, header};
use http_body_util::BodyExt;
use sandboxd_protocol::{
    ErrorCode, FileStat, HEADER_MODIFIED_MS, OutputFile, Sealed, TreeDeleted, TreePage, percent_encode,
};
use serde::de::DeserializeOwned;
use std::{io, sync::Arc};
use tokio::time::{Duration, Instant, sleep_until, timeout};

/// Time for an answer that needs no transfer.
const ANSWER: Duration = Duration::from_secs(30);
/// Time in which a transfer must move.
const STALL: Duration = Duration::from_mins(1);
/// Longest list of sealed files that is read, in bytes; `sandboxd` lists at most 1000.
const MAX_SEALED: usize = 4 * 1024 * 1024;
const MAX_STAT: usize = 4096;
/// Longest page of a list that is read, in bytes: a path is at most 4 KiB, and three times that when it is encoded.
const MAX_TREE: usize = 16 * 1024 * 1024;
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
            ErrorCode::Mismatch => Self::Changed,
            ErrorCode::Conflict
            | ErrorCode::TooManyRequests
            | ErrorCode::Unavailable
            | ErrorCode::NotInImage
            | ErrorCode::Draining => Self::Unavailable(message),
        }
    }
}

/// Sends a request without a body; `None` when the path cannot be part of one.
async fn ask(connection: &Arc<Connection>, method: Method, path: &str) -> Result<Answer, FileError> {
    send(connection, request(method, path, Bytes::new()).map_err(|e| FileError::Forbidden(e.to_string()))?).await
}

async fn send(connection: &Arc<Connection>, request: Request<RequestBody>) -> Result<Answer, FileError> {
    let until = Instant::now() + ANSWER;
    Ok(connection.request(request, until).await?.accepted(until).await??)
}

/// Writes a file, which counts as changed at that time or now. Nothing is committed unless the whole body arrived.
pub(crate) async fn write(
    connection: &Arc<Connection>,
    path: &[u8],
    condition: &WriteIf,
    modified_ms: Option<u64>,
    body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Result<FileStat, FileError> {
    let progress = Progress::new();
    let body: RequestBody = Upload::new(body, progress.clone()).boxed_unsync();
    let request = Request::put(format!("http://sandboxd/file?path={}", percent_encode(path)));
    let request = match condition {
        WriteIf::Always => request,
        WriteIf::Absent => request.header(header::IF_NONE_MATCH, "*"),
        WriteIf::Unchanged { etag } => request.header(header::IF_MATCH, etag),
    };
    let request = match modified_ms {
        Some(millis) => request.header(HEADER_MODIFIED_MS, millis),
        None => request,
    };
    let request = request.body(body).map_err(|e| FileError::Forbidden(e.to_string()))?;
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
    read_json(sent?.accepted(until).await??, MAX_STAT).await
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

/// Reads a file, or the part of it that a range names; `keep` lives as long as the body.
pub(crate) async fn read(
    connection: &Arc<Connection>,
    path: &[u8],
    range: Option<FileRange>,
    keep: impl Send + 'static,
) -> Result<FileBody, FileError> {
    let mut request = get(Method::GET, path)?;
    if let Some(FileRange { first, last, etag }) = range {
        let last = last.map(|last| last.to_string()).unwrap_or_default();
        let unsendable = |_| FileError::Forbidden("an entity tag that cannot be sent".to_owned());
        request
            .headers_mut()
            .insert(header::RANGE, HeaderValue::try_from(format!("bytes={first}-{last}")).map_err(unsendable)?);
        request.headers_mut().insert(header::IF_MATCH, HeaderValue::try_from(etag).map_err(unsendable)?);
    }
    let answer = send(connection, request).await?;
    let stat = stat_of(&answer.headers)?;
    let reading = Reading { answer, left: stat.size, _keep: keep };
    Ok(FileBody { size: stat.size, etag: stat.etag, body: Box::pin(stream::try_unfold(reading, Reading::next)) })
}

/// Size, entity tag and age of a file.
pub(crate) async fn stat(connection: &Arc<Connection>, path: &[u8]) -> Result<FileStat, FileError> {
    stat_of(&send(connection, get(Method::HEAD, path)?).await?.headers)
}

fn get(method: Method, path: &[u8]) -> Result<Request<RequestBody>, FileError> {
    let target = format!("/file?path={}", percent_encode(path));
    request(method, &target, Bytes::new()).map_err(|e| FileError::Forbidden(e.to_string()))
}

/// What the headers of an answer say of its file; the size is that of the part that was asked for.
fn stat_of(headers: &HeaderMap) -> Result<FileStat, FileError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let missing = |what: &str| FileError::Unavailable(format!("an answer without {what}"));
    let number = |name: &str| text(name).and_then(|text| text.parse().ok());
    let etag = text(header::ETAG.as_str()).filter(|tag| tag.len() <= MAX_ETAG);
    Ok(FileStat {
        size: number(header::CONTENT_LENGTH.as_str()).ok_or_else(|| missing("its size"))?,
        etag: etag.ok_or_else(|| missing("an entity tag"))?.to_owned(),
        modified_ms: number(HEADER_MODIFIED_MS).ok_or_else(|| missing("the time of its last change"))?,
    })
}

/// Removes a file.
pub(crate) async fn delete(connection: &Arc<Connection>, path: &[u8]) -> Result<(), FileError> {
    send(connection, get(Method::DELETE, path)?).await.map(drop)
}

/// One page of the files beneath a folder.
pub(crate) async fn list(connection: &Arc<Connection>, query: &TreeQuery<'_>) -> Result<TreePage, FileError> {
    let TreeQuery { root, prefix, after, limit } = *query;
    let target = format!("{}&after={after}&limit={limit}", tree(root, prefix));
    let page: TreePage = read_json(ask(connection, Method::GET, &target).await?, MAX_TREE).await?;
    if page.files.len() > limit {
        return Err(FileError::Unavailable("a page of more files than were asked for".to_owned()));
    }
    Ok(page)
}

/// Removes files by the beginning of their paths.
pub(crate) async fn delete_tree(
    connection: &Arc<Connection>,
    root: &str,
    prefix: &str,
) -> Result<TreeDeleted, FileError> {
    read_json(ask(connection, Method::DELETE, &tree(root, prefix)).await?, MAX_STAT).await
}

fn tree(root: &str, prefix: &str) -> String {
    format!("/tree?root={}&prefix={}", percent_encode(root.as_bytes()), percent_encode(prefix.as_bytes()))
}

async fn read_json<T: DeserializeOwned>(answer: Answer, limit: usize) -> Result<T, FileError> {
    let body = answer.collect(limit, Instant::now() + ANSWER).await?;
    serde_json::from_slice(&body).map_err(|e| FileError::Unavailable(format!("unreadable answer: {e}")))
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
    let sealed: Sealed = read_json(answer, MAX_SEALED).await?;
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
