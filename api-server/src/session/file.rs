//! One container and its files: found or made, looked at, read, written.

use super::key::Place;
use crate::{
    App,
    auth::Identity,
    body,
    containers::{Containers, unavailable},
    content::{self, Content, names_tag},
    entropy,
    failure::{Failure, too_large},
    files::MAX_FILE,
};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use http::{HeaderMap, Method, header};
use jiff::Timestamp;
use md5::{Digest as _, Md5};
use sandbox_runtime::{AcquireError, ContainerSpec, FileError, FileRange, FileStat, Sandbox, WriteIf};
use std::{
    fmt::Write as _,
    io,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use wire::{
    ApiError, ErrorType, FileScope, SessionFile, Surface,
    file::{FileScopeType, FileType},
    id::{CONTAINER_RULE, is_container},
};

/// How long a sandbox may take to be ready.
const ACQUIRE_DEADLINE: Duration = Duration::from_mins(2);
/// The content of a file up to this size, in bytes, is tagged by its MD5; to hash a larger one first would double its reading.
const TAGGED_BY_MD5: u64 = 16 * 1024 * 1024;
/// A file that changes under a reader so often is given up.
const LOOKS: usize = 3;

/// A container that a request names, whether it exists or not.
pub struct Session {
    app: Arc<App>,
    spec: ContainerSpec,
    /// As the client calls it.
    pub id: String,
}

/// A file as it was at one moment.
#[derive(Debug)]
pub struct Found {
    /// Where it lies.
    pub place: Place,
    /// Size, the container's own entity tag, age.
    pub stat: FileStat,
    /// MD5 of the content, in lower-case hex.
    pub md5: String,
}

impl Session {
    /// The caller's container of this name; `parameter` is what the request calls it.
    pub async fn named(
        app: &Arc<App>,
        identity: &Identity,
        parameter: &str,
        id: Option<&str>,
    ) -> Result<Self, Failure> {
        let id = id.filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| ApiError::invalid(format!("{parameter}: Field required")))?;
        if !is_container(id) {
            return Err(ApiError::invalid(format!("{parameter}: {CONTAINER_RULE}")).into());
        }
        let containers = Containers::of(Surface::Zylon, identity);
        // Whose it is, is decided where messages decide it.
        containers.resolve(&app.sandboxes, Some(id), None, entropy::now_millis()).await?;
        Ok(Self { app: Arc::clone(app), spec: containers.spec(id), id: id.to_owned() })
    }

    /// The container if it exists, woken if it was stopped. Reading never makes one.
    pub async fn existing(&self) -> Result<Option<Sandbox>, Failure> {
        match self.app.sandboxes.find(&self.spec).await {
            Ok(true) => self.made().await.map(Some),
            Ok(false) | Err(AcquireError::NotFound | AcquireError::Expired) => Ok(None),
            Err(error @ (AcquireError::Unavailable { .. } | AcquireError::TimedOut(_))) => {
                Err(unavailable(&error).into())
            }
        }
    }

    /// The container, made if it does not exist.
    pub async fn made(&self) -> Result<Sandbox, Failure> {
        let acquired = self.app.sandboxes.acquire(&self.spec, ACQUIRE_DEADLINE).await;
        acquired.map_err(|error| unavailable(&error).into())
    }

    /// Looks at a file and its content.
    pub async fn look(&self, sandbox: &Sandbox, place: &Place) -> Result<Found, FileError> {
        let path = place.path();
        for _ in 0..LOOKS {
            let stat = sandbox.stat_file(&path).await?;
            match self.md5(sandbox, &path, &stat).await {
                Ok(md5) => return Ok(Found { place: place.clone(), stat, md5 }),
                Err(FileError::Changed) => {}
                Err(error) => return Err(error),
            }
        }
        Err(FileError::Changed)
    }

    async fn md5(&self, sandbox: &Sandbox, path: &[u8], stat: &FileStat) -> Result<String, FileError> {
        let container = self.spec.name.as_str();
        if let Some(md5) = self.app.tags.get(container, &stat.etag) {
            return Ok(md5);
        }
        let mut hash = Md5::new();
        if stat.size > 0 {
            let all = FileRange { first: 0, last: None, etag: stat.etag.clone() };
            let mut body = sandbox.read_range(path, &all).await?.body;
            // An end before its time is that of a file that was changed.
            while let Some(piece) = body.try_next().await.map_err(|_| FileError::Changed)? {
                hash.update(&piece);
            }
        }
        let md5 = hex(&hash.finalize());
        self.app.tags.put(container, &stat.etag, &md5);
        Ok(md5)
    }

    /// Answers a GET or HEAD of a file's content.
    pub async fn content(
        &self,
        place: &Place,
        method: &Method,
        headers: &HeaderMap,
        inline: bool,
    ) -> Result<Response, Failure> {
        let id = place.id();
        let sandbox = self.existing().await?.ok_or_else(|| not_found(&id))?;
        let (path, name) = (place.path(), place.filename());
        let mime_type = with_charset(place.mime_type());
        for _ in 0..LOOKS {
            let stat = sandbox.stat_file(&path).await.map_err(|error| unread(error, &id))?;
            let tag = match self.content_tag(&sandbox, &path, &stat).await {
                Err(FileError::Changed) => continue,
                tag => tag.map_err(|error| unread(error, &id))?,
            };
            let FileStat { size, etag, modified_ms: _ } = stat;
            let content = Content { etag: tag, size, mime_type: mime_type.clone(), name: name.clone(), inline };
            let changed = AtomicBool::new(false);
            let (sandbox, path, changed_under, id) = (&sandbox, &path, &changed, &id);
            let open = |range: Range<u64>| async move {
                let range = FileRange { first: range.start, last: Some(range.end - 1), etag };
                sandbox.read_range(path, &range).await.map(|read| read.body).map_err(|error| {
                    changed_under.store(matches!(error, FileError::Changed), Ordering::Relaxed);
                    unread(error, id)
                })
            };
            let answer = content::answer(method, headers, &content, open).await;
            if !changed.into_inner() {
                return answer;
            }
        }
        Err(unread(FileError::Changed, &id))
    }

    async fn content_tag(&self, sandbox: &Sandbox, path: &[u8], stat: &FileStat) -> Result<String, FileError> {
        let known = self.app.tags.get(self.spec.name.as_str(), &stat.etag);
        match known {
            Some(md5) => Ok(format!("\"{md5}\"")),
            None if stat.size <= TAGGED_BY_MD5 => Ok(format!("\"{}\"", self.md5(sandbox, path, stat).await?)),
            None => Ok(stat.etag.clone()),
        }
    }

    /// Writes a file under the conditions of a request; `None` when they do not hold.
    pub async fn write(
        &self,
        place: &Place,
        headers: &HeaderMap,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<Option<SessionFile>, Failure> {
        let sandbox = self.made().await?;
        let Some(condition) = self.condition(&sandbox, place, headers).await? else { return Ok(None) };
        let hash = Arc::new(Mutex::new(Md5::new()));
        let hashing = Arc::clone(&hash);
        let body = body.inspect_ok(move |piece| hashing.lock().unwrap_or_else(PoisonError::into_inner).update(piece));
        let stat = match sandbox.write_file_if(&place.path(), &condition, body).await {
            Ok(stat) => stat,
            Err(FileError::Changed) => return Ok(None),
            Err(error) => return Err(unwritten(error)),
        };
        let md5 = hex(&hash.lock().unwrap_or_else(PoisonError::into_inner).finalize_reset());
        self.app.tags.put(self.spec.name.as_str(), &stat.etag, &md5);
        tracing::info!(sandbox.name = self.spec.name.as_str(), file.size_bytes = stat.size, "file written");
        Ok(Some(self.describe(place, stat.size, stat.modified_ms, Some(md5))))
    }

    async fn condition(
        &self,
        sandbox: &Sandbox,
        place: &Place,
        headers: &HeaderMap,
    ) -> Result<Option<WriteIf>, Failure> {
        if !headers.contains_key(header::IF_MATCH) && !headers.contains_key(header::IF_NONE_MATCH) {
            return Ok(Some(WriteIf::Always));
        }
        let current = match self.look(sandbox, place).await {
            Ok(found) => Some(found),
            Err(FileError::NotFound) => None,
            Err(error) => return Err(unwritten(error)),
        };
        let tags = current.map(|found| [found.stat.etag, format!("\"{}\"", found.md5)]);
        Ok(write_if(headers, tags.as_ref()))
    }

    /// A file as clients see it.
    pub fn describe(&self, place: &Place, size: u64, modified_ms: u64, md5: Option<String>) -> SessionFile {
        let modified = i64::try_from(modified_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        SessionFile {
            id: place.id(),
            // Code in the container may have set any time.
            created_at: modified.unwrap_or(Timestamp::UNIX_EPOCH),
            filename: place.filename(),
            mime_type: place.mime_type(),
            size_bytes: size,
            kind: FileType::File,
            downloadable: place.folder != super::key::Folder::Uploads,
            etag: md5,
            namespace: FileScopeType::Session,
            scope: FileScope { id: self.id.clone(), kind: FileScopeType::Session },
        }
    }
}

/// What a write has to hold to, when the request's conditions hold for the file that is there (its tags: the container's own, and
/// the MD5); `None` when they do not.
fn write_if(headers: &HeaderMap, current: Option<&[String; 2]>) -> Option<WriteIf> {
    let is_current = |tag: &str| current.is_some_and(|tags| tags.iter().any(|known| known == tag));
    let weak = |tag: &str| is_current(tag.strip_prefix("W/").unwrap_or(tag));
    if current.is_some() && names_tag(headers, &header::IF_NONE_MATCH, weak) {
        return None;
    }
    match current {
        Some([etag, _]) if names_tag(headers, &header::IF_MATCH, is_current) => {
            Some(WriteIf::Unchanged { etag: etag.clone() })
        }
        _ if headers.contains_key(header::IF_MATCH) => None,
        None if names_tag(headers, &header::IF_NONE_MATCH, |_| false) => Some(WriteIf::Absent),
        Some(_) | None => Some(WriteIf::Always),
    }
}

fn with_charset(mime_type: String) -> String {
    if mime_type.starts_with("text/") { format!("{mime_type}; charset=utf-8") } else { mime_type }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// 404 for a file, or for what cannot be one.
pub fn not_found(id: &str) -> ApiError {
    ApiError::new(ErrorType::NotFound, format!("File '{id}' not found."))
}

/// Why a file was not read, listed or removed.
pub fn unread(error: FileError, id: &str) -> Failure {
    match error {
        // A link, a folder, a device: no file of ours.
        FileError::NotFound
        | FileError::Forbidden(_)
        | FileError::NoSandbox(AcquireError::NotFound | AcquireError::Expired) => not_found(id).into(),
        FileError::Changed => {
            ApiError::new(ErrorType::Conflict, "The file changes while it is read; try again.").into()
        }
        FileError::NoSandbox(error) => unavailable(&error).into(),
        error @ (FileError::NoSpace | FileError::TooLarge | FileError::Unavailable(_) | FileError::Source(_)) => {
            unreachable_files(&error)
        }
    }
}

fn unwritten(error: FileError) -> Failure {
    match error {
        FileError::NotFound | FileError::Forbidden(_) => {
            let text = "path cannot be written: a folder or a link stands there, or a part of it is a file.";
            ApiError::invalid(text).into()
        }
        FileError::NoSpace => ApiError::invalid("The container's disk is full; delete files or use another container.")
            .with_code("storage_quota_exceeded")
            .into(),
        FileError::TooLarge => too_large(MAX_FILE).into(),
        FileError::NoSandbox(error) => unavailable(&error).into(),
        FileError::Source(error) => body::failure(body::io_kind(&error), MAX_FILE),
        error @ (FileError::Changed | FileError::Unavailable(_)) => unreachable_files(&error),
    }
}

fn unreachable_files(error: &FileError) -> Failure {
    tracing::warn!(%error, "a container's files could not be used");
    ApiError::new(ErrorType::Overloaded, "The container's files cannot be reached at the moment; try again.").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_write_is_held_to_the_conditions_of_its_request() {
        type Row = (&'static [(&'static str, &'static str)], bool, Option<WriteIf>);
        let headers = |pairs: &[(&'static str, &'static str)]| -> HeaderMap {
            pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
        };
        let tags = ["\"own\"".to_owned(), "\"md5\"".to_owned()];
        let unchanged = || Some(WriteIf::Unchanged { etag: "\"own\"".to_owned() });
        let rows: [Row; 14] = [
            (&[], true, Some(WriteIf::Always)),
            (&[("if-match", "\"md5\"")], true, unchanged()),
            (&[("if-match", "\"x\", \"own\"")], true, unchanged()),
            (&[("if-match", "*")], true, unchanged()),
            (&[("if-match", "*")], false, None),
            (&[("if-match", "\"x\"")], true, None),
            (&[("if-match", "W/\"md5\"")], true, None),
            (&[("if-match", "\"md5\"")], false, None),
            (&[("if-none-match", "*")], true, None),
            (&[("if-none-match", "*")], false, Some(WriteIf::Absent)),
            (&[("if-none-match", "\"x\"")], true, Some(WriteIf::Always)),
            (&[("if-none-match", "\"md5\"")], true, None),
            (&[("if-none-match", "W/\"own\"")], true, None),
            (&[("if-none-match", "\"md5\""), ("if-match", "\"md5\"")], true, None),
        ];
        for (pairs, there, expected) in rows {
            assert_eq!(write_if(&headers(pairs), there.then_some(&tags)), expected, "{pairs:?} {there}");
        }
    }
}
