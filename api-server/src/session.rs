//! The Files API of the Zylon surface: files in containers. Reading wakes a container and never makes one; writing makes it.

mod file;
mod key;
mod listing;
mod tags;
pub mod threads;

use crate::{
    App,
    auth::Identity,
    body,
    content::{self, precondition_failed},
    failure::Failure,
    files::{self, MAX_FILE, as_io, malformed, short_text},
    request::Id,
};
use axum::{
    Extension, Json,
    extract::{Multipart, Query, Request, State, multipart::MultipartError},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{future, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use key::{Folder, IdError, Place};
use listing::{From, ListError, Listed, Page};
use sandbox_runtime::FileError;
use std::{io, sync::Arc};
use tokio::sync::{mpsc, oneshot};
use wire::{
    ApiError, DeletedFile, DeletedPrefix, SessionFile, SessionFileList,
    file::{DeletedFileType, DeletedPrefixType},
};

pub use file::Session;
pub use tags::Tags;

const USUAL_LIMIT: usize = 20;
const MOST: usize = 1000;
/// Longest key in a form, in bytes.
const LONGEST_KEY: usize = 8192;
/// Name of an upload that has none.
const UNNAMED: &str = "upload";
/// Pieces of an upload between its reader and its writer.
const PIECES_AHEAD: usize = 4;
/// Deletions of many files are asked for in so many steps at most; each takes thousands.
const MOST_STEPS: usize = 1000;

type Pairs = Query<Vec<(String, String)>>;

fn value<'a>(query: &'a [(String, String)], key: &str) -> Option<&'a str> {
    query.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

async fn session(app: &Arc<App>, identity: &Identity, query: &[(String, String)]) -> Result<Session, Failure> {
    Session::named(app, identity, "scope_id", value(query, "scope_id")).await
}

/// The file that an id names. What cannot be one of the container's files does not exist.
fn place(id: &str) -> Result<Place, ApiError> {
    Place::of_id(id).map_err(|error| match error {
        IdError::Encoding => ApiError::invalid("Invalid file ID encoding."),
        IdError::Malformed => ApiError::invalid("Invalid file ID."),
        IdError::Elsewhere => file::not_found(id),
    })
}

/// `POST /files`: a form with a part `file`; `path` in the query, or in a part before the file, is its key.
pub async fn upload(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Query(query): Pairs,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Failure> {
    let session = session(&app, &identity, &query).await?;
    receive_form(&app, &identity, &session, value(&query, "path"), &headers, request).await
}

async fn receive_form(
    app: &App,
    identity: &Identity,
    session: &Session,
    path: Option<&str>,
    headers: &HeaderMap,
    request: Request,
) -> Result<Response, Failure> {
    let _slot = app.uploads.begin(&identity.workspace)?;
    let parts = files::multipart(request).await?;
    let (found, place) = oneshot::channel();
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    let reading = read_form(parts, path.map(|path| path.trim().to_owned()), found, sender);
    let writing = async { Some(session.write(&place.await.ok()?, headers, received(receiver)).await) };
    let (read, written) = future::join(reading, writing).await;
    // What is wrong with the form is why the write failed.
    read?;
    let written = written.ok_or_else(|| ApiError::invalid("file: Field required"))?;
    Ok(answer(written?))
}

fn received(
    receiver: mpsc::Receiver<io::Result<Bytes>>,
) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|piece| (piece, receiver)) })
}

/// Reads a form to its end: where its file goes, then the file. The writer hears the end of the file only when the rest of the form
/// has been read, so that nothing is written of a form that is refused.
async fn read_form(
    mut parts: Multipart,
    mut key: Option<String>,
    found: oneshot::Sender<Place>,
    sender: mpsc::Sender<io::Result<Bytes>>,
) -> Result<(), Failure> {
    let mut found = Some(found);
    let form = async {
        while let Some(mut field) = parts.next_field().await.map_err(Unread::of)? {
            match (field.name(), found.is_some()) {
                (Some("file"), true) => {
                    let named = || field.file_name().filter(|name| !name.is_empty()).unwrap_or(UNNAMED).to_owned();
                    let place = Place::of_key(&key.take().unwrap_or_else(named)).map_err(Unread::wrong)?;
                    // A writer that has given up says itself why.
                    let Some(Ok(())) = found.take().map(|found| found.send(place)) else { return Ok(()) };
                    while let Some(piece) = field.chunk().await.map_err(Unread::of)? {
                        if sender.send(Ok(piece)).await.is_err() {
                            return Ok(());
                        }
                    }
                }
                (Some("path"), true) if key.is_none() => {
                    key = Some(short_text(field, LONGEST_KEY).await.map_err(Unread::other)?.trim().to_owned());
                }
                (Some("file"), false) => return Err(Unread::wrong("file: only one file can be uploaded at a time")),
                (Some("path"), false) => return Err(Unread::wrong("path: must come before the file")),
                (Some(_) | None, _) => {}
            }
        }
        Ok(())
    };
    let read = form.await;
    if let Err(Unread { failure, cause }) = read {
        // The writer commits nothing then; whether it still listens does not matter.
        let _ = sender.send(Err(cause)).await;
        return Err(failure);
    }
    Ok(())
}

/// Why a form was not read to its end: for the client, and for the writer.
struct Unread {
    failure: Failure,
    cause: io::Error,
}

impl Unread {
    fn of(error: MultipartError) -> Self {
        Self { failure: malformed(&error), cause: as_io(error) }
    }

    fn wrong(reason: &str) -> Self {
        Self::other(ApiError::invalid(reason).into())
    }

    fn other(failure: Failure) -> Self {
        Self { failure, cause: io::ErrorKind::InvalidData.into() }
    }
}

/// `PUT /files/{key}`: the body is the content, whatever its type says.
pub async fn put(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Id(key): Id,
    Query(query): Pairs,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Failure> {
    let session = session(&app, &identity, &query).await?;
    receive_bytes(&app, &identity, &session, &key, &headers, request).await
}

async fn receive_bytes(
    app: &App,
    identity: &Identity,
    session: &Session,
    key: &str,
    headers: &HeaderMap,
    request: Request,
) -> Result<Response, Failure> {
    let _slot = app.uploads.begin(&identity.workspace)?;
    let place = Place::of_key(key).map_err(ApiError::invalid)?;
    let request = body::check_head(request, MAX_FILE)?;
    let body = body::incoming(request.into_body(), MAX_FILE);
    Ok(answer(session.write(&place, headers, body).await?))
}

fn answer(written: Option<SessionFile>) -> Response {
    let Some(file) = written else { return precondition_failed() };
    let etag = file.etag.as_deref().and_then(|md5| HeaderValue::from_str(&format!("\"{md5}\"")).ok());
    let mut response = Json(file).into_response();
    if let Some(etag) = etag {
        response.headers_mut().insert(header::ETAG, etag);
    }
    response
}

/// `GET /files`: uploads and outputs, oldest first.
pub async fn list(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Query(query): Pairs,
) -> Result<Json<SessionFileList>, Failure> {
    let session = session(&app, &identity, &query).await?;
    let limit = value(&query, "limit").map_or(Ok(USUAL_LIMIT), limit)?;
    let selection = key::selection(value(&query, "prefix")).map_err(prefixed)?;
    let cursors = [("after_id", From::After as fn(Listed) -> From), ("before_id", From::Before)];
    let mut given = cursors.into_iter().filter_map(|(name, from)| value(&query, name).map(|id| (name, id, from)));
    let cursor = given.next();
    if given.next().is_some() {
        return Err(ApiError::invalid("before_id: cannot be combined with `after_id`").into());
    }
    let sandbox = session.existing().await?;
    let from = match (cursor, &sandbox) {
        (None, _) => From::Start,
        (Some((name, id, _)), None) => return Err(no_cursor(name, id).into()),
        (Some((name, id, from)), Some(sandbox)) => {
            let place = Place::of_id(id).map_err(|_| no_cursor(name, id))?;
            match sandbox.stat_file(&place.path()).await {
                Ok(stat) => from(Listed::new(place, &stat)),
                Err(FileError::NotFound | FileError::Forbidden(_)) => return Err(no_cursor(name, id).into()),
                Err(error) => return Err(file::unread(error, id)),
            }
        }
    };
    let mut page = Page::new(from, limit);
    if let Some(sandbox) = sandbox {
        listing::fill(&sandbox, &selection, &mut page).await.map_err(|error| match error {
            ListError::TooMany => {
                ApiError::invalid("The container holds too many files for one list; narrow it with `prefix`.").into()
            }
            ListError::Files(error) => file::unread(error, ""),
        })?;
    }
    let (files, has_more) = page.finish();
    let data: Vec<_> =
        files.iter().map(|file| session.describe(&file.place, file.size, file.modified_ms, None)).collect();
    let id = |file: &SessionFile| file.id.clone();
    Ok(Json(SessionFileList { first_id: data.first().map(id), last_id: data.last().map(id), data, has_more }))
}

fn limit(text: &str) -> Result<usize, ApiError> {
    let limit = text.parse().ok().filter(|limit| (1..=MOST).contains(limit));
    limit.ok_or_else(|| ApiError::invalid(format!("limit: Input should be a whole number from 1 to {MOST}")))
}

fn no_cursor(parameter: &str, id: &str) -> ApiError {
    let id: String = id.chars().take(200).collect();
    ApiError::invalid(format!("{parameter}: there is no file '{id}'"))
}

/// The sentences of [`key`] speak of a path.
fn prefixed(reason: &'static str) -> ApiError {
    ApiError::invalid(reason.strip_prefix("path ").map_or_else(|| reason.to_owned(), |rest| format!("prefix {rest}")))
}

/// `DELETE /files?prefix=`: all uploads whose keys begin so, or outputs when the prefix names them.
pub async fn delete_prefix(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Query(query): Pairs,
) -> Result<Json<DeletedPrefix>, Failure> {
    let session = session(&app, &identity, &query).await?;
    let prefix = value(&query, "prefix").ok_or_else(|| ApiError::invalid("prefix: Field required"))?;
    let (folder, beginning) = key::deletion(prefix).map_err(prefixed)?;
    let mut deleted_count = 0;
    if let Some(sandbox) = session.existing().await? {
        for _ in 0..MOST_STEPS {
            let step = sandbox.delete_files(folder.path(), &beginning).await;
            let step = step.map_err(|error| file::unread(error, prefix))?;
            deleted_count += step.count;
            if !step.more {
                break;
            }
        }
    }
    tracing::info!(deleted_count, "files deleted by prefix");
    Ok(Json(DeletedPrefix { prefix: prefix.to_owned(), deleted_count, kind: DeletedPrefixType::PrefixDeleted }))
}

/// `GET` and `HEAD /files/{id}` and `/files/{id}/content`.
pub async fn get(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Id(path): Id,
    Query(query): Pairs,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let session = session(&app, &identity, &query).await?;
    if let Some(id) = path.strip_suffix("/content") {
        return session.content(&place(id)?, &method, &headers, content::wants_inline(&query)).await;
    }
    let place = place(&path)?;
    let sandbox = session.existing().await?.ok_or_else(|| file::not_found(&path))?;
    let found = session.look(&sandbox, &place).await.map_err(|error| file::unread(error, &path))?;
    let file = session.describe(&found.place, found.stat.size, found.stat.modified_ms, Some(found.md5));
    if method == Method::HEAD { Ok(in_headers(&file)) } else { Ok(answer(Some(file))) }
}

/// The metadata as headers, without a body.
fn in_headers(file: &SessionFile) -> Response {
    let etag = file.etag.clone().unwrap_or_default();
    let created_at = file.created_at.to_string();
    let mut response = answer(Some(file.clone()));
    *response.body_mut() = axum::body::Body::empty();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    for (name, value) in [
        ("x-file-id", file.id.clone()),
        ("x-file-filename", content::encoded(file.filename.as_bytes(), b" !#$&'()+,-.;=@[]^_`{}~")),
        ("x-file-mime-type", file.mime_type.clone()),
        ("x-file-size", file.size_bytes.to_string()),
        ("x-file-namespace", "session".to_owned()),
        (
            "x-file-created-at",
            created_at.strip_suffix('Z').map_or_else(|| created_at.clone(), |time| format!("{time}+00:00")),
        ),
        ("x-file-etag", etag),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// `DELETE /files/{id}`.
pub async fn delete(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    Id(id): Id,
    Query(query): Pairs,
) -> Result<Json<DeletedFile>, Failure> {
    let session = session(&app, &identity, &query).await?;
    let place = place(&id)?;
    let sandbox = session.existing().await?.ok_or_else(|| file::not_found(&id))?;
    sandbox.delete_file(&place.path()).await.map_err(|error| file::unread(error, &id))?;
    Ok(Json(DeletedFile { id, kind: DeletedFileType::FileDeleted }))
}
