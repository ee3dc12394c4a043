//! The Files API of the Anthropic surface.

mod listing;

use crate::{
    App,
    auth::Identity,
    body,
    content::{self, Content, UNNAMED_TYPE},
    entropy,
    failure::Failure,
    request::{Id, Version},
};
use axum::{
    Extension, Json,
    body::Body,
    extract::{FromRequest, Multipart, Query, Request, State, multipart::Field},
    response::Response,
};
use file_store::{FileId, FileMeta, FileName, FileSummary, NewFile, Origin, Staged, StoreError, Workspace};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Method};
use jiff::{SignedDuration, Timestamp};
use listing::Asked;
use std::{io, sync::Arc};
use wire::{
    ApiError, DeletedFile, ErrorType, FileList, FileMetadata,
    file::{DeletedFileType, FileType},
};

/// Largest file, in bytes.
pub const MAX_FILE: u64 = 500_000_000;
/// Room for the other parts and the boundaries of an upload, in bytes.
pub const UPLOAD_OVERHEAD: u64 = 1_000_000;
const LONGEST_FIELD: usize = 64;
/// Bounds of `expires_in_seconds`.
const EXPIRY: std::ops::RangeInclusive<i64> = 3600..=7_776_000;
/// Files looked up at a time, of a list of ids.
const LOOKED_UP_AT_ONCE: usize = 8;

struct Upload {
    staged: Box<dyn Staged>,
    filename: FileName,
    mime_type: String,
}

/// `POST /v1/files`. The expiry may come before the file or after it.
pub async fn upload(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Version(_): Version,
    request: Request,
) -> Result<Json<FileMetadata>, Failure> {
    let _slot = app.uploads.begin(&identity.workspace)?;
    let mut parts = multipart(request).await?;
    let workspace = identity.files();
    let now = entropy::now();
    let id = FileId::new(entropy::now_millis(), entropy::random());
    let (mut upload, mut expires_at) = (None, None);
    while let Some(field) = parts.next_field().await.map_err(|error| malformed(&error))? {
        match field.name() {
            Some("file") if upload.is_none() => upload = Some(stage(&app, &workspace, id, field).await?),
            Some("file") => return Err(ApiError::invalid("file: only one file can be uploaded at a time").into()),
            Some("expires_in_seconds") => expires_at = Some(expiry(now, &short_text(field, LONGEST_FIELD).await?)?),
            Some(_) | None => return Err(unknown_part(field.name().unwrap_or_default()).into()),
        }
    }
    let Upload { staged, filename, mime_type } = upload.ok_or_else(|| ApiError::invalid("file: Field required"))?;
    let file =
        NewFile { filename, mime_type, created_at: now, expires_at, downloadable: false, origin: Origin::Upload };
    let meta = staged.commit(file).await.map_err(|error| Failure::of_store(&error, &id.to_string()))?;
    tracing::info!(file.id = %meta.id, file.size_bytes = meta.size_bytes, "file stored");
    Ok(Json(metadata(meta.into())))
}

/// The parts of an upload. What is too large is refused before it is read, or as soon as it shows.
pub async fn multipart(request: Request) -> Result<Multipart, Failure> {
    let limit = MAX_FILE + UPLOAD_OVERHEAD;
    let (head, body) = body::check_head(request, limit)?.into_parts();
    let request = Request::from_parts(head, Body::from_stream(body::incoming(body, limit)));
    Multipart::from_request(request, &())
        .await
        .map_err(|_| ApiError::invalid("The body must be multipart/form-data with a part named `file`.").into())
}

async fn stage(app: &App, workspace: &Workspace, id: FileId, field: Field<'_>) -> Result<Upload, Failure> {
    let mime_type = mime_type(field.content_type());
    let filename = FileName::parse(field.file_name(), &mime_type)
        .map_err(|reason| ApiError::invalid(format!("file: filename {reason}")))?;
    let body = Box::pin(field.map_err(as_io));
    let staged = app.files.stage(workspace, id, body, MAX_FILE).await;
    let staged = staged.map_err(|error| Failure::of_store(&error, &id.to_string()))?;
    Ok(Upload { staged, filename, mime_type })
}

/// An error of a part as one of input, of the kind that caused it.
pub fn as_io(error: axum::extract::multipart::MultipartError) -> io::Error {
    io::Error::new(body::io_kind(&error).unwrap_or(io::ErrorKind::Other), error)
}

/// The part's content type, when it is one that can be sent back in a header.
fn mime_type(given: Option<&str>) -> String {
    let usable = given.filter(|kind| kind.len() <= 255 && kind.contains('/') && HeaderValue::from_str(kind).is_ok());
    usable.unwrap_or(UNNAMED_TYPE).to_owned()
}

/// For a multipart body that cannot be read on.
pub fn malformed(error: &axum::extract::multipart::MultipartError) -> Failure {
    match body::io_kind(error) {
        Some(kind) => body::failure(Some(kind), MAX_FILE),
        None => ApiError::invalid("The multipart body is malformed or ended early.").into(),
    }
}

fn unknown_part(name: &str) -> ApiError {
    let name: String = name.chars().take(LONGEST_FIELD).collect();
    ApiError::invalid(format!("{name}: Extra inputs are not permitted"))
}

/// The text of a part; of one that is longer, a little more than `limit` bytes.
pub async fn short_text(mut field: Field<'_>, limit: usize) -> Result<String, Failure> {
    let mut text = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(|error| malformed(&error))? {
        text.extend_from_slice(piece.get(..limit + 1).unwrap_or(&piece));
        if text.len() > limit {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn expiry(now: Timestamp, seconds: &str) -> Result<Timestamp, ApiError> {
    let seconds = seconds.trim().parse::<i64>().ok().filter(|seconds| EXPIRY.contains(seconds));
    let seconds = seconds.ok_or_else(|| {
        ApiError::invalid(format!(
            "expires_in_seconds: Input should be a whole number from {} to {}",
            EXPIRY.start(),
            EXPIRY.end()
        ))
    })?;
    now.checked_add(SignedDuration::from_secs(seconds))
        .map_err(|_| ApiError::invalid("expires_in_seconds: too far away"))
}

/// `GET /v1/files`: a page, newest first, or the files of some ids.
pub async fn list(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Version(_): Version,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<FileList>, Failure> {
    let workspace = identity.files();
    let list = match listing::read(&query)? {
        Asked::Page(request) => {
            let page = app.files.list(&workspace, &request).await;
            listing::list(page.map_err(|error| Failure::of_store(&error, ""))?, request.before.is_some())
        }
        Asked::Ids(ids) => {
            let found = stream::iter(ids).map(|id| if_there(&app, &workspace, id)).buffered(LOOKED_UP_AT_ONCE);
            let files: Vec<_> = found.try_collect().await?;
            listing::list(file_store::Page { files: files.into_iter().flatten().collect(), has_more: false }, false)
        }
        Asked::Nothing => FileList::default(),
    };
    Ok(Json(list))
}

async fn if_there(app: &App, workspace: &Workspace, id: FileId) -> Result<Option<FileSummary>, Failure> {
    match app.files.stat(workspace, id).await {
        Ok(meta) => Ok(Some(meta.into())),
        Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(Failure::of_store(&error, &id.to_string())),
    }
}

/// `GET /v1/files/{id}`.
pub async fn retrieve_metadata(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Version(_): Version,
    Id(id): Id,
) -> Result<Json<FileMetadata>, Failure> {
    Ok(Json(metadata(stat(&app, &identity, &id).await?.into())))
}

/// `DELETE /v1/files/{id}`. Copies in containers stay.
pub async fn delete(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Version(_): Version,
    Id(id): Id,
) -> Result<Json<DeletedFile>, Failure> {
    let deleted = app.files.delete(&identity.files(), parse(&id)?).await;
    deleted.map_err(|error| Failure::of_store(&error, &id))?;
    tracing::info!(file.id = id, "file deleted");
    Ok(Json(DeletedFile { id, kind: DeletedFileType::FileDeleted }))
}

/// A malformed id is one that does not exist.
fn parse(id: &str) -> Result<FileId, ApiError> {
    id.parse().map_err(|_| ApiError::file_not_found(id))
}

/// The file that the client calls `id`.
pub async fn stat(app: &App, identity: &Identity, id: &str) -> Result<FileMeta, Failure> {
    let found = app.files.stat(&identity.files(), parse(id)?).await;
    found.map_err(|error| Failure::of_store(&error, id))
}

/// `GET` and `HEAD /v1/files/{id}/content`.
pub async fn download(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Version(_): Version,
    Id(id): Id,
    Query(query): Query<Vec<(String, String)>>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let meta = stat(&app, &identity, &id).await?;
    check_readable(&meta, entropy::now())?;
    let content = Content {
        etag: format!("\"{}\"", meta.sha256),
        size: meta.size_bytes,
        mime_type: meta.mime_type.clone(),
        name: meta.filename.as_str().to_owned(),
        inline: content::wants_inline(&query),
    };
    let open = |range| async {
        let body = app.files.read(&identity.files(), &meta, range).await;
        body.map_err(|error| Failure::of_store(&error, &id))
    };
    content::answer(&method, &headers, &content, open).await
}

/// Only what a tool made can be downloaded, and only in its time.
fn check_readable(meta: &FileMeta, now: Timestamp) -> Result<(), ApiError> {
    let id = meta.id;
    if meta.is_expired(now) {
        let message = format!("File `{id}` has expired.");
        return Err(ApiError::new(ErrorType::NotFound, message).with_code("file_expired"));
    }
    if !meta.downloadable {
        let message = format!(
            "File `{id}` is not downloadable. Only files generated by a tool (for example, the code execution tool) can be downloaded."
        );
        return Err(ApiError::invalid(message).with_code("file_not_downloadable"));
    }
    Ok(())
}

/// A stored file as clients see it.
fn metadata(file: FileSummary) -> FileMetadata {
    let FileSummary { id, filename, mime_type, size_bytes, created_at, expires_at, downloadable } = file;
    FileMetadata {
        id: id.to_string(),
        kind: FileType::File,
        filename: filename.into(),
        mime_type,
        size_bytes,
        created_at,
        downloadable,
        expires_at,
        scope: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_whole_number_of_seconds_within_its_bounds() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(expiry(now, "3600").unwrap().as_second(), 3600);
        for wrong in ["", "10", "3599", "7776001", "1e6", "-3600"] {
            assert!(expiry(now, wrong).unwrap_err().message.starts_with("expires_in_seconds: "), "{wrong}");
        }
    }

    #[test]
    fn a_content_type_that_is_none_is_replaced() {
        for (given, kept) in [
            (Some("text/csv"), "text/csv"),
            (None, UNNAMED_TYPE),
            (Some("nonsense"), UNNAMED_TYPE),
            (Some("a/b\r\nx: y"), UNNAMED_TYPE),
        ] {
            assert_eq!(mime_type(given), kept);
        }
    }

    #[test]
    fn content_is_for_what_tools_made_and_for_its_time() {
        let end = Timestamp::from_second(1000).unwrap();
        let meta = |downloadable, expires_at| FileMeta {
            id: FileId::new(1, [1; 10]),
            filename: FileName::component("a").unwrap(),
            mime_type: "text/plain".into(),
            size_bytes: 1,
            sha256: String::new(),
            created_at: Timestamp::UNIX_EPOCH,
            expires_at,
            downloadable,
            origin: Origin::Upload,
            owner: None,
        };
        let code = |meta: FileMeta, second| {
            check_readable(&meta, Timestamp::from_second(second).unwrap()).err().and_then(|error| error.error_code)
        };
        assert_eq!(code(meta(true, None), 5000), None);
        assert_eq!(code(meta(true, Some(end)), 999), None);
        assert_eq!(code(meta(false, Some(end)), 999), Some("file_not_downloadable"));
        for downloadable in [true, false] {
            assert_eq!(code(meta(downloadable, Some(end)), 1000), Some("file_expired"));
        }
    }
}
