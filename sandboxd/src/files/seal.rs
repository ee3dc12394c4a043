//! Sealed outputs: a run's folder, moved to where `main` has no path to it.

use crate::{
    files::{
        claim::{Claim, OpenFile, beneath, regular_file, unopened},
        refused,
        write::PART_PREFIX,
    },
    names::{self, RunId},
};
use rustix::{
    fd::{AsRawFd as _, OwnedFd},
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, chmodat, renameat_with, statat, unlinkat},
    io::Errno,
};
use sandboxd_protocol::{ErrorBody, ErrorCode, OutputFile, Sealed, layout};
use std::{
    ffi::{CStr, CString, OsStr},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

/// Files that are listed at most.
const MAX_FILES: usize = 1000;
/// Entries that are looked at to find them.
const MAX_ENTRIES: usize = 20_000;
/// Prefix of folders that are being removed; no run id starts with a dot.
const REMOVED_PREFIX: &str = ".removed-";
const OUTPUT_FOLDER: &str = "output";

/// Moves a run's folder away from `main`, once, and lists it.
pub(crate) fn seal(claim: &Claim, run: &RunId) -> Result<Sealed, ErrorBody> {
    let sealed = claim.folder(layout::SEALED).map_err(unopened)?;
    match open_folder(&sealed, run) {
        Err(Errno::NOENT) => take_away(claim, &sealed, run)?,
        Err(e) => return Err(unopened(e)),
        Ok(_) => {}
    }
    let folder = open_folder(&sealed, run).map_err(unopened)?;
    let files = regular_files(&folder)?.into_iter().enumerate().map(|(index, (name, size))| OutputFile {
        name: String::from_utf8_lossy(name.to_bytes()).into_owned(),
        path: format!("{}/{run}/{index}", layout::SEALED_PATH),
        size,
    });
    Ok(Sealed { files: files.collect() })
}

fn take_away(claim: &Claim, sealed: &OwnedFd, run: &RunId) -> Result<(), ErrorBody> {
    let output = claim.folder(OUTPUT_FOLDER).map_err(unopened)?;
    let no_output = |error| match error {
        Errno::NOENT => refused(ErrorCode::NotFound, "this run has no output folder"),
        other => unopened(other),
    };
    // The mode is the run's choice, and moving a folder needs it to be writable.
    let held = beneath(&output, Path::new(run.as_str()), OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW).map_err(
        |error| match error {
            Errno::NOTDIR => refused(ErrorCode::Forbidden, "the run's output is not a folder"),
            other => no_output(other),
        },
    )?;
    open_mode(&held)?;
    renameat_with(&output, run.as_str(), sealed, run.as_str(), RenameFlags::NOREPLACE).map_err(no_output)?;
    if open_folder(sealed, run).is_ok() {
        return Ok(());
    }
    // Something else took its place between the look and the move. It is not ours to keep.
    let _ = unlinkat(sealed, run.as_str(), AtFlags::empty());
    Err(refused(ErrorCode::Forbidden, "the run's output is not a folder"))
}

/// Gives the owner every right on a folder that is held.
fn open_mode(held: &OwnedFd) -> Result<(), ErrorBody> {
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    chmodat(CWD, path, Mode::from_raw_mode(0o700), AtFlags::empty()).map_err(unopened)
}

fn open_folder(sealed: &OwnedFd, run: &RunId) -> rustix::io::Result<OwnedFd> {
    beneath(sealed, Path::new(run.as_str()), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)
}

/// The regular files at the top of a folder, in the order of their names' bytes.
fn regular_files(folder: &OwnedFd) -> Result<Vec<(CString, u64)>, ErrorBody> {
    let mut files = Vec::new();
    for name in names_in(folder, MAX_ENTRIES)? {
        // What vanishes in between is not listed.
        let Ok(stat) = statat(folder, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if FileType::from_raw_mode(stat.st_mode).is_file() {
            files.push((name, u64::try_from(stat.st_size).unwrap_or(0)));
        }
    }
    files.sort_unstable();
    files.truncate(MAX_FILES);
    Ok(files)
}

fn names_in(folder: &OwnedFd, limit: usize) -> Result<Vec<CString>, ErrorBody> {
    let entries = Dir::read_from(folder).map_err(unopened)?;
    let names = entries.map_while(Result::ok).map(|entry| entry.file_name().to_owned());
    Ok(names.filter(|name| !matches!(name.to_bytes(), b"." | b"..")).take(limit).collect())
}

fn path(name: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(name.to_bytes()))
}

/// Opens a sealed file by its number in the list.
pub(crate) fn open(claim: &Claim, run: &RunId, index: usize) -> Result<OpenFile, ErrorBody> {
    let sealed = claim.folder(layout::SEALED).map_err(unopened)?;
    let folder = open_folder(&sealed, run).map_err(unopened)?;
    let files = regular_files(&folder)?;
    let (name, _) = files.get(index).ok_or_else(|| refused(ErrorCode::NotFound, "no such file"))?;
    regular_file(&folder, path(name))
}

/// Forgets a sealed folder: its name is free at once, its content goes in this call.
pub(crate) fn forget(claim: &Claim, run: &RunId) -> Result<(), ErrorBody> {
    let sealed = claim.folder(layout::SEALED).map_err(unopened)?;
    let random = names::random_name().map_err(|e| refused(ErrorCode::Unavailable, format!("no random name: {e}")))?;
    let removed = format!("{REMOVED_PREFIX}{random}");
    match renameat_with(&sealed, run.as_str(), &sealed, removed.as_str(), RenameFlags::NOREPLACE) {
        Ok(()) => remove_tree(&sealed, &removed),
        Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(unopened(e)),
    }
}

/// Removes what an earlier start left unfinished.
pub(crate) fn clean(claim: &Claim) -> Result<(), ErrorBody> {
    let sealed = claim.folder(layout::SEALED).map_err(unopened)?;
    let readable = beneath(&sealed, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY).map_err(unopened)?;
    for name in names_in(&readable, usize::MAX)? {
        let Ok(name) = name.to_str() else { continue };
        if name.starts_with(PART_PREFIX) {
            unlinkat(&sealed, name, AtFlags::empty()).map_err(unopened)?;
        } else if name.starts_with(REMOVED_PREFIX) {
            remove_tree(&sealed, name)?;
        }
    }
    Ok(())
}

/// Removes a tree that may be of any depth, with two open folders and no recursion: what lies in a folder's folders is first
/// moved up to the top, so that the tree gets flatter until it is gone.
fn remove_tree(parent: &OwnedFd, name: &str) -> Result<(), ErrorBody> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let top = match beneath(parent, Path::new(name), flags) {
        Err(Errno::NOTDIR | Errno::LOOP) => return unlinkat(parent, name, AtFlags::empty()).map_err(unopened),
        top => top.map_err(unopened)?,
    };
    let mut moved = 0_u64;
    loop {
        let entries = names_in(&top, MAX_ENTRIES)?;
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            if unlinkat(&top, entry.as_c_str(), AtFlags::empty()).is_err() {
                remove_folder(&top, &entry, &mut moved)?;
            }
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(unopened)
}

fn remove_folder(top: &OwnedFd, name: &CStr, moved: &mut u64) -> Result<(), ErrorBody> {
    let held = beneath(top, path(name), OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW).map_err(unopened)?;
    open_mode(&held)?;
    let folder = beneath(&held, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY).map_err(unopened)?;
    loop {
        let entries = names_in(&folder, MAX_ENTRIES)?;
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            if unlinkat(&folder, entry.as_c_str(), AtFlags::empty()).is_ok() {
                continue;
            }
            // A folder without the right to write cannot be moved elsewhere.
            open_mode(
                &beneath(&folder, path(&entry), OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW)
                    .map_err(unopened)?,
            )?;
            *moved += 1;
            let free = format!(".moved-{moved}");
            match renameat_with(&folder, entry.as_c_str(), top, free.as_str(), RenameFlags::NOREPLACE) {
                // Somebody made that name: the next number is tried in the next round.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(unopened(e)),
            }
        }
    }
    unlinkat(top, name, AtFlags::REMOVEDIR).map_err(unopened)
}
