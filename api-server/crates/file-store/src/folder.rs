//! The store in a folder, which several processes may share.

mod disk;
mod listing;
mod sweep;

use std::{
    collections::HashMap,
    io::{self, Seek as _, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use futures_util::StreamExt;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio_util::io::ReaderStream;

use self::disk::{Entry, PartFile};
use crate::{
    Body, FileId, FileMeta, FileStore, ListRequest, NewFile, Owner, Page, Staged, StoreError, Swept, Workspace,
    body::exactly, workspace::hex,
};

/// Reads go in pieces of this size.
const READ_BYTES: usize = 64 * 1024;
/// Small pieces of an upload are gathered to this size before they are written.
const WRITE_BYTES: usize = 256 * 1024;

/// Files in a folder of the local file system or of a shared volume.
#[derive(Clone, Debug)]
pub struct FolderStore {
    layout: Arc<Layout>,
}

/// Where things lie below the store's folder.
#[derive(Debug)]
struct Layout {
    root: PathBuf,
}

impl Layout {
    fn parts(&self) -> PathBuf {
        self.root.join("v1/part")
    }

    fn expiry(&self) -> PathBuf {
        self.root.join("v1/x")
    }

    fn contents(&self, workspace: &str) -> PathBuf {
        self.root.join("v1").join(workspace).join("c")
    }

    fn index(&self, workspace: &str) -> PathBuf {
        self.root.join("v1").join(workspace).join("i")
    }

    fn entry(&self, workspace: &Workspace, id: FileId) -> Entry {
        let workspace = workspace.key();
        Entry {
            content: self.contents(workspace).join(id.to_string()),
            index: self.index(workspace).join(index_name(id)),
            content_part: self.parts().join(format!("{workspace}.{id}.c")),
            index_part: self.parts().join(format!("{workspace}.{id}.i")),
        }
    }

    /// The mark that lets the sweeper find an expired file without reading every index entry.
    fn expiry_mark(&self, workspace: &Workspace, id: FileId, at: Timestamp) -> PathBuf {
        let hour = at.as_second().div_euclid(3600).max(0);
        self.expiry().join(format!("{hour:010}")).join(format!("{}.{id}", workspace.key()))
    }
}

/// `~` says that the metadata stands in the entry's body.
fn index_name(id: FileId) -> String {
    format!("{id}.~")
}

fn indexed_id(name: &str) -> Option<FileId> {
    name.strip_suffix(".~")?.parse().ok()
}

impl FolderStore {
    /// The store in this folder, which is made when it is missing.
    pub async fn new(root: &Path) -> Result<Self, StoreError> {
        let store = Self { layout: Arc::new(Layout { root: root.to_owned() }) };
        let layout = Arc::clone(&store.layout);
        on_disk("making the store's folder", move || {
            disk::make_folder(&layout.parts())?;
            disk::make_folder(&layout.expiry())
        })
        .await?;
        Ok(store)
    }
}

#[async_trait]
impl FileStore for FolderStore {
    async fn stage(
        &self,
        workspace: &Workspace,
        id: FileId,
        body: Body<'_>,
        limit: u64,
    ) -> Result<Box<dyn Staged>, StoreError> {
        let path = self.layout.entry(workspace, id).content_part;
        // Made and owned inside the task, so that the file goes even when nobody waits for the task any more.
        let part = on_disk("creating a file", move || PartFile::create(path)).await?;
        let (size_bytes, sha256) = fill(&part, body, limit).await?;
        let layout = Arc::clone(&self.layout);
        Ok(Box::new(StagedPart { layout, workspace: workspace.clone(), id, part, size_bytes, sha256 }))
    }

    async fn stat(&self, workspace: &Workspace, id: FileId) -> Result<FileMeta, StoreError> {
        let entry = self.layout.entry(workspace, id);
        on_disk("reading an index entry", move || disk::read_index(&entry.index)).await
    }

    async fn read(
        &self,
        workspace: &Workspace,
        meta: &FileMeta,
        range: Range<u64>,
    ) -> Result<Body<'static>, StoreError> {
        let content = self.layout.entry(workspace, meta.id).content;
        let Range { start, end } = range;
        let open = move || {
            let mut file = std::fs::File::open(content)?;
            file.seek(SeekFrom::Start(start))?;
            Ok(file)
        };
        let file = on_disk("opening a file", open).await?;
        let reader = ReaderStream::with_capacity(tokio::fs::File::from_std(file), READ_BYTES);
        Ok(exactly(end.saturating_sub(start), Box::pin(reader)))
    }

    async fn delete(&self, workspace: &Workspace, id: FileId) -> Result<(), StoreError> {
        let layout = Arc::clone(&self.layout);
        let workspace = workspace.clone();
        on_disk("deleting a file", move || {
            let entry = layout.entry(&workspace, id);
            // An entry that cannot be read can still be deleted.
            let expires_at = match disk::read_index(&entry.index) {
                Ok(meta) => meta.expires_at,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
                Err(_) => None,
            };
            disk::delete(&entry, expires_at.map(|at| layout.expiry_mark(&workspace, id, at)).as_deref())
        })
        .await
    }

    async fn list(&self, workspace: &Workspace, request: &ListRequest) -> Result<Page, StoreError> {
        let index = self.layout.index(workspace.key());
        let request = *request;
        on_disk("listing files", move || listing::page(&index, &request)).await
    }

    async fn usage(&self, workspace: &Workspace) -> Result<u64, StoreError> {
        let contents = self.layout.contents(workspace.key());
        on_disk("adding up files", move || disk::total_size(&contents)).await
    }

    async fn usage_by_owner(&self, workspace: &Workspace) -> Result<HashMap<Owner, u64>, StoreError> {
        let index = self.layout.index(workspace.key());
        on_disk("adding up files", move || listing::sizes_by_owner(&index)).await
    }

    async fn sweep(&self, now: Timestamp) -> Result<Swept, StoreError> {
        let layout = Arc::clone(&self.layout);
        on_disk("sweeping", move || sweep::sweep(&layout, now)).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        let parts = self.layout.parts();
        let is_folder = on_disk("looking at the store's folder", move || Ok(std::fs::metadata(parts)?.is_dir())).await;
        match is_folder {
            Ok(true) => Ok(()),
            Ok(false) | Err(StoreError::NotFound) => {
                Err(StoreError::Io { doing: "the store's folder is gone", source: io::ErrorKind::NotADirectory.into() })
            }
            Err(error) => Err(error),
        }
    }
}

/// Content on disk that no index entry names.
struct StagedPart {
    layout: Arc<Layout>,
    workspace: Workspace,
    id: FileId,
    part: PartFile,
    size_bytes: u64,
    sha256: String,
}

#[async_trait]
impl Staged for StagedPart {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn sha256(&self) -> &str {
        &self.sha256
    }

    async fn commit(self: Box<Self>, file: NewFile) -> Result<FileMeta, StoreError> {
        let Self { layout, workspace, id, part, size_bytes, sha256 } = *self;
        let meta = file.stored(id, &workspace, size_bytes, sha256);
        on_disk("storing a file", move || {
            let entry = layout.entry(&workspace, id);
            let mark = meta.expires_at.map(|at| layout.expiry_mark(&workspace, id, at));
            disk::publish(part, &entry, mark.as_deref(), &meta)?;
            Ok(meta)
        })
        .await
    }
}

/// Writes a body to the file, and tells its length and hash.
async fn fill(part: &PartFile, mut body: Body<'_>, limit: u64) -> Result<(u64, String), StoreError> {
    let file = part.file().map_err(|error| failed("creating a file", error))?;
    let mut writer = BufWriter::with_capacity(WRITE_BYTES, tokio::fs::File::from_std(file));
    let mut hash = Sha256::new();
    let mut size = 0_u64;
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(StoreError::Body)?;
        size = size.saturating_add(piece.len() as u64);
        if size > limit {
            return Err(StoreError::TooLarge { limit });
        }
        hash.update(&piece);
        writer.write_all(&piece).await.map_err(|error| failed("writing a file", error))?;
    }
    writer.flush().await.map_err(|error| failed("writing a file", error))?;
    Ok((size, hex(&hash.finalize())))
}

/// Runs work that waits for the disk where waiting is allowed.
async fn on_disk<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| failed(doing, error)),
        Err(error) => Err(StoreError::Io { doing, source: io::Error::other(error) }),
    }
}

fn failed(doing: &'static str, source: io::Error) -> StoreError {
    match source.kind() {
        io::ErrorKind::NotFound => StoreError::NotFound,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::NoSpace,
        _ => StoreError::Io { doing, source },
    }
}
