//! The Files API of the Anthropic surface.

use crate::{
    App,
    auth::Identity,
    body, entropy,
    failure::{Failure, too_large},
    request::Version,
};
use axum::{
    Extension, Json,
    body::Body,
    extract::{FromRequest, Multipart, Path, Request, State, multipart::Field},
    response::{IntoResponse, Response},
};
use file_store::{FileId, FileMeta, FileName, NewFile, Origin, Staged, Workspace};
use futures_util::TryStreamExt;
use http::{HeaderValue, header};
use jiff::{SignedDuration, Timestamp};
use std::{fmt::Write as _, io, sync::Arc};
use wire::{ApiError, FileMetadata};

/// Largest file, in bytes.
pub const MAX_FILE: u64 = 500_000_000;
/// Room for the other parts and the boundaries of an upload, in bytes.
pub const UPLOAD_OVERHEAD: u64 = 1_000_000;
const LONGEST_FIELD: usize = 64;
/// Bounds of `expires_in_seconds`.
const EXPIRY: std::ops::RangeInclusive<i64> = 3600..=7_776_000;
const UNNAMED_TYPE: &str = "application/octet-stream";

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
    let request = body::check_length(request, MAX_FILE + UPLOAD_OVERHEAD)?;
    let mut parts = Multipart::from_request(request, &())
        .await
        .map_err(|_| ApiError::invalid("The body must be multipart/form-data with a part named `file`."))?;
    let workspace = Workspace::named(&identity.workspace);
    let now = entropy::now();
    let id = FileId::new(entropy::now_millis(), entropy::random());
    let (mut upload, mut expires_at) = (None, None);
    while let Some(field) = parts.next_field().await.map_err(|error| malformed(&error))? {
        match field.name() {
            Some("file") if upload.is_none() => upload = Some(stage(&app, &workspace, id, field).await?),
            Some("file") => return Err(ApiError::invalid("file: only one file can be uploaded at a time").into()),
            Some("expires_in_seconds") => expires_at = Some(expiry(now, &short_text(field).await?)?),
            Some(_) | None => return Err(unknown_part(field.name().unwrap_or_default()).into()),
        }
    }
    let Upload { staged, filename, mime_type } = upload.ok_or_else(|| ApiError::invalid("file: Field required"))?;
    let file =
        NewFile { filename, mime_type, created_at: now, expires_at, downloadable: false, origin: Origin::Upload };
    let meta = staged.commit(file).await.map_err(|error| Failure::of_store(&error, &id.to_string()))?;
    tracing::info!(file.id = %meta.id, file.size_bytes = meta.size_bytes, "file stored");
    Ok(Json(metadata(meta)))
}

async fn stage(app: &App, workspace: &Workspace, id: FileId, field: Field<'_>) -> Result<Upload, Failure> {
    let mime_type = mime_type(field.content_type());
    let filename = FileName::parse(field.file_name(), &mime_type)
        .map_err(|reason| ApiError::invalid(format!("file: filename {reason}")))?;
    let body = Box::pin(field.map_err(io::Error::other));
    let staged = app.files.stage(workspace, id, body, MAX_FILE).await;
    let staged = staged.map_err(|error| Failure::of_store(&error, &id.to_string()))?;
    Ok(Upload { staged, filename, mime_type })
}

/// The part's content type, when it is one that can be sent back in a header.
fn mime_type(given: Option<&str>) -> String {
    let usable = given.filter(|kind| kind.len() <= 255 && kind.contains('/') && HeaderValue::from_str(kind).is_ok());
    usable.unwrap_or(UNNAMED_TYPE).to_owned()
}

fn malformed(error: &axum::extract::multipart::MultipartError) -> Failure {
    if error.status() == http::StatusCode::PAYLOAD_TOO_LARGE {
        return too_large(MAX_FILE).into();
    }
    ApiError::invalid("The multipart body is malformed or ended early.").into()
}

fn unknown_part(name: &str) -> ApiError {
    let name: String = name.chars().take(LONGEST_FIELD).collect();
    ApiError::invalid(format!("{name}: Extra inputs are not permitted"))
}

async fn short_text(mut field: Field<'_>) -> Result<String, Failure> {
    let mut text = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(|error| malformed(&error))? {
        text.extend_from_slice(&piece);
        if text.len() > LONGEST_FIELD {
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

/// `GET /v1/files/{id}`.
pub async fn retrieve_metadata(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Version(_): Version,
    Path(id): Path<String>,
) -> Result<Json<FileMetadata>, Failure> {
    Ok(Json(metadata(stat(&app, &identity, &id).await?)))
}

/// The file that the client calls `id`; a malformed id is one that does not exist.
pub async fn stat(app: &App, identity: &Identity, id: &str) -> Result<FileMeta, Failure> {
    let file = id.parse::<FileId>().map_err(|_| ApiError::file_not_found(id))?;
    let found = app.files.stat(&Workspace::named(&identity.workspace), file).await;
    found.map_err(|error| Failure::of_store(&error, id))
}

/// `GET /v1/files/{id}/content`. Only what a tool made can be downloaded.
pub async fn download(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Version(_): Version,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let meta = stat(&app, &identity, &id).await?;
    if !meta.downloadable {
        let message = format!(
            "File `{id}` is not downloadable. Only files generated by a tool (for example, the code execution tool) can be downloaded."
        );
        return Err(ApiError::invalid(message).with_code("file_not_downloadable").into());
    }
    let opened = app.files.open(&Workspace::named(&identity.workspace), meta.id, entropy::now()).await;
    let opened = opened.map_err(|error| Failure::of_store(&error, &id))?;
    let content_type = HeaderValue::from_str(&meta.mime_type);
    let disposition = HeaderValue::from_str(&attachment(meta.filename.as_str()));
    let mut response = Body::from_stream(opened.body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type.unwrap_or(HeaderValue::from_static(UNNAMED_TYPE)));
    headers.insert(header::CONTENT_LENGTH, meta.size_bytes.into());
    headers.insert(header::CONTENT_DISPOSITION, disposition.unwrap_or(HeaderValue::from_static("attachment")));
    // Whatever a sandbox made must stay inert in a browser.
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox; default-src 'none'"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "private, no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// `Content-Disposition` of RFC 6266: a plain name for old clients, the true one in UTF-8.
fn attachment(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '%') || c == ' ' { c } else { '_' })
        .collect();
    let mut encoded = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}

fn metadata(meta: FileMeta) -> FileMetadata {
    FileMetadata {
        id: meta.id.to_string(),
        kind: wire::file::FileType::File,
        filename: meta.filename.as_str().to_owned(),
        mime_type: meta.mime_type,
        size_bytes: meta.size_bytes,
        created_at: meta.created_at,
        downloadable: meta.downloadable,
        expires_at: meta.expires_at,
        scope: None,
        etag: None,
        namespace: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(attachment(name), expected);
            assert!(HeaderValue::from_str(&attachment(name)).is_ok());
        }
    }

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
}
