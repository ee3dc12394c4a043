//! What `sandboxd` and its callers share.
//!
//! `sandboxd` serves HTTP/2 (cleartext, prior knowledge) on one byte stream at a time. Before the HTTP/2 preface the server
//! sends one line, the [`Hello`]. In the `main` half:
//!
//! | call | meaning |
//! | --- | --- |
//! | `PUT /runs/{id}` | [`RunRequest`] as JSON; the answer is a stream of [`Frame`]s. The same id with the same body joins the run, with another body it is `409 conflict` |
//! | `GET /runs/{id}?out=N&err=N&calls=N` | joins a run after its first N bytes of each stream and its first N calls; `404 not_found` never seen on this boot, `410 gone` forgotten |
//! | `POST /runs/{id}/calls` | [`CallResults`]: the cell goes on; `204`. Repeat-safe: another result for the same call is `409 conflict`, a call that was never made `404 not_found` |
//! | `DELETE /runs/{id}` | kills the run's processes; a cell is interrupted first, so that its interpreter stays; `204`, also when it had ended |
//! | `POST /reset` | kills the interpreter, every run and what earlier runs left in the background, and empties the workspace; what comes meanwhile waits; `204` |
//! | `GET /state` | [`State`] |
//!
//! A run of the kind `edit` has its [`EditOutcome`] as JSON on stdout, and the exit code 0 also when the edit was refused; an edit
//! that is under way is finished even when its run is cancelled.
//!
//! In the `files` half (a path is the one that code in `main` sees, see [`layout`]):
//!
//! | call | meaning |
//! | --- | --- |
//! | `GET`, `HEAD /file?path=P` | the bytes, with `content-length` and `etag`; one `range: bytes=A-B` is honoured |
//! | `PUT /file?path=P` | writes a file, parents included; the trailers [`TRAILER_SIZE`] and [`TRAILER_SHA256`] must match, or nothing is committed; `if-none-match: *` and `if-match` with one entity tag are held to at that moment; [`HEADER_MODIFIED_MS`] says when it counts as changed. Answer: [`FileStat`] |
//! | `DELETE /file?path=P` | `204`; `404 not_found` |
//! | `GET /tree?root=R&prefix=P&after=A&limit=N` | [`TreePage`]: the regular files beneath one of the folders, at most N of them, whose paths begin with P and come after A |
//! | `DELETE /tree?root=R&prefix=P` | removes those files, and the folders that are empty then; answer: [`TreeDeleted`] |
//! | `POST /seal/{run}` | moves the run's output folder out of `main`'s reach; answer: [`Sealed`]. Repeat-safe. The files are then read as `/sealed/{run}/{index}` |
//! | `DELETE /seal/{run}` | forgets a sealed folder; `204` |
//!
//! Query values are percent-encoded bytes; a plus sign is itself. Every refusal is an [`ErrorBody`] with the status of its
//! [`ErrorCode`]. The head of a run's answer comes when the run starts, or after three seconds of waiting: until then it can
//! still be refused. Only [`Frame::Exit`] ends an answer: hyper's client shows a lost connection as a clean end too.

mod cell;
mod edit;
mod frame;
pub mod layout;
mod percent;
mod run;
mod tree;

pub use cell::{
    CALL_TIMEOUT, CallResult, CallResults, MAX_CALL_BYTES, MAX_CALLS, MAX_PENDING_CALLS, MAX_WAIT, Tool, ToolCall,
    WaitingCell,
};
pub use edit::{
    Edit, EditOutcome, EditRefusal, FolderEntry, MAX_EDIT_OUTCOME, MAX_EDITED_FILE, MAX_MEDIA, MAX_VIEW, MediaFormat,
};
pub use frame::{Frame, FrameDecoder, FrameError, MAX_FRAME_PAYLOAD};
pub use percent::{percent_decode, percent_encode};
pub use run::{Exit, Limits, RunKind, RunRequest, State};
pub use tree::{MAX_TREE_PAGE, TreeDeleted, TreeFile, TreePage};

use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// Version of this protocol; the two ends must agree.
pub const PROTO: u32 = 1;

/// HTTP/2 settings of both ends. Measured: larger windows buy little throughput for ten times the latency beside a transfer.
pub mod http2 {
    use super::Duration;

    /// What differs between the halves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Requests {
        /// Flow-control window of one request, in bytes.
        pub window: u32,
        /// Requests at a time: unread bodies of more would fill the connection window, and pings would not notice.
        pub at_once: u32,
    }

    /// Commands: many, and none waits long behind another.
    pub const MAIN: Requests = Requests { window: 512 * 1024, at_once: 31 };
    /// Files: few, and large. No command waits behind them.
    pub const FILES: Requests = Requests { window: 2 * 1024 * 1024, at_once: 7 };
    /// Flow-control window of the connection, in bytes: room for as many unread bodies as there may be.
    pub const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
    /// Largest DATA frame, in bytes.
    pub const FRAME: u32 = 64 * 1024;
    /// Longest header list, in bytes; the other end may be hostile.
    pub const MAX_HEADER_LIST: u32 = 16 * 1024;
    /// Time between pings, while idle too.
    pub const PING_INTERVAL: Duration = Duration::from_secs(5);
    /// Time in which a ping must be answered.
    pub const PING_TIMEOUT: Duration = Duration::from_secs(5);
}

/// A run that nobody follows for this long is killed and kept as abandoned.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(30);
/// Runs at a time; more wait.
pub const RUNNING_RUNS: usize = 8;
/// Runs that may wait; more are refused with [`ErrorCode::TooManyRequests`].
pub const WAITING_RUNS: usize = 32;
/// Largest body of a `PUT /runs/{id}`, in bytes.
pub const MAX_RUN_BODY: usize = 8 * 1024 * 1024;
/// Header of `GET`, `HEAD` and `PUT /file`: [`FileStat::modified_ms`].
pub const HEADER_MODIFIED_MS: &str = "x-modified-ms";
/// Trailer of a `PUT /file`: the number of bytes sent, in decimal.
pub const TRAILER_SIZE: &str = "x-size";
/// Trailer of a `PUT /file`: the SHA-256 of the bytes sent, in lower-case hex.
pub const TRAILER_SHA256: &str = "x-sha256";

/// One start of `sandboxd`: what it knew before is gone when this changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootId(pub String);

/// The first line on every connection, from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The server's [`PROTO`].
    pub proto: u32,
    /// The server's start.
    pub boot: BootId,
}

impl Hello {
    /// Longest line that a reader has to accept, line feed included.
    pub const MAX_LEN: usize = 128;

    /// Reads the line, without its line feed; `None` when it is no hello.
    pub fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("sandboxd proto=")?;
        let (proto, boot) = rest.split_once(" boot=")?;
        let hex = !boot.is_empty() && boot.bytes().all(|b| b.is_ascii_hexdigit());
        hex.then_some(())?;
        Some(Self { proto: proto.parse().ok()?, boot: BootId(boot.to_owned()) })
    }
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sandboxd proto={} boot={}", self.proto, self.boot.0)
    }
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request cannot be understood (400).
    BadRequest,
    /// The path may not be written, or lies outside the sandbox's folders (403).
    Forbidden,
    /// No such run on this boot, or no such file (404).
    NotFound,
    /// The id is taken by another body (409).
    Conflict,
    /// The run was known and is forgotten (410).
    Gone,
    /// Body or file over a limit (413).
    TooLarge,
    /// The file changed under the request, or the trailers do not match (412).
    Mismatch,
    /// More runs than may wait (429).
    TooManyRequests,
    /// Something the call needs failed; the message names it (500).
    Unavailable,
    /// The image has no program for the call; the message says so in words for a model (501).
    NotInImage,
    /// The disk, or the claim's quota, is full (507).
    NoSpace,
    /// The sandbox is stopping and the request was not started: safe to send again elsewhere (503).
    Draining,
}

impl ErrorCode {
    /// The HTTP status that carries this code.
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::Gone => 410,
            Self::Mismatch => 412,
            Self::TooLarge => 413,
            Self::TooManyRequests => 429,
            Self::Unavailable => 500,
            Self::NotInImage => 501,
            Self::Draining => 503,
            Self::NoSpace => 507,
        }
    }
}

/// Body of every refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// For programs.
    pub code: ErrorCode,
    /// For people: what was wrong.
    pub message: String,
}

/// A file as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    /// Size in bytes.
    pub size: u64,
    /// Changes whenever the content may have (RFC 9110, quotes included).
    pub etag: String,
    /// Time of the last change of the content, in milliseconds since 1970; code in the sandbox may have set it.
    pub modified_ms: u64,
}

/// One file of a sealed output folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFile {
    /// File name, without a folder. Bytes that are no UTF-8 are replaced.
    pub name: String,
    /// Where `GET /file` reads it. Its last part is a number, so that names of any bytes can be read.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
}

/// The regular top-level files of a sealed output folder, in name order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// The files.
    pub files: Vec<OutputFile>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_line_survives_the_way() {
        let hello = Hello { proto: PROTO, boot: BootId("00ff".into()) };
        assert_eq!(Hello::parse(&hello.to_string()), Some(hello));
        for bad in
            ["", "sandboxd proto=1", "sandboxd proto=x boot=00", "sandboxd proto=1 boot=", "sandboxd proto=1 boot=xyz"]
        {
            assert_eq!(Hello::parse(bad), None, "{bad:?}");
        }
    }
}
