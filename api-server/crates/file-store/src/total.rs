//! A limit on what the files of each workspace take together, over any store.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::time::{Duration, Instant};

use crate::{Body, FileId, FileMeta, FileStore, ListRequest, NewFile, Page, Staged, StoreError, Swept, Workspace};

/// What other processes have stored or deleted is seen after this time: so long a workspace can be over its total by what they store.
const COUNTED_AGAIN: Duration = Duration::from_mins(5);

/// A store whose workspaces may each hold so many bytes. Cheap to clone.
#[derive(Clone)]
pub struct Limited(Arc<Counted>);

struct Counted {
    store: Arc<dyn FileStore>,
    total: u64,
    known: Mutex<HashMap<Workspace, Count>>,
}

#[derive(Clone, Copy)]
struct Count {
    bytes: u64,
    at: Instant,
}

impl Limited {
    /// Limits each workspace of the store to `total` bytes.
    pub fn new(store: Arc<dyn FileStore>, total: u64) -> Self {
        Self(Arc::new(Counted { store, total, known: Mutex::default() }))
    }
}

impl Counted {
    fn known(&self) -> MutexGuard<'_, HashMap<Workspace, Count>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn used(&self, workspace: &Workspace) -> Result<u64, StoreError> {
        let now = Instant::now();
        let known = self.known().get(workspace).copied();
        if let Some(Count { bytes, at }) = known
            && now.saturating_duration_since(at) < COUNTED_AGAIN
        {
            return Ok(bytes);
        }
        let bytes = self.store.usage(workspace).await?;
        self.known().insert(workspace.clone(), Count { bytes, at: now });
        Ok(bytes)
    }

    fn over(&self) -> StoreError {
        StoreError::OverTotal { limit: self.total }
    }

    /// Counts a file before it is visible, so that simultaneous ones cannot pass together what each alone may.
    async fn take(&self, workspace: &Workspace, bytes: u64) -> Result<(), StoreError> {
        let used = self.used(workspace).await?;
        let at = Instant::now();
        let mut known = self.known();
        let count = known.entry(workspace.clone()).or_insert(Count { bytes: used, at });
        let sum = count.bytes.saturating_add(bytes);
        if sum > self.total {
            return Err(self.over());
        }
        count.bytes = sum;
        Ok(())
    }

    /// The next use counts anew.
    fn forget(&self, workspace: &Workspace) {
        self.known().remove(workspace);
    }
}

struct Uncounted {
    staged: Box<dyn Staged>,
    workspace: Workspace,
    counts: Arc<Counted>,
}

#[async_trait]
impl Staged for Uncounted {
    fn size_bytes(&self) -> u64 {
        self.staged.size_bytes()
    }

    fn sha256(&self) -> &str {
        self.staged.sha256()
    }

    async fn commit(self: Box<Self>, file: NewFile) -> Result<FileMeta, StoreError> {
        let Self { staged, workspace, counts } = *self;
        counts.take(&workspace, staged.size_bytes()).await?;
        let committed = staged.commit(file).await;
        if committed.is_err() {
            counts.forget(&workspace);
        }
        committed
    }
}

#[async_trait]
impl FileStore for Limited {
    async fn stage(
        &self,
        workspace: &Workspace,
        id: FileId,
        body: Body<'_>,
        limit: u64,
    ) -> Result<Box<dyn Staged>, StoreError> {
        let counts = &self.0;
        let room = counts.total.saturating_sub(counts.used(workspace).await?);
        if room == 0 {
            return Err(counts.over());
        }
        let staged = counts.store.stage(workspace, id, body, limit.min(room)).await.map_err(|error| match error {
            StoreError::TooLarge { limit: met } if met < limit => counts.over(),
            other => other,
        })?;
        Ok(Box::new(Uncounted { staged, workspace: workspace.clone(), counts: Arc::clone(counts) }))
    }

    async fn stat(&self, workspace: &Workspace, id: FileId) -> Result<FileMeta, StoreError> {
        self.0.store.stat(workspace, id).await
    }

    async fn read(
        &self,
        workspace: &Workspace,
        meta: &FileMeta,
        range: Range<u64>,
    ) -> Result<Body<'static>, StoreError> {
        self.0.store.read(workspace, meta, range).await
    }

    async fn delete(&self, workspace: &Workspace, id: FileId) -> Result<(), StoreError> {
        let deleted = self.0.store.delete(workspace, id).await;
        self.0.forget(workspace);
        deleted
    }

    async fn list(&self, workspace: &Workspace, request: &ListRequest) -> Result<Page, StoreError> {
        self.0.store.list(workspace, request).await
    }

    async fn usage(&self, workspace: &Workspace) -> Result<u64, StoreError> {
        self.0.store.usage(workspace).await
    }

    async fn sweep(&self, now: Timestamp) -> Result<Swept, StoreError> {
        self.0.store.sweep(now).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.0.store.check().await
    }
}
