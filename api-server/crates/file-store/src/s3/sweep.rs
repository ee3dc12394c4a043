//! Removal of what interrupted writes have left and of files whose time is long over.

use std::{collections::HashSet, sync::Arc};

use aws_sdk_s3::types::Object;
use jiff::{SignedDuration, Timestamp};

use super::{Inner, error::failed, keys};
use crate::{FileId, KEPT_AFTER_EXPIRY, StoreError, Swept, Workspace};

/// Unindexed content of this age, and an upload begun so long ago, belong to nobody any more.
const ABANDONED: SignedDuration = SignedDuration::from_hours(24);

pub(super) async fn sweep(inner: &Arc<Inner>, now: Timestamp) -> Result<Swept, StoreError> {
    let abandoned = now - ABANDONED;
    let mut swept = Swept { parts: uploads(inner, abandoned).await?, ..Swept::default() };
    for folder in inner.folders(&inner.keys.root()).await? {
        let workspace = keys::last(&folder);
        if Workspace::is_key(workspace) {
            swept.orphans += orphans(inner, workspace, abandoned).await?;
        }
    }
    swept.expired = expired(inner, now).await?;
    Ok(swept)
}

async fn uploads(inner: &Inner, abandoned: Timestamp) -> Result<usize, StoreError> {
    let listed = inner.client.list_multipart_uploads().bucket(&inner.bucket).prefix(inner.keys.root()).send().await;
    let listed = match listed.map_err(|error| failed("listing unfinished uploads", error)) {
        Ok(listed) => listed,
        // Not every store can; it then has a rule of its own, or none is left.
        Err(error @ (StoreError::Io { .. } | StoreError::Unavailable { .. })) => {
            tracing::debug!(%error, "unfinished uploads were not swept");
            return Ok(0);
        }
        Err(error) => return Err(error),
    };
    let mut removed = 0;
    for upload in listed.uploads() {
        let old = upload.initiated().is_some_and(|begun| begun.secs() < abandoned.as_second());
        if let (true, Some(key), Some(id)) = (old, upload.key(), upload.upload_id()) {
            inner.abort(key, id).await?;
            removed += 1;
        }
    }
    Ok(removed)
}

async fn orphans(inner: &Inner, workspace: &str, abandoned: Timestamp) -> Result<usize, StoreError> {
    let mut old = HashSet::new();
    let is_old = |object: &Object| object.last_modified().is_some_and(|time| time.secs() < abandoned.as_second());
    inner
        .each(&inner.keys.contents(workspace), |object| {
            let id = object.key().and_then(|key| keys::last(key).parse::<FileId>().ok());
            old.extend(id.filter(|_| is_old(&object)));
        })
        .await?;
    if old.is_empty() {
        return Ok(0);
    }
    // The age comes first: content that was young then may have got its index object since.
    inner
        .each(&inner.keys.index(workspace), |object| {
            let id = object.key().and_then(|key| keys::last(key).split_once('.')?.0.parse::<FileId>().ok());
            id.map(|id| old.remove(&id));
        })
        .await?;
    for id in &old {
        inner.remove(&inner.keys.content(workspace, *id)).await?;
    }
    Ok(old.len())
}

async fn expired(inner: &Inner, now: Timestamp) -> Result<usize, StoreError> {
    let last_hour = (now.as_second() - KEPT_AFTER_EXPIRY.as_secs()).div_euclid(3600);
    let mut removed = 0;
    for folder in inner.folders(&inner.keys.expiry()).await? {
        // Files of the last hour itself may have some minutes left.
        if !keys::last(&folder).parse::<i64>().is_ok_and(|hour| hour < last_hour) {
            continue;
        }
        let mut marks = Vec::new();
        inner.each(&folder, |object| marks.extend(object.key().map(str::to_owned))).await?;
        for mark in marks {
            removed += usize::from(expire(inner, &mark).await?);
        }
    }
    Ok(removed)
}

async fn expire(inner: &Inner, mark: &str) -> Result<bool, StoreError> {
    let Some((workspace, id)) = keys::last(mark).split_once('.') else { return Ok(false) };
    let (true, Ok(id)) = (Workspace::is_key(workspace), id.parse::<FileId>()) else { return Ok(false) };
    let index = inner.index_key(workspace, id).await;
    if let Ok(index) = &index {
        inner.remove(index).await?;
    }
    match index {
        Ok(_) | Err(StoreError::NotFound) => {}
        Err(error) => return Err(error),
    }
    inner.remove(&inner.keys.content(workspace, id)).await?;
    inner.remove(mark).await?;
    Ok(index.is_ok())
}
