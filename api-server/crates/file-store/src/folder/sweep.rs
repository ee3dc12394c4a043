//! Removal of what nobody will ask for again.

use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;

use super::{Layout, disk, index_name};
use crate::{FileId, KEPT_AFTER_EXPIRY, Swept, Workspace};

/// A part or unindexed content of this age belongs to no upload that still goes on.
const ABANDONED: Duration = Duration::from_hours(24);

pub(super) fn sweep(layout: &Layout, now: Timestamp) -> io::Result<Swept> {
    let abandoned = SystemTime::from(now).checked_sub(ABANDONED).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut swept = Swept { parts: sweep_parts(&layout.parts(), abandoned)?, ..Swept::default() };
    for name in disk::names(&layout.root.join("v1"))? {
        let name = name?;
        if Workspace::is_key(&name) {
            swept.orphans += sweep_orphans(layout, &name, abandoned)?;
        }
    }
    swept.expired = sweep_expired(layout, now)?;
    Ok(swept)
}

fn sweep_parts(parts: &Path, abandoned: SystemTime) -> io::Result<usize> {
    let mut removed = 0;
    for name in disk::names(parts)? {
        let path = parts.join(name?);
        if last_written(&path)?.is_some_and(|time| time < abandoned) && disk::remove_if_there(&path)? {
            removed += 1;
        }
    }
    Ok(removed)
}

fn sweep_orphans(layout: &Layout, workspace: &str, abandoned: SystemTime) -> io::Result<usize> {
    let contents = layout.contents(workspace);
    let mut removed = 0;
    for name in disk::names(&contents)? {
        let Ok(id) = name?.parse::<FileId>() else { continue };
        let content = contents.join(id.to_string());
        let index = layout.index(workspace).join(index_name(id));
        // The age comes first: content that was young then may have got its index entry since.
        if last_written(&content)?.is_some_and(|time| time < abandoned)
            && !index.try_exists()?
            && disk::remove_if_there(&content)?
        {
            removed += 1;
        }
    }
    Ok(removed)
}

fn sweep_expired(layout: &Layout, now: Timestamp) -> io::Result<usize> {
    let last_hour = (now.as_second() - KEPT_AFTER_EXPIRY.as_secs()).div_euclid(3600);
    let mut removed = 0;
    for hour in disk::names(&layout.expiry())? {
        let hour = hour?;
        // Files of the last hour itself may have some minutes left.
        if !hour.parse::<i64>().is_ok_and(|hour| hour < last_hour) {
            continue;
        }
        let folder = layout.expiry().join(&hour);
        for mark in disk::names(&folder)? {
            removed += usize::from(sweep_mark(layout, &folder, &mark?)?);
        }
        // Fails while it holds something that is not ours.
        let _ = fs::remove_dir(&folder);
    }
    Ok(removed)
}

fn sweep_mark(layout: &Layout, folder: &Path, mark: &str) -> io::Result<bool> {
    let Some((workspace, id)) = mark.split_once('.') else { return Ok(false) };
    let (true, Ok(id)) = (Workspace::is_key(workspace), id.parse::<FileId>()) else { return Ok(false) };
    let was_there = disk::remove_if_there(&layout.index(workspace).join(index_name(id)))?;
    disk::remove_if_there(&layout.contents(workspace).join(id.to_string()))?;
    disk::remove_if_there(&folder.join(mark))?;
    Ok(was_there)
}

/// Nothing when the file is gone.
fn last_written(path: &Path) -> io::Result<Option<SystemTime>> {
    match fs::metadata(path).and_then(|metadata| metadata.modified()) {
        Ok(time) => Ok(Some(time)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
