//! Names of files, as clients see them. They are never a path of the store.

use serde::{Deserialize, Serialize};

const MOST_CHARS: usize = 255;
const FORBIDDEN: &[char] = &['<', '>', ':', '"', '|', '?', '*', '\\', '/'];

/// Extensions of nameless uploads, by content type.
const EXTENSIONS: &[(&str, &str)] = &[
    ("application/gzip", ".gz"),
    ("application/json", ".json"),
    ("application/msword", ".doc"),
    ("application/pdf", ".pdf"),
    ("application/vnd.ms-excel", ".xls"),
    ("application/vnd.openxmlformats-officedocument.presentationml.presentation", ".pptx"),
    ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", ".xlsx"),
    ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", ".docx"),
    ("application/xml", ".xml"),
    ("application/zip", ".zip"),
    ("image/gif", ".gif"),
    ("image/jpeg", ".jpg"),
    ("image/png", ".png"),
    ("image/svg+xml", ".svg"),
    ("image/webp", ".webp"),
    ("text/css", ".css"),
    ("text/csv", ".csv"),
    ("text/html", ".html"),
    ("text/javascript", ".js"),
    ("text/markdown", ".md"),
    ("text/plain", ".txt"),
    ("text/xml", ".xml"),
];

/// Name of a file: 1 to 255 characters, one path component, nothing that any common system forbids.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FileName(String);

/// Why a text cannot be a file's name; reads after "file name".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Too many characters.
    #[error("is longer than 255 characters")]
    TooLong,
    /// A character that is not allowed.
    #[error("contains the forbidden character `{0}`")]
    Forbidden(char),
    /// A control character, line breaks included.
    #[error("contains a control character")]
    Control,
    /// Empty, `.`, `..`, or ends in a slash.
    #[error("names no file")]
    NoFile,
    /// The path climbs above where it starts.
    #[error("leads out of its folder")]
    Climbs,
}

impl FileName {
    /// The name for an upload: the last component of what the client gave; a name of our own where it gave none.
    pub fn parse(given: Option<&str>, mime_type: &str) -> Result<Self, NameError> {
        let given = match given {
            None | Some("") => return Ok(Self(format!("unnamed{}", extension(mime_type)))),
            Some(given) => given,
        };
        let (folders, name) = given.rsplit_once('/').unwrap_or(("", given));
        if climbs(folders) {
            return Err(NameError::Climbs);
        }
        Self::component(name)
    }

    /// Exactly this name, which has to be a single component.
    pub fn component(name: &str) -> Result<Self, NameError> {
        if matches!(name, "" | "." | "..") {
            return Err(NameError::NoFile);
        }
        if name.chars().count() > MOST_CHARS {
            return Err(NameError::TooLong);
        }
        if name.chars().any(char::is_control) {
            return Err(NameError::Control);
        }
        match name.chars().find(|char| FORBIDDEN.contains(char)) {
            Some(char) => Err(NameError::Forbidden(char)),
            None => Ok(Self(name.to_owned())),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for FileName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        Self::component(&name)
    }
}

impl From<FileName> for String {
    fn from(name: FileName) -> Self {
        name.0
    }
}

/// Whether a path has more steps up than down at any point.
fn climbs(folders: &str) -> bool {
    let mut depth = 0_usize;
    for folder in folders.split('/') {
        match folder {
            "" | "." => {}
            ".." if depth == 0 => return true,
            ".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

fn extension(mime_type: &str) -> &'static str {
    let essence = mime_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    EXTENSIONS.iter().find(|(known, _)| *known == essence).map_or("", |(_, extension)| extension)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(given: &str) -> Result<String, NameError> {
        FileName::parse(Some(given), "text/plain").map(String::from)
    }

    #[test]
    fn odd_names_are_kept_as_they_are() {
        for name in [
            "sales.csv",
            "報告 🤣.csv",
            "a b.txt",
            "100%.txt",
            "report%20name.txt",
            "report name.txt",
            "-rf",
            ".bashrc",
            "...",
            "a..b",
            " leading and trailing ",
            "..%2f..%2fx",
            "it's;$(id)`id`&.txt",
            &"報".repeat(255),
        ] {
            assert_eq!(parsed(name).as_deref(), Ok(name));
        }
    }

    #[test]
    fn only_the_last_component_is_kept() {
        for (given, name) in [
            ("dir/../b.txt", "b.txt"),
            ("/abs", "abs"),
            ("/home/me/notes.md", "notes.md"),
            ("./x", "x"),
            ("a//b", "b"),
            ("a/b:c/d", "d"),
        ] {
            assert_eq!(parsed(given).as_deref(), Ok(name), "{given}");
        }
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for (given, error) in [
            ("../../etc/cron.d/x", NameError::Climbs),
            ("a/../../b", NameError::Climbs),
            ("x/", NameError::NoFile),
            ("/", NameError::NoFile),
            (".", NameError::NoFile),
            ("..", NameError::NoFile),
            ("a/..", NameError::NoFile),
            ("q\"uote.txt", NameError::Forbidden('"')),
            ("a<b", NameError::Forbidden('<')),
            ("C:\\temp\\x", NameError::Forbidden(':')),
            ("a\\b", NameError::Forbidden('\\')),
            ("who?", NameError::Forbidden('?')),
            ("*.csv", NameError::Forbidden('*')),
            ("a|b", NameError::Forbidden('|')),
            ("line\nbreak.txt", NameError::Control),
            ("x\r\nset-cookie: a=b", NameError::Control),
            ("nul\0byte", NameError::Control),
            ("\u{85}", NameError::Control),
            (&"x".repeat(256), NameError::TooLong),
        ] {
            assert_eq!(parsed(given), Err(error), "{given:?}");
        }
    }

    #[test]
    fn a_missing_name_follows_the_content_type() {
        for (given, mime_type, name) in [
            (None, "text/csv", "unnamed.csv"),
            (Some(""), "Text/CSV; charset=utf-8", "unnamed.csv"),
            (None, "application/octet-stream", "unnamed"),
            (None, "", "unnamed"),
            (None, "../../x", "unnamed"),
        ] {
            assert_eq!(FileName::parse(given, mime_type).map(String::from).as_deref(), Ok(name));
        }
    }

    #[test]
    fn reasons_read_as_sentences() {
        let error = parsed("a<b").unwrap_err();
        assert_eq!(crate::StoreError::from(error).to_string(), "file name contains the forbidden character `<`");
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_one_component_and_parses_to_itself(given in "\\PC{0,300}|(\\.|/|[a-c<\\x00-\\x1f])*") {
            if let Ok(name) = FileName::parse(Some(&given), "") {
                let name = name.as_str();
                prop_assert!(!name.is_empty() && name.chars().count() <= 255);
                prop_assert!(!name.contains(FORBIDDEN) && !name.chars().any(char::is_control));
                prop_assert!(name != "." && name != "..");
                prop_assert_eq!(parsed(name), Ok(name.to_owned()));
                prop_assert!(given.is_empty() || given.ends_with(name));
            }
        }
    }
}
