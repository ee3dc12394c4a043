//! Pages of a container's files, oldest first. The order is total: by the time of the last change, then by the path.

use super::key::{Folder, Place, Selection};
use sandbox_runtime::{FileError, FileStat, Sandbox, TreeFile, TreeQuery};
use sandboxd_protocol::{MAX_TREE_PAGE, percent_decode};
use std::collections::BTreeSet;

/// Files that one list looks at: so long it stays quick whatever code in the container makes.
const MOST_LOOKED_AT: usize = 50_000;

/// A file with all that a list shows of it. Sorted as lists are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// Milliseconds since 1970 of its last change.
    pub modified_ms: u64,
    /// Where it lies.
    pub place: Place,
    /// Its length in bytes.
    pub size: u64,
}

impl Listed {
    /// A file as it was looked at.
    pub fn new(place: Place, stat: &FileStat) -> Self {
        Self { modified_ms: stat.modified_ms, place, size: stat.size }
    }

    fn rank(&self) -> (u64, &Place) {
        (self.modified_ms, &self.place)
    }
}

/// Which part of the list: from its beginning, or beside a file.
#[derive(Clone, Debug)]
pub enum From {
    /// The oldest.
    Start,
    /// Those that come after this one.
    After(Listed),
    /// Those that come before this one, next to it.
    Before(Listed),
}

/// Takes files in any order and keeps those of one page: no more memory than that, however many there are.
pub struct Page {
    from: From,
    limit: usize,
    kept: BTreeSet<Listed>,
    has_more: bool,
}

impl Page {
    /// An empty page of at most `limit` files.
    pub fn new(from: From, limit: usize) -> Self {
        Self { from, limit, kept: BTreeSet::new(), has_more: false }
    }

    /// Considers a file.
    pub fn add(&mut self, file: Listed) {
        let wanted = match &self.from {
            From::Start => true,
            From::After(cursor) => file.rank() > cursor.rank(),
            From::Before(cursor) => file.rank() < cursor.rank(),
        };
        if !wanted {
            return;
        }
        self.kept.insert(file);
        if self.kept.len() > self.limit {
            match self.from {
                From::Start | From::After(_) => self.kept.pop_last(),
                From::Before(_) => self.kept.pop_first(),
            };
            self.has_more = true;
        }
    }

    /// The files, oldest first, and whether there are more in the direction that was asked for.
    pub fn finish(self) -> (Vec<Listed>, bool) {
        (self.kept.into_iter().collect(), self.has_more)
    }
}

/// Why there is no list.
#[derive(Debug)]
pub enum ListError {
    /// More files than one list looks at.
    TooMany,
    /// The container did not tell.
    Files(FileError),
}

/// Looks at all files of a selection.
pub async fn fill(sandbox: &Sandbox, selection: &Selection, page: &mut Page) -> Result<(), ListError> {
    let mut looked_at = 0;
    for (folder, prefix) in [(Folder::Uploads, &selection.uploads), (Folder::Outputs, &selection.outputs)] {
        let Some(prefix) = prefix else { continue };
        let mut after = String::new();
        loop {
            let query = TreeQuery { root: folder.path(), prefix, after: &after, limit: MAX_TREE_PAGE };
            let tree = sandbox.list_files(&query).await.map_err(ListError::Files)?;
            looked_at += tree.files.len();
            if looked_at > MOST_LOOKED_AT {
                return Err(ListError::TooMany);
            }
            for TreeFile { path, stat } in tree.files {
                // What cannot be decoded was not written by us.
                let Some(below) = percent_decode(&path) else { continue };
                page.add(Listed::new(Place::listed(folder, below), &stat));
            }
            match tree.next {
                // A page that does not lead on would be asked for for ever.
                Some(next) if next != after => after = next,
                Some(_) | None => break,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(modified_ms: u64, name: &str) -> Listed {
        Listed { modified_ms, place: Place::of_key(name).unwrap(), size: 1 }
    }

    fn page(from: From, limit: usize) -> (Vec<String>, bool) {
        let mut page = Page::new(from, limit);
        for (modified_ms, name) in [(5, "e"), (1, "a"), (3, "d"), (3, "c"), (2, "b"), (3, "outputs/c")] {
            page.add(file(modified_ms, name));
        }
        let (files, has_more) = page.finish();
        (files.iter().map(|file| file.place.filename()).collect(), has_more)
    }

    #[test]
    fn pages_lead_through_the_list_in_both_directions() {
        let whole = ["a", "b", "c", "d", "c", "e"];
        assert_eq!(page(From::Start, 9), (whole.map(str::to_owned).to_vec(), false));
        assert_eq!(page(From::Start, 2), (vec!["a".into(), "b".into()], true));
        assert_eq!(page(From::After(file(2, "b")), 2), (vec!["c".into(), "d".into()], true));
        assert_eq!(page(From::After(file(3, "d")), 2), (vec!["c".into(), "e".into()], false));
        assert_eq!(page(From::After(file(5, "e")), 2), (vec![], false));
        assert_eq!(page(From::Before(file(5, "e")), 2), (vec!["d".into(), "c".into()], true));
        assert_eq!(page(From::Before(file(3, "c")), 2), (vec!["a".into(), "b".into()], false));
        assert_eq!(page(From::Before(file(1, "a")), 2), (vec![], false));
    }

    #[test]
    fn a_cursor_counts_though_its_size_has_changed() {
        let grown = Listed { size: 100, ..file(2, "b") };
        assert_eq!(page(From::After(grown.clone()), 1), (vec!["c".into()], true));
        assert_eq!(page(From::Before(grown), 1), (vec!["a".into()], false));
    }
}
