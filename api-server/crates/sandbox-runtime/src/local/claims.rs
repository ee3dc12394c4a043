//! The folders of local sandboxes on disk. Every call blocks.
//!
//! ```text
//! DATA/sandboxes/<name>/record.json     owner, creation, lifetime; written last
//! DATA/sandboxes/<name>/claim/...       the claim's folders
//! DATA/trash/<name>.<n>                 being deleted
//! ```

use crate::{ContainerName, ContainerSpec};
use jiff::{SignedDuration, Timestamp};
use sandboxd_protocol::layout;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// What is known of a sandbox that does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) owner: String,
    pub(super) created: Timestamp,
    /// `None`: it lives until it is deleted.
    #[serde(default)]
    pub(super) lifetime_seconds: Option<u64>,
}

impl Record {
    pub(super) fn new(spec: &ContainerSpec, created: Timestamp) -> Self {
        let lifetime_seconds = spec.lifetime.map(|lifetime| lifetime.as_secs());
        Self { owner: spec.owner.as_str().to_owned(), created, lifetime_seconds }
    }

    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.lifetime_seconds.is_some_and(|seconds| {
            let lifetime = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
            now.duration_since(self.created) >= lifetime
        })
    }
}

/// All claims.
#[derive(Debug)]
pub(super) struct Claims {
    sandboxes: PathBuf,
    trash: PathBuf,
    thrown: AtomicU64,
}

impl Claims {
    /// Makes the folders, and goes on with deletions that were cut short.
    pub(super) fn open(data_dir: &Path) -> io::Result<Self> {
        let claims =
            Self { sandboxes: data_dir.join("sandboxes"), trash: data_dir.join("trash"), thrown: AtomicU64::new(0) };
        for folder in [data_dir, &claims.sandboxes, &claims.trash] {
            private_dir(folder)?;
        }
        empty(&claims.trash)?;
        Ok(claims)
    }

    fn folder(&self, name: &ContainerName) -> PathBuf {
        self.sandboxes.join(name.as_str())
    }

    /// The claim's folder.
    pub(super) fn claim(&self, name: &ContainerName) -> PathBuf {
        self.folder(name).join("claim")
    }

    /// The record, if there is such a sandbox.
    pub(super) fn read(&self, name: &ContainerName) -> io::Result<Option<Record>> {
        self.read_named(name.as_str())
    }

    fn read_named(&self, name: &str) -> io::Result<Option<Record>> {
        match fs::read(self.sandboxes.join(name).join("record.json")) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes the claim's folders, then the record.
    pub(super) fn create(&self, name: &ContainerName, record: &Record) -> io::Result<()> {
        let folder = self.folder(name);
        private_dir(&folder)?;
        let claim = self.claim(name);
        private_dir(&claim)?;
        for part in layout::claim_folders() {
            private_dir(&claim.join(part))?;
        }
        let unfinished = folder.join("record.json.new");
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(unfinished, folder.join("record.json"))
    }

    /// Names of all sandboxes that are past their lifetime.
    pub(super) fn expired(&self, now: Timestamp) -> io::Result<Vec<String>> {
        let mut expired = Vec::new();
        for entry in fs::read_dir(&self.sandboxes)? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            if self.read_named(&name).is_ok_and(|record| record.is_some_and(|record| record.is_expired(now))) {
                expired.push(name);
            }
        }
        Ok(expired)
    }

    /// Deletes a sandbox: out of sight at once, then piece by piece.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        let thrown = self.thrown.fetch_add(1, Ordering::Relaxed);
        fs::rename(self.sandboxes.join(name), self.trash.join(format!("{name}.{thrown}")))?;
        empty(&self.trash)
    }
}

/// A folder that only we enter; made when absent.
fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)
}

/// Empties a folder. A hostile tree may be deeper than there are descriptors and longer than a path may be: so nothing
/// descends, but every inner folder is moved to the top before its own entries are looked at.
fn empty(top: &Path) -> io::Result<()> {
    let mut moved = 0_u64;
    let mut work: Vec<PathBuf> = entries(top)?;
    while let Some(path) = work.pop() {
        if !fs::symlink_metadata(&path)?.is_dir() {
            fs::remove_file(&path)?;
            continue;
        }
        fs::set_permissions(&path, Permissions::from_mode(0o700))?;
        for entry in entries(&path)? {
            if !fs::symlink_metadata(&entry)?.is_dir() {
                fs::remove_file(&entry)?;
                continue;
            }
            // A folder is moved only by who may write to it.
            fs::set_permissions(&entry, Permissions::from_mode(0o700))?;
            if fs::remove_dir(&entry).is_ok() {
                continue;
            }
            let up = loop {
                moved += 1;
                let up = top.join(format!("inner.{moved}"));
                if fs::symlink_metadata(&up).is_err() {
                    break up;
                }
            };
            fs::rename(&entry, &up)?;
            work.push(up);
        }
        fs::remove_dir(&path)?;
    }
    Ok(())
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ContainerKey, ContainerKind};
    use std::{os::unix::fs::symlink, time::Duration};

    fn spec(lifetime: Option<Duration>) -> ContainerSpec {
        let key = ContainerKey { kind: ContainerKind::Explicit, workspace: "w", user: None, id: "../../etc" };
        ContainerSpec { name: key.name(), owner: key.owner(), lifetime }
    }

    #[test]
    fn a_claim_lives_for_its_lifetime() {
        let data = tempfile::tempdir().unwrap();
        let claims = Claims::open(data.path()).unwrap();
        let (spec, now) = (spec(Some(Duration::from_mins(1))), Timestamp::now());
        assert_eq!(claims.read(&spec.name).unwrap(), None);
        let record = Record::new(&spec, now);
        claims.create(&spec.name, &record).unwrap();
        assert_eq!(claims.read(&spec.name).unwrap(), Some(record));
        assert!(claims.claim(&spec.name).join("sealed").is_dir());
        assert!(claims.expired(now + Duration::from_secs(59)).unwrap().is_empty());
        assert_eq!(claims.expired(now + Duration::from_mins(1)).unwrap(), [spec.name.as_str()]);
        claims.remove(spec.name.as_str()).unwrap();
        assert_eq!(claims.read(&spec.name).unwrap(), None);
        assert_eq!(entries(&claims.trash).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_hostile_tree_is_deleted_and_nothing_outside_of_it() {
        let data = tempfile::tempdir().unwrap();
        let outside = data.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        let claims = Claims::open(&data.path().join("data")).unwrap();
        let spec = spec(None);
        claims.create(&spec.name, &Record::new(&spec, Timestamp::now())).unwrap();
        let workspace = claims.claim(&spec.name).join("workspace");
        symlink(&outside, workspace.join("link")).unwrap();
        fs::create_dir(workspace.join("locked")).unwrap();
        fs::write(workspace.join("locked/file"), "x").unwrap();
        fs::set_permissions(workspace.join("locked"), Permissions::from_mode(0o000)).unwrap();
        // Deeper than a process may have descriptors, and than a path may be long.
        let mut deep = PathBuf::from("deep");
        for _ in 0..10 {
            let part: PathBuf = std::iter::repeat_n("d", 300).collect();
            fs::create_dir_all(workspace.join(&part)).unwrap();
            let top = workspace.join("top");
            fs::create_dir(&top).unwrap();
            fs::rename(workspace.join("d"), top.join("d")).unwrap();
            if workspace.join("deep").exists() {
                fs::rename(workspace.join("deep"), top.join(&part).join("deep")).unwrap();
            }
            fs::rename(top, workspace.join("deep")).unwrap();
            deep = deep.join(part);
        }
        assert!(fs::symlink_metadata(workspace.join(&deep)).is_err() || deep.as_os_str().len() > 4096);
        claims.remove(spec.name.as_str()).unwrap();
        assert_eq!(entries(&claims.trash).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
    }
}
