//! The steps on disk. All of them block.
//!
//! Everything is made in the folder of parts and renamed to where it belongs, so a name is either absent or whole.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::FileMeta;

/// Index entries are short: a name, a type, a hash. What is longer was not written by us.
const MOST_INDEX_BYTES: u64 = 64 * 1024;

/// Where one file lies.
pub(super) struct Entry {
    pub(super) content: PathBuf,
    pub(super) index: PathBuf,
    /// Where the content is while it is not whole.
    pub(super) content_part: PathBuf,
    /// Where the index entry is while it is not whole.
    pub(super) index_part: PathBuf,
}

/// A file that is not whole yet. Dropping it removes it.
pub(super) struct PartFile {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl PartFile {
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, file, kept: false })
    }

    /// Another handle on the file, with the same position.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Puts the file on disk for good and gives it its place; the folder is synced by the caller.
    fn rename(mut self, to: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, to)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed now is swept later.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes a folder and those above it, each on disk for good.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => sync_parent(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_folder(path.parent().ok_or(error)?)?;
            make_folder(path)
        }
        Err(error) => Err(error),
    }
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), make_folder)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        Some(_) | None => Ok(()),
    }
}

/// Content first, index last; after a failure neither is left.
pub(super) fn publish(part: PartFile, entry: &Entry, mark: Option<&Path>, meta: &FileMeta) -> io::Result<()> {
    if entry.index.try_exists()? {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} is taken", meta.id)));
    }
    let result = place_content(part, entry).and_then(|()| place_mark(mark)).and_then(|()| place_index(entry, meta));
    if result.is_err() {
        for path in [Some(entry.index.as_path()), Some(entry.content.as_path()), mark].into_iter().flatten() {
            let _ = fs::remove_file(path);
        }
    }
    result
}

fn place_content(part: PartFile, entry: &Entry) -> io::Result<()> {
    make_parent(&entry.content)?;
    part.rename(&entry.content)?;
    sync_parent(&entry.content)
}

fn place_mark(mark: Option<&Path>) -> io::Result<()> {
    let Some(mark) = mark else { return Ok(()) };
    make_parent(mark)?;
    File::create(mark)?;
    sync_parent(mark)
}

fn place_index(entry: &Entry, meta: &FileMeta) -> io::Result<()> {
    make_parent(&entry.index)?;
    let mut part = PartFile::create(entry.index_part.clone())?;
    part.file.write_all(&serde_json::to_vec(meta)?)?;
    part.rename(&entry.index)?;
    sync_parent(&entry.index)
}

/// Index entry first: from then on the file does not exist, whatever happens to the rest.
pub(super) fn delete(entry: &Entry, mark: Option<&Path>) -> io::Result<()> {
    fs::remove_file(&entry.index)?;
    sync_parent(&entry.index)?;
    for path in [Some(entry.content.as_path()), mark].into_iter().flatten() {
        remove_if_there(path)?;
    }
    Ok(())
}

pub(super) fn remove_if_there(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn read_index(path: &Path) -> io::Result<FileMeta> {
    use io::Read as _;

    let mut text = Vec::new();
    File::open(path)?.take(MOST_INDEX_BYTES).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The names in a folder; none when it is missing.
pub(super) fn names(folder: &Path) -> io::Result<impl Iterator<Item = io::Result<String>>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => Some(entries),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    // Names of ours are ASCII; others are of no interest.
    Ok(entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose()))
}

/// Sum of the sizes of the files in a folder; what goes away meanwhile counts nothing.
pub(super) fn total_size(folder: &Path) -> io::Result<u64> {
    let mut total = 0;
    for name in names(folder)? {
        match fs::symlink_metadata(folder.join(name?)) {
            Ok(metadata) => total += metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}
