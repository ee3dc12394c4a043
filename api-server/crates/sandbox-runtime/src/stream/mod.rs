//! Requests to the `sandboxd` of a sandbox, over any byte stream.

mod connection;
mod cut;
pub(crate) mod files;
mod pool;
pub(crate) mod run;
mod upload;

pub(crate) use connection::Connection;
pub(crate) use pool::{ConnectError, Streams};

use bytes::Bytes;
use futures_util::Stream;
use sandboxd_protocol::Exit;
use std::{fmt, io, pin::Pin};

/// How a run ended, with its output.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// Bytes of stdout, at most the limit of the request.
    pub stdout: Bytes,
    /// Bytes of stderr, at most the limit of the request.
    pub stderr: Bytes,
    /// Exit code, signal, flags.
    pub exit: Exit,
}

/// Why a run has no outcome. Messages are for the log only.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum RunError {
    /// It may have run, in part or whole; it is never run again.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// It did not run: too many are running and waiting.
    #[error("too many runs at a time")]
    TooManyRequests,
    /// It did not run.
    #[error("did not run: {0}")]
    Unavailable(String),
}

/// Why a file request failed. Messages are for the log only.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// No such file.
    #[error("no such file")]
    NotFound,
    /// The path may not be read or written.
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// The disk, or the claim's quota, is full.
    #[error("no space left")]
    NoSpace,
    /// Over a limit of the sandbox.
    #[error("too large")]
    TooLarge,
    /// It did not work this time. A write was not committed, or nobody knows.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The caller's own body failed; nothing was written.
    #[error("the body to write failed: {0}")]
    Source(#[source] io::Error),
}

/// A file that is being read.
pub struct FileBody {
    /// Size in bytes, as announced.
    pub size: u64,
    /// Entity tag, quotes included.
    pub etag: String,
    /// The bytes; ends in an error unless exactly `size` came.
    pub body: Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
}

impl fmt::Debug for FileBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBody").field("size", &self.size).field("etag", &self.etag).finish_non_exhaustive()
    }
}
