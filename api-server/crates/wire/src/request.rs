//! The Messages request, held to the contract of its surface.

use serde_json::{Map, Value, json};

use crate::id::{CONTAINER_RULE, is_container};
use crate::tool::{check_choice, parse_tools};
use crate::walk::{array, boolean, extra, field, no_extras, object, required_string, string, wrong};
use crate::{ApiError, ApiVersion, Surface, Tool};

mod blocks;
mod files;

pub use files::{ContainerUpload, FileSource, Medium};

/// What a request is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Of the route.
    pub surface: Surface,
    /// Of the `anthropic-version` header; [`ApiVersion::Previous`] on the Zylon surface, which ignores it.
    pub version: ApiVersion,
    /// Stands in for an absent `max_tokens` (Zylon, counting tokens); `None`: it is required.
    pub default_max_tokens: Option<u64>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client.
    User,
    /// The model and this server.
    Assistant,
    /// The operator of the conversation, in the middle of it.
    System,
}

impl Role {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::System => "system",
        }
    }
}

/// One entry of `messages`.
#[derive(Clone, Debug, PartialEq)]
pub struct InputMessage {
    /// Who speaks.
    pub role: Role,
    /// A string is one text block.
    pub content: Vec<Block>,
}

/// A content block of the client's: raw JSON, of which the type and the fields that this server acts on have been checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Block(pub(crate) Map<String, Value>);

impl Block {
    /// Its `type`.
    pub fn kind(&self) -> &str {
        self.text("type")
    }

    /// A field that holds text; empty if there is none.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Any field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        field(&self.0, name)
    }

    /// The raw block.
    pub fn value(&self) -> Value {
        Value::Object(self.0.clone())
    }
}

/// A Messages request.
#[derive(Clone, Debug, PartialEq)]
pub struct MessagesRequest {
    /// Which contract it follows.
    pub surface: Surface,
    /// As the client named it; `default` where the Zylon surface leaves it out.
    pub model: String,
    /// At least 1.
    pub max_tokens: u64,
    /// At least one.
    pub messages: Vec<InputMessage>,
    /// Text blocks.
    pub system: Vec<Value>,
    /// `extensions: ["zylon"]` of the system prompt.
    pub zylon_extension: bool,
    /// `None`: no container named.
    pub container: Option<String>,
    /// Tools in the client's order.
    pub tools: Vec<Tool>,
    /// Raw; checked against `tools`.
    pub tool_choice: Option<Value>,
    /// Events instead of one JSON answer.
    pub stream: bool,
    /// Texts that end the turn.
    pub stop_sequences: Vec<String>,
    /// What only the upstream reads: `thinking`, `output_config`, `metadata`, sampling parameters, ...
    pub options: Map<String, Value>,
}

/// Fields that go to the upstream as they came.
const OPTIONS: [&str; 7] =
    ["metadata", "thinking", "output_config", "cache_control", "service_tier", "speed", "inference_geo"];
const SAMPLING: [&str; 3] = ["temperature", "top_p", "top_k"];
/// Fields with a meaning that this server does not offer; null, and what the contract lets a server ignore, is accepted.
const UNSUPPORTED: [&str; 6] =
    ["context_management", "mcp_servers", "compaction", "fallbacks", "fallback_credit_token", "billing_policy"];
const READ: [&str; 11] = [
    "model",
    "max_tokens",
    "messages",
    "system",
    "container",
    "tools",
    "tool_choice",
    "stream",
    "stop_sequences",
    "thread",
    "diagnostics",
];

impl MessagesRequest {
    /// Reads a request's body.
    ///
    /// # Errors
    /// A 400 whose message is `<path>: <reason>`.
    pub fn parse(body: &[u8], rules: &Rules) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| ApiError::invalid(format!("The request body is not valid JSON: {error}")))?;
        Self::from_value(&value, rules)
    }

    /// The request as if it had not named the code execution tool: not in `tools`, and not by a `tool_choice` of it.
    #[must_use]
    pub fn without_code_execution(mut self) -> Self {
        self.tools.retain(|tool| !matches!(tool, Tool::Code(_)));
        self.tool_choice = self.tool_choice.filter(|choice| {
            let chosen = choice.get("name").and_then(Value::as_str);
            !self.tools.is_empty() && chosen.is_none_or(|name| self.tools.iter().any(|tool| tool.name() == name))
        });
        self
    }

    /// The same for a body that has been read already.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn from_value(body: &Value, rules: &Rules) -> Result<Self, ApiError> {
        let body = body
            .as_object()
            .ok_or_else(|| ApiError::invalid("The request body is not valid JSON: it must be an object"))?;
        refuse_thread(body)?;
        let surface = rules.surface;
        let model = match (field(body, "model"), surface) {
            (None, Surface::Zylon) => "default".to_owned(),
            _ => required_string(body, "", "model")?.to_owned(),
        };
        let max_tokens = max_tokens(body, rules)?;
        let messages = blocks::parse_messages(body, rules)?;
        let (system, zylon_extension) = system(body)?;
        let container = container(body)?;
        let tools = field(body, "tools").map_or(Ok(Vec::new()), |tools| parse_tools(tools, surface))?;
        let tool_choice = tool_choice(body, &tools, surface)?;
        let stream = field(body, "stream").map_or(Ok(false), |stream| boolean(stream, "stream"))?;
        let stop_sequences = stop_sequences(body)?;
        let options = options(body, rules, max_tokens)?;
        Ok(Self {
            surface,
            model,
            max_tokens,
            messages,
            system,
            zylon_extension,
            container,
            tools,
            tool_choice,
            stream,
            stop_sequences,
            options,
        })
    }
}

/// The code tells the SDKs' tool runners to go on without a thread; silence would break them on their second request.
fn refuse_thread(body: &Map<String, Value>) -> Result<(), ApiError> {
    match field(body, "thread") {
        None => Ok(()),
        Some(_) => {
            Err(wrong("thread", "message threads are not supported by this server")
                .with_code("thread_unsupported_request"))
        }
    }
}

fn max_tokens(body: &Map<String, Value>, rules: &Rules) -> Result<u64, ApiError> {
    let path = "max_tokens";
    let Some(value) = body.get(path).filter(|value| !value.is_null() || rules.default_max_tokens.is_none()) else {
        return rules.default_max_tokens.ok_or_else(|| wrong(path, "Field required"));
    };
    let number = match (value.as_i64(), value.as_u64()) {
        (None, None) => return Err(wrong(path, "Input should be a valid integer")),
        (None, Some(number)) => number,
        (Some(number), _) => u64::try_from(number).unwrap_or(0),
    };
    match (number, rules.default_max_tokens) {
        (0, Some(default)) => Ok(default),
        (0, None) => Err(wrong(path, "Input should be greater than or equal to 1")),
        (number, _) => Ok(number),
    }
}

/// Text blocks, and whether they ask for Zylon's extensions.
fn system(body: &Map<String, Value>) -> Result<(Vec<Value>, bool), ApiError> {
    let entries = match field(body, "system") {
        None => return Ok((Vec::new(), false)),
        Some(Value::String(text)) if text.is_empty() => return Ok((Vec::new(), false)),
        Some(Value::String(text)) => return Ok((vec![json!({ "type": "text", "text": text })], false)),
        Some(object @ Value::Object(_)) => std::slice::from_ref(object),
        Some(other) => array(other, "system")?,
    };
    let mut blocks = Vec::new();
    let mut extension = false;
    for (index, entry) in entries.iter().enumerate() {
        let path = format!("system.{index}");
        let entry = object(entry, &path)?;
        if let Some(extensions) = field(entry, "extensions") {
            extension |= array(extensions, &format!("{path}.extensions"))?.iter().any(|name| name == "zylon");
        }
        if field(entry, "text").is_none() && field(entry, "extensions").is_some() {
            continue;
        }
        let text = required_string(entry, &path, "text")?;
        if text.is_empty() {
            continue;
        }
        let mut block = json!({ "type": "text", "text": text });
        if let Some(cache) = field(entry, "cache_control") {
            block["cache_control"] = cache.clone();
        }
        blocks.push(block);
    }
    Ok((blocks, extension))
}

fn container(body: &Map<String, Value>) -> Result<Option<String>, ApiError> {
    let id = match field(body, "container") {
        None => return Ok(None),
        Some(Value::String(id)) => id,
        Some(Value::Object(container)) => {
            if let Some(key) = container.keys().find(|key| *key != "id" && *key != "skills") {
                return Err(extra(&format!("container.{key}")));
            }
            if let Some(skills) = field(container, "skills")
                && !array(skills, "container.skills")?.is_empty()
            {
                return Err(wrong("container.skills", "skills are not supported by this server"));
            }
            match field(container, "id") {
                None => return Ok(None),
                Some(id) => string(id, "container.id")?,
            }
        }
        Some(_) => return Err(wrong("container", "Input should be a valid string or an object with `id`")),
    };
    if id.is_empty() {
        return Ok(None);
    }
    if !is_container(id) {
        return Err(wrong("container", CONTAINER_RULE));
    }
    Ok(Some(id.to_owned()))
}

fn tool_choice(body: &Map<String, Value>, tools: &[Tool], surface: Surface) -> Result<Option<Value>, ApiError> {
    const KNOWN: [&str; 3] = ["type", "name", "disable_parallel_tool_use"];
    let Some(choice) = field(body, "tool_choice") else { return Ok(None) };
    let fields = object(choice, "tool_choice")?;
    let kind = required_string(fields, "tool_choice", "type")?;
    match kind {
        "auto" | "any" | "none" => {}
        "tool" => {
            let name = required_string(fields, "tool_choice", "name")?;
            if !tools.iter().any(|tool| tool.name() == name) {
                return Err(wrong("tool_choice", format!("Tool '{name}' not found in provided tools")));
            }
        }
        _ => return Err(wrong("tool_choice.type", "Input should be 'auto', 'any', 'none' or 'tool'")),
    }
    if tools.is_empty() && kind == "any" {
        return Err(wrong("tool_choice", "may only be specified while providing `tools`"));
    }
    check_choice(fields, tools)?;
    let mut choice = fields.clone();
    match surface {
        Surface::Anthropic => no_extras(&choice, "tool_choice", &KNOWN)?,
        Surface::Zylon => choice.retain(|key, _| KNOWN.contains(&key.as_str())),
    }
    Ok((!tools.is_empty()).then_some(Value::Object(choice)))
}

fn stop_sequences(body: &Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let Some(sequences) = field(body, "stop_sequences") else { return Ok(Vec::new()) };
    let mut texts = Vec::new();
    for (index, sequence) in array(sequences, "stop_sequences")?.iter().enumerate() {
        let path = format!("stop_sequences.{index}");
        let text = string(sequence, &path)?;
        if text.trim().is_empty() {
            return Err(wrong(&path, "each stop sequence must contain non-whitespace"));
        }
        texts.push(text.to_owned());
    }
    Ok(texts)
}

fn options(body: &Map<String, Value>, rules: &Rules, max_tokens: u64) -> Result<Map<String, Value>, ApiError> {
    let sampling = rules.surface == Surface::Zylon || rules.version == ApiVersion::Previous;
    let mut options = Map::new();
    for (key, value) in body {
        let name = key.as_str();
        if READ.contains(&name) {
            continue;
        }
        if OPTIONS.contains(&name) || (sampling && SAMPLING.contains(&name)) {
            if !value.is_null() {
                options.insert(key.clone(), value.clone());
            }
        } else if UNSUPPORTED.contains(&name) {
            let empty = value.as_array().is_some_and(Vec::is_empty);
            let ignored = name == "context_management" && rules.surface == Surface::Zylon;
            if !value.is_null() && !empty && !ignored {
                return Err(wrong(name, "not supported by this server"));
            }
        } else if rules.surface == Surface::Anthropic {
            return Err(extra(name));
        }
    }
    check_options(&options, max_tokens)?;
    Ok(options)
}

fn check_options(options: &Map<String, Value>, max_tokens: u64) -> Result<(), ApiError> {
    if let Some(metadata) = options.get("metadata") {
        let metadata = object(metadata, "metadata")?;
        if let Some(user) = field(metadata, "user_id") {
            string(user, "metadata.user_id")?;
        }
    }
    if let Some(config) = options.get("output_config") {
        object(config, "output_config")?;
    }
    for name in SAMPLING {
        if options.get(name).is_some_and(|value| !value.is_number()) {
            return Err(wrong(name, "Input should be a valid number"));
        }
    }
    let Some(thinking) = options.get("thinking") else { return Ok(()) };
    let thinking = object(thinking, "thinking")?;
    match required_string(thinking, "thinking", "type")? {
        "adaptive" | "between_tools" | "disabled" => Ok(()),
        "enabled" => {
            let path = "thinking.budget_tokens";
            let budget = thinking.get("budget_tokens").ok_or_else(|| wrong(path, "Field required"))?;
            match budget.as_u64() {
                None => Err(wrong(path, "Input should be a valid integer")),
                Some(..1024) => Err(wrong(path, "Input should be greater than or equal to 1024")),
                Some(budget) if budget >= max_tokens => {
                    Err(ApiError::invalid("`max_tokens` must be greater than `thinking.budget_tokens`"))
                }
                Some(_) => Ok(()),
            }
        }
        _ => Err(wrong("thinking.type", "Input should be 'adaptive', 'between_tools', 'disabled' or 'enabled'")),
    }
}

#[cfg(test)]
mod described;
#[cfg(test)]
mod tests;
