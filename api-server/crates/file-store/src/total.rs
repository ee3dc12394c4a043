//! Limits on what the files of each workspace, and of each user in it, take together, over any store.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::time::{Duration, Instant};

use crate::{
    Body, FileId, FileMeta, FileStore, ListRequest, NewFile, Owner, Page, Staged, StoreError, Swept, Whose, Workspace,
};

/// What other processes have stored or deleted is seen after this time: so long a workspace can be over its total by what they store.
const COUNTED_AGAIN: Duration = Duration::from_mins(5);

/// What files may take together, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Totals {
    /// Those of one workspace.
    pub workspace: u64,
    /// Those of one user of a workspace; `None`: only the workspace counts.
    pub user: Option<u64>,
}

/// A store whose workspaces and users may each hold so many bytes. Cheap to clone.
#[derive(Clone)]
pub struct Limited(Arc<Counted>);

struct Counted {
    store: Arc<dyn FileStore>,
    totals: Totals,
    /// By the keys of the workspaces.
    known: Mutex<HashMap<String, Count>>,
}

#[derive(Clone)]
struct Count {
    bytes: u64,
    owners: HashMap<Owner, u64>,
    at: Instant,
}

impl Limited {
    /// Holds each workspace and each user of the store to these totals.
    pub fn new(store: Arc<dyn FileStore>, totals: Totals) -> Self {
        Self(Arc::new(Counted { store, totals, known: Mutex::default() }))
    }
}

impl Counted {
    fn known(&self) -> MutexGuard<'_, HashMap<String, Count>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the workspace's files take, counted not too long ago.
    async fn count(&self, workspace: &Workspace) -> Result<Count, StoreError> {
        let at = Instant::now();
        let known = self.known().get(workspace.key()).cloned();
        if let Some(count) = known.filter(|count| at.saturating_duration_since(count.at) < COUNTED_AGAIN) {
            return Ok(count);
        }
        let bytes = self.store.usage(workspace).await?;
        let owners = match self.totals.user {
            Some(_) => self.store.usage_by_owner(workspace).await?,
            None => HashMap::new(),
        };
        let count = Count { bytes, owners, at };
        self.known().insert(workspace.key().to_owned(), count.clone());
        Ok(count)
    }

    /// The bytes that a new file may have, and whose total ends there.
    fn room(&self, count: &Count, workspace: &Workspace) -> (u64, Whose) {
        let room = self.totals.workspace.saturating_sub(count.bytes);
        let own = self.totals.user.zip(workspace.user()).map(|(total, user)| {
            let bytes = count.owners.get(user).copied().unwrap_or_default();
            total.saturating_sub(bytes)
        });
        own.filter(|own| *own < room).map_or((room, Whose::Workspace), |own| (own, Whose::User))
    }

    fn over(&self, whose: Whose) -> StoreError {
        let user = self.totals.user.unwrap_or(self.totals.workspace);
        let limit = if whose == Whose::User { user } else { self.totals.workspace };
        StoreError::OverTotal { whose, limit }
    }

    /// Counts a file before it is visible, so that simultaneous ones cannot pass together what each alone may.
    async fn take(&self, workspace: &Workspace, bytes: u64) -> Result<(), StoreError> {
        let counted = self.count(workspace).await?;
        let mut known = self.known();
        let count = known.entry(workspace.key().to_owned()).or_insert(counted);
        let (room, whose) = self.room(count, workspace);
        if bytes > room {
            return Err(self.over(whose));
        }
        count.bytes = count.bytes.saturating_add(bytes);
        if let Some(user) = workspace.user() {
            let own = count.owners.entry(user.clone()).or_default();
            *own = own.saturating_add(bytes);
        }
        Ok(())
    }

    /// The next use counts anew.
    fn forget(&self, workspace: &Workspace) {
        self.known().remove(workspace.key());
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
        let (room, whose) = counts.room(&counts.count(workspace).await?, workspace);
        if room == 0 {
            return Err(counts.over(whose));
        }
        let staged = counts.store.stage(workspace, id, body, limit.min(room)).await.map_err(|error| match error {
            StoreError::TooLarge { limit: met } if met < limit => counts.over(whose),
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

    async fn usage_by_owner(&self, workspace: &Workspace) -> Result<HashMap<Owner, u64>, StoreError> {
        self.0.store.usage_by_owner(workspace).await
    }

    async fn sweep(&self, now: Timestamp) -> Result<Swept, StoreError> {
        self.0.store.sweep(now).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.0.store.check().await
    }
}
