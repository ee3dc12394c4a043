//! Pages of the list.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    io,
    path::Path,
};

use tracing::warn;

use super::{disk, index_name, indexed_id};
use crate::{FileId, FileMeta, FileSummary, ListRequest, Owner, Page};

/// Reads one page. Files that go away meanwhile are replaced by the next ones, so that only the end of the list is short.
pub(super) fn page(index: &Path, request: &ListRequest) -> io::Result<Page> {
    let ListRequest { mut after, mut before, limit } = *request;
    let backwards = before.is_some();
    let mut files = Vec::new();
    loop {
        let (ids, has_more) = next_ids(index, after, before, limit - files.len())?;
        for id in &ids {
            files.extend(readable(index, *id)?.map(FileSummary::from));
        }
        if !has_more || files.len() >= limit {
            // Walked away from the cursor, newest of all last.
            if backwards {
                files.reverse();
            }
            return Ok(Page { files, has_more });
        }
        match ids.last() {
            Some(last) if backwards => before = Some(*last),
            last => after = last.copied().or(after),
        }
    }
}

/// What the files of each owner take.
pub(super) fn sizes_by_owner(index: &Path) -> io::Result<HashMap<Owner, u64>> {
    let mut sizes = HashMap::new();
    for name in disk::names(index)? {
        let Some(id) = indexed_id(&name?) else { continue };
        if let Some(FileMeta { size_bytes, owner: Some(owner), .. }) = readable(index, id)? {
            *sizes.entry(owner).or_default() += size_bytes;
        }
    }
    Ok(sizes)
}

/// A listed file; nothing for one that was deleted since or whose entry is damaged.
fn readable(index: &Path, id: FileId) -> io::Result<Option<FileMeta>> {
    match disk::read_index(&index.join(index_name(id))) {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            warn!(file.id = %id, %error, "left a damaged index entry out of a list");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The ids nearest to the cursor, in order of distance from it, and whether more lie beyond. Holds one page in memory,
/// however many files there are.
fn next_ids(
    index: &Path,
    after: Option<FileId>,
    before: Option<FileId>,
    limit: usize,
) -> io::Result<(Vec<FileId>, bool)> {
    let wanted = disk::names(index)?.filter_map(|name| name.map(|name| indexed_id(&name)).transpose()).filter(|id| {
        let Ok(id) = id else { return true };
        after.is_none_or(|after| *id > after) && before.is_none_or(|before| *id < before)
    });
    if before.is_some() {
        let (ids, has_more) = smallest(wanted.map(|id| id.map(Reverse)), limit)?;
        Ok((ids.into_iter().map(|Reverse(id)| id).collect(), has_more))
    } else {
        smallest(wanted, limit)
    }
}

fn smallest<T: Ord>(items: impl Iterator<Item = io::Result<T>>, limit: usize) -> io::Result<(Vec<T>, bool)> {
    let mut heap = BinaryHeap::new();
    let mut has_more = false;
    for item in items {
        heap.push(item?);
        if heap.len() > limit {
            heap.pop();
            has_more = true;
        }
    }
    Ok((heap.into_sorted_vec(), has_more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_are_kept_in_order() {
        for (items, limit, kept, has_more) in [
            (vec![3, 1, 2], 2, vec![1, 2], true),
            (vec![3, 1, 2], 3, vec![1, 2, 3], false),
            (vec![], 3, vec![], false),
            (vec![1], 0, vec![], true),
        ] {
            assert_eq!(smallest(items.into_iter().map(Ok), limit).unwrap(), (kept, has_more));
        }
    }
}
