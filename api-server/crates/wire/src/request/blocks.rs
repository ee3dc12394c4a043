//! `messages` and their blocks.

use serde_json::{Map, Value};

use super::{Block, InputMessage, Role, Rules};
use crate::walk::{array, extra, field, no_extras, object, required_string, string, wrong};
use crate::{ApiError, ApiVersion, Surface};

const MAX_ID: usize = 100;
const MAX_MESSAGES: usize = 100_000;

/// Every block type of the contract; most are only handed on.
pub(super) const KNOWN: [&str; 21] = [
    "text",
    "image",
    "document",
    "search_result",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "server_tool_use",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "tool_search_tool_result",
    "container_upload",
    "compaction",
    "mcp_tool_use",
    "mcp_tool_result",
    "tool_addition",
    "tool_removal",
];

pub(super) fn parse_messages(body: &Map<String, Value>, rules: &Rules) -> Result<Vec<InputMessage>, ApiError> {
    let messages = body.get("messages").ok_or_else(|| wrong("messages", "Field required"))?;
    let messages = array(messages, "messages")?;
    if messages.is_empty() {
        return Err(wrong("messages", "at least one message is required"));
    }
    if messages.len() > MAX_MESSAGES {
        return Err(wrong("messages", format!("at most {MAX_MESSAGES} messages are allowed")));
    }
    messages.iter().enumerate().map(|(index, message)| parse_message(message, index, rules)).collect()
}

fn parse_message(message: &Value, index: usize, rules: &Rules) -> Result<InputMessage, ApiError> {
    let path = format!("messages.{index}");
    let message = object(message, &path)?;
    let role = match required_string(message, &path, "role")? {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        _ => return Err(wrong(&format!("{path}.role"), "Input should be 'user', 'assistant' or 'system'")),
    };
    if rules.surface == Surface::Anthropic {
        no_extras(message, &path, &["role", "content"])?;
    }
    let at = format!("{path}.content");
    let content = match message.get("content").ok_or_else(|| wrong(&at, "Field required"))? {
        Value::String(text) => {
            let mut block = Map::new();
            block.insert("type".into(), "text".into());
            block.insert("text".into(), text.clone().into());
            vec![Block(block)]
        }
        Value::Array(blocks) => blocks
            .iter()
            .enumerate()
            .map(|(place, block)| parse_block(block, &format!("{at}.{place}"), role, rules))
            .collect::<Result<_, _>>()?,
        _ => return Err(wrong(&at, "Input should be a valid string or a list of blocks")),
    };
    // An answer of ours may be empty, and is sent back as it is; a user who says nothing asks for nothing.
    let says_nothing = |block: &Block| block.kind() == "text" && block.text("text").is_empty();
    if role == Role::User && content.iter().all(says_nothing) {
        return Err(wrong(&path, "user messages must have non-empty content"));
    }
    Ok(InputMessage { role, content })
}

fn parse_block(block: &Value, path: &str, role: Role, rules: &Rules) -> Result<Block, ApiError> {
    let block = object(block, path)?;
    let kind = required_string(block, path, "type")?;
    if rules.surface == Surface::Anthropic && !KNOWN.contains(&kind) {
        return Err(wrong(
            path,
            format!("Input tag '{kind}' found using 'type' does not match any of the expected tags"),
        ));
    }
    check_role(kind, path, role)?;
    match kind {
        "text" => {
            required_string(block, path, "text")?;
            let cited = field(block, "citations").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
            if cited && role == Role::User && rules.version == ApiVersion::Current {
                return Err(extra(&format!("{path}.citations")));
            }
        }
        "document" if role == Role::Assistant && rules.version == ApiVersion::Current => {
            return Err(wrong(path, "`document` blocks are not permitted in assistant messages"));
        }
        "tool_use" => check_call(block, path, |id| id.bytes().all(is_id), "^[a-zA-Z0-9_-]+$")?,
        "server_tool_use" => {
            let (prefix, pattern) = match rules.surface {
                Surface::Anthropic => ("srvtoolu_", "^srvtoolu_[a-zA-Z0-9_]+$"),
                Surface::Zylon => ("", "^[a-zA-Z0-9_]+$"),
            };
            let legal = |id: &str| {
                id.strip_prefix(prefix).is_some_and(|rest| rest.bytes().all(|byte| byte != b'-' && is_id(byte)))
            };
            check_call(block, path, legal, pattern)?;
        }
        "tool_result" => {
            required_string(block, path, "tool_use_id")?;
        }
        "container_upload" => {
            required_string(block, path, "file_id")?;
        }
        result if result.ends_with("_tool_result") => {
            required_string(block, path, "tool_use_id")?;
            if field(block, "content").is_none() {
                return Err(wrong(&format!("{path}.content"), "Field required"));
            }
        }
        _ => {}
    }
    Ok(Block(block.clone()))
}

fn is_id(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn check_call(
    block: &Map<String, Value>,
    path: &str,
    legal: impl Fn(&str) -> bool,
    pattern: &str,
) -> Result<(), ApiError> {
    let id = required_string(block, path, "id")?;
    if id.is_empty() || id.len() > MAX_ID || !legal(id) {
        return Err(wrong(&format!("{path}.id"), format!("String should match pattern '{pattern}'")));
    }
    string(
        block.get("name").ok_or_else(|| wrong(&format!("{path}.name"), "Field required"))?,
        &format!("{path}.name"),
    )?;
    let input = block.get("input").ok_or_else(|| wrong(&format!("{path}.input"), "Field required"))?;
    object(input, &format!("{path}.input")).map(|_| ())
}

/// Blocks stand only where the contract lets them: a result that a user could write would be a forged one.
fn check_role(kind: &str, path: &str, role: Role) -> Result<(), ApiError> {
    let allowed: &[Role] = match kind {
        "text" => &[Role::User, Role::Assistant, Role::System],
        "image" | "search_result" | "tool_result" | "container_upload" => &[Role::User],
        "document" => &[Role::User, Role::Assistant],
        "thinking" | "redacted_thinking" | "tool_use" | "server_tool_use" => &[Role::Assistant],
        result if result.ends_with("_tool_result") => &[Role::Assistant],
        _ => &[Role::User, Role::Assistant, Role::System],
    };
    if allowed.contains(&role) {
        return Ok(());
    }
    Err(wrong(path, format!("`{kind}` blocks are not permitted in `{}` messages", role.name())))
}
