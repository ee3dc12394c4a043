//! The stored files that a request names: those for the container, and those that image and document blocks show.

use crate::{
    App,
    auth::Identity,
    commands::upload_path,
    entropy,
    failure::{Failure, too_large},
    files,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use file_store::{FileMeta, StoreError};
use futures_util::TryStreamExt as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use wire::{ApiError, ContainerUpload, ErrorType, FileSource, Medium, MessagesRequest};

/// Bytes that the files shown by one request may have together: in base64 as many as a body may have.
const MOST_SHOWN: u64 = 24_000_000;
/// Types that models see.
const IMAGES: &[&str] = &["image/gif", "image/jpeg", "image/png", "image/webp"];

/// A file for the input folder.
#[derive(Clone, Debug)]
pub struct Upload {
    /// Its metadata.
    pub meta: FileMeta,
    /// Whether it belongs to an earlier turn, which put it there.
    pub is_answered: bool,
}

/// The files of the `container_upload` blocks, each once, the last of a name last. One of an earlier turn that was deleted since is
/// left out: its copy in the container stays.
pub async fn uploads(app: &App, identity: &Identity, request: &MessagesRequest) -> Result<Vec<Upload>, Failure> {
    let mut uploads = Vec::new();
    for ContainerUpload { file_id, is_answered } in request.container_uploads() {
        match files::stat(app, identity, &file_id).await {
            Ok(meta) => uploads.push(Upload { meta, is_answered }),
            Err(failure) if is_answered && failure.0.kind == ErrorType::NotFound => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(uploads)
}

/// Where code finds the files, by their ids.
pub fn paths(uploads: &[Upload]) -> BTreeMap<String, String> {
    uploads.iter().map(|Upload { meta, .. }| (meta.id.to_string(), upload_path(&meta.filename))).collect()
}

/// Puts the files that blocks show into the request: models' servers know nothing of them.
pub async fn show(app: &App, identity: &Identity, request: &mut MessagesRequest) -> Result<(), Failure> {
    let workspace = identity.files();
    let mut left = MOST_SHOWN;
    for FileSource { path, medium, source } in request.file_sources_mut() {
        let id = source["file_id"].as_str().unwrap_or_default().to_owned();
        if id.is_empty() {
            return Err(ApiError::invalid(format!("{path}.source.file_id: Field required")).into());
        }
        let failed = |error: StoreError| Failure::of_store(&error, &id);
        let meta = files::stat(app, identity, &id).await?;
        if meta.is_expired(entropy::now()) {
            return Err(failed(StoreError::Expired));
        }
        let form = form(&path, medium, &meta.mime_type)?;
        left = left.checked_sub(meta.size_bytes).ok_or_else(|| too_large(MOST_SHOWN))?;
        let body = app.files.read(&workspace, &meta, 0..meta.size_bytes).await.map_err(failed)?;
        let unread = |source| failed(StoreError::Unavailable { doing: "reading a file", source });
        let content: Vec<_> = body.try_collect().await.map_err(unread)?;
        *source = shown(&path, form, content.concat())?;
    }
    Ok(())
}

/// How a model is shown a file.
#[derive(Debug, PartialEq)]
enum Form {
    Base64(String),
    Text,
}

fn form(path: &str, medium: Medium, mime_type: &str) -> Result<Form, ApiError> {
    let essence = mime_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match medium {
        Medium::Image if IMAGES.contains(&essence.as_str()) => Ok(Form::Base64(essence)),
        Medium::Document if essence == "application/pdf" => Ok(Form::Base64(essence)),
        Medium::Document if essence == "text/plain" => Ok(Form::Text),
        Medium::Image | Medium::Document => {
            let (kind, fit) = match medium {
                Medium::Image => ("image", "GIF, JPEG, PNG and WebP"),
                Medium::Document => ("document", "PDF and plain text"),
            };
            Err(ApiError::invalid(format!(
                "{path}: a file of the type `{mime_type}` cannot be in a block of the type `{kind}`, which takes {fit}; files of any type \
                 can be used by code, with `container_upload`"
            )))
        }
    }
}

fn shown(path: &str, form: Form, content: Vec<u8>) -> Result<Value, ApiError> {
    match form {
        Form::Base64(kind) => {
            Ok(json!({ "type": "base64", "media_type": kind, "data": BASE64_STANDARD.encode(content) }))
        }
        Form::Text => {
            let text = String::from_utf8(content)
                .map_err(|_| ApiError::invalid(format!("{path}: the file is no text in UTF-8")))?;
            Ok(json!({ "type": "text", "media_type": "text/plain", "data": text }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_shown_as_its_type_allows() {
        let base64 = |kind: &str| Some(Form::Base64(kind.to_owned()));
        for (medium, mime_type, expected) in [
            (Medium::Image, "image/png", base64("image/png")),
            (Medium::Image, "Image/JPEG; q=1", base64("image/jpeg")),
            (Medium::Image, "image/svg+xml", None),
            (Medium::Image, "application/pdf", None),
            (Medium::Document, "application/pdf", base64("application/pdf")),
            (Medium::Document, "text/plain; charset=utf-8", Some(Form::Text)),
            (Medium::Document, "text/csv", None),
            (Medium::Document, "image/png", None),
        ] {
            assert_eq!(form("messages.0.content.0", medium, mime_type).ok(), expected, "{medium:?} {mime_type}");
        }
        let refusal = form("messages.0.content.0", Medium::Image, "text/csv").unwrap_err().message;
        assert!(refusal.starts_with("messages.0.content.0: ") && refusal.contains("container_upload"), "{refusal}");
    }

    #[test]
    fn text_must_be_text() {
        assert_eq!(shown("p", Form::Text, b"abc".to_vec()).unwrap()["data"], "abc");
        assert!(shown("p", Form::Text, vec![0xff]).unwrap_err().message.starts_with("p: "));
        assert_eq!(shown("p", Form::Base64("image/png".to_owned()), vec![120]).unwrap()["data"], "eA==");
    }
}
