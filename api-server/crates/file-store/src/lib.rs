//! Objects of the Files API that outlive sandboxes.
//!
//! Content is written first and its index entry last, so whatever the index names is whole; a delete removes the index
//! entry first. Everything lies below the hash of its workspace: an id of another workspace is looked for where it
//! cannot be, and answers exactly as one that never existed.
//!
//! ```text
//! v1/<hash of workspace>/c/<id>          content
//! v1/<hash of workspace>/i/<id>.<meta>   index entry: the metadata as JSON; its name says what lists show, or `~`
//! v1/x/<hour>/<hash>.<id>                files that expire in that hour
//! ```

mod body;
mod folder;
mod id;
mod name;
mod s3;
mod total;
mod workspace;

use std::{collections::HashMap, fmt, io, ops::Range, pin::Pin};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

pub use folder::FolderStore;
pub use id::{FileId, MalformedId};
pub use name::{FileName, NameError};
pub use s3::{Encryption, Patience, S3Config, S3Store, StaticCredentials};
pub use total::{Limited, Totals};
pub use workspace::{Owner, Workspace};

/// Content on its way in or out, in pieces.
pub type Body<'a> = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send + 'a>>;

/// How long the metadata of an expired file stays readable.
pub const KEPT_AFTER_EXPIRY: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Where a file came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Origin {
    /// A client sent it.
    Upload,
    /// A command left it in its output folder.
    Output {
        /// Id of the container, as the client knows it.
        container: String,
        /// Id of the tool call.
        call: String,
    },
}

/// What the caller says about a new file.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Name shown to clients.
    pub filename: FileName,
    /// Content type, as given by whoever made the file.
    pub mime_type: String,
    /// When it was made; also what lists show.
    pub created_at: Timestamp,
    /// When its content ends to be readable; `None`: never.
    pub expires_at: Option<Timestamp>,
    /// Whether clients may read the content back.
    pub downloadable: bool,
    /// Where it came from.
    pub origin: Origin,
}

impl NewFile {
    /// The metadata of this file, once its content is there.
    fn stored(self, id: FileId, workspace: &Workspace, size_bytes: u64, sha256: String) -> FileMeta {
        let Self { filename, mime_type, created_at, expires_at, downloadable, origin } = self;
        let owner = workspace.user().cloned();
        FileMeta { id, filename, mime_type, size_bytes, sha256, created_at, expires_at, downloadable, origin, owner }
    }
}

/// What is known about a stored file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMeta {
    /// Its id.
    pub id: FileId,
    /// Name shown to clients.
    pub filename: FileName,
    /// Content type.
    pub mime_type: String,
    /// Length of the content.
    pub size_bytes: u64,
    /// SHA-256 of the content, lower-case hexadecimal.
    pub sha256: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its content ends to be readable.
    pub expires_at: Option<Timestamp>,
    /// Whether clients may read the content back.
    pub downloadable: bool,
    /// Where it came from.
    pub origin: Origin,
    /// Whose it is; nobody's where no user stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

impl FileMeta {
    /// Whether the content can no longer be read at this time.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

/// What lists show of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSummary {
    /// Its id.
    pub id: FileId,
    /// Name shown to clients.
    pub filename: FileName,
    /// Content type.
    pub mime_type: String,
    /// Length of the content.
    pub size_bytes: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its content ends to be readable.
    pub expires_at: Option<Timestamp>,
    /// Whether clients may read the content back.
    pub downloadable: bool,
}

impl From<FileMeta> for FileSummary {
    fn from(meta: FileMeta) -> Self {
        let FileMeta {
            id,
            filename,
            mime_type,
            size_bytes,
            sha256: _,
            created_at,
            expires_at,
            downloadable,
            origin: _,
            owner: _,
        } = meta;
        Self { id, filename, mime_type, size_bytes, created_at, expires_at, downloadable }
    }
}

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Parts of uploads that never ended.
    pub parts: usize,
    /// Contents without an index entry.
    pub orphans: usize,
    /// Files whose time was long over.
    pub expired: usize,
}

/// A file opened for reading.
pub struct OpenFile {
    /// Its metadata; the body has exactly `size_bytes`.
    pub meta: FileMeta,
    /// The content. A body that ends early yields an error, never a short success.
    pub body: Body<'static>,
}

/// Which part of the list to show.
#[derive(Clone, Copy, Debug)]
pub struct ListRequest {
    /// Only files that come after this one, that is, older ones. The file itself need not exist any more.
    pub after: Option<FileId>,
    /// Only files that come before this one, that is, newer ones: those next to it.
    pub before: Option<FileId>,
    /// At most so many files.
    pub limit: usize,
}

/// A part of the list, newest first.
#[derive(Clone, Debug)]
pub struct Page {
    /// The files. Never empty while `has_more` is set.
    pub files: Vec<FileSummary>,
    /// Whether more files lie beyond this page, in the direction asked for: newer ones with `before`, else older ones.
    pub has_more: bool,
}

/// Whose files a limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All of the workspace.
    Workspace,
    /// Those that one user stored in it.
    User,
}

impl fmt::Display for Whose {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Workspace => "workspace",
            Self::User => "user",
        })
    }
}

/// Why the store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No such file in this workspace, or none any more.
    #[error("file not found")]
    NotFound,
    /// The file's time is over; its metadata is still readable.
    #[error("file has expired")]
    Expired,
    /// The content is longer than the caller allows.
    #[error("file is larger than {limit} bytes")]
    TooLarge {
        /// The most that is allowed.
        limit: u64,
    },
    /// The name cannot be a file's name.
    #[error("file name {0}")]
    InvalidName(#[from] NameError),
    /// The store is full.
    #[error("no space left in the file store")]
    NoSpace,
    /// The files of a workspace or of a user would take more than they may.
    #[error("the {whose}'s files would take more than {limit} bytes")]
    OverTotal {
        /// Whose.
        whose: Whose,
        /// The most that is allowed.
        limit: u64,
    },
    /// The caller's body failed; nothing was stored.
    #[error("reading the content to be stored")]
    Body(#[source] io::Error),
    /// The store cannot be reached or is overloaded; the same may work a little later.
    #[error("file store unavailable: {doing}")]
    Unavailable {
        /// What was attempted.
        doing: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The store itself failed.
    #[error("file store: {doing}")]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// Content that is stored but that nobody can see yet. Dropping it removes it.
#[async_trait]
pub trait Staged: Send {
    /// Length of the content.
    fn size_bytes(&self) -> u64;
    /// SHA-256 of the content, lower-case hexadecimal.
    fn sha256(&self) -> &str;
    /// Makes the file visible; after a failure it is not, and its content is gone.
    async fn commit(self: Box<Self>, file: NewFile) -> Result<FileMeta, StoreError>;
}

/// Where files are kept.
#[async_trait]
pub trait FileStore: Send + Sync {
    /// Stores content of at most `limit` bytes, for a file that becomes visible with [`Staged::commit`]. What a client
    /// says about a file may follow its content.
    async fn stage(
        &self,
        workspace: &Workspace,
        id: FileId,
        body: Body<'_>,
        limit: u64,
    ) -> Result<Box<dyn Staged>, StoreError>;

    /// Stores a file in one step.
    async fn put(
        &self,
        workspace: &Workspace,
        id: FileId,
        file: NewFile,
        body: Body<'_>,
        limit: u64,
    ) -> Result<FileMeta, StoreError> {
        self.stage(workspace, id, body, limit).await?.commit(file).await
    }

    /// The metadata, of an expired file as well.
    async fn stat(&self, workspace: &Workspace, id: FileId) -> Result<FileMeta, StoreError>;

    /// The bytes of this range of a file's content; its end is at most the file's size.
    async fn read(
        &self,
        workspace: &Workspace,
        meta: &FileMeta,
        range: Range<u64>,
    ) -> Result<Body<'static>, StoreError>;

    /// Opens the whole content.
    async fn open(&self, workspace: &Workspace, id: FileId, now: Timestamp) -> Result<OpenFile, StoreError> {
        let meta = self.stat(workspace, id).await?;
        if meta.is_expired(now) {
            return Err(StoreError::Expired);
        }
        Ok(OpenFile { body: self.read(workspace, &meta, 0..meta.size_bytes).await?, meta })
    }

    /// Removes a file. Whoever reads it at the moment may read on.
    async fn delete(&self, workspace: &Workspace, id: FileId) -> Result<(), StoreError>;

    /// A page of the workspace's files, newest first, expired ones included.
    async fn list(&self, workspace: &Workspace, request: &ListRequest) -> Result<Page, StoreError>;

    /// Bytes that the contents of the workspace's files take.
    async fn usage(&self, workspace: &Workspace) -> Result<u64, StoreError>;

    /// Bytes that the workspace's files take, by whose they are; looks at each of them.
    async fn usage_by_owner(&self, workspace: &Workspace) -> Result<HashMap<Owner, u64>, StoreError>;

    /// Removes what interrupted writes have left and files whose time is long over. To be called at start and now and then;
    /// harmless while other processes use the store.
    async fn sweep(&self, now: Timestamp) -> Result<Swept, StoreError>;

    /// Whether the store can be used.
    async fn check(&self) -> Result<(), StoreError>;
}
