//! Content blocks that this server makes.

use serde::Serialize;
use serde_json::Value;

/// A block of an answer. Key order is the order of the contract's examples.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// What the model says; never emitted empty.
    Text {
        /// The text.
        text: String,
        /// Where the upstream found it, raw.
        #[serde(skip_serializing_if = "Vec::is_empty")]
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
    /// A call that the client runs.
    ToolUse {
        /// `toolu_...`
        id: String,
        /// The client tool's name.
        name: String,
        /// What the model asked for.
        input: Value,
        /// Who called.
        caller: Caller,
    },
    /// A block of the upstream that is passed on as it came.
    #[serde(untagged)]
    Raw(Value),
}

/// Who made a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Caller {
    /// The model itself.
    Direct,
}

/// `content` of a `bash_code_execution_tool_result`.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "bash_code_execution_output")]
pub struct BashOutputFile {
    /// To fetch it with the Files API.
    pub file_id: String,
}

/// `error_code` of a tool result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
        }
    }
}

/// Zylon's extension of an error block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorDetail {
    /// The code again.
    pub code: String,
    /// The reason, for people and for the model.
    pub explanation: String,
}
