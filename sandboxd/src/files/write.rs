//! `PUT` and `DELETE /file`. A file is written where `main` cannot reach it and appears whole or not at all.

use crate::{
    files::{
        blocking,
        claim::{Claim, beneath, file_stat, is_regular, make_parent, unopened},
        refused,
    },
    http, names, sys,
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap,
    body::Incoming,
    header::{IF_MATCH, IF_NONE_MATCH},
};
use rustix::{
    fd::{AsFd as _, OwnedFd},
    fs::{AtFlags, Mode, OFlags, RawMode, Stat, fchmod, fstat, fsync, openat, renameat, statat, unlinkat},
    io::Errno,
};
use sandboxd_protocol::{ErrorBody, ErrorCode, FileStat, HEADER_MODIFIED_MS, TRAILER_SHA256, TRAILER_SIZE, layout};
use sha2::{Digest, Sha256};
use std::{
    ffi::OsStr,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Bytes written at a time.
const WRITE: usize = 256 * 1024;
/// Bytes after which the disk begins to write.
const SYNCED: u64 = 8 * 1024 * 1024;
const FILE_MODE: RawMode = 0o644;
/// Prefix of unfinished files; no run id starts with a dot.
pub(crate) const PART_PREFIX: &str = ".put-";

/// What must be true of the file that a write replaces, at the moment when it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    None,
    /// There is no file.
    Absent,
    /// It is the one of this entity tag.
    Is(String),
}

impl Condition {
    /// Reads `if-none-match: *` and `if-match: TAG`.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, ErrorBody> {
        match (http::text(headers, IF_NONE_MATCH.as_str()), http::text(headers, IF_MATCH.as_str())) {
            (None, None) => Ok(Self::None),
            (Some("*"), None) => Ok(Self::Absent),
            (None, Some(tag)) if tag.starts_with('"') => Ok(Self::Is(tag.to_owned())),
            _ => Err(refused(ErrorCode::BadRequest, "a write takes if-none-match: *, or if-match with one entity tag")),
        }
    }

    /// Whether it holds for the file that is there.
    fn check(&self, old: Option<&Stat>) -> Result<(), ErrorBody> {
        let holds = match (self, old) {
            (Self::None, _) | (Self::Absent, None) => true,
            (Self::Is(tag), Some(old)) => file_stat(old).etag == *tag,
            (Self::Absent, Some(_)) | (Self::Is(_), None) => false,
        };
        if holds { Ok(()) } else { Err(refused(ErrorCode::Mismatch, "the file is not the one that was expected")) }
    }
}

/// What a write asks for besides its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    condition: Condition,
    /// When the file counts as changed; `None`: now.
    modified: Option<SystemTime>,
}

impl Terms {
    /// Reads the headers of a write.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, ErrorBody> {
        let modified = headers.contains_key(HEADER_MODIFIED_MS).then(|| {
            let millis = http::text(headers, HEADER_MODIFIED_MS).and_then(|text| text.parse().ok());
            let time = millis.and_then(|millis| UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
            time.ok_or_else(|| {
                refused(ErrorCode::BadRequest, format!("{HEADER_MODIFIED_MS} takes milliseconds since 1970"))
            })
        });
        Ok(Self { condition: Condition::of(headers)?, modified: modified.transpose()? })
    }
}

/// A file that is being written. Dropped before [`Part::commit`], it leaves nothing.
struct Part {
    file: File,
    /// The sealed folder: on the same mount as every other, and never seen by `main`.
    parent: OwnedFd,
    name: Option<String>,
    digest: Sha256,
    size: u64,
}

impl Part {
    fn create(claim: &Claim) -> Result<Self, ErrorBody> {
        let parent = claim.folder(layout::SEALED).map_err(unopened)?;
        let random =
            names::random_name().map_err(|e| refused(ErrorCode::Unavailable, format!("no random name: {e}")))?;
        let name = format!("{PART_PREFIX}{random}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&parent, name.as_str(), flags, Mode::from_raw_mode(FILE_MODE)).map_err(unopened)?;
        Ok(Self { file: file.into(), parent, name: Some(name), digest: Sha256::new(), size: 0 })
    }

    fn append(mut self, data: &[u8]) -> Result<Self, ErrorBody> {
        self.digest.update(data);
        self.file.write_all(data).map_err(|e| unopened(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        let before = self.size;
        self.size += data.len() as u64;
        if before / SYNCED != self.size / SYNCED {
            sys::begin_sync(&self.file, before / SYNCED * SYNCED, SYNCED);
        }
        Ok(self)
    }

    fn check(&self, trailers: &HeaderMap) -> Result<(), ErrorBody> {
        let digest = names::hex(&self.digest.clone().finalize());
        let size = http::text(trailers, TRAILER_SIZE).and_then(|text| text.parse().ok());
        if size == Some(self.size) && http::text(trailers, TRAILER_SHA256) == Some(digest.as_str()) {
            return Ok(());
        }
        let message = format!("{} bytes arrived and the trailers do not confirm them; nothing was written", self.size);
        Err(refused(ErrorCode::Mismatch, message))
    }

    /// Puts the file in its place, parents included, and returns when it is on the disk.
    fn commit(mut self, claim: &Claim, (folder, path): (&str, &Path), terms: &Terms) -> Result<FileStat, ErrorBody> {
        let folder = claim.folder(folder).map_err(unopened)?;
        let (parent, name) = make_parent(folder, path).map_err(not_a_folder)?;
        if let Some(old) = regular(&parent, name)? {
            // A script that is written again stays one that can be run.
            fchmod(&self.file, Mode::from_raw_mode(old.st_mode & 0o777)).map_err(unopened)?;
        }
        if let Some(modified) = terms.modified {
            self.file.set_modified(modified).map_err(|e| unopened(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        }
        fsync(&self.file).map_err(unopened)?;
        {
            // No other write comes between the look and the move.
            let _alone = claim.place.lock().unwrap_or_else(PoisonError::into_inner);
            terms.condition.check(regular(&parent, name)?.as_ref())?;
            if let Some(part) = self.name.as_deref() {
                renameat(&self.parent, part, &parent, name).map_err(unopened)?;
                self.name = None;
            }
        }
        fsync(&parent).map_err(unopened)?;
        Ok(file_stat(&fstat(&self.file).map_err(unopened)?))
    }
}

/// The file of this name, if there is one; anything else cannot be written over.
fn regular(parent: &OwnedFd, name: &OsStr) -> Result<Option<Stat>, ErrorBody> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(old) => is_regular(&old).map(|()| Some(old)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(unopened(e)),
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            // What cannot be removed now is removed at the next start.
            let _ = unlinkat(&self.parent, name.as_str(), AtFlags::empty());
        }
    }
}

fn not_a_folder(error: Errno) -> ErrorBody {
    match error {
        Errno::NOTDIR => refused(ErrorCode::BadRequest, "a part of the path is a file, not a folder"),
        other => unopened(other),
    }
}

/// Receives a file and commits it when its trailers match and the condition holds.
pub(crate) async fn put(
    claim: Arc<Claim>,
    (folder, path): (&'static str, PathBuf),
    terms: Terms,
    body: Incoming,
) -> Result<FileStat, ErrorBody> {
    let claim_of_part = Arc::clone(&claim);
    let part = blocking(move || Part::create(&claim_of_part)).await??;
    let (part, trailers) = receive(part, body).await?;
    blocking(move || {
        part.check(&trailers)?;
        part.commit(&claim, (folder, &path), &terms)
    })
    .await?
}

async fn receive(mut part: Part, mut body: Incoming) -> Result<(Part, HeaderMap), ErrorBody> {
    let mut buffer = BytesMut::with_capacity(WRITE);
    let mut trailers = HeaderMap::new();
    while let Some(piece) = body.frame().await {
        let cut = |e| refused(ErrorCode::BadRequest, format!("the body was cut: {e}"));
        match piece.map_err(cut)?.into_data() {
            Ok(data) => {
                buffer.extend_from_slice(&data);
                if buffer.len() >= WRITE {
                    part = append(part, buffer.split().freeze()).await?;
                }
            }
            Err(other) => trailers.extend(other.into_trailers().unwrap_or_default()),
        }
    }
    Ok((append(part, buffer.freeze()).await?, trailers))
}

async fn append(part: Part, data: Bytes) -> Result<Part, ErrorBody> {
    if data.is_empty() {
        return Ok(part);
    }
    blocking(move || part.append(&data)).await?
}

/// Removes one file; a link is removed itself.
pub(crate) fn delete(claim: &Claim, folder: &str, path: &Path) -> Result<(), ErrorBody> {
    let folder = claim.folder(folder).map_err(unopened)?;
    let name = path.file_name().ok_or_else(|| refused(ErrorCode::BadRequest, "the path names a folder"))?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => {
            beneath(folder.as_fd(), parent, OFlags::PATH | OFlags::DIRECTORY).map_err(unopened)?
        }
        _ => folder,
    };
    unlinkat(&parent, name, AtFlags::empty()).map_err(unopened)
}
