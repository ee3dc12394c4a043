//! Pages of the list, and what files take: by the names of index objects, and where those do not say all, by the objects.

use std::{
    collections::{HashMap, VecDeque},
    io,
};

use aws_sdk_s3::types::Object;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    Inner, MOST_LISTED,
    keys::{Named, named},
};
use crate::{FileId, FileMeta, FileSummary, Owner, Page, StoreError};

/// Index objects read at a time, for a list of names that do not say all.
const READ_AT_ONCE: usize = 8;
impl Inner {
    /// What a list shows of a file; nothing for one that was deleted since, or that we did not write.
    async fn summary(&self, object: Object) -> Result<Option<FileSummary>, StoreError> {
        let Some(key) = object.key else { return Ok(None) };
        match named(&key) {
            Named::Summary(summary, _) => Ok(Some(*summary)),
            Named::Foreign => Ok(None),
            Named::Elsewhere(id) => Ok(self.readable(&key, id).await?.map(FileSummary::from)),
        }
    }

    /// What an index object says; nothing for one that was removed since, or is damaged.
    async fn readable(&self, key: &str, id: FileId) -> Result<Option<FileMeta>, StoreError> {
        match self.read_index(key).await {
            Ok(meta) => Ok(Some(meta)),
            Err(StoreError::NotFound) => Ok(None),
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(file.id = %id, "left a damaged index object out of a list");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn summaries(&self, objects: Vec<Object>) -> Result<Vec<FileSummary>, StoreError> {
        let read = stream::iter(objects).map(|object| self.summary(object)).buffered(READ_AT_ONCE);
        let read: Vec<_> = read.try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    }

    /// One request, unless all its files have gone meanwhile.
    pub(super) async fn older(&self, workspace: &str, after: Option<FileId>, limit: usize) -> Result<Page, StoreError> {
        let prefix = self.keys.index(workspace);
        let most = i32::try_from(limit).unwrap_or(MOST_LISTED).clamp(1, MOST_LISTED);
        let mut after = after.map(|id| self.keys.behind(workspace, id));
        loop {
            let (objects, has_more) = self.some(&prefix, after, most).await?;
            after = objects.last().and_then(|object| object.key().map(str::to_owned));
            let files = self.summaries(objects).await?;
            if !files.is_empty() || !has_more || after.is_none() {
                return Ok(Page { has_more: has_more && !files.is_empty(), files });
            }
        }
    }

    /// Stores list forwards only, so this looks at every newer file; memory holds one page.
    pub(super) async fn newer(
        &self,
        workspace: &str,
        after: Option<FileId>,
        before: FileId,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let (mut kept, mut has_more) = (VecDeque::new(), false);
        let mut start = after.map(|id| self.keys.behind(workspace, id));
        let end = self.keys.index_of(workspace, before);
        loop {
            let (objects, more) = self.some(&self.keys.index(workspace), start, MOST_LISTED).await?;
            start = objects.last().and_then(|object| object.key().map(str::to_owned));
            let over = !more || start.as_deref().is_none_or(|last| last >= end.as_str());
            kept.extend(objects.into_iter().filter(|object| object.key().is_some_and(|key| key < end.as_str())));
            while kept.len() > limit {
                kept.pop_front();
                has_more = true;
            }
            if over {
                let files = self.summaries(kept.into()).await?;
                return Ok(Page { has_more: has_more && !files.is_empty(), files });
            }
        }
    }

    /// What the files of each owner take.
    pub(super) async fn sizes_by_owner(&self, workspace: &str) -> Result<HashMap<Owner, u64>, StoreError> {
        let (mut sizes, mut untold) = (HashMap::new(), Vec::new());
        let mut add = |owner: Option<Owner>, bytes| {
            if let Some(owner) = owner {
                *sizes.entry(owner).or_default() += bytes;
            }
        };
        self.each(&self.keys.index(workspace), |object| match object.key.as_deref().map(named) {
            Some(Named::Summary(summary, owner)) => add(owner, summary.size_bytes),
            Some(Named::Elsewhere(id)) => untold.extend(object.key.map(|key| (key, id))),
            Some(Named::Foreign) | None => {}
        })
        .await?;
        let read = stream::iter(untold).map(async |(key, id)| self.readable(&key, id).await);
        let mut read = read.buffer_unordered(READ_AT_ONCE);
        while let Some(meta) = read.try_next().await? {
            if let Some(FileMeta { owner, size_bytes, .. }) = meta {
                add(owner, size_bytes);
            }
        }
        Ok(sizes)
    }
}
