//! `tools` and `tool_choice`.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::CacheControl;

/// What the model may use. Other tools of the contract are refused with a sentence that names those that work.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum ToolEntry {
    /// Run by this server.
    CodeExecution(CodeExecutionTool),
    /// Run by the client.
    Custom(CustomTool),
    /// Run by the client, and known to the model by its type.
    ClientRun(ClientRunTool),
}

/// The code execution tool.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct CodeExecutionTool {
    /// Which sub-tools the model gets, and in which form results come.
    #[schemars(rename = "type")]
    pub kind: CodeExecutionType,
    /// Always `code_execution`.
    pub name: CodeExecutionName,
    /// Handed on to the model's server.
    pub cache_control: Option<CacheControl>,
    /// `direct` must be among them.
    pub allowed_callers: Option<Vec<ToolCaller>>,
    /// Not `true`.
    pub defer_loading: Option<bool>,
    /// Accepted.
    pub strict: Option<bool>,
}

/// The type of a code execution tool.
#[derive(JsonSchema)]
pub enum CodeExecutionType {
    /// Python alone.
    #[schemars(rename = "code_execution_20250522")]
    Dated20250522,
    /// Shell and editor.
    #[schemars(rename = "code_execution_20250825")]
    Dated20250825,
    /// Shell, editor, and Python that remembers and calls the client's tools.
    #[schemars(rename = "code_execution_20260120")]
    Dated20260120,
    /// The same.
    #[schemars(rename = "code_execution_20260521")]
    Dated20260521,
    /// Shell and editor, with results as the Zylon surface has them.
    #[schemars(rename = "code_execution_v1")]
    V1,
}

/// The constant name of the code execution tool.
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "snake_case")]
pub enum CodeExecutionName {
    /// `code_execution`
    CodeExecution,
}

/// A tool of the client's own.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct CustomTool {
    /// May be left out.
    #[schemars(rename = "type")]
    pub kind: Option<CustomType>,
    /// What the model calls it.
    #[schemars(regex(pattern = r"^[a-zA-Z0-9_-]{1,64}$"))]
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its input.
    pub input_schema: Map<String, Value>,
    /// Inputs to learn from.
    pub input_examples: Option<Vec<Map<String, Value>>>,
    /// Handed on to the model's server.
    pub eager_input_streaming: Option<bool>,
    /// The model (`direct`), its Python code, or both.
    pub allowed_callers: Option<Vec<ToolCaller>>,
    /// Handed on to the model's server.
    pub cache_control: Option<CacheControl>,
    /// Not `true`.
    pub defer_loading: Option<bool>,
    /// Not `true` for a tool that code may call.
    pub strict: Option<bool>,
}

/// The constant type of a tool of the client's own.
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "snake_case")]
pub enum CustomType {
    /// `custom`
    Custom,
}

/// A tool that the client runs and the model knows. Its further fields are handed on to the model's server.
#[derive(JsonSchema)]
pub struct ClientRunTool {
    /// Such as `bash_20250124`.
    #[schemars(rename = "type", regex(pattern = r"^(bash|text_editor|memory|computer)_[0-9]{8}$"))]
    pub kind: String,
    /// What the model calls it.
    #[schemars(regex(pattern = r"^[a-zA-Z0-9_-]{1,64}$"))]
    pub name: String,
}

/// Who calls a tool.
#[derive(JsonSchema)]
pub enum ToolCaller {
    /// The model.
    #[schemars(rename = "direct")]
    Direct,
    /// Accepted; this version's code calls nothing.
    #[schemars(rename = "code_execution_20250825")]
    Dated20250825,
    /// Python code.
    #[schemars(rename = "code_execution_20260120")]
    Dated20260120,
    /// Python code.
    #[schemars(rename = "code_execution_20260521")]
    Dated20260521,
}

/// Whether the model has to use a tool.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToolChoice {
    /// As it sees fit.
    Auto {
        /// One call at a time.
        disable_parallel_tool_use: Option<bool>,
    },
    /// One of them.
    Any {
        /// One call at a time.
        disable_parallel_tool_use: Option<bool>,
    },
    /// None.
    None {
        /// Without meaning here.
        disable_parallel_tool_use: Option<bool>,
    },
    /// This one. `code_execution` stands for the shell, where the tool has one.
    Tool {
        /// Which.
        name: String,
        /// One call at a time.
        disable_parallel_tool_use: Option<bool>,
    },
}
