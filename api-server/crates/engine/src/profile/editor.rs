//! The editor sub-tool.

use sandboxd_protocol::{Edit, EditOutcome, EditRefusal, FolderEntry, MediaFormat};
use serde_json::{Map, Value, json};
use wire::{EditorResult, FileType, ToolErrorCode};

use super::{BASH, EDITOR, InvalidInput, SandboxFacts, ToolProfile};

/// Commands of the dialect that knows `insert`.
const ALL_COMMANDS: &[&str] = &["view", "str_replace", "create", "insert"];
/// Commands of the other.
const COMMANDS: &[&str] = &["view", "str_replace", "create"];
const PARAMETERS: [&str; 8] =
    ["command", "path", "view_range", "file_text", "old_str", "new_str", "insert_line", "insert_text"];

type Fields = Map<String, Value>;

impl ToolProfile {
    const fn commands(&self) -> &'static [&'static str] {
        if self.zylon { ALL_COMMANDS } else { COMMANDS }
    }

    /// Those of `insert` come last.
    fn parameters(&self) -> impl Iterator<Item = &'static str> {
        PARAMETERS.into_iter().take(if self.zylon { PARAMETERS.len() } else { PARAMETERS.len() - 2 })
    }

    pub(super) fn editor_definition(&self, facts: &SandboxFacts) -> Value {
        let text = |description: &str| json!({ "type": "string", "description": description });
        let describe = |name: &str| match name {
            "command" => json!({ "type": "string", "enum": self.commands(), "description": "What to do." }),
            "path" => text("The file, or for view also a folder."),
            "view_range" => json!({
                "type": "array", "items": { "type": "integer" },
                "description": "view: the first and the last line, counted from 1; -1 as the last is the end of the file.",
            }),
            "file_text" => text("create: the whole text of the file."),
            "old_str" => text("str_replace: the text to replace, exactly as it is in the file, where it must be once."),
            "new_str" => text("str_replace: the text to put in its place; without it the old text is removed."),
            "insert_line" => json!({
                "type": "integer", "description": "insert: the line to insert after; 0 is the beginning of the file.",
            }),
            _ => text("insert: the lines to insert."),
        };
        let properties: Fields = self.parameters().map(|name| (name.to_owned(), describe(name))).collect();
        json!({
            "name": EDITOR,
            "description": self.editor_description(facts),
            "input_schema": {
                "type": "object",
                "properties": properties,
                "required": ["command", "path"],
                "additionalProperties": false,
            },
        })
    }

    fn editor_description(&self, facts: &SandboxFacts) -> String {
        let (folders, uploads) =
            if self.zylon { (" or the names in a folder", "/mnt/user-data/uploads/") } else { ("", "$INPUT_DIR") };
        let insert = if self.zylon { " `insert` puts lines after a line." } else { "" };
        format!(
            "Shows and edits files of the sandbox that {BASH} works in. `view` shows a text file, an image, a PDF{folders}; \
             `create` writes a whole file, also over one that is there, and makes its folders; `str_replace` replaces a text that \
             is in the file exactly once.{insert} Relative paths begin at {}. Files in {uploads} can only be viewed.",
            facts.working_directory,
        )
    }

    pub(super) fn parse_edit(&self, input: &Value) -> Result<Edit, InvalidInput> {
        let fail = |text: String| Err(InvalidInput(text));
        let Some(fields) = input.as_object() else {
            return fail(format!("the input of {EDITOR} must be a JSON object with a `command` and a `path`"));
        };
        if let Some(key) = fields.keys().find(|key| self.parameters().all(|known| known != key.as_str())) {
            let known = self.parameters().collect::<Vec<_>>().join(", ");
            return fail(format!("{EDITOR} has no parameter `{key}`; it takes {known}"));
        }
        let command = required(fields, EDITOR, "command")?;
        if !self.commands().contains(&command) {
            let known = self.commands().join(", ");
            return fail(format!("Unknown text_editor command: '{command}'. Expected one of: {known}"));
        }
        let path = required(fields, EDITOR, "path")?.to_owned();
        if path.is_empty() {
            return Err(missing(EDITOR, "path"));
        }
        if path.contains('\0') {
            return fail("`path` must not contain NUL characters".to_owned());
        }
        Ok(match command {
            "view" => Edit::View { path, view_range: view_range(fields)? },
            "create" => Edit::Create { path, file_text: required(fields, command, "file_text")?.to_owned() },
            "str_replace" => Edit::StrReplace {
                path,
                old_str: required(fields, command, "old_str")?.to_owned(),
                new_str: text(fields, "new_str")?.unwrap_or_default().to_owned(),
            },
            _ => {
                let insert_text = match text(fields, "insert_text")? {
                    Some(lines) => Some(lines),
                    None => text(fields, "new_str")?,
                };
                let insert_line = insert_line(fields)?;
                let insert_text = insert_text.ok_or_else(|| {
                    InvalidInput("insert requires the insert_text parameter (the text to insert).".to_owned())
                })?;
                Edit::Insert { path, insert_line, insert_text: insert_text.to_owned() }
            }
        })
    }

    pub(super) fn edited(&self, outcome: &EditOutcome) -> EditorResult {
        match outcome {
            EditOutcome::Text { content, start_line, num_lines, total_lines } => EditorResult::Viewed {
                file_type: FileType::Text,
                content: content.clone(),
                num_lines: Some(*num_lines),
                start_line: Some(*start_line),
                total_lines: Some(*total_lines),
            },
            EditOutcome::Media { format, data } => EditorResult::Viewed {
                file_type: file_type(*format),
                content: data.clone(),
                num_lines: None,
                start_line: None,
                total_lines: None,
            },
            EditOutcome::Folder { path, entries, cut } => self.folder(path, entries, *cut),
            EditOutcome::Created { is_file_update } => EditorResult::Created { is_file_update: *is_file_update },
            EditOutcome::Changed { start_line, old_lines, new_lines, lines } => EditorResult::Replaced {
                old_start: *start_line,
                old_lines: *old_lines,
                new_start: *start_line,
                new_lines: *new_lines,
                lines: lines.clone(),
            },
            EditOutcome::Refused { why } => {
                let (code, text) = explain(why);
                self.editor_error(code, text)
            }
        }
    }

    /// One dialect has listings, the other has no block for them.
    fn folder(&self, path: &str, entries: &[FolderEntry], cut: bool) -> EditorResult {
        if !self.zylon {
            let text = format!("{path} is a directory. List it with {BASH}, as in `ls -la`.");
            return self.editor_error(ToolErrorCode::InvalidToolInput, text);
        }
        let line = |entry: &FolderEntry| {
            let kind = if entry.is_folder { "[dir]" } else { "[file]" };
            // A line feed in a name would make a line of its own.
            format!("{kind} {}", entry.name.replace(char::is_control, "\u{fffd}"))
        };
        let mut lines: Vec<String> = entries.iter().map(line).collect();
        if cut {
            lines.push(format!("... and more; list them with {BASH}"));
        }
        let count = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        EditorResult::Viewed {
            file_type: FileType::Text,
            content: lines.join("\n"),
            num_lines: Some(count),
            start_line: Some(1),
            total_lines: Some(count),
        }
    }

    pub(super) fn editor_error(&self, code: ToolErrorCode, text: String) -> EditorResult {
        let (error_code, detail) = self.error(code, &text);
        let error_message = if detail.is_none() { Some(text) } else { None };
        EditorResult::Error { error_code, error_message, detail }
    }
}

fn file_type(format: MediaFormat) -> FileType {
    match format {
        MediaFormat::Png | MediaFormat::Jpeg | MediaFormat::Gif | MediaFormat::Webp => FileType::Image,
        MediaFormat::Pdf => FileType::Pdf,
    }
}

fn missing(whose: &str, key: &str) -> InvalidInput {
    InvalidInput(format!("{whose} requires the {key} parameter."))
}

fn required<'a>(fields: &'a Fields, whose: &str, key: &str) -> Result<&'a str, InvalidInput> {
    text(fields, key)?.ok_or_else(|| missing(whose, key))
}

/// Null is as good as absent: models write it for what they do not use.
fn text<'a>(fields: &'a Fields, key: &str) -> Result<Option<&'a str>, InvalidInput> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(InvalidInput(format!("`{key}` must be a string"))),
    }
}

/// An integer, also as text, since models write both.
fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn view_range(fields: &Fields) -> Result<Option<[i64; 2]>, InvalidInput> {
    let range = match fields.get("view_range") {
        None | Some(Value::Null) => return Ok(None),
        Some(range) => range.as_array().map(Vec::as_slice),
    };
    let Some([start, end]) = range else { return Err(bad_range()) };
    match (integer(start), integer(end)) {
        (Some(start), Some(end)) => Ok(Some([start, end])),
        _ => Err(bad_range()),
    }
}

fn bad_range() -> InvalidInput {
    InvalidInput("view_range must contain exactly two integers".to_owned())
}

fn insert_line(fields: &Fields) -> Result<i64, InvalidInput> {
    match fields.get("insert_line") {
        None | Some(Value::Null) => Err(missing("insert", "insert_line")),
        Some(line) => integer(line).ok_or_else(|| InvalidInput("`insert_line` must be an integer".to_owned())),
    }
}

/// A refusal's code, and the reason in words. The contracts give some of the words; what they do not give follows them.
fn explain(why: &EditRefusal) -> (ToolErrorCode, String) {
    use ToolErrorCode::{FileNotFound, InvalidToolInput, Unavailable};
    match why {
        EditRefusal::BadPath => (InvalidToolInput, "The path is empty or too long, or a name in it is.".to_owned()),
        EditRefusal::TooManyLinks { path } => {
            (InvalidToolInput, format!("Path '{path}' leads through too many symbolic links."))
        }
        EditRefusal::NoMount { path } => (InvalidToolInput, format!("Path '{path}' does not match any session mount.")),
        EditRefusal::NotFound { path } => (FileNotFound, format!("File not found: {path}")),
        EditRefusal::ReadOnly { path, mount } => {
            (InvalidToolInput, format!("Path '{path}' is in a read-only mount ('{mount}')."))
        }
        EditRefusal::Denied { path } => {
            (InvalidToolInput, format!("Path '{path}' cannot be used: its mode or its folder's does not allow it."))
        }
        EditRefusal::IsFolder { path } => (InvalidToolInput, format!("Path '{path}' is a folder, not a file.")),
        EditRefusal::NotFolder { path } => {
            (InvalidToolInput, format!("Path '{path}' leads through a file where a folder is needed."))
        }
        EditRefusal::NotRegular { path } => {
            (InvalidToolInput, format!("Path '{path}' is a pipe, a device or a socket, not a file."))
        }
        EditRefusal::TooLarge { path, size, limit } => {
            let text = format!("File '{path}' is too large: {size} bytes, and the editor takes {limit}. Use {BASH}.");
            (InvalidToolInput, text)
        }
        EditRefusal::ViewTooLarge { path, size, limit, total_lines } => {
            let text = format!(
                "File '{path}' is too much to view: {size} bytes, and a view takes {limit}. It has {total_lines} lines: use \
                 view_range, or {BASH}."
            );
            (InvalidToolInput, text)
        }
        EditRefusal::BadRange { start, end, total_lines } => {
            let text = format!(
                "view_range [{start}, {end}] is not in the file, which has {total_lines} lines. The first line is 1, and -1 is the \
                 end of the file."
            );
            (InvalidToolInput, text)
        }
        EditRefusal::EmptyOldStr => (InvalidToolInput, "old_str must not be empty.".to_owned()),
        EditRefusal::NoMatch => (InvalidToolInput, "old_str was not found in the file.".to_owned()),
        EditRefusal::Ambiguous { count, lines } => (InvalidToolInput, ambiguous(*count, lines)),
        EditRefusal::LineOutOfRange { insert_line, total_lines } => {
            let text = format!("insert_line {insert_line} is out of range. The file has {total_lines} lines.");
            (InvalidToolInput, text)
        }
        EditRefusal::NoSpace => (Unavailable, "The sandbox's disk is full.".to_owned()),
        EditRefusal::Failed { path, os_error } => {
            (Unavailable, format!("The sandbox's system refused to work on '{path}' (error {os_error})."))
        }
    }
}

fn ambiguous(count: u64, lines: &[u64]) -> String {
    let told = lines.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let more = if u64::try_from(lines.len()).is_ok_and(|told| told < count) { ", ..." } else { "" };
    format!(
        "old_str appears more than once in the file. It appears {count} times, at lines {told}{more}: add text around it until it \
         is unique."
    )
}

#[cfg(test)]
#[path = "editor_tests.rs"]
mod tests;
