//! `init`: puts the binary where both containers mount it, and makes the claim's folders.

use crate::names;
use rustix::{
    fs::{Access, AtFlags, CWD, FileType, accessat, statat},
    process::geteuid,
};
use sandboxd_protocol::layout;
use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// May be executed and nothing else, so that its processes cannot be traced.
const BINARY_MODE: u32 = 0o111;
const FOLDER_MODE: u32 = 0o750;

/// Why a sandbox cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    /// The binary could not be copied.
    #[error("cannot copy the binary to {path}: {source}", path = path.display())]
    Binary { path: PathBuf, source: io::Error },
    /// A folder could not be made or looked at.
    #[error("cannot prepare the folder {path}: {source}", path = path.display())]
    Folder { path: PathBuf, source: io::Error },
    /// Something else has the folder's name.
    #[error("{path} is in the way: it is not a folder", path = path.display())]
    NoFolder { path: PathBuf },
    /// The folder belongs to somebody else.
    #[error("the folder {path} belongs to user {owner}, and the sandbox runs as user {user}", path = path.display())]
    Owner { path: PathBuf, owner: u32, user: u32 },
    /// The folder cannot be written.
    #[error("the folder {path} cannot be written by user {user}: {source}", path = path.display())]
    Unwritable { path: PathBuf, user: u32, source: io::Error },
}

impl InitError {
    /// Exit status, by which the operator tells a workspace that cannot be written from everything else.
    pub(crate) const fn exit_status(&self) -> u8 {
        match self {
            Self::Binary { .. } => 1,
            Self::Folder { .. } | Self::NoFolder { .. } | Self::Owner { .. } | Self::Unwritable { .. } => {
                layout::EXIT_WORKSPACE_UNWRITABLE
            }
        }
    }
}

pub(crate) fn run(binary: &Path, claim: &Path) -> Result<(), InitError> {
    copy_binary(binary).map_err(|source| InitError::Binary { path: binary.to_owned(), source })?;
    for name in layout::claim_folders() {
        prepare(&claim.join(name))?;
    }
    Ok(())
}

/// By a temporary name, so that a container never starts half a binary.
fn copy_binary(to: &Path) -> io::Result<()> {
    let folder = to.parent().unwrap_or_else(|| Path::new("."));
    let part = folder.join(format!(".{}", names::random_name()?));
    let copied = copy_to(&part).and_then(|()| fs::rename(&part, to));
    if copied.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&part);
        return copied;
    }
    File::open(folder)?.sync_all()
}

fn copy_to(part: &Path) -> io::Result<()> {
    let mut from = File::open("/proc/self/exe")?;
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(part)?;
    io::copy(&mut from, &mut to)?;
    to.set_permissions(Permissions::from_mode(BINARY_MODE))?;
    to.sync_all()
}

fn prepare(path: &Path) -> Result<(), InitError> {
    let failed = |source: io::Error| InitError::Folder { path: path.to_owned(), source };
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
        Ok(()) | Err(_) => {}
    }
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| failed(e.into()))?;
    if !FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Err(InitError::NoFolder { path: path.to_owned() });
    }
    let user = geteuid().as_raw();
    if stat.st_uid != user {
        return Err(InitError::Owner { path: path.to_owned(), owner: stat.st_uid, user });
    }
    let access = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    accessat(CWD, path, access, AtFlags::EACCESS).map_err(|e| InitError::Unwritable {
        path: path.to_owned(),
        user,
        source: e.into(),
    })
}
