//! The `$OUTPUT_DIR` of a run. Code in the sandbox owns its parent too: whatever lies there is hostile, and no link is followed.

use crate::names::{self, RunId};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, Dir, Mode, OFlags, RawMode, mkdirat, openat, renameat, unlinkat},
    io::Errno,
};
use std::{io, path::PathBuf};

/// Entries that are counted at most; a reader is bounded far below.
const MAX_COUNTED: u32 = 10_000;
const MODE: RawMode = 0o755;

/// The folder that holds the output folders.
#[derive(Clone, Debug)]
pub(crate) struct OutputParent {
    path: PathBuf,
}

impl OutputParent {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where a run's folder is.
    pub(crate) fn folder(&self, id: &RunId) -> PathBuf {
        self.path.join(id.as_str())
    }

    fn open(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.path, flags, Mode::empty())
    }

    /// Makes a fresh, empty folder. What was put there before is removed if it can be at once, and else moved aside.
    pub(crate) fn create(&self, id: &RunId) -> io::Result<()> {
        let parent = self.open()?;
        // Three times: somebody may put something there again and again.
        for _ in 0..3 {
            match mkdirat(&parent, id.as_str(), Mode::from_raw_mode(MODE)) {
                Err(Errno::EXIST) => Self::clear(&parent, id)?,
                made => return Ok(made?),
            }
        }
        Err(Errno::EXIST.into())
    }

    fn clear(parent: &OwnedFd, id: &RunId) -> io::Result<()> {
        for flags in [AtFlags::empty(), AtFlags::REMOVEDIR] {
            if unlinkat(parent, id.as_str(), flags).is_ok() {
                return Ok(());
            }
        }
        let aside = format!(".aside-{}", names::random_name()?);
        match renameat(parent, id.as_str(), parent, aside.as_str()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Counts what a run left. A link or file in its place holds nothing.
    pub(crate) fn count(&self, id: &RunId) -> u32 {
        let Ok(parent) = self.open() else { return 0 };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&parent, id.as_str(), flags, Mode::empty()) {
            // Not readable, and so not empty for sure; sealing will tell.
            Err(Errno::ACCESS) => 1,
            Err(_) => 0,
            Ok(folder) => count(&folder),
        }
    }

    /// Removes the folder when it is empty, or what has taken its place.
    pub(crate) fn tidy(&self, id: &RunId) {
        let Ok(parent) = self.open() else { return };
        for flags in [AtFlags::REMOVEDIR, AtFlags::empty()] {
            // What is left is somebody's; already gone is as good.
            let _ = unlinkat(&parent, id.as_str(), flags);
        }
    }
}

fn count(folder: &OwnedFd) -> u32 {
    let Ok(entries) = Dir::read_from(folder) else { return 1 };
    let real = entries.flatten().filter(|entry| !matches!(entry.file_name().to_bytes(), b"." | b".."));
    real.take(MAX_COUNTED as usize).fold(0, |n, _| n + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    fn setup() -> (tempfile::TempDir, OutputParent, RunId) {
        let dir = tempfile::tempdir().unwrap();
        let parent = OutputParent::new(dir.path().to_owned());
        (dir, parent, RunId::parse("r1").unwrap())
    }

    #[test]
    fn an_empty_folder_goes_again_and_a_used_one_is_counted() {
        let (_dir, parent, id) = setup();
        parent.create(&id).unwrap();
        assert_eq!(parent.count(&id), 0);
        parent.tidy(&id);
        assert!(!parent.folder(&id).exists());
        parent.create(&id).unwrap();
        fs::write(parent.folder(&id).join("a"), "").unwrap();
        fs::create_dir(parent.folder(&id).join("b")).unwrap();
        assert_eq!(parent.count(&id), 2);
        parent.tidy(&id);
        assert_eq!(parent.count(&id), 2);
    }

    #[test]
    fn whatever_was_put_there_before_is_not_used() {
        let (dir, parent, id) = setup();
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, parent.folder(&id)).unwrap();
        parent.create(&id).unwrap();
        assert!(fs::symlink_metadata(parent.folder(&id)).unwrap().is_dir());
        fs::write(parent.folder(&id).join("planted"), "x").unwrap();
        parent.create(&id).unwrap();
        assert_eq!(fs::read_dir(parent.folder(&id)).unwrap().count(), 0);
        parent.tidy(&id);
        fs::write(parent.folder(&id), "a file").unwrap();
        parent.create(&id).unwrap();
        assert_eq!(parent.count(&id), 0);
    }

    #[test]
    fn a_link_put_in_its_place_is_removed_and_not_followed() {
        let (dir, parent, id) = setup();
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("secret"), "x").unwrap();
        symlink(&elsewhere, parent.folder(&id)).unwrap();
        assert_eq!(parent.count(&id), 0);
        parent.tidy(&id);
        assert!(fs::symlink_metadata(parent.folder(&id)).is_err());
        assert!(elsewhere.join("secret").exists());
    }
}
