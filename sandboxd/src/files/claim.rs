//! Opening what lies on the claim. Every look-up stays beneath its folder and follows no link; what was opened is checked by its
//! descriptor and never by its name again.

use crate::files::refused;
use rustix::{
    fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    fs::{FileType, Mode, OFlags, RawMode, ResolveFlags, Stat, fstat, mkdirat, open, openat2},
    io::Errno,
};
use sandboxd_protocol::{ErrorBody, ErrorCode, FileStat};
use std::{
    ffi::OsStr,
    fs::File,
    path::{Component, Path},
    sync::Mutex,
};

const FOLDER_MODE: RawMode = 0o755;

/// The root of the claim.
#[derive(Debug)]
pub(crate) struct Claim {
    root: OwnedFd,
    /// Held while a written file takes its place.
    pub(crate) place: Mutex<()>,
}

impl Claim {
    pub(crate) fn open(path: &Path) -> rustix::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: open(path, flags, Mode::empty())?, place: Mutex::default() })
    }

    /// One of the claim's own folders.
    pub(crate) fn folder(&self, name: &str) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.root, name, flags, Mode::empty(), resolve)
    }
}

/// Opens beneath a folder, on the same mount, through no link of any kind.
pub(crate) fn beneath(folder: impl AsFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    // The kernel gives up when the tree is renamed under it too often; whoever does that loses only its own requests.
    for _ in 0..16 {
        match openat2(&folder, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens the folder of a path, making those that are missing, and gives the path's last name. One step at a time, so that no link
/// is ever passed.
pub(crate) fn make_parent(folder: OwnedFd, path: &Path) -> rustix::io::Result<(OwnedFd, &OsStr)> {
    let mut names: Vec<&OsStr> = path.components().map(Component::as_os_str).collect();
    let last = names.pop().ok_or(Errno::ISDIR)?;
    let mut at = folder;
    for name in names {
        match mkdirat(&at, name, Mode::from_raw_mode(FOLDER_MODE)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        at = beneath(&at, Path::new(name), OFlags::PATH | OFlags::DIRECTORY)?;
    }
    // Not by O_PATH: it is flushed later.
    Ok((beneath(&at, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?, last))
}

/// A regular file, open for reading, as it was when it was opened.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) stat: FileStat,
}

/// Opens a regular file for reading: first without touching it, so that no pipe or device is ever opened.
pub(crate) fn regular_file(folder: impl AsFd, path: &Path) -> Result<OpenFile, ErrorBody> {
    let untouched = beneath(folder, path, OFlags::PATH | OFlags::NOFOLLOW).map_err(unopened)?;
    let stat = fstat(&untouched).map_err(unopened)?;
    is_regular(&stat)?;
    let file = reopen(untouched.as_fd()).map_err(unopened)?;
    let stat = fstat(&file).map_err(unopened)?;
    Ok(OpenFile { file: file.into(), stat: file_stat(&stat) })
}

/// Refuses everything but a regular file.
pub(crate) fn is_regular(stat: &Stat) -> Result<(), ErrorBody> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(refused(ErrorCode::BadRequest, "the path names a folder")),
        FileType::Symlink => Err(refused(ErrorCode::Forbidden, "links are not followed")),
        _ => Err(refused(ErrorCode::Forbidden, "the path names something that is not a regular file")),
    }
}

/// Opens for reading what a descriptor holds; the name is not looked at again.
pub(crate) fn reopen(untouched: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", untouched.as_raw_fd());
    open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
}

/// Size and entity tag. The change time cannot be set back by code in the sandbox.
pub(crate) fn file_stat(stat: &Stat) -> FileStat {
    let etag = format!(
        "\"{:x}-{:x}-{:x}.{:x}-{:x}.{:x}\"",
        stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec
    );
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    let modified_ms = seconds.saturating_mul(1000).saturating_add(stat.st_mtime_nsec / 1_000_000);
    FileStat { size: u64::try_from(stat.st_size).unwrap_or(0), etag, modified_ms }
}

/// The refusal for a failed look-up.
pub(crate) fn unopened(error: Errno) -> ErrorBody {
    match error {
        Errno::NOENT | Errno::NOTDIR => refused(ErrorCode::NotFound, "no such file"),
        Errno::LOOP => refused(ErrorCode::Forbidden, "links are not followed"),
        Errno::XDEV => refused(ErrorCode::Forbidden, "the path leaves the folders of the sandbox"),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            refused(ErrorCode::Forbidden, "the file's mode does not allow this")
        }
        Errno::ISDIR => refused(ErrorCode::BadRequest, "the path names a folder"),
        Errno::NAMETOOLONG => refused(ErrorCode::BadRequest, "a name in the path is too long"),
        Errno::NOSPC | Errno::DQUOT => refused(ErrorCode::NoSpace, "the disk of the sandbox is full"),
        Errno::FBIG => refused(ErrorCode::TooLarge, "the file is larger than the disk can hold"),
        other => refused(ErrorCode::Unavailable, format!("the file operation failed: {other}")),
    }
}
