//! Empties a folder, however deep what lies in it is nested, without following a link.

use crate::{names, worker::GivenUp};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, chmodat, openat, renameat, statat, unlinkat},
    io::Errno,
};
use std::{ffi::CStr, path::Path};

/// What a folder that is to be emptied has to allow its owner.
const EMPTIED_MODE: RawMode = 0o700;
/// Mode of the folder itself.
const ROOT_MODE: RawMode = 0o755;
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes everything in a folder but mount points, which are not its own.
pub(crate) fn empty(folder: &Path, given_up: &GivenUp<'_>) -> Result<(), Errno> {
    // One whose mode cannot be changed may still be writable.
    let _ = chmodat(CWD, folder, Mode::from_raw_mode(ROOT_MODE), AtFlags::empty());
    let root = openat(CWD, folder, FOLDER, Mode::empty())?;
    let mark = names::random_name().map_err(|_| Errno::IO)?;
    let mut broom = Broom { root: &root, mark, given_up, done: 0, moved: 0, error: None };
    loop {
        broom.sweep(&root, true)?;
        // What was moved up while the folder was read may not have been seen.
        match (std::mem::take(&mut broom.done), broom.error.take()) {
            (0, None) => return Ok(()),
            (0, Some(error)) => return Err(error),
            (_, _) => {}
        }
    }
}

struct Broom<'a> {
    root: &'a OwnedFd,
    /// Part of the names of folders that are moved up.
    mark: String,
    given_up: &'a GivenUp<'a>,
    /// Entries that were removed or moved up.
    done: u64,
    moved: u64,
    /// Why something is left.
    error: Option<Errno>,
}

impl Broom<'_> {
    fn sweep(&mut self, folder: &OwnedFd, is_root: bool) -> Result<(), Errno> {
        for entry in Dir::read_from(folder)?.map_while(Result::ok) {
            if self.given_up.is_true() {
                return Err(Errno::CANCELED);
            }
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match self.remove(folder, name, is_root) {
                Ok(()) => self.done += 1,
                // A mount point, or gone by itself.
                Err(Errno::BUSY | Errno::NOENT) => {}
                Err(Errno::CANCELED) => return Err(Errno::CANCELED),
                Err(error) => self.error = Some(error),
            }
        }
        Ok(())
    }

    /// Removes an entry. Folders in a folder of the root are moved into the root, to be emptied in their turn: so no more than two
    /// are open at a time, and no path gets too long.
    fn remove(&mut self, folder: &OwnedFd, name: &CStr, is_root: bool) -> Result<(), Errno> {
        match unlinkat(folder, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => {}
            done => return done,
        }
        match unlinkat(folder, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            done => return done,
        }
        // Neither can be done to a folder that its owner may not write.
        make_writable(folder, name)?;
        if is_root {
            self.sweep(&openat(folder, name, FOLDER, Mode::empty())?, false)?;
            return unlinkat(folder, name, AtFlags::REMOVEDIR);
        }
        self.moved += 1;
        renameat(folder, name, self.root, format!(".removed-{}-{}", self.mark, self.moved))
    }
}

fn make_writable(parent: impl AsFd, name: &CStr) -> Result<(), Errno> {
    let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode).is_dir() && stat.st_mode & EMPTIED_MODE != EMPTIED_MODE {
        chmodat(&parent, name, Mode::from_raw_mode(EMPTIED_MODE), AtFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    fn left(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    fn emptied(folder: &Path) -> Result<(), Errno> {
        empty(folder, &GivenUp::new(&|| false))
    }

    #[test]
    fn everything_goes_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, outside) = (dir.path().join("workspace"), dir.path().join("outside"));
        fs::create_dir_all(folder.join("a/.git/deep/er")).unwrap();
        fs::create_dir(folder.join("empty")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        for file in [".hidden", "a/file", "a/.git/deep/er/file", "a/.git/config"] {
            fs::write(folder.join(file), "x").unwrap();
        }
        symlink(&outside, folder.join("link")).unwrap();
        symlink(&outside, folder.join("a/.git/link")).unwrap();
        fs::set_permissions(folder.join("a/.git/deep"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(folder.join("a"), fs::Permissions::from_mode(0o500)).unwrap();
        emptied(&folder).unwrap();
        assert_eq!((left(&folder), left(&outside)), (vec![], vec!["kept".to_owned()]));
    }

    #[test]
    fn folders_nested_deeper_than_any_path_go() {
        let dir = tempfile::tempdir().unwrap();
        let (outer, inner) = (dir.path().join("outer"), "a_folder_whose_name_is_of_some_length");
        fs::create_dir(dir.path().join(inner)).unwrap();
        // From the inside out: no path is long while they are made.
        for _ in 0..600 {
            fs::create_dir(&outer).unwrap();
            fs::rename(dir.path().join(inner), outer.join(inner)).unwrap();
            fs::rename(&outer, dir.path().join(inner)).unwrap();
        }
        emptied(dir.path()).unwrap();
        assert_eq!(left(dir.path()), Vec::<String>::new());
    }

    #[test]
    fn it_ends_when_it_is_given_up_and_tells_what_cannot_be_done() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kept"), "").unwrap();
        assert_eq!(empty(dir.path(), &GivenUp::new(&|| true)), Err(Errno::CANCELED));
        assert_eq!(left(dir.path()), ["kept"]);
        assert_eq!(emptied(&dir.path().join("missing")), Err(Errno::NOENT));
    }
}
