//! `GET` and `DELETE /tree`: the regular files beneath a folder. Memory, depth and work of a call are bounded whatever lies there,
//! and no link is followed.

use crate::files::{
    claim::{Claim, beneath, file_stat, unopened},
    refused,
};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, Dir, DirEntry, FileType, OFlags, statat, unlinkat},
    io::Errno,
};
use sandboxd_protocol::{ErrorBody, ErrorCode, FileStat, TreeDeleted, TreeFile, TreePage, percent_encode};
use std::{
    collections::{BinaryHeap, VecDeque},
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

/// Folders in folders that are entered.
const MAX_DEPTH: usize = 100;
/// Longest path beneath the root, in bytes: no longer one can be opened.
const MAX_PATH: usize = 4000;
/// Entries of one folder that are looked at.
const MAX_FOLDER: usize = 2_000_000;
/// Entries that a call looks at before it enters no further folder.
const MAX_LOOKED_AT: usize = 200_000;
/// Names of one folder that are kept in order at a time: a longer folder is read more than once.
const BATCH: usize = 1024;
const BATCH_BYTES: usize = 64 * 1024;
/// Files that one call removes at most.
const MAX_DELETED: u64 = 10_000;

/// Which files are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// How their paths begin.
    pub(crate) prefix: Vec<u8>,
    /// They come after this path.
    pub(crate) after: Vec<u8>,
}

impl Selection {
    /// Whether this file is wanted; for a folder (its path ends in a slash) whether one in it may be.
    fn wants(&self, path: &[u8]) -> bool {
        let leads_to = |other: &[u8]| path.ends_with(b"/") && other.starts_with(path);
        (path.starts_with(&self.prefix) || leads_to(&self.prefix))
            && (path > self.after.as_slice() || leads_to(&self.after))
    }
}

/// The next wanted names of one folder, in order. Those of folders end in a slash: so they sort as the paths beneath them do.
#[derive(Debug, Default)]
struct Batch {
    smallest: BinaryHeap<Vec<u8>>,
    bytes: usize,
    /// Names were left out for a later batch.
    more: bool,
}

impl Batch {
    fn add(&mut self, name: Vec<u8>) {
        self.bytes += name.len();
        self.smallest.push(name);
        while self.smallest.len() > BATCH || self.bytes > BATCH_BYTES {
            let Some(largest) = self.smallest.pop() else { return };
            self.bytes -= largest.len();
            self.more = true;
        }
    }
}

/// One folder that is being walked.
struct Level {
    folder: OwnedFd,
    /// Length of its path, the slash included.
    base: usize,
    names: VecDeque<Vec<u8>>,
    /// The last name of the batch that was read; empty before the first.
    last: Vec<u8>,
    more: bool,
}

/// Where a walk stands.
enum Step {
    /// At a wanted file, whose path is [`Walk::path`].
    File(FileStat),
    /// In front of a folder that this call no longer enters: [`Walk::path`] is where to go on.
    Rest,
    End,
}

/// A walk in the order of the paths' bytes.
struct Walk {
    selection: Selection,
    levels: Vec<Level>,
    path: Vec<u8>,
    looked_at: usize,
    incomplete: bool,
    /// Folders that are empty when they are left are removed.
    prune: bool,
}

impl Walk {
    fn begin(claim: &Claim, folder: &str, selection: Selection, prune: bool) -> Result<Self, ErrorBody> {
        if selection.prefix.contains(&0) || selection.after.contains(&0) {
            return Err(refused(ErrorCode::BadRequest, "prefix or after holds a NUL byte"));
        }
        let root = claim.folder(folder).map_err(unopened)?;
        let root = open_folder(&root, b".").map_err(unopened)?;
        let mut walk = Self { selection, levels: Vec::new(), path: Vec::new(), looked_at: 0, incomplete: false, prune };
        walk.levels.push(Level { folder: root, base: 0, names: VecDeque::new(), last: Vec::new(), more: true });
        Ok(walk)
    }

    fn step(&mut self) -> Result<Step, ErrorBody> {
        loop {
            let Some(level) = self.levels.last_mut() else { return Ok(Step::End) };
            self.path.truncate(level.base);
            let Some(name) = level.names.pop_front() else {
                if level.more {
                    self.read_batch()?;
                } else {
                    self.leave();
                }
                continue;
            };
            self.path.extend_from_slice(&name);
            if let Some(name) = name.strip_suffix(b"/") {
                if self.looked_at > MAX_LOOKED_AT && !self.selection.after.starts_with(&self.path) {
                    return Ok(Step::Rest);
                }
                self.enter(name);
                continue;
            }
            // What has gone since the folder was read, or is something else now, is passed over.
            match statat(&level.folder, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_file() => return Ok(Step::File(file_stat(&stat))),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(_) => self.incomplete = true,
            }
        }
    }

    /// Reads the folder for its next names. Only as many are kept as memory allows.
    fn read_batch(&mut self) -> Result<(), ErrorBody> {
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let mut batch = Batch::default();
        let entries = Dir::read_from(&level.folder).map_err(unopened)?;
        for (seen, entry) in entries.map_while(Result::ok).enumerate() {
            if seen >= MAX_FOLDER {
                self.incomplete = true;
                break;
            }
            self.looked_at += 1;
            let Some(name) = sortable_name(&level.folder, &entry) else { continue };
            if name <= level.last {
                continue;
            }
            self.path.truncate(level.base);
            self.path.extend_from_slice(&name);
            if self.selection.wants(&self.path) {
                batch.add(name);
            }
        }
        let mut names = batch.smallest.into_sorted_vec();
        names.shrink_to_fit();
        level.more = batch.more;
        level.last = names.last().cloned().unwrap_or_default();
        level.names = names.into();
        Ok(())
    }

    /// Goes into a folder; what cannot be entered is left out.
    fn enter(&mut self, name: &[u8]) {
        let Some(level) = self.levels.last() else { return };
        if self.levels.len() > MAX_DEPTH || self.path.len() > MAX_PATH {
            self.incomplete = true;
            return;
        }
        match open_folder(&level.folder, name) {
            Ok(folder) => {
                let base = self.path.len();
                self.levels.push(Level { folder, base, names: VecDeque::new(), last: Vec::new(), more: true });
            }
            // Gone, or replaced by something that is no folder.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(_) => self.incomplete = true,
        }
    }

    fn leave(&mut self) {
        self.levels.pop();
        let Some(parent) = self.levels.last() else { return };
        if self.prune
            && let Some(name) = self.path.get(parent.base..).and_then(|name| name.strip_suffix(b"/"))
        {
            // It is not empty, most often.
            let _ = unlinkat(&parent.folder, name, AtFlags::REMOVEDIR);
        }
    }

    /// Removes the file that the walk is at; false when it had gone.
    fn remove(&self) -> Result<bool, ErrorBody> {
        let Some(level) = self.levels.last() else { return Ok(false) };
        match unlinkat(&level.folder, self.path.get(level.base..).unwrap_or_default(), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::ISDIR) => Ok(false),
            Err(e) => Err(unopened(e)),
        }
    }
}

/// The name as it is sorted; `None` for what is neither a regular file nor a folder.
fn sortable_name(folder: &OwnedFd, entry: &DirEntry) -> Option<Vec<u8>> {
    let name = entry.file_name();
    if matches!(name.to_bytes(), b"." | b"..") {
        return None;
    }
    let kind = match entry.file_type() {
        // Not every file system tells.
        FileType::Unknown => FileType::from_raw_mode(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_mode),
        kind => kind,
    };
    match kind {
        FileType::RegularFile => Some(name.to_bytes().to_vec()),
        FileType::Directory => Some([name.to_bytes(), b"/"].concat()),
        _ => None,
    }
}

fn open_folder(parent: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    beneath(parent, Path::new(OsStr::from_bytes(name)), flags)
}

/// One page of the files that are wanted.
pub(crate) fn page(claim: &Claim, folder: &str, selection: Selection, limit: usize) -> Result<TreePage, ErrorBody> {
    let mut walk = Walk::begin(claim, folder, selection, false)?;
    let mut files: Vec<TreeFile> = Vec::new();
    let next = loop {
        match walk.step()? {
            Step::File(_) if files.len() == limit => break files.last().map(|file| file.path.clone()),
            Step::File(stat) => files.push(TreeFile { path: percent_encode(&walk.path), stat }),
            Step::Rest => break Some(percent_encode(&walk.path)),
            Step::End => break None,
        }
    };
    Ok(TreePage { files, next, incomplete: walk.incomplete })
}

/// Removes the files whose paths begin with the prefix, and the folders that are empty then.
pub(crate) fn delete(claim: &Claim, folder: &str, prefix: Vec<u8>) -> Result<TreeDeleted, ErrorBody> {
    let mut walk = Walk::begin(claim, folder, Selection { prefix, after: Vec::new() }, true)?;
    let mut count = 0;
    loop {
        match walk.step()? {
            Step::File(_) if count == MAX_DELETED => return Ok(TreeDeleted { count, more: true }),
            Step::File(_) => count += u64::from(walk.remove()?),
            Step::Rest => return Ok(TreeDeleted { count, more: true }),
            Step::End => return Ok(TreeDeleted { count, more: false }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{collections::BTreeSet, fs};

    fn claim() -> (tempfile::TempDir, Claim) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tmp")).unwrap();
        let claim = Claim::open(dir.path()).unwrap();
        (dir, claim)
    }

    fn make(dir: &tempfile::TempDir, path: &str) {
        let path = dir.path().join("tmp").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    /// Every page, one after the other.
    fn all(claim: &Claim, prefix: &str, limit: usize) -> Vec<String> {
        let mut selection = Selection { prefix: prefix.into(), after: Vec::new() };
        let mut found = Vec::new();
        loop {
            let page = page(claim, "tmp", selection.clone(), limit).unwrap();
            assert!(page.files.len() <= limit && !page.incomplete);
            found.extend(page.files.into_iter().map(|file| file.path));
            match page.next {
                None => return found,
                Some(next) => selection.after = sandboxd_protocol::percent_decode(&next).unwrap(),
            }
        }
    }

    #[test]
    fn a_folder_sorts_as_the_paths_in_it() {
        let (dir, claim) = claim();
        let paths = ["a!", "a.txt", "a/b", "a/c/d", "a0", "b"];
        for path in paths {
            make(&dir, path);
        }
        fs::create_dir_all(dir.path().join("tmp/a/empty/er")).unwrap();
        for limit in 1..=7 {
            assert_eq!(all(&claim, "", limit), paths.map(|path| path.replace('!', "%21")), "limit {limit}");
        }
    }

    #[test]
    fn only_wanted_folders_are_entered() {
        let selection = Selection { prefix: b"data/x".into(), after: b"data/x/m".into() };
        for wanted in [b"data/".as_slice(), b"data/x/", b"data/x/n", b"data/xy/", b"data/xy"] {
            assert!(selection.wants(wanted), "{wanted:?}");
        }
        for other in [b"data".as_slice(), b"a/", b"data/w/", b"data/x/l", b"data/x/l/", b"data/x/m", b"data/x"] {
            assert!(!selection.wants(other), "{other:?}");
        }
    }

    #[test]
    fn a_folder_of_more_than_a_batch_is_listed_whole() {
        let (dir, claim) = claim();
        for n in 0..BATCH * 2 + 3 {
            make(&dir, &format!("{n:05}/f"));
        }
        let found = all(&claim, "", 700);
        assert_eq!(found.len(), BATCH * 2 + 3);
        assert!(found.is_sorted());
    }

    #[test]
    fn a_deletion_takes_what_has_the_prefix_and_leaves_no_empty_folder() {
        let (dir, claim) = claim();
        for path in ["data/a", "data/deep/er/b", "database", "dat", "other/data/a"] {
            make(&dir, path);
        }
        assert_eq!(delete(&claim, "tmp", b"data/".to_vec()).unwrap(), TreeDeleted { count: 2, more: false });
        assert_eq!(all(&claim, "", 10), ["dat", "database", "other/data/a"]);
        assert!(!dir.path().join("tmp/data").exists());
        assert_eq!(delete(&claim, "tmp", b"dat".to_vec()).unwrap().count, 2);
        assert_eq!(delete(&claim, "tmp", b"nothing".to_vec()).unwrap(), TreeDeleted::default());
    }

    #[test]
    fn folders_nested_beyond_every_path_are_left_out_and_said_to_be() {
        let (dir, claim) = claim();
        let mut path = dir.path().join("tmp");
        for _ in 0..MAX_DEPTH + 5 {
            path.push("d");
        }
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("f"), "").unwrap();
        let page = page(&claim, "tmp", Selection::default(), 10).unwrap();
        assert!(page.incomplete && page.files.is_empty() && page.next.is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn pages_of_any_size_list_each_file_once_in_order(
            paths in prop::collection::btree_set("[ab.]{1,2}(/[ab-]{1,2}){0,2}", 0..20),
            prefix in "[ab]{0,2}/?",
            limit in 1_usize..6,
        ) {
            let (dir, claim) = claim();
            let mut made = BTreeSet::new();
            for path in paths.iter().filter(|path| !path.split('/').any(|part| matches!(part, "." | ".."))) {
                let full = dir.path().join("tmp").join(path);
                // A file may stand where a folder should.
                if fs::create_dir_all(full.parent().unwrap()).is_ok() && !full.is_dir() {
                    fs::write(&full, "").unwrap();
                    made.insert(path.clone());
                }
            }
            let expected: Vec<_> = made.into_iter().filter(|path| path.starts_with(&prefix)).collect();
            prop_assert_eq!(all(&claim, &prefix, limit), expected);
        }
    }
}
