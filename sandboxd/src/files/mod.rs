//! The calls of the `files` half. Code in `main` can change every file and folder at any time, so nothing is looked up twice.

pub(crate) mod claim;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod path;
mod read;
mod seal;
mod tree;
mod write;

use crate::{
    http::{self, Answer},
    names::{RunId, query_value},
};
use claim::{Claim, OpenFile, regular_file, unopened};
use hyper::{Method, Request, body::Incoming};
use path::Place;
use sandboxd_protocol::{ErrorBody, ErrorCode, MAX_TREE_PAGE, percent_decode};
use std::{
    io,
    path::Path,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
};
use write::Terms;

/// Threads for file operations. They are all started at the beginning: later a fork bomb in `main` may leave no room for one.
pub(crate) const THREADS: usize = 4;

/// A refusal.
fn refused(code: ErrorCode, message: impl Into<String>) -> ErrorBody {
    ErrorBody { code, message: message.into() }
}

/// Runs a file operation on a thread of its own. Only a process that is ending does not finish it.
async fn blocking<T: Send + 'static>(operation: impl FnOnce() -> T + Send + 'static) -> Result<T, ErrorBody> {
    let done = tokio::task::spawn_blocking(operation).await;
    done.map_err(|_| refused(ErrorCode::Unavailable, "the file operation was not finished"))
}

/// The files of one claim.
#[derive(Debug)]
pub(crate) struct FilesHalf {
    claim: Arc<Claim>,
    draining: AtomicBool,
}

impl FilesHalf {
    /// Opens the claim and removes what an earlier start left unfinished.
    pub(crate) async fn open(claim: &Path) -> io::Result<Self> {
        let barrier = Arc::new(Barrier::new(THREADS));
        let threads = (0..THREADS).map(|_| {
            let barrier = Arc::clone(&barrier);
            tokio::task::spawn_blocking(move || barrier.wait())
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.await?;
        }
        let claim = Arc::new(Claim::open(claim)?);
        let cleaned = Arc::clone(&claim);
        let unclean = |why: ErrorBody| io::Error::other(why.message);
        blocking(move || seal::clean(&cleaned)).await.map_err(unclean)?.map_err(unclean)?;
        Ok(Self { claim, draining: AtomicBool::new(false) })
    }

    /// From now on nothing new is started.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Answer {
        if self.draining.load(Ordering::Acquire) {
            return Err(refused(ErrorCode::Draining, "the sandbox is stopping; nothing of this request was started"));
        }
        let path = request.uri().path().to_owned();
        match (path.as_str(), path.strip_prefix("/seal/")) {
            ("/file", _) => self.file(request).await,
            ("/tree", _) => self.tree(request.method(), request.uri().query()).await,
            (_, Some(run)) => self.sealed(request.method(), run).await,
            (_, None) => Err(http::no_such_call()),
        }
    }

    async fn file(&self, request: Request<Incoming>) -> Answer {
        let place = path::parse(&bytes_of(request.uri().query(), "path")?)?;
        let claim = Arc::clone(&self.claim);
        match *request.method() {
            Method::GET | Method::HEAD => {
                let open = blocking(move || open(&claim, &place)).await??;
                read::answer(open, request.headers(), request.method() == Method::HEAD)
            }
            Method::PUT => {
                let place = path::writable(place)?;
                let terms = Terms::of(request.headers())?;
                Ok(http::json(200, &write::put(claim, place, terms, request.into_body()).await?))
            }
            Method::DELETE => {
                let (folder, below) = path::writable(place)?;
                blocking(move || write::delete(&claim, folder, &below)).await??;
                Ok(http::empty(204))
            }
            _ => Err(http::no_such_call()),
        }
    }

    async fn tree(&self, method: &Method, query: Option<&str>) -> Answer {
        let (root, prefix) = (bytes_of(query, "root")?, bytes_of(query, "prefix")?);
        let claim = Arc::clone(&self.claim);
        match *method {
            Method::GET => {
                let folder = path::root(&root)?;
                let limit = query_value(query, "limit").and_then(|limit| limit.parse().ok());
                let limit = limit.filter(|limit| (1..=MAX_TREE_PAGE).contains(limit));
                let limit = limit.ok_or_else(|| {
                    refused(ErrorCode::BadRequest, format!("limit is a number from 1 to {MAX_TREE_PAGE}"))
                })?;
                let selection = tree::Selection { prefix, after: bytes_of(query, "after")? };
                Ok(http::json(200, &blocking(move || tree::page(&claim, folder, selection, limit)).await??))
            }
            Method::DELETE => {
                let folder = path::writable_root(&root)?;
                Ok(http::json(200, &blocking(move || tree::delete(&claim, folder, prefix)).await??))
            }
            _ => Err(http::no_such_call()),
        }
    }

    async fn sealed(&self, method: &Method, run: &str) -> Answer {
        let bad_id = || refused(ErrorCode::BadRequest, "a run id is 1 to 128 of the characters A-Z a-z 0-9 _ -");
        let run = RunId::parse(run).ok_or_else(bad_id)?;
        let claim = Arc::clone(&self.claim);
        match *method {
            Method::POST => Ok(http::json(200, &blocking(move || seal::seal(&claim, &run)).await??)),
            Method::DELETE => {
                blocking(move || seal::forget(&claim, &run)).await??;
                Ok(http::empty(204))
            }
            _ => Err(http::no_such_call()),
        }
    }
}

/// The bytes of a query value that has to be there; it may be empty.
fn bytes_of(query: Option<&str>, name: &str) -> Result<Vec<u8>, ErrorBody> {
    let bytes = query_value(query, name).and_then(percent_decode);
    bytes.ok_or_else(|| refused(ErrorCode::BadRequest, format!("the query needs a percent-encoded {name}")))
}

fn open(claim: &Claim, place: &Place) -> Result<OpenFile, ErrorBody> {
    match place {
        Place::File { folder, below } => regular_file(claim.folder(folder).map_err(unopened)?, below),
        Place::Sealed { run, index } => seal::open(claim, run, *index),
    }
}
