//! Opening, reading and writing what an edit is about. Everything that is opened is checked by its descriptor.

use super::path::Place;
use crate::{
    files::claim::{beneath, make_parent, reopen},
    names,
};
use rustix::{
    fd::{AsFd as _, OwnedFd},
    fs::{
        AtFlags, FileType, Mode, OFlags, RawMode, Stat, fchmod, fstat, fsync, open, openat, renameat, statat, unlinkat,
    },
    io::Errno,
};
use sandboxd_protocol::{EditRefusal, MAX_EDITED_FILE};
use std::{
    ffi::OsStr,
    fs::File,
    io::{Read as _, Write as _},
    path::Path,
};

const FILE_MODE: RawMode = 0o644;

/// What lies at a place.
#[derive(Debug)]
pub(super) enum Opened {
    /// A regular file, open for reading.
    File(File, Stat),
    /// A folder, open for reading.
    Folder(OwnedFd),
}

impl Place<'_> {
    /// Names it in a refusal.
    pub(super) fn refused(&self, error: Errno) -> EditRefusal {
        let path = self.asked.clone();
        match error {
            Errno::NOENT | Errno::NOTDIR => EditRefusal::NotFound { path },
            Errno::ROFS => EditRefusal::ReadOnly { path, mount: self.mount.path.to_owned() },
            Errno::ACCESS | Errno::PERM => EditRefusal::Denied { path },
            Errno::ISDIR => EditRefusal::IsFolder { path },
            Errno::LOOP => EditRefusal::TooManyLinks { path },
            Errno::XDEV => EditRefusal::NoMount { path },
            Errno::NAMETOOLONG => EditRefusal::BadPath,
            Errno::NOSPC | Errno::DQUOT => EditRefusal::NoSpace,
            other => EditRefusal::Failed { path, os_error: other.raw_os_error() },
        }
    }

    fn root(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        open(&self.mount.real, flags, Mode::empty())
    }

    /// Opens what is there, first without touching it: no pipe or device is ever opened.
    pub(super) fn open(&self) -> Result<Opened, EditRefusal> {
        let refused = |error| self.refused(error);
        let path = || self.asked.clone();
        let root = self.root().map_err(refused)?;
        let below = or_itself(&self.below);
        let untouched = beneath(&root, below, OFlags::PATH | OFlags::NOFOLLOW).map_err(refused)?;
        let stat = fstat(&untouched).map_err(refused)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let file = reopen(untouched.as_fd()).map_err(refused)?;
                let stat = fstat(&file).map_err(refused)?;
                Ok(Opened::File(file.into(), stat))
            }
            FileType::Directory => {
                let folder = beneath(&root, below, OFlags::RDONLY | OFlags::DIRECTORY).map_err(refused)?;
                Ok(Opened::Folder(folder))
            }
            FileType::Symlink => Err(EditRefusal::TooManyLinks { path: path() }),
            _ => Err(EditRefusal::NotRegular { path: path() }),
        }
    }

    /// Refuses to write where the mount does not allow it.
    pub(super) fn writable(&self) -> Result<(), EditRefusal> {
        if self.mount.writable { Ok(()) } else { Err(self.refused(Errno::ROFS)) }
    }

    /// Reads a whole file, if it is small enough. It may change all the while: more than the limit is never read.
    pub(super) fn read(&self, file: File, stat: &Stat) -> Result<Vec<u8>, EditRefusal> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        self.check_size(size)?;
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        let read = file.take(MAX_EDITED_FILE + 1).read_to_end(&mut bytes);
        read.map_err(|e| self.refused(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        self.check_size(bytes.len() as u64)?;
        Ok(bytes)
    }

    /// Refuses a file that could not be edited again.
    pub(super) fn check_size(&self, size: u64) -> Result<(), EditRefusal> {
        if size <= MAX_EDITED_FILE {
            return Ok(());
        }
        Err(EditRefusal::TooLarge { path: self.asked.clone(), size, limit: MAX_EDITED_FILE })
    }

    /// Writes a file that may or may not be there, its folders included; says whether it was there.
    pub(super) fn create(&self, content: &[u8]) -> Result<bool, EditRefusal> {
        if self.below.as_os_str().is_empty() {
            return Err(self.refused(Errno::ISDIR));
        }
        let root = self.root().map_err(|error| self.refused(error))?;
        let (parent, name) = make_parent(root, &self.below).map_err(|error| match error {
            Errno::NOTDIR => EditRefusal::NotFolder { path: self.asked.clone() },
            other => self.refused(other),
        })?;
        let old = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(self.refused(error)),
        };
        let path = || self.asked.clone();
        match old.as_ref().map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            None | Some(FileType::RegularFile) => {}
            Some(FileType::Directory) => return Err(EditRefusal::IsFolder { path: path() }),
            Some(FileType::Symlink) => return Err(EditRefusal::TooManyLinks { path: path() }),
            Some(_) => return Err(EditRefusal::NotRegular { path: path() }),
        }
        let mode = old.as_ref().map_or(FILE_MODE, |stat| stat.st_mode);
        put(&parent, name, content, mode).map_err(|error| self.refused(error))?;
        Ok(old.is_some())
    }

    /// Writes a file that is there again.
    pub(super) fn replace(&self, content: &[u8], old: &Stat) -> Result<(), EditRefusal> {
        let write = || {
            let name = self.below.file_name().ok_or(Errno::ISDIR)?;
            let folder = or_itself(self.below.parent().unwrap_or_else(|| Path::new("")));
            let parent = beneath(self.root()?, folder, OFlags::RDONLY | OFlags::DIRECTORY)?;
            put(&parent, name, content, old.st_mode)
        };
        write().map_err(|error| self.refused(error))
    }
}

fn or_itself(below: &Path) -> &Path {
    if below.as_os_str().is_empty() { Path::new(".") } else { below }
}

/// A file that is being written. Dropped before it is in its place, it leaves nothing.
struct Part<'a> {
    parent: &'a OwnedFd,
    name: Option<String>,
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            // What cannot be removed stays, under a name that says what it was.
            let _ = unlinkat(self.parent, name, AtFlags::empty());
        }
    }
}

/// Puts a file in its place, whole or not at all, and returns when it is on the disk. It lies beside its place until then: a
/// rename does not leave a mount.
fn put(parent: &OwnedFd, name: &OsStr, content: &[u8], mode: RawMode) -> rustix::io::Result<()> {
    let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let temporary = format!(".edit-{}", names::random_name().map_err(errno)?);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(parent, temporary.as_str(), flags, Mode::from_raw_mode(FILE_MODE))?);
    let mut part = Part { parent, name: Some(temporary.clone()) };
    file.write_all(content).map_err(errno)?;
    // A script that is edited stays one that can be run.
    fchmod(&file, Mode::from_raw_mode(mode & 0o777))?;
    fsync(&file)?;
    renameat(parent, temporary, parent, name)?;
    part.name = None;
    fsync(parent)
}
