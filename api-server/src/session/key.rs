//! Names of files in a container, as clients give them: keys, ids and prefixes. Pure.
//!
//! A key is relative to the uploads; one that begins with `outputs/` is relative to the outputs, and a leading `uploads/` says
//! nothing. An id is the path in the sandbox in base64url, so that names of any bytes have one.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use sandboxd_protocol::layout;

const OUTPUTS: &str = "outputs/";
const UPLOADS: &str = "uploads/";
/// Longest key and longest part of one, in bytes: as long as the sandbox's file system takes.
const LONGEST: usize = 3900;
const LONGEST_PART: usize = 255;

/// The folders of a container whose files clients reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Folder {
    /// What was uploaded.
    Uploads,
    /// What is offered for download.
    Outputs,
    /// What code works with.
    Workspace,
}

impl Folder {
    /// Its path in the sandbox.
    pub fn path(self) -> &'static str {
        match self {
            Self::Uploads => layout::UPLOADS,
            Self::Outputs => layout::OUTPUTS,
            Self::Workspace => layout::WORKSPACE,
        }
    }
}

/// A file of a container that may exist.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The folder.
    pub folder: Folder,
    /// The path beneath it: never empty, without empty parts, `.` and `..`.
    below: Vec<u8>,
}

/// Why a text is no file's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdError {
    /// No base64url without padding.
    Encoding,
    /// No absolute path.
    Malformed,
    /// A path where no file of the container can be.
    Elsewhere,
}

impl Place {
    /// The file that a key names; the error is the sentence for the client.
    pub fn of_key(key: &str) -> Result<Self, &'static str> {
        check_form(key)?;
        let key = key.strip_prefix(UPLOADS).unwrap_or(key);
        let (folder, below) = match key.strip_prefix(OUTPUTS) {
            Some(below) => (Folder::Outputs, below),
            None => (Folder::Uploads, key),
        };
        if below.len() > LONGEST || below.split('/').any(|part| part.len() > LONGEST_PART) {
            return Err("path is too long: each of its parts may have 255 bytes, and all together 3900.");
        }
        if below.contains('\0') {
            return Err("path must not contain NUL characters.");
        }
        if !is_clean(below.as_bytes()) {
            return Err("path must not contain empty or '.' components.");
        }
        Ok(Self { folder, below: below.into() })
    }

    /// The file that an id names.
    pub fn of_id(id: &str) -> Result<Self, IdError> {
        let path = BASE64.decode(id.trim_end_matches('=')).map_err(|_| IdError::Encoding)?;
        if !path.starts_with(b"/") || path.contains(&0) {
            return Err(IdError::Malformed);
        }
        Self::of_path(&path).ok_or(IdError::Elsewhere)
    }

    /// The file at a path in the sandbox.
    pub fn of_path(path: &[u8]) -> Option<Self> {
        [Folder::Uploads, Folder::Outputs, Folder::Workspace].into_iter().find_map(|folder| {
            let below = path.strip_prefix(folder.path().as_bytes())?.strip_prefix(b"/")?;
            (is_clean(below) && !below.contains(&0)).then(|| Self { folder, below: below.to_owned() })
        })
    }

    /// A file that was listed beneath a folder.
    pub fn listed(folder: Folder, below: Vec<u8>) -> Self {
        Self { folder, below }
    }

    /// The path in the sandbox.
    pub fn path(&self) -> Vec<u8> {
        [self.folder.path().as_bytes(), b"/", self.below.as_slice()].concat()
    }

    /// The id.
    pub fn id(&self) -> String {
        BASE64.encode(self.path())
    }

    /// The last part of the path; bytes that are no UTF-8 are replaced.
    pub fn filename(&self) -> String {
        let name = self.below.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    /// The type that the name says. Nothing else does, so that writing and reading agree.
    pub fn mime_type(&self) -> String {
        mime_guess::from_path(self.filename()).first_or_octet_stream().to_string()
    }
}

/// What is wrong with a key by its form.
fn check_form(key: &str) -> Result<(), &'static str> {
    if key.is_empty() {
        return Err("path must not be empty.");
    }
    if key.starts_with('/') {
        return Err("path must be relative (no leading '/').");
    }
    if key.ends_with('/') {
        return Err("path must point to a file, not a directory (no trailing '/').");
    }
    check_climb(key)
}

fn check_climb(key: &str) -> Result<(), &'static str> {
    if key.split('/').any(|part| part == "..") {
        return Err("path must not contain '..' components.");
    }
    Ok(())
}

/// Whether a path beneath a folder can be that of a file.
fn is_clean(below: &[u8]) -> bool {
    below.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

/// The beginnings of the paths beneath the folders that a key's prefix selects; `None` where it selects nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Beneath the uploads.
    pub uploads: Option<String>,
    /// Beneath the outputs.
    pub outputs: Option<String>,
}

/// Which files a list with this prefix shows; without one, all.
pub fn selection(prefix: Option<&str>) -> Result<Selection, &'static str> {
    let prefix = prefix.unwrap_or_default().trim().trim_start_matches('/');
    check_climb(prefix)?;
    if let Some(rest) = prefix.strip_prefix(OUTPUTS) {
        return Ok(Selection { uploads: None, outputs: Some(rest.to_owned()) });
    }
    if let Some(rest) = prefix.strip_prefix(UPLOADS) {
        return Ok(Selection { uploads: Some(rest.to_owned()), outputs: None });
    }
    let outputs = OUTPUTS.starts_with(prefix).then(String::new);
    Ok(Selection { uploads: Some(prefix.to_owned()), outputs })
}

/// Which files a deletion by this prefix removes: uploads, and outputs only where the prefix names their folder.
pub fn deletion(prefix: &str) -> Result<(Folder, String), &'static str> {
    let prefix = prefix.trim().trim_start_matches('/');
    if prefix.is_empty() {
        return Err("prefix must be non-empty for bulk delete.");
    }
    check_climb(prefix)?;
    Ok(match prefix.strip_prefix(OUTPUTS) {
        Some(rest) => (Folder::Outputs, rest.to_owned()),
        None => (Folder::Uploads, prefix.strip_prefix(UPLOADS).unwrap_or(prefix).to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path_of_key(key: &str) -> Result<String, &'static str> {
        Place::of_key(key).map(|place| String::from_utf8(place.path()).unwrap())
    }

    #[test]
    fn a_key_lies_in_the_uploads_unless_it_names_the_outputs() {
        for (key, path) in [
            ("sales.csv", "/mnt/user-data/uploads/sales.csv"),
            ("data/2026/q3.xlsx", "/mnt/user-data/uploads/data/2026/q3.xlsx"),
            ("uploads/a", "/mnt/user-data/uploads/a"),
            ("outputs/chart.png", "/mnt/user-data/outputs/chart.png"),
            ("uploads/outputs/a", "/mnt/user-data/outputs/a"),
            ("outputs", "/mnt/user-data/uploads/outputs"),
            ("outputs-2/a", "/mnt/user-data/uploads/outputs-2/a"),
            ("data/outputs/a", "/mnt/user-data/uploads/data/outputs/a"),
            ("..%2f..%2fx", "/mnt/user-data/uploads/..%2f..%2fx"),
            ("a..b/...", "/mnt/user-data/uploads/a..b/..."),
            ("-rf", "/mnt/user-data/uploads/-rf"),
            ("line\nbreak \"quoted\" 報告 🤣", "/mnt/user-data/uploads/line\nbreak \"quoted\" 報告 🤣"),
        ] {
            assert_eq!(path_of_key(key).as_deref(), Ok(path));
        }
    }

    #[test]
    fn a_key_that_leads_elsewhere_is_refused_by_its_form() {
        for (key, error) in [
            ("", "path must not be empty."),
            ("/abs", "path must be relative (no leading '/')."),
            ("x/", "path must point to a file, not a directory (no trailing '/')."),
            ("outputs/", "path must point to a file, not a directory (no trailing '/')."),
            ("../../etc/cron.d/x", "path must not contain '..' components."),
            ("a/../../b", "path must not contain '..' components."),
            ("outputs/../uploads/x", "path must not contain '..' components."),
            ("..", "path must not contain '..' components."),
            ("a//b", "path must not contain empty or '.' components."),
            ("./a", "path must not contain empty or '.' components."),
            ("uploads//a", "path must not contain empty or '.' components."),
            ("a\0b", "path must not contain NUL characters."),
        ] {
            assert_eq!(path_of_key(key), Err(error), "{key:?}");
        }
        assert!(path_of_key(&"x".repeat(255)).is_ok());
        assert!(path_of_key(&"x".repeat(256)).unwrap_err().starts_with("path is too long"));
        assert!(path_of_key("x/".repeat(1951).trim_end_matches('/')).unwrap_err().starts_with("path is too long"));
    }

    #[test]
    fn an_id_is_the_path_in_base64url() {
        let sales = Place::of_key("sales.csv").unwrap();
        assert_eq!(sales.id(), "L21udC91c2VyLWRhdGEvdXBsb2Fkcy9zYWxlcy5jc3Y");
        assert_eq!(Place::of_id(&sales.id()), Ok(sales.clone()));
        assert_eq!(Place::of_id("L21udC91c2VyLWRhdGEvdXBsb2Fkcy9zYWxlcy5jc3Y="), Ok(sales));
        let odd = Place::listed(Folder::Workspace, b"a/\xff\n".to_vec());
        assert_eq!((Place::of_id(&odd.id()).as_ref(), odd.filename().as_str()), (Ok(&odd), "\u{fffd}\n"));
        for (path, error) in [
            ("relative", IdError::Malformed),
            ("", IdError::Malformed),
            ("/tmp/a\0b", IdError::Malformed),
            ("/etc/passwd", IdError::Elsewhere),
            ("/tmp/x", IdError::Elsewhere),
            ("/mnt/user-data/uploads", IdError::Elsewhere),
            ("/mnt/user-data/uploads/", IdError::Elsewhere),
            ("/mnt/user-data/uploads/../../../etc/passwd", IdError::Elsewhere),
            ("/mnt/user-data/uploads/./a", IdError::Elsewhere),
            ("/mnt/user-data/uploadsx/a", IdError::Elsewhere),
        ] {
            assert_eq!(Place::of_id(&BASE64.encode(path)), Err(error), "{path:?}");
        }
        for text in ["!", "a b", "L21udC91c2VyLWRhdGEvdXBsb2Fkcy9zYWxlcy5jc3Z", "报"] {
            assert_eq!(Place::of_id(text), Err(IdError::Encoding), "{text}");
        }
    }

    #[test]
    fn types_follow_the_name() {
        for (key, mime_type) in [
            ("a.csv", "text/csv"),
            ("d/a.PNG", "image/png"),
            ("settings.json", "application/json"),
            ("none", "application/octet-stream"),
            ("csv", "application/octet-stream"),
        ] {
            assert_eq!(Place::of_key(key).unwrap().mime_type(), mime_type, "{key}");
        }
    }

    #[test]
    fn a_prefix_selects_by_keys() {
        let both = |uploads: Option<&str>, outputs: Option<&str>| Selection {
            uploads: uploads.map(str::to_owned),
            outputs: outputs.map(str::to_owned),
        };
        for (prefix, selected) in [
            (None, both(Some(""), Some(""))),
            (Some(" / "), both(Some(""), Some(""))),
            (Some("data/2026/"), both(Some("data/2026/"), None)),
            (Some("/data"), both(Some("data"), None)),
            (Some("out"), both(Some("out"), Some(""))),
            (Some("outputs"), both(Some("outputs"), Some(""))),
            (Some("outputs/ch"), both(None, Some("ch"))),
            (Some("uploads/data"), both(Some("data"), None)),
            (Some("uploads/"), both(Some(""), None)),
        ] {
            assert_eq!(selection(prefix), Ok(selected), "{prefix:?}");
        }
        assert!(selection(Some("a/../b")).is_err());
    }

    #[test]
    fn a_deletion_needs_a_prefix_and_takes_uploads_unless_it_names_the_outputs() {
        for (prefix, selected) in [
            ("data/2026/", (Folder::Uploads, "data/2026/")),
            (" /data", (Folder::Uploads, "data")),
            ("out", (Folder::Uploads, "out")),
            ("outputs", (Folder::Uploads, "outputs")),
            ("outputs/ch", (Folder::Outputs, "ch")),
            ("uploads/", (Folder::Uploads, "")),
        ] {
            assert_eq!(deletion(prefix), Ok((selected.0, selected.1.to_owned())), "{prefix}");
        }
        for empty in ["", "  ", "/", " // "] {
            assert_eq!(deletion(empty), Err("prefix must be non-empty for bulk delete."));
        }
        assert!(deletion("a/../").is_err());
    }

    proptest! {
        #[test]
        fn what_a_key_or_an_id_names_lies_beneath_one_folder(key in "(outputs/|uploads/)?(\\PC|[./\\x00]){0,40}", bytes: Vec<u8>) {
            let paths = [key.as_bytes().to_vec(), bytes, [Folder::Outputs.path().as_bytes(), b"/", key.as_bytes()].concat()];
            let by_id = paths.iter().filter_map(|path| Place::of_id(&BASE64.encode(path)).ok());
            for place in Place::of_key(&key).into_iter().chain(by_id) {
                let path = place.path();
                let below = path.strip_prefix(place.folder.path().as_bytes()).unwrap();
                prop_assert!(below.len() > 1 && below[0] == b'/' && !path.contains(&0));
                prop_assert!(below[1..].split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b"..")));
                prop_assert_eq!(Place::of_id(&place.id()), Ok(place));
            }
        }

        #[test]
        fn no_text_that_comes_as_an_id_or_a_prefix_does_harm(text in "\\PC{0,60}|[A-Za-z0-9_=-]{0,60}") {
            let _ = (Place::of_id(&text), selection(Some(&text)));
            if let Ok((_, beginning)) = deletion(&text) {
                prop_assert!(!beginning.split('/').any(|part| part == ".."));
            }
        }
    }
}
