//! Edits of files: what is asked for, and what came of it.

use serde::{Deserialize, Serialize};

/// Largest file that is viewed or edited, in bytes.
pub const MAX_EDITED_FILE: u64 = 16 * 1024 * 1024;
/// Largest part of a file that one view shows, in bytes.
pub const MAX_VIEW: u64 = 1024 * 1024;
/// Largest image or document that is shown, in bytes.
pub const MAX_MEDIA: u64 = 5 * 1024 * 1024;
/// Bytes that the JSON of an [`EditOutcome`] may take: a view of control characters takes six times their number.
pub const MAX_EDIT_OUTCOME: u64 = 8 * 1024 * 1024;

/// One edit. A path may be relative to the workspace, and may hold `$NAME` and `${NAME}` of the run's variables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Edit {
    /// Shows a file, an image, or what is in a folder.
    View {
        /// What to show.
        path: String,
        /// First and last line, counted from 1; -1 as the last is the end of the file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        view_range: Option<[i64; 2]>,
    },
    /// Writes a whole file, its folders included.
    Create {
        /// Where.
        path: String,
        /// What.
        file_text: String,
    },
    /// Replaces the one place where a text occurs.
    StrReplace {
        /// Where.
        path: String,
        /// The text that is there.
        old_str: String,
        /// What to put in its place.
        new_str: String,
    },
    /// Puts lines after a line.
    Insert {
        /// Where.
        path: String,
        /// The line that they follow; 0 is the beginning of the file.
        insert_line: i64,
        /// The lines.
        insert_text: String,
    },
}

/// What came of an edit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum EditOutcome {
    /// The lines of a file.
    Text {
        /// The lines, without the last one's line feed. Bytes that are no UTF-8 are replaced.
        content: String,
        /// The first of them, counted from 1.
        start_line: u64,
        /// How many they are.
        num_lines: u64,
        /// Lines of the whole file.
        total_lines: u64,
    },
    /// An image or a document.
    Media {
        /// Its kind, by its first bytes.
        format: MediaFormat,
        /// Its bytes in base64.
        data: String,
    },
    /// What is in a folder, in the order of the names' bytes.
    Folder {
        /// The folder.
        path: String,
        /// What is in it.
        entries: Vec<FolderEntry>,
        /// There is more in it than is listed.
        cut: bool,
    },
    /// A file was written.
    Created {
        /// It was there before.
        is_file_update: bool,
    },
    /// A part of a file was changed.
    Changed {
        /// The first line that was removed or changed; for an insertion, the line that it follows.
        start_line: u64,
        /// Lines that were there.
        old_lines: u64,
        /// Lines that are there in their place.
        new_lines: u64,
        /// These lines as in a unified diff, with `-` or `+` before each; `None` when they are too many to be shown.
        #[serde(default)]
        lines: Option<Vec<String>>,
    },
    /// Nothing was changed or shown.
    Refused {
        /// Why.
        why: EditRefusal,
    },
}

/// Kinds of files that are shown as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MediaFormat {
    /// An image.
    Png,
    /// An image.
    Jpeg,
    /// An image.
    Gif,
    /// An image.
    Webp,
    /// A document.
    Pdf,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderEntry {
    /// The name. Bytes that are no UTF-8 are replaced.
    pub name: String,
    /// Whether it is a folder, or a link to one.
    pub is_folder: bool,
}

/// Why an edit was refused. Paths are absolute, as code in the sandbox sees them, with links as they were asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EditRefusal {
    /// The path is empty or too long, or a name in it is, or it holds a NUL.
    BadPath,
    /// The path leads through too many links, or through some that change all the time.
    TooManyLinks {
        /// The path.
        path: String,
    },
    /// The path leads outside the folders of [`crate::layout::FOLDERS`].
    NoMount {
        /// The path.
        path: String,
    },
    /// Nothing is there.
    NotFound {
        /// The path.
        path: String,
    },
    /// It cannot be written since its folder is mounted so.
    ReadOnly {
        /// The path.
        path: String,
        /// The folder of [`crate::layout::FOLDERS`].
        mount: String,
    },
    /// Its mode, or its folder's, does not allow it.
    Denied {
        /// The path.
        path: String,
    },
    /// It is a folder.
    IsFolder {
        /// The path.
        path: String,
    },
    /// A part of the path is a file where a folder is needed.
    NotFolder {
        /// The path.
        path: String,
    },
    /// It is a pipe, a device or a socket.
    NotRegular {
        /// The path.
        path: String,
    },
    /// The file is too large, or would be after the edit.
    TooLarge {
        /// The path.
        path: String,
        /// Its size in bytes.
        size: u64,
        /// What is allowed.
        limit: u64,
    },
    /// The lines that a view asks for are too much to be shown.
    ViewTooLarge {
        /// The path.
        path: String,
        /// Bytes of the lines.
        size: u64,
        /// What is allowed.
        limit: u64,
        /// Lines of the whole file.
        total_lines: u64,
    },
    /// No line of the file is in the range of the view.
    BadRange {
        /// First line asked for.
        start: i64,
        /// Last line asked for.
        end: i64,
        /// Lines of the whole file.
        total_lines: u64,
    },
    /// The text to be replaced is empty.
    EmptyOldStr,
    /// The text to be replaced is not in the file.
    NoMatch,
    /// The text to be replaced is there more than once.
    Ambiguous {
        /// How often.
        count: u64,
        /// The lines in which it begins, the first twenty of them.
        lines: Vec<u64>,
    },
    /// The file has no such line to insert after.
    LineOutOfRange {
        /// The line asked for.
        insert_line: i64,
        /// Lines of the file.
        total_lines: u64,
    },
    /// The disk, or the claim's quota, is full.
    NoSpace,
    /// The system refused it for a reason that has no kind of its own.
    Failed {
        /// The path.
        path: String,
        /// The error's number (errno).
        os_error: i32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, RunKind, RunRequest};

    fn read<T: serde::de::DeserializeOwned>(text: &str) -> T {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn an_edit_is_a_run_of_its_own_kind() {
        let text = r#"{"kind":"edit","input":{"command":"view","path":"a","view_range":[1,-1]},"env":{},"limits":{"timeout_ms":1,"output_bytes":2}}"#;
        let view = Edit::View { path: "a".into(), view_range: Some([1, -1]) };
        let limits = Limits { timeout_ms: 1, output_bytes: 2 };
        let request = RunRequest { run: RunKind::Edit(view), env: std::collections::BTreeMap::new(), limits };
        assert_eq!(read::<RunRequest>(text), request);
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        let bare = Edit::View { path: "a".into(), view_range: None };
        assert_eq!(serde_json::to_string(&bare).unwrap(), r#"{"command":"view","path":"a"}"#);
        assert_eq!(read::<Edit>(r#"{"command":"view","path":"a"}"#), bare);
    }

    #[test]
    fn outcomes_and_refusals_survive_the_way() {
        for outcome in [
            EditOutcome::Created { is_file_update: true },
            EditOutcome::Media { format: MediaFormat::Png, data: "AA==".into() },
            EditOutcome::Changed { start_line: 1, old_lines: 1, new_lines: 0, lines: None },
            EditOutcome::Refused { why: EditRefusal::NoMatch },
            EditOutcome::Refused { why: EditRefusal::Ambiguous { count: 3, lines: vec![1, 2, 9] } },
            EditOutcome::Refused { why: EditRefusal::ReadOnly { path: "/a".into(), mount: "/".into() } },
        ] {
            assert_eq!(read::<EditOutcome>(&serde_json::to_string(&outcome).unwrap()), outcome);
        }
    }
}
