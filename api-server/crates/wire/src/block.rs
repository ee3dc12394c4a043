//! Content blocks that this server makes.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::schema::{Citation, Foreign};

/// A block of an answer. Key order is the order of the contract's examples.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// What the model says; never emitted empty.
    Text {
        /// The text.
        text: String,
        /// Where the upstream found it, raw.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(with = "Vec<Citation>")]
        citations: Vec<Value>,
    },
    /// The model's reasoning, with the upstream's signature untouched.
    Thinking {
        /// The text; empty when the upstream keeps it to itself.
        thinking: String,
        /// Opaque.
        signature: String,
    },
    /// A call that this server runs.
    ServerToolUse {
        /// `srvtoolu_...`
        id: String,
        /// Sub-tool name.
        name: String,
        /// What the model asked for.
        #[schemars(with = "Map<String, Value>")]
        input: Value,
        /// Who called.
        caller: Caller,
    },
    /// What came of a shell command.
    BashCodeExecutionToolResult {
        /// The call's id.
        tool_use_id: String,
        /// Result or error.
        content: BashResult,
    },
    /// What came of Python code.
    CodeExecutionToolResult {
        /// The call's id.
        tool_use_id: String,
        /// Result or error.
        content: CellResult,
    },
    /// What came of an edit.
    TextEditorCodeExecutionToolResult {
        /// The call's id.
        tool_use_id: String,
        /// Result or error.
        content: EditorResult,
    },
    /// A call that the client runs.
    ToolUse {
        /// `toolu_...`
        id: String,
        /// The client tool's name.
        name: String,
        /// What the model asked for.
        #[schemars(with = "Map<String, Value>")]
        input: Value,
        /// Who called.
        caller: Caller,
    },
    /// A block of the upstream that is passed on as it came.
    #[serde(untagged)]
    Raw(#[schemars(with = "Foreign")] Value),
}

/// Who made a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub enum Caller {
    /// The model itself.
    #[serde(rename = "direct")]
    Direct,
    /// Python code, whichever version of the tool runs it: clients know it by this one's name.
    #[serde(rename = "code_execution_20260120")]
    Code {
        /// The code's own call.
        tool_id: String,
    },
}

/// `content` of a `bash_code_execution_tool_result`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub enum BashResult {
    /// The command ran; a failing command is a result too.
    #[serde(rename = "bash_code_execution_result")]
    Finished {
        /// Standard output.
        stdout: String,
        /// Standard error.
        stderr: String,
        /// Exit code; 128 + n for signal n.
        return_code: i32,
        /// The files that the command left in `$OUTPUT_DIR`.
        content: Vec<BashOutputFile>,
    },
    /// The command did not run, or did not come to an end.
    #[serde(rename = "bash_code_execution_tool_result_error")]
    Error {
        /// The contract's code.
        error_code: ToolErrorCode,
        /// The reason in words, where the contract has room for it.
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<ErrorDetail>,
    },
}

/// A captured file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "bash_code_execution_output")]
pub struct BashOutputFile {
    /// To fetch it with the Files API.
    pub file_id: String,
}

/// `content` of a `code_execution_tool_result`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub enum CellResult {
    /// The code ran; an exception and a time-out are results too.
    #[serde(rename = "code_execution_result")]
    Finished {
        /// Standard output, and the value of a last expression.
        stdout: String,
        /// Standard error, and the traceback of an exception.
        stderr: String,
        /// 0, or 1 after an exception; else how the interpreter ended, as a shell shows it.
        return_code: i32,
        /// The files that the code left in `$OUTPUT_DIR`.
        content: Vec<CellOutputFile>,
    },
    /// The code did not run, or did not come to an end.
    #[serde(rename = "code_execution_tool_result_error")]
    Error {
        /// The contract's code.
        error_code: ToolErrorCode,
        /// The reason in words, where the contract has room for it.
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<ErrorDetail>,
    },
}

/// A captured file of Python code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "code_execution_output")]
pub struct CellOutputFile {
    /// To fetch it with the Files API.
    pub file_id: String,
}

/// `content` of a `text_editor_code_execution_tool_result`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub enum EditorResult {
    /// A file, or on one surface a folder, was shown.
    #[serde(rename = "text_editor_code_execution_view_result")]
    Viewed {
        /// What `content` is.
        file_type: FileType,
        /// The text without line numbers, or the bytes in base64.
        content: String,
        /// Lines that are shown; null where there are none.
        num_lines: Option<u64>,
        /// The first of them, counted from 1.
        start_line: Option<u64>,
        /// Lines of the whole file.
        total_lines: Option<u64>,
    },
    /// A file was written.
    #[serde(rename = "text_editor_code_execution_create_result")]
    Created {
        /// It was there before.
        is_file_update: bool,
    },
    /// A part of a file was replaced, or lines were inserted.
    #[serde(rename = "text_editor_code_execution_str_replace_result")]
    Replaced {
        /// First line of the part before.
        old_start: u64,
        /// Its lines.
        old_lines: u64,
        /// First line of the part now.
        new_start: u64,
        /// Its lines.
        new_lines: u64,
        /// Both as in a unified diff; null when they are too long to be shown.
        lines: Option<Vec<String>>,
    },
    /// Nothing was shown or changed.
    #[serde(rename = "text_editor_code_execution_tool_result_error")]
    Error {
        /// The contract's code.
        error_code: ToolErrorCode,
        /// The reason in words; not where there is a `detail`.
        #[serde(skip_serializing_if = "Option::is_none")]
        error_message: Option<String>,
        /// The reason in words, where the contract has room for it.
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<ErrorDetail>,
    },
}

/// `file_type` of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileType {
    /// Text.
    Text,
    /// An image, in base64.
    Image,
    /// A PDF document, in base64.
    Pdf,
}

/// `error_code` of a tool result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolErrorCode {
    /// The call's input is not valid.
    InvalidToolInput,
    /// The sandbox cannot be used now.
    Unavailable,
    /// Too many calls at once.
    TooManyRequests,
    /// The command took too long.
    ExecutionTimeExceeded,
    /// A captured file is larger than the Files API takes.
    OutputFileTooLarge,
    /// The file to be viewed or edited is not there.
    FileNotFound,
}

impl ToolErrorCode {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidToolInput => "invalid_tool_input",
            Self::Unavailable => "unavailable",
            Self::TooManyRequests => "too_many_requests",
            Self::ExecutionTimeExceeded => "execution_time_exceeded",
            Self::OutputFileTooLarge => "output_file_too_large",
            Self::FileNotFound => "file_not_found",
        }
    }
}

/// Zylon's extension of an error block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ErrorDetail {
    /// The code again.
    pub code: String,
    /// The reason, for people and for the model.
    pub explanation: String,
}
