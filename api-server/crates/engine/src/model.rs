//! What goes to a model upstream, and what comes back.

use serde_json::{Map, Value, json};
use wire::{ApiError, MessagesRequest, Role, StopReason, Tool, Usage};

use crate::history::History;
use crate::profile::{CELL, SandboxFacts, ToolProfile};

/// One sampling: a Messages request in which our sub-tools are client tools.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRequest {
    /// As the client named it; the provider maps it.
    pub model: String,
    /// What remains of the turn's `max_tokens`.
    pub max_tokens: u64,
    /// Text blocks.
    pub system: Vec<Value>,
    /// The prompt, roles alternating but for `system`.
    pub messages: Vec<ModelMessage>,
    /// Definitions: the client's, and our sub-tools in the place of the code execution tool.
    pub tools: Vec<Value>,
    /// Raw, with the name of a sub-tool in the place of `code_execution`.
    pub tool_choice: Option<Value>,
    /// Texts that end the sampling.
    pub stop_sequences: Vec<String>,
    /// Fields that only the upstream reads.
    pub options: Map<String, Value>,
}

/// One message of the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelMessage {
    /// Who speaks.
    pub role: Role,
    /// Raw blocks, never empty.
    pub content: Vec<Value>,
}

impl ModelRequest {
    /// The first sampling of a request.
    pub fn build(
        request: &MessagesRequest,
        history: &History,
        profile: Option<&ToolProfile>,
        facts: &SandboxFacts,
    ) -> Self {
        let mut tools = Vec::new();
        for tool in &request.tools {
            match tool {
                Tool::Client(tool) if profile.is_none_or(|profile| profile.is_called_directly(tool)) => {
                    tools.push(tool.definition.clone());
                }
                Tool::Client(_) => {}
                Tool::Code(_) => tools.extend(profile.into_iter().flat_map(|profile| profile.definitions(facts))),
            }
        }
        let mut built = Self {
            model: request.model.clone(),
            max_tokens: request.max_tokens,
            system: request.system.clone(),
            messages: history.messages.clone(),
            tools,
            tool_choice: request.tool_choice.clone(),
            stop_sequences: request.stop_sequences.clone(),
            options: request.options.clone(),
        };
        if let Some(choice) = &mut built.tool_choice
            && choice["name"] == CELL
            && let Some(profile) = profile
        {
            choice["name"] = profile.main_tool().name().into();
        }
        if history.open_turn {
            built.release_tool_choice();
        }
        built
    }

    /// A forced choice holds for the first sampling of a turn; kept up, the model could never answer.
    pub(crate) fn release_tool_choice(&mut self) {
        if let Some(Value::Object(choice)) = &mut self.tool_choice
            && choice.get("type").is_some_and(|kind| kind == "any" || kind == "tool")
        {
            choice.insert("type".into(), "auto".into());
            choice.shift_remove("name");
        }
    }

    /// Adds to the prompt, to the last message if it is the same speaker's.
    pub(crate) fn append(&mut self, role: Role, mut content: Vec<Value>) {
        if content.is_empty() {
            return;
        }
        match self.messages.last_mut() {
            Some(message) if message.role == role => message.content.append(&mut content),
            _ => self.messages.push(ModelMessage { role, content }),
        }
    }

    /// What `max_tokens` has to exceed.
    pub(crate) fn thinking_budget(&self) -> u64 {
        self.options.get("thinking").and_then(|thinking| thinking["budget_tokens"].as_u64()).unwrap_or(0)
    }

    /// The body for an Anthropic-style upstream.
    pub fn body(&self, stream: bool) -> Value {
        let messages: Vec<Value> = self
            .messages
            .iter()
            .map(|message| json!({ "role": message.role.name(), "content": message.content }))
            .collect();
        let mut body = Map::new();
        body.insert("model".into(), self.model.clone().into());
        body.insert("max_tokens".into(), self.max_tokens.into());
        if !self.system.is_empty() {
            body.insert("system".into(), json!(self.system));
        }
        body.insert("messages".into(), messages.into());
        if !self.tools.is_empty() {
            body.insert("tools".into(), json!(self.tools));
        }
        if let Some(choice) = &self.tool_choice {
            body.insert("tool_choice".into(), choice.clone());
        }
        if !self.stop_sequences.is_empty() {
            body.insert("stop_sequences".into(), json!(self.stop_sequences));
        }
        for (key, value) in &self.options {
            body.insert(key.clone(), value.clone());
        }
        body.insert("stream".into(), stream.into());
        Value::Object(body)
    }
}

/// What an upstream says, in order: `Start`, blocks one at a time (`Open`, `Delta`s, `Close`), `End`; or `Fail` at any point.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelEvent {
    /// The sampling began; `usage` as far as it is known (input tokens).
    Start {
        /// Of this sampling.
        usage: Usage,
    },
    /// A block begins.
    Open(OpenBlock),
    /// The open block goes on.
    Delta(BlockDelta),
    /// The open block is complete. A call's input is what its deltas add up to.
    Close,
    /// The sampling is over.
    End {
        /// Why.
        stop: StopReason,
        /// Which stop sequence was met.
        stop_sequence: Option<String>,
        /// Why it refused, raw.
        stop_details: Option<Value>,
        /// The whole sampling's; replaces what `Start` said.
        usage: Usage,
    },
    /// The sampling failed.
    Fail(ModelFailure),
}

/// How a block begins.
#[derive(Clone, Debug, PartialEq)]
pub enum OpenBlock {
    /// Text, which comes in deltas.
    Text,
    /// Reasoning, which comes in deltas.
    Thinking,
    /// A call, whose input comes in deltas of JSON text.
    Tool {
        /// The upstream's id; kept for the client's tools only.
        id: Option<String>,
        /// Which tool.
        name: String,
    },
    /// Anything else, as it came.
    Raw(Value),
}

/// How a block goes on.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockDelta {
    /// Of a text block.
    Text(String),
    /// Of a thinking block.
    Thinking(String),
    /// The end of a thinking block.
    Signature(String),
    /// A piece of a call's input as JSON text.
    Json(String),
    /// Where a text block's words were found, raw.
    Citation(Value),
    /// Any other, as it came.
    Raw(Value),
}

/// Why a sampling failed.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFailure {
    /// What the client is told.
    pub error: ApiError,
    /// Whether the same request may succeed if it is sent again at once, or after the error's `retry_after`.
    pub retryable: bool,
}
