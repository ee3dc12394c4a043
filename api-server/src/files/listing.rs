//! What a list of files is asked for, and its answer. Both generations of cursors are understood and given.

use super::metadata;
use file_store::{FileId, ListRequest, Page};
use std::str::FromStr as _;
use wire::{ApiError, FileList};

const USUAL_LIMIT: usize = 20;
const MOST: usize = 1000;
const MOST_IDS: usize = 100;
/// How the opaque cursor begins; the id of the page's last file follows without its own beginning.
const CURSOR: &str = "page_";
const ID: &str = "file_";

/// Which files.
#[derive(Debug)]
pub enum Asked {
    /// A part of all.
    Page(ListRequest),
    /// These, newest first, as far as they exist.
    Ids(Vec<FileId>),
    /// Those of a session: files of a workspace belong to none.
    Nothing,
}

/// Reads the query. Keys that are not known are ignored: clients add marks such as `beta=true`.
pub fn read(query: &[(String, String)]) -> Result<Asked, ApiError> {
    let value = |key: &str| query.iter().find(|(name, value)| name == key && !value.is_empty()).map(|(_, value)| value);
    let ids: Vec<_> = query.iter().filter(|(name, _)| name == "ids[]" || name == "ids").map(|(_, id)| id).collect();
    let cursors = ["page", "after_id", "before_id"];
    if !ids.is_empty() {
        if let Some(other) = ["limit"].into_iter().chain(cursors).find(|key| value(key).is_some()) {
            return Err(ApiError::invalid(format!("{other}: cannot be combined with `ids`")));
        }
        if ids.len() > MOST_IDS {
            return Err(ApiError::invalid(format!("ids: at most {MOST_IDS} can be asked for at a time")));
        }
        let mut ids: Vec<_> = ids.into_iter().filter_map(|id| FileId::from_str(id).ok()).collect();
        // Ids sort newest first.
        ids.sort_unstable();
        ids.dedup();
        return Ok(Asked::Ids(ids));
    }
    let mut given = cursors.into_iter().filter(|key| value(key).is_some());
    if let (Some(one), Some(two)) = (given.next(), given.next()) {
        return Err(ApiError::invalid(format!("{two}: cannot be combined with `{one}`")));
    }
    let limit = value("limit").map_or(Ok(USUAL_LIMIT), |limit| number(limit))?;
    let id = |key: &str, id: &String| FileId::from_str(id).map_err(|_| ApiError::invalid(format!("{key}: no file id")));
    let page = value("page").map(|cursor| {
        let digits = cursor.strip_prefix(CURSOR).unwrap_or_default();
        FileId::from_str(&format!("{ID}{digits}"))
            .map_err(|_| ApiError::invalid("page: not a cursor of this list; use the `next_page` of an answer"))
    });
    let after = value("after_id").map(|after| id("after_id", after)).or(page).transpose()?;
    let before = value("before_id").map(|before| id("before_id", before)).transpose()?;
    Ok(if value("scope_id").is_some() { Asked::Nothing } else { Asked::Page(ListRequest { after, before, limit }) })
}

fn number(limit: &str) -> Result<usize, ApiError> {
    let limit = limit.parse().ok().filter(|limit| (1..=MOST).contains(limit));
    limit.ok_or_else(|| ApiError::invalid(format!("limit: Input should be a whole number from 1 to {MOST}")))
}

/// The answer; `backwards` when the page lies before a cursor: then more are newer ones, which `next_page` never leads to.
pub fn list(Page { files, has_more }: Page, backwards: bool) -> FileList {
    let id = |id: FileId| id.to_string();
    let (first, last) = (files.first().map(|file| file.id), files.last().map(|file| file.id));
    let cursor = |last: FileId| format!("{CURSOR}{}", id(last).trim_start_matches(ID));
    FileList {
        next_page: last.filter(|_| has_more && !backwards).map(cursor),
        has_more: has_more && last.is_some(),
        first_id: first.map(id),
        last_id: last.map(id),
        data: files.into_iter().map(metadata).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn both_generations_of_cursors_are_read() {
        let id = FileId::new(1, [1; 10]);
        let text = id.to_string();
        let page = text.replacen(ID, CURSOR, 1);
        let asked = |pairs: &[(&str, &str)]| match read(&query(pairs)).unwrap() {
            Asked::Page(ListRequest { after, before, limit }) => (after, before, limit),
            other => unreachable!("{other:?}"),
        };
        assert_eq!(asked(&[]), (None, None, 20));
        assert_eq!(asked(&[("beta", "true"), ("limit", "1000"), ("page", "")]), (None, None, 1000));
        assert_eq!(asked(&[("page", &page)]), (Some(id), None, 20));
        assert_eq!(asked(&[("after_id", &text), ("limit", "1")]), (Some(id), None, 1));
        assert_eq!(asked(&[("before_id", &text)]), (None, Some(id), 20));
        assert!(matches!(read(&query(&[("scope_id", "session_1")])), Ok(Asked::Nothing)));
    }

    #[test]
    fn ids_are_taken_newest_first_and_once() {
        let (old, new) = (FileId::new(1, [1; 10]), FileId::new(2, [1; 10]));
        let (a, b) = (old.to_string(), new.to_string());
        let asked = read(&query(&[("ids[]", &a), ("ids[]", "file_none"), ("ids[]", &b), ("ids[]", &a)])).unwrap();
        assert!(matches!(asked, Asked::Ids(ids) if ids == [new, old]));
    }

    #[test]
    fn what_cannot_be_asked_for_is_named() {
        let id = FileId::new(1, [1; 10]).to_string();
        let many: Vec<_> = (0..101).map(|_| ("ids[]", id.as_str())).collect();
        let rows: [(&[(&str, &str)], &str); 10] = [
            (&[("limit", "0")], "limit: "),
            (&[("limit", "1001")], "limit: "),
            (&[("limit", "x")], "limit: "),
            (&[("page", "page_x")], "page: "),
            (&[("page", &id)], "page: "),
            (&[("after_id", "x")], "after_id: "),
            (&[("before_id", "/etc/passwd")], "before_id: "),
            (&[("after_id", &id), ("before_id", &id)], "before_id: cannot be combined with `after_id`"),
            (&[("ids[]", &id), ("limit", "5")], "limit: cannot be combined with `ids`"),
            (&many, "ids: at most 100"),
        ];
        for (pairs, start) in rows {
            let message = read(&query(pairs)).unwrap_err().message;
            assert!(message.starts_with(start), "{message}");
        }
    }
}
