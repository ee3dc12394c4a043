//! Files of a chat thread, which is a container. An organisation can switch downloads off, by where files come from.

use super::{Folder, Pairs, Place, Session, file, receive_bytes, receive_form, value};
use crate::{App, auth::Identity, content, failure::Failure, request::Id};
use axum::{
    Extension,
    extract::{Query, RawPathParams, Request, State},
    response::Response,
};
use http::{HeaderMap, Method};
use std::sync::Arc;
use wire::{ApiError, ErrorType};

/// Which files of threads may be downloaded.
#[derive(Clone, Copy, Debug)]
pub struct Downloads {
    /// What was uploaded.
    pub uploaded: bool,
    /// What code may have made.
    pub generated: bool,
}

impl Downloads {
    fn check(self, folder: Folder) -> Result<(), ApiError> {
        let (allowed, what) = match folder {
            Folder::Uploads => (self.uploaded, "uploaded"),
            Folder::Outputs | Folder::Workspace => (self.generated, "generated"),
        };
        if allowed {
            return Ok(());
        }
        let text = format!("Downloads of {what} files are switched off in your organisation.");
        Err(ApiError::new(ErrorType::Permission, text))
    }
}

async fn session(app: &Arc<App>, identity: &Identity, path: &RawPathParams) -> Result<Session, Failure> {
    Session::named(app, identity, "thread", path.iter().next().map(|(_, thread)| thread)).await
}

/// `POST /thread/{id}/upload-file`: a form with a part `file`; `path`, in a part before it or in the query, is its key.
pub async fn upload(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    path: RawPathParams,
    Query(query): Pairs,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Failure> {
    let session = session(&app, &identity, &path).await?;
    receive_form(&app, &identity, &session, value(&query, "path"), &headers, request).await
}

/// `PUT /thread/{id}/put-file/{key}`.
pub async fn put(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    path: RawPathParams,
    Id(key): Id,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Failure> {
    let session = session(&app, &identity, &path).await?;
    receive_bytes(&app, &identity, &session, &key, &headers, request).await
}

/// `GET /thread/{id}/download-file?path=`: the path is that in the sandbox.
pub async fn download(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    path: RawPathParams,
    Query(query): Pairs,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let session = session(&app, &identity, &path).await?;
    let path = value(&query, "path").ok_or_else(|| ApiError::invalid("path: Field required"))?;
    let place = Place::of_path(path.as_bytes()).ok_or_else(|| file::not_found(path))?;
    app.downloads.check(place.folder)?;
    session.content(&place, &method, &headers, content::wants_inline(&query)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_switch_closes_what_it_names() {
        let open = |uploaded, generated| {
            [Folder::Uploads, Folder::Outputs, Folder::Workspace]
                .map(|folder| Downloads { uploaded, generated }.check(folder).is_ok())
        };
        assert_eq!(open(true, true), [true, true, true]);
        assert_eq!(open(false, true), [false, true, true]);
        assert_eq!(open(true, false), [true, false, false]);
    }
}
