//! Names of objects. Pure.
//!
//! The metadata that lists show stands in the name of the index object, so that a page is one request; where it does not fit, `~`
//! stands there and a list reads the object.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{FileId, FileMeta, FileName, FileSummary, Owner, Workspace};

/// Longest metadata in a name: with the id before it a name stays one that any file system takes, as some stores keep them there.
const LONGEST: usize = 220;
const TOO_LONG: &str = "~";

/// Names below a prefix that the operator may have chosen; that ends in a slash, or is empty.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

/// What stands in a name, as short as may be.
#[derive(Serialize, Deserialize)]
struct Short(
    FileName,
    String,
    u64,
    i64,
    Option<i64>,
    u8,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<Owner>,
);

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        let prefix = prefix.trim_matches('/');
        Self { prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") } }
    }

    /// What all names begin with.
    pub(super) fn root(&self) -> String {
        format!("{}v1/", self.prefix)
    }

    pub(super) fn contents(&self, workspace: &str) -> String {
        format!("{}{workspace}/c/", self.root())
    }

    pub(super) fn content(&self, workspace: &str, id: FileId) -> String {
        format!("{}{id}", self.contents(workspace))
    }

    pub(super) fn index(&self, workspace: &str) -> String {
        format!("{}{workspace}/i/", self.root())
    }

    /// What the name of a file's index object begins with; no other file's does.
    pub(super) fn index_of(&self, workspace: &str, id: FileId) -> String {
        format!("{}{id}.", self.index(workspace))
    }

    pub(super) fn index_object(&self, workspace: &str, meta: &FileMeta) -> String {
        format!("{}{}", self.index_of(workspace, meta.id), summary_text(meta))
    }

    /// Where a list goes on after a file: behind every name that its index object can have.
    pub(super) fn behind(&self, workspace: &str, id: FileId) -> String {
        format!("{}{id}/", self.index(workspace))
    }

    pub(super) fn expiry(&self) -> String {
        format!("{}x/", self.root())
    }

    pub(super) fn expiry_mark(&self, workspace: &Workspace, id: FileId, at: Timestamp) -> String {
        let hour = at.as_second().div_euclid(3600).max(0);
        format!("{}{hour:010}/{}.{id}", self.expiry(), workspace.key())
    }
}

/// The last part of a name.
pub(super) fn last(key: &str) -> &str {
    key.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

fn summary_text(meta: &FileMeta) -> String {
    let nanos = i64::try_from(meta.created_at.as_nanosecond()).ok();
    let short = nanos.map(|created| {
        let FileMeta { filename, mime_type, size_bytes, expires_at, downloadable, owner, .. } = meta;
        let expires = expires_at.map(Timestamp::as_second);
        Short(
            filename.clone(),
            mime_type.clone(),
            *size_bytes,
            created,
            expires,
            u8::from(*downloadable),
            owner.clone(),
        )
    });
    // An expiry between two seconds would come back as another one.
    let exact = meta.expires_at.is_none_or(|at| at.subsec_nanosecond() == 0);
    let json = short.filter(|_| exact).and_then(|short| serde_json::to_vec(&short).ok());
    let text = json.map(|json| BASE64.encode(json)).filter(|text| text.len() <= LONGEST);
    text.unwrap_or_else(|| TOO_LONG.to_owned())
}

/// What the name of an index object says.
#[derive(Debug, PartialEq)]
pub(super) enum Named {
    /// All that a list shows, and whose the file is.
    Summary(Box<FileSummary>, Option<Owner>),
    /// The metadata stands in the object.
    Elsewhere(FileId),
    /// It was not written by us.
    Foreign,
}

/// Reads the name of an index object.
pub(super) fn named(key: &str) -> Named {
    let Some((id, text)) = last(key).split_once('.') else { return Named::Foreign };
    let Ok(id) = id.parse::<FileId>() else { return Named::Foreign };
    if text == TOO_LONG {
        return Named::Elsewhere(id);
    }
    let short = BASE64.decode(text).ok().and_then(|json| serde_json::from_slice::<Short>(&json).ok());
    let summary = short.and_then(|Short(filename, mime_type, size_bytes, created, expires, downloadable, owner)| {
        let summary = FileSummary {
            id,
            filename,
            mime_type,
            size_bytes,
            created_at: Timestamp::from_nanosecond(i128::from(created)).ok()?,
            expires_at: expires.map(Timestamp::from_second).transpose().ok()?,
            downloadable: downloadable != 0,
        };
        Some(Named::Summary(Box::new(summary), owner))
    });
    summary.unwrap_or(Named::Foreign)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Origin;

    fn meta(name: &str, expires_at: Option<Timestamp>) -> FileMeta {
        FileMeta {
            id: FileId::new(1_796_000_000_000, [3; 10]),
            filename: FileName::component(name).unwrap(),
            mime_type: "text/csv".into(),
            size_bytes: 42,
            sha256: "00".into(),
            created_at: "2026-11-30T09:00:00.123456789Z".parse().unwrap(),
            expires_at,
            downloadable: true,
            origin: Origin::Upload,
            owner: None,
        }
    }

    #[test]
    fn a_long_name_is_told_by_the_object_itself() {
        let keys = Keys::new("");
        let long = meta(&"報".repeat(100), None);
        let key = keys.index_object("w", &long);
        assert!(key.ends_with(".~"));
        assert_eq!(named(&key), Named::Elsewhere(long.id));
        let fraction = meta("a", Some(Timestamp::from_millisecond(1500).unwrap()));
        assert_eq!(named(&keys.index_object("w", &fraction)), Named::Elsewhere(fraction.id));
    }

    #[test]
    fn a_prefix_is_a_folder_of_its_own() {
        for (prefix, root) in [("", "v1/"), ("a/b", "a/b/v1/"), ("/a/", "a/v1/")] {
            assert_eq!(Keys::new(prefix).root(), root);
        }
    }

    #[test]
    fn what_others_wrote_is_no_entry() {
        let id = FileId::new(1, [1; 10]);
        for name in ["README".to_owned(), format!("{id}"), format!("{id}.!"), format!("{id}.e30"), format!("{id}x.~")] {
            assert_eq!(named(&format!("v1/w/i/{name}")), Named::Foreign, "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_name_says_what_lists_show(
            name in "[^<>:\"|?*\\\\/\\p{Cc}]{1,80}", seconds: Option<u32>, size: u64, user: Option<String>,
        ) {
            prop_assume!(name != "." && name != "..");
            let expires_at = seconds.map(|seconds| Timestamp::from_second(i64::from(seconds)).unwrap());
            let owner = user.and_then(|user| Workspace::named("w").used_by(&user).user().cloned());
            let file = FileMeta { size_bytes: size, owner, ..meta(&name, expires_at) };
            let keys = Keys::new("p");
            let key = keys.index_object("w", &file);
            prop_assert!(last(&key).len() <= 255);
            prop_assert!(key.starts_with(&keys.index_of("w", file.id)) && key < keys.behind("w", file.id));
            match named(&key) {
                Named::Summary(summary, owner) => {
                    prop_assert_eq!(owner, file.owner.clone());
                    prop_assert_eq!(*summary, FileSummary::from(file));
                }
                Named::Elsewhere(id) => prop_assert_eq!(id, file.id),
                Named::Foreign => prop_assert!(false),
            }
        }
    }
}
