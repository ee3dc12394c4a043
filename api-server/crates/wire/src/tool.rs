//! Entries of `tools`.

use serde_json::{Map, Value};

use crate::walk::{array, field, no_extras, object, required_string, string, wrong};
use crate::{ApiError, Surface};

mod callers;

pub use callers::Callers;
pub(crate) use callers::check_choice;

/// The server tool types that this server runs.
pub const SUPPORTED_SERVER_TOOLS: [&str; 5] = [
    "code_execution_20250522",
    "code_execution_20250825",
    "code_execution_20260120",
    "code_execution_20260521",
    "code_execution_v1",
];

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub enum Tool {
    /// Run by this server.
    Code(CodeTool),
    /// Run by the client.
    Client(ClientTool),
}

/// The code execution tool.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeTool {
    /// Which contract its calls and results follow.
    pub version: CodeToolVersion,
    /// Moves to its last sub-tool in the prompt.
    pub cache_control: Option<Value>,
}

/// The contract of a code execution tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeToolVersion {
    /// `code_execution_20250522`: Python only.
    Dated20250522,
    /// `code_execution_20250825`: shell and editor.
    Dated20250825,
    /// `code_execution_20260120`: shell, editor, and Python that remembers.
    Dated20260120,
    /// `code_execution_20260521`: the same; the model is told how long a cell may take.
    Dated20260521,
    /// `code_execution_v1`: shell and editor.
    V1,
}

impl CodeToolVersion {
    fn of_type(kind: &str) -> Option<Self> {
        Some(match kind {
            "code_execution_20250522" => Self::Dated20250522,
            "code_execution_20250825" => Self::Dated20250825,
            "code_execution_20260120" => Self::Dated20260120,
            "code_execution_20260521" => Self::Dated20260521,
            "code_execution_v1" => Self::V1,
            _ => return None,
        })
    }
}

/// A tool of the client.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientTool {
    /// What the model calls it.
    pub name: String,
    /// The entry for the upstream, without the fields that only this server reads.
    pub definition: Value,
    /// Who calls it.
    pub callers: Callers,
}

impl Tool {
    /// What `tool_choice` calls it.
    pub fn name(&self) -> &str {
        match self {
            Self::Code(_) => "code_execution",
            Self::Client(tool) => &tool.name,
        }
    }
}

/// Prefixes of the dated types that the client itself runs.
const CLIENT_RUN: [&str; 4] = ["bash_", "text_editor_", "memory_", "computer_"];
const SUB_TOOLS: [&str; 3] = ["bash_code_execution", "text_editor_code_execution", "code_execution"];

pub(crate) fn parse_tools(value: &Value, surface: Surface) -> Result<Vec<Tool>, ApiError> {
    let mut tools: Vec<Tool> = Vec::new();
    for (index, entry) in array(value, "tools")?.iter().enumerate() {
        let tool = parse_tool(entry, &format!("tools.{index}"), surface)?;
        if tools.iter().any(|other| other.name() == tool.name()) {
            return Err(name_conflict(tool.name()));
        }
        tools.push(tool);
    }
    callers::check(&tools)?;
    let offers_code = tools.iter().any(|tool| matches!(tool, Tool::Code(_)));
    let taken =
        tools.iter().find(|tool| matches!(tool, Tool::Client(client) if SUB_TOOLS.contains(&client.name.as_str())));
    match taken {
        Some(tool) if offers_code => Err(name_conflict(tool.name())),
        _ => Ok(tools),
    }
}

fn name_conflict(name: &str) -> ApiError {
    ApiError::invalid(format!("tools: Tool names must be unique: `{name}` is taken")).with_code("tool_name_conflict")
}

fn parse_tool(entry: &Value, path: &str, surface: Surface) -> Result<Tool, ApiError> {
    let tool = object(entry, path)?;
    let kind = match field(tool, "type") {
        None => "custom",
        Some(kind) => string(kind, &format!("{path}.type"))?,
    };
    if let Some(version) = CodeToolVersion::of_type(kind) {
        return parse_code(tool, path, surface, version);
    }
    match kind {
        "custom" => parse_custom(tool, path, surface),
        dated if is_client_run(dated) => {
            let name = tool_name(tool, path)?;
            let callers = callers::parse(tool, path)?;
            if callers.code {
                return Err(wrong(
                    &format!("{path}.allowed_callers"),
                    "only tools of the type `custom` are called from code",
                ));
            }
            Ok(Tool::Client(ClientTool { name, definition: for_upstream(tool), callers }))
        }
        other => Err(wrong(
            &format!("{path}.type"),
            format!(
                "`{other}` is not supported by this server. Supported: {}, and tools that the client runs (type `custom`, `bash_*`, `text_editor_*`, `memory_*`, `computer_*` with a date)",
                SUPPORTED_SERVER_TOOLS.map(|kind| format!("`{kind}`")).join(", ")
            ),
        )),
    }
}

/// `bash_20250124` and the like: a known family, then eight digits and nothing else.
fn is_client_run(kind: &str) -> bool {
    CLIENT_RUN.iter().any(|prefix| {
        kind.strip_prefix(prefix).is_some_and(|date| date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

fn parse_code(
    tool: &Map<String, Value>,
    path: &str,
    surface: Surface,
    version: CodeToolVersion,
) -> Result<Tool, ApiError> {
    let at = format!("{path}.name");
    match (field(tool, "name"), surface) {
        (None, Surface::Anthropic) => return Err(wrong(&at, "Field required")),
        (Some(name), _) if name != "code_execution" => return Err(wrong(&at, "Input should be 'code_execution'")),
        (None, Surface::Zylon) | (Some(_), _) => {}
    }
    if surface == Surface::Anthropic {
        no_extras(tool, path, &["type", "name", "cache_control", "allowed_callers", "defer_loading", "strict"])?;
    }
    if field(tool, "defer_loading") == Some(&Value::Bool(true)) {
        return Err(wrong(&format!("{path}.defer_loading"), "deferred loading needs a tool search tool"));
    }
    if let Some(callers) = field(tool, "allowed_callers") {
        let at = format!("{path}.allowed_callers");
        if !array(callers, &at)?.iter().any(|caller| caller == "direct") {
            return Err(wrong(&at, "the code execution tool is called directly; `direct` must be among its callers"));
        }
    }
    Ok(Tool::Code(CodeTool { version, cache_control: field(tool, "cache_control").cloned() }))
}

fn parse_custom(tool: &Map<String, Value>, path: &str, surface: Surface) -> Result<Tool, ApiError> {
    const KNOWN: [&str; 11] = [
        "type",
        "name",
        "description",
        "input_schema",
        "input_examples",
        "eager_input_streaming",
        "allowed_callers",
        "cache_control",
        "defer_loading",
        "strict",
        "context",
    ];
    let name = tool_name(tool, path)?;
    let mut tool = tool.clone();
    if surface == Surface::Zylon
        && let Some(schema) = tool.remove("inputSchema")
    {
        tool.insert("input_schema".into(), schema);
    }
    match field(&tool, "input_schema") {
        Some(schema) => object(schema, &format!("{path}.input_schema")).map(|_| ())?,
        None if surface == Surface::Anthropic => {
            return Err(wrong(&format!("{path}.input_schema"), "Field required"));
        }
        None => {
            tool.insert("input_schema".into(), serde_json::json!({ "type": "object", "properties": {} }));
        }
    }
    if field(&tool, "defer_loading") == Some(&Value::Bool(true)) {
        return Err(wrong(&format!("{path}.defer_loading"), "deferred loading needs a tool search tool"));
    }
    match surface {
        Surface::Anthropic => no_extras(&tool, path, &KNOWN[..10])?,
        Surface::Zylon => tool.retain(|key, _| KNOWN[..10].contains(&key.as_str())),
    }
    let callers = callers::parse(&tool, path)?;
    Ok(Tool::Client(ClientTool { name, definition: for_upstream(&tool), callers }))
}

fn tool_name(tool: &Map<String, Value>, path: &str) -> Result<String, ApiError> {
    let name = required_string(tool, path, "name")?;
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(legal) {
        return Err(wrong(&format!("{path}.name"), "String should match pattern '^[a-zA-Z0-9_-]{1,64}$'"));
    }
    Ok(name.to_owned())
}

fn for_upstream(tool: &Map<String, Value>) -> Value {
    let mut tool = tool.clone();
    tool.retain(|key, value| !value.is_null() && key != "allowed_callers" && key != "defer_loading");
    if tool.get("type").is_some_and(|kind| kind == "custom") {
        tool.shift_remove("type");
    }
    Value::Object(tool)
}
