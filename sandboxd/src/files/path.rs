//! Where a path of the sandbox lies on the claim. Pure: nothing here touches a file.

use crate::{files::refused, names::RunId};
use sandboxd_protocol::{ErrorBody, ErrorCode, layout};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::PathBuf};

/// Folders of the claim that this half may write. `uploads` is read-only in `main`, and that is the mount's doing.
const WRITABLE: [&str; 4] = ["outputs", "tmp", "uploads", "workspace"];
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 255;

/// A path of the sandbox, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Beneath a folder of the claim.
    File {
        /// The folder's name on the claim.
        folder: &'static str,
        /// What follows, never empty and without `.`, `..` or empty parts.
        below: PathBuf,
    },
    /// A file of a sealed output, by its number.
    Sealed { run: RunId, index: usize },
}

/// Takes the bytes of an absolute path apart.
pub(crate) fn parse(path: &[u8]) -> Result<Place, ErrorBody> {
    let bad = |message| refused(ErrorCode::BadRequest, message);
    if path.len() > MAX_PATH {
        return Err(bad("the path is too long"));
    }
    if path.contains(&0) {
        return Err(bad("the path holds a NUL byte"));
    }
    let rest = path.strip_prefix(b"/").ok_or_else(|| bad("the path is not absolute"))?;
    let parts: Vec<&[u8]> = rest.split(|b| *b == b'/').collect();
    if parts.iter().any(|part| matches!(*part, b"" | b"." | b"..")) {
        return Err(bad("the path has an empty part, '.' or '..'"));
    }
    if parts.iter().any(|part| part.len() > MAX_NAME) {
        return Err(bad("a part of the path is too long"));
    }
    if let Some(below) = below(path, layout::SEALED_PATH) {
        return sealed(below).ok_or_else(|| bad("a sealed output is named by its run and a number"));
    }
    let found = layout::FOLDERS.iter().find_map(|folder| Some((folder.claim, below(path, folder.path)?)));
    let (folder, below) =
        found.ok_or_else(|| refused(ErrorCode::Forbidden, "the path lies outside the folders of the sandbox"))?;
    if below.is_empty() {
        return Err(bad("the path names a folder"));
    }
    Ok(Place::File { folder, below: PathBuf::from(OsStr::from_bytes(below)) })
}

/// What follows `folder` in `path`; empty for the folder itself.
fn below<'a>(path: &'a [u8], folder: &str) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(folder.as_bytes())?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

fn sealed(below: &[u8]) -> Option<Place> {
    let (run, index) = std::str::from_utf8(below).ok()?.split_once('/')?;
    Some(Place::Sealed { run: RunId::parse(run)?, index: index.parse().ok()? })
}

/// The folder of the claim whose files are asked for, by its path in the sandbox.
pub(crate) fn root(path: &[u8]) -> Result<&'static str, ErrorBody> {
    let found = layout::FOLDERS.iter().find(|folder| folder.path.as_bytes() == path);
    let outside = || refused(ErrorCode::Forbidden, "the root is not one of the folders of the sandbox");
    Ok(found.ok_or_else(outside)?.claim)
}

/// The same, when its files may be removed.
pub(crate) fn writable_root(path: &[u8]) -> Result<&'static str, ErrorBody> {
    let folder = root(path)?;
    if WRITABLE.contains(&folder) { Ok(folder) } else { Err(not_writable()) }
}

fn not_writable() -> ErrorBody {
    refused(ErrorCode::Forbidden, "this folder of the sandbox cannot be written")
}

/// The folder and the rest of a path that may be written.
pub(crate) fn writable(place: Place) -> Result<(&'static str, PathBuf), ErrorBody> {
    match place {
        Place::File { folder, below } if WRITABLE.contains(&folder) => Ok((folder, below)),
        Place::File { .. } | Place::Sealed { .. } => Err(not_writable()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(folder: &'static str, below: &str) -> Place {
        Place::File { folder, below: below.into() }
    }

    #[test]
    fn paths_of_main_lie_on_the_claim() {
        for (path, place) in [
            ("/home/agent/workspace/a/b.txt", file("workspace", "a/b.txt")),
            ("/mnt/user-data/uploads/x", file("uploads", "x")),
            ("/skills/s/SKILL.md", file("skills", "s/SKILL.md")),
            ("/mnt/skills/s/SKILL.md", file("skills", "s/SKILL.md")),
            ("/tmp/x", file("tmp", "x")),
            ("/files/output/run/x", file("output", "run/x")),
            ("/sealed/run-1/7", Place::Sealed { run: RunId::parse("run-1").unwrap(), index: 7 }),
        ] {
            assert_eq!(parse(path.as_bytes()), Ok(place), "{path}");
        }
    }

    /// T09.
    #[test]
    fn traversal_is_refused_by_its_form() {
        for path in [
            "",
            "x",
            "/",
            "//tmp/x",
            "/tmp/",
            "/tmp",
            "/tmp/../etc/passwd",
            "/tmp/./x",
            "/tmp//x",
            "/tmp/x/",
            "/mnt/user-data/uploads/../../../etc/passwd",
            "/tmp/a\0b",
            "/sealed/../0",
            "/sealed/run",
            "/sealed/run/x",
            "/sealed/run/-1",
            "/sealed/run/0/1",
        ] {
            assert_eq!(parse(path.as_bytes()).unwrap_err().code, ErrorCode::BadRequest, "{path:?}");
        }
        for path in ["/etc/passwd", "/home/agent/.bashrc", "/tmpx/y", "/claim/workspace/x", "/proc/1/environ"] {
            assert_eq!(parse(path.as_bytes()).unwrap_err().code, ErrorCode::Forbidden, "{path:?}");
        }
    }

    #[test]
    fn a_root_is_exactly_one_of_the_folders() {
        assert_eq!(root(b"/mnt/user-data/uploads"), Ok("uploads"));
        assert_eq!(root(b"/skills"), Ok("skills"));
        for path in ["", "/", "/mnt/user-data", "/mnt/user-data/uploads/", "/mnt/user-data/uploads/x", "/sealed"] {
            assert_eq!(root(path.as_bytes()).unwrap_err().code, ErrorCode::Forbidden, "{path:?}");
        }
        assert_eq!(writable_root(b"/tmp"), Ok("tmp"));
        assert!(writable_root(b"/skills").is_err() && writable_root(b"/files/output").is_err());
    }

    #[test]
    fn only_some_folders_are_written() {
        for path in ["/home/agent/workspace/a", "/mnt/user-data/uploads/a", "/mnt/user-data/outputs/a", "/tmp/a"] {
            assert!(writable(parse(path.as_bytes()).unwrap()).is_ok(), "{path}");
        }
        for path in ["/skills/a", "/files/output/r/a", "/sealed/r/0"] {
            assert_eq!(writable(parse(path.as_bytes()).unwrap()).unwrap_err().code, ErrorCode::Forbidden, "{path}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_stays_below_its_folder(path in "/(tmp|skills|files/output)/[a./]{0,12}") {
            if let Ok(Place::File { below, .. }) = parse(path.as_bytes()) {
                prop_assert!(below.components().all(|part| matches!(part, std::path::Component::Normal(_))));
            }
        }
    }
}
