//! One output stream of a run: in memory while it runs, perhaps on the disk after that.

use crate::names;
use rustix::{
    fs::{CWD, Mode, OFlags, RawMode, openat, unlinkat},
    io::Errno,
};
use sandboxd_protocol::MAX_FRAME_PAYLOAD;
use std::{borrow::Cow, fs::File, io, os::unix::fs::FileExt as _, path::Path, sync::Arc};

const FILE_MODE: RawMode = 0o600;

#[derive(Debug, Default)]
pub(super) struct Kept {
    place: Place,
    truncated: bool,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<u8>),
    Disk { file: Arc<File>, start: u64, len: usize },
}

impl Default for Place {
    fn default() -> Self {
        Self::Memory(Vec::new())
    }
}

impl Kept {
    /// Keeps output up to a limit; what comes after the end of a run is dropped.
    pub(super) fn push(&mut self, data: &[u8], limit: usize) {
        let Place::Memory(bytes) = &mut self.place else { return };
        let room = limit.saturating_sub(bytes.len());
        self.truncated |= data.len() > room;
        bytes.extend_from_slice(data.get(..room).unwrap_or(data));
    }

    pub(super) fn len(&self) -> usize {
        match &self.place {
            Place::Memory(bytes) => bytes.len(),
            Place::Disk { len, .. } => *len,
        }
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Nothing will be added.
    pub(super) fn shrink(&mut self) {
        if let Place::Memory(bytes) = &mut self.place {
            bytes.shrink_to_fit();
        }
    }

    /// What follows the first `from` bytes, at most one frame of it.
    pub(super) fn after(&self, from: usize) -> io::Result<Cow<'_, [u8]>> {
        let len = self.len().saturating_sub(from).min(MAX_FRAME_PAYLOAD);
        match &self.place {
            Place::Memory(bytes) => Ok(bytes.get(from..).and_then(|rest| rest.get(..len)).unwrap_or_default().into()),
            Place::Disk { .. } if len == 0 => Ok(Cow::default()),
            Place::Disk { file, start, .. } => {
                let mut piece = vec![0; len];
                file.read_exact_at(&mut piece, start + from as u64)?;
                Ok(piece.into())
            }
        }
    }

    /// From now on it is read from a file, which has it from `start` on.
    pub(super) fn lies_in(&mut self, file: &Arc<File>, start: u64) {
        self.place = Place::Disk { file: Arc::clone(file), start, len: self.len() };
    }
}

/// A file that nobody else can open, and that is gone with its last descriptor.
pub(super) fn unnamed_file(folder: &Path) -> io::Result<File> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(FILE_MODE));
    match openat(CWD, folder, flags | OFlags::TMPFILE, mode) {
        // Not every file system has files without a name from the start.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        opened => return Ok(File::from(opened?)),
    }
    let path = folder.join(format!(".result-{}", names::random_name()?));
    let file = openat(CWD, &path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
    unlinkat(CWD, &path, rustix::fs::AtFlags::empty())?;
    Ok(File::from(file))
}
