//! Requests to the `sandboxd` of a sandbox, over any byte stream.

pub(crate) mod cell;
mod connection;
mod cut;
pub(crate) mod files;
mod follow;
mod pool;
pub(crate) mod run;
mod upload;

pub(crate) use connection::Connection;
pub(crate) use pool::{ConnectError, Streams};

use crate::{AcquireError, Loss};
use bytes::Bytes;
use futures_util::Stream;
use sandboxd_protocol::{CallResult, Exit, Limits, ToolCall};
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

/// How far a cell has come.
#[derive(Clone, Debug)]
pub enum CellStep {
    /// It makes these calls, and waits: [`crate::Sandbox::resume`] it with a result for each.
    Calls(Vec<ToolCall>),
    /// It ended. The output is that of the whole cell.
    Finished(RunOutcome),
}

/// What a cell goes on with.
#[derive(Clone, Debug)]
pub struct Resume {
    /// The results of the calls that it waits for.
    pub results: Vec<CallResult>,
    /// How many of its calls are known already.
    pub calls: u32,
    /// Names of the tools that it was offered.
    pub tools: Vec<String>,
    /// The limits that it was started with.
    pub limits: Limits,
}

/// Why a run has no outcome. Messages are for the log only.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum RunError {
    /// It may have run, in part or whole; it is never run again.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// It ran, at least in part, and nobody knows how far: its sandbox was lost under it, for this reason.
    #[error("outcome unknown: the sandbox was lost ({0:?})")]
    Lost(Loss),
    /// It did not run: too many are running and waiting.
    #[error("too many runs at a time")]
    TooManyRequests,
    /// It did not run: as JSON it is longer than this many bytes.
    #[error("the request is over {limit} bytes")]
    TooLarge {
        /// What is allowed.
        limit: usize,
    },
    /// It did not run: there is no sandbox to run it.
    #[error("did not run: {0}")]
    NoSandbox(#[from] AcquireError),
    /// It did not run: the image has no program for it, in words for a model.
    #[error("did not run: {0}")]
    NotInImage(String),
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
    /// It is no longer what the entity tag says.
    #[error("the file has changed")]
    Changed,
    /// There is no sandbox that holds it.
    #[error(transparent)]
    NoSandbox(#[from] AcquireError),
    /// It did not work this time. A write was not committed, or nobody knows.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The caller's own body failed; nothing was written.
    #[error("the body to write failed: {0}")]
    Source(#[source] io::Error),
}

/// A part of a file, as it was when its entity tag was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The first byte, counted from 0.
    pub first: u64,
    /// The last byte; `None`: to the end.
    pub last: Option<u64>,
    /// The entity tag; another one is [`FileError::Changed`].
    pub etag: String,
}

/// What must be true of the file that a write replaces, at the moment when it does; else it is [`FileError::Changed`]. Code in
/// the sandbox is not held back meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteIf {
    /// Nothing.
    Always,
    /// There is none.
    Absent,
    /// It is the one of this entity tag.
    Unchanged {
        /// The tag, quotes included.
        etag: String,
    },
}

/// Which files to list.
#[derive(Clone, Copy, Debug)]
pub struct TreeQuery<'a> {
    /// One of the folders of [`sandboxd_protocol::layout`], by its path in the sandbox.
    pub root: &'a str,
    /// How the paths beneath it begin.
    pub prefix: &'a str,
    /// `next` of the page before; empty for the first.
    pub after: &'a str,
    /// At most so many, 1 to [`sandboxd_protocol::MAX_TREE_PAGE`].
    pub limit: usize,
}

/// A file that is being read.
pub struct FileBody {
    /// Number of bytes that come, as announced: of the whole file, or of the part that was asked for.
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
