//! Content on its way into the store: in one request when it is short, else part by part, and gone when it is not wanted.

use std::{mem, sync::Arc};

use async_trait::async_trait;
use aws_sdk_s3::{
    primitives::ByteStream,
    types::{CompletedMultipartUpload, CompletedPart},
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use sha2::{Digest, Sha256};

use super::{Inner, error::failed};
use crate::{Body, FileId, FileMeta, NewFile, Staged, StoreError, Workspace, workspace::hex};

/// Bytes of a part: the least that stores take. One is in memory at a time, and what the client sends meanwhile waits.
pub(super) const PART: usize = 5 * 1024 * 1024;

/// Content in the store that no index object names. Dropped before it is committed, it is removed.
pub(super) struct StagedObject {
    inner: Arc<Inner>,
    workspace: Workspace,
    id: FileId,
    content: Unwanted,
    size_bytes: u64,
    sha256: String,
}

/// Sends a body of at most `limit` bytes.
pub(super) async fn stage(
    inner: &Arc<Inner>,
    workspace: &Workspace,
    id: FileId,
    mut body: Body<'_>,
    limit: u64,
) -> Result<StagedObject, StoreError> {
    let key = inner.keys.content(workspace.key(), id);
    // Of the whole size at once: growing would end at nearly twice as much. What is not filled takes no memory.
    let part = || BytesMut::with_capacity(PART);
    let (mut buffer, mut hash, mut size_bytes) = (part(), Sha256::new(), 0_u64);
    let mut parts: Option<Parts> = None;
    while let Some(piece) = body.next().await {
        let mut piece = piece.map_err(StoreError::Body)?;
        size_bytes = size_bytes.saturating_add(piece.len() as u64);
        if size_bytes > limit {
            return Err(StoreError::TooLarge { limit });
        }
        hash.update(&piece);
        while buffer.len() + piece.len() > PART {
            buffer.extend_from_slice(&piece.split_to(PART - buffer.len()));
            let whole = mem::replace(&mut buffer, part()).freeze();
            let mut started = match parts.take() {
                Some(parts) => parts,
                None => Parts::start(inner, &key).await?,
            };
            started.add(whole).await?;
            parts = Some(started);
        }
        buffer.extend_from_slice(&piece);
    }
    let content = match parts {
        Some(mut parts) => {
            parts.add(buffer.freeze()).await?;
            parts.complete().await?
        }
        None => put(inner, &key, buffer.freeze()).await?,
    };
    let (inner, workspace) = (Arc::clone(inner), workspace.clone());
    Ok(StagedObject { inner, workspace, id, content, size_bytes, sha256: hex(&hash.finalize()) })
}

async fn put(inner: &Arc<Inner>, key: &str, content: Bytes) -> Result<Unwanted, StoreError> {
    let request = inner.client.put_object().bucket(&inner.bucket).key(key).if_none_match("*");
    let (encryption, kms_key) = inner.encryption();
    let request = request.set_server_side_encryption(encryption).set_ssekms_key_id(kms_key);
    // Whoever stops waiting leaves at most unindexed content, which is swept.
    request.body(content.into()).send().await.map_err(|error| failed("storing a file", error))?;
    Ok(Unwanted::object(inner, key))
}

/// An upload of several parts.
struct Parts {
    upload: Unwanted,
    id: String,
    done: Vec<CompletedPart>,
}

impl Parts {
    async fn start(inner: &Arc<Inner>, key: &str) -> Result<Self, StoreError> {
        let (encryption, kms_key) = inner.encryption();
        let request = inner.client.create_multipart_upload().bucket(&inner.bucket).key(key);
        let request = request.set_server_side_encryption(encryption).set_ssekms_key_id(kms_key);
        let started = request.send().await.map_err(|error| failed("beginning a file", error))?;
        let id = started.upload_id.unwrap_or_default();
        let upload = Unwanted { what: Some(What::Upload(id.clone())), inner: Arc::clone(inner), key: key.to_owned() };
        Ok(Self { upload, id, done: Vec::new() })
    }

    async fn add(&mut self, part: Bytes) -> Result<(), StoreError> {
        let Unwanted { inner, key, what: _ } = &self.upload;
        let number = i32::try_from(self.done.len()).unwrap_or(i32::MAX).saturating_add(1);
        let request = inner.client.upload_part().bucket(&inner.bucket).key(key).upload_id(&self.id);
        let sent = request.part_number(number).body(ByteStream::from(part)).send().await;
        let sent = sent.map_err(|error| failed("storing a part of a file", error))?;
        self.done.push(CompletedPart::builder().part_number(number).set_e_tag(sent.e_tag).build());
        Ok(())
    }

    async fn complete(self) -> Result<Unwanted, StoreError> {
        let Self { mut upload, id, done } = self;
        let parts = CompletedMultipartUpload::builder().set_parts(Some(done)).build();
        let Unwanted { inner, key, what: _ } = &upload;
        let request = inner.client.complete_multipart_upload().bucket(&inner.bucket).key(key).upload_id(id);
        let completed = request.if_none_match("*").multipart_upload(parts).send().await;
        completed.map_err(|error| failed("completing a file", error))?;
        upload.what = Some(What::Object);
        Ok(upload)
    }
}

/// Something in the store that is removed when it is dropped; what cannot be removed now is swept.
struct Unwanted {
    inner: Arc<Inner>,
    key: String,
    what: Option<What>,
}

enum What {
    Object,
    Upload(String),
}

impl Unwanted {
    fn object(inner: &Arc<Inner>, key: &str) -> Self {
        Self { inner: Arc::clone(inner), key: key.to_owned(), what: Some(What::Object) }
    }
}

impl Drop for Unwanted {
    fn drop(&mut self) {
        let (Some(what), Ok(handle)) = (self.what.take(), tokio::runtime::Handle::try_current()) else { return };
        let (inner, key) = (Arc::clone(&self.inner), mem::take(&mut self.key));
        handle.spawn(async move {
            let removed = match what {
                What::Object => inner.remove(&key).await,
                What::Upload(id) => inner.abort(&key, &id).await,
            };
            if let Err(error) = removed {
                tracing::warn!(%error, "left unfinished content to the sweep");
            }
        });
    }
}

#[async_trait]
impl Staged for StagedObject {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn sha256(&self) -> &str {
        &self.sha256
    }

    async fn commit(self: Box<Self>, file: NewFile) -> Result<FileMeta, StoreError> {
        let Self { inner, workspace, id, mut content, size_bytes, sha256 } = *self;
        let meta = file.stored(id, &workspace, size_bytes, sha256);
        if let Some(at) = meta.expires_at {
            // Without its file a mark says nothing: the sweep removes it in its time.
            inner.write(&inner.keys.expiry_mark(&workspace, id, at), Bytes::new()).await?;
        }
        let json =
            serde_json::to_vec(&meta).map_err(|error| StoreError::Io { doing: "indexing", source: error.into() })?;
        let index = inner.keys.index_object(workspace.key(), &meta);
        let indexed = inner.write(&index, json.into()).await;
        if let Err(error) = indexed {
            // It may be there all the same, and names content that goes now.
            if let Err(error) = inner.remove(&index).await {
                tracing::warn!(%error, "an index object that failed was not removed");
            }
            return Err(error);
        }
        content.what = None;
        Ok(meta)
    }
}
