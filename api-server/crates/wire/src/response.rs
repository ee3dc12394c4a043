//! The answer to a Messages request.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::ErrorObject;
use crate::schema::StopDetails;
use crate::{ApiError, ContentBlock, Surface};

/// Why the model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It was done.
    EndTurn,
    /// It used up `max_tokens`.
    MaxTokens,
    /// It wrote one of `stop_sequences`.
    StopSequence,
    /// It waits for the client's tools.
    ToolUse,
    /// The server stopped between two samplings; the client sends the answer back to go on.
    PauseTurn,
    /// It refused.
    Refusal,
    /// The context window is full.
    ModelContextWindowExceeded,
}

impl StopReason {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens => "max_tokens",
            Self::StopSequence => "stop_sequence",
            Self::ToolUse => "tool_use",
            Self::PauseTurn => "pause_turn",
            Self::Refusal => "refusal",
            Self::ModelContextWindowExceeded => "model_context_window_exceeded",
        }
    }

    /// Reads the wire name; `None` for one that this server does not know.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "end_turn" => Self::EndTurn,
            "max_tokens" => Self::MaxTokens,
            "stop_sequence" => Self::StopSequence,
            "tool_use" => Self::ToolUse,
            "pause_turn" => Self::PauseTurn,
            "refusal" => Self::Refusal,
            "model_context_window_exceeded" => Self::ModelContextWindowExceeded,
            _ => return None,
        })
    }
}

/// How the whole interaction ended; only on the Zylon surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InteractionStopReason {
    /// In the ordinary way.
    Stop,
    /// In an error, which `errors` holds.
    Error,
    /// The client or an operator stopped it.
    Cancelled,
    /// The model refused.
    Refusal,
}

/// The container that was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ContainerInfo {
    /// To use it again.
    pub id: String,
    /// Until when it stays warm at least.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub expires_at: Timestamp,
}

/// Tokens and calls of a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Usage {
    /// Tokens read, summed over samplings.
    pub input_tokens: u64,
    /// Tokens written into the prompt cache.
    pub cache_creation_input_tokens: u64,
    /// Tokens read from the prompt cache.
    pub cache_read_input_tokens: u64,
    /// Tokens written, summed over samplings.
    pub output_tokens: u64,
    /// How those written into the prompt cache split up, where the upstream says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_creation: Option<CacheCreation>,
    /// What those written were for, where the upstream says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens_details: Option<OutputTokensDetails>,
    /// Calls that this server ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_tool_use: Option<ServerToolUsage>,
}

impl Usage {
    /// Adds another sampling's tokens; calls are left alone.
    pub fn add_tokens(&mut self, other: &Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.cache_creation_input_tokens =
            self.cache_creation_input_tokens.saturating_add(other.cache_creation_input_tokens);
        self.cache_read_input_tokens = self.cache_read_input_tokens.saturating_add(other.cache_read_input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        if let Some(other) = other.cache_creation {
            let sum = self.cache_creation.get_or_insert_default();
            for (sum, more) in [
                (&mut sum.ephemeral_5m_input_tokens, other.ephemeral_5m_input_tokens),
                (&mut sum.ephemeral_1h_input_tokens, other.ephemeral_1h_input_tokens),
            ] {
                *sum = sum.saturating_add(more);
            }
        }
        if let Some(other) = other.output_tokens_details {
            let sum = &mut self.output_tokens_details.get_or_insert_default().thinking_tokens;
            *sum = sum.saturating_add(other.thinking_tokens);
        }
    }
}

/// `usage.cache_creation`: tokens by how long the cache keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CacheCreation {
    /// For five minutes.
    pub ephemeral_5m_input_tokens: u64,
    /// For an hour.
    pub ephemeral_1h_input_tokens: u64,
}

/// `usage.output_tokens_details`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OutputTokensDetails {
    /// Written while thinking.
    pub thinking_tokens: u64,
}

/// `usage.server_tool_use`. The SDKs require the first two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ServerToolUsage {
    /// Always 0.
    pub web_search_requests: u64,
    /// Always 0.
    pub web_fetch_requests: u64,
    /// Code execution calls.
    pub code_execution_requests: u64,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// `msg_...`
    pub id: String,
    /// As the client named it.
    pub model: String,
    /// The blocks.
    pub content: Vec<ContentBlock>,
    /// Null while streaming and after an error.
    pub stop_reason: Option<StopReason>,
    /// Which of `stop_sequences` was met.
    pub stop_sequence: Option<String>,
    /// Why the model refused, as the upstream put it.
    pub stop_details: Option<Value>,
    /// Null when no code ran.
    pub container: Option<ContainerInfo>,
    /// Tokens and calls.
    pub usage: Usage,
    /// Only printed on the Zylon surface.
    pub interaction_stop_reason: Option<InteractionStopReason>,
    /// What went wrong after generation had begun; only printed on the Zylon surface, where there is something.
    pub errors: Vec<ApiError>,
}

impl Message {
    /// The JSON answer.
    pub fn body(&self, surface: Surface) -> Value {
        json!(MessageBody::of(self, surface))
    }
}

/// An answer.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Message")]
pub struct MessageBody<'a> {
    /// `msg_...`
    id: &'a str,
    #[serde(rename = "type")]
    kind: MessageType,
    role: MessageRole,
    /// As the request named it.
    model: &'a str,
    /// What was said and done, in order.
    content: &'a [ContentBlock],
    #[serde(flatten)]
    ending: Ending<'a>,
    usage: &'a Usage,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum MessageType {
    Message,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum MessageRole {
    Assistant,
}

/// How a message ended: a part of the answer, and the `delta` of `message_delta`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "MessageEnding")]
pub struct Ending<'a> {
    /// Null while streaming and after an error.
    pub stop_reason: Option<StopReason>,
    /// Which of `stop_sequences` was met.
    pub stop_sequence: Option<&'a str>,
    /// Why the model refused.
    #[schemars(with = "Option<StopDetails>")]
    pub stop_details: Option<&'a Value>,
    /// How the whole interaction ended; on the Zylon surface only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interaction_stop_reason: Option<Option<InteractionStopReason>>,
    /// What went wrong after the answer had begun; on the Zylon surface only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<Vec<ErrorObject>>,
    /// Null where no code ran.
    pub container: Option<&'a ContainerInfo>,
}

impl<'a> MessageBody<'a> {
    pub(crate) fn of(message: &'a Message, surface: Surface) -> Self {
        let Message {
            id,
            model,
            content,
            stop_reason,
            stop_sequence,
            stop_details,
            container,
            usage,
            interaction_stop_reason,
            errors,
        } = message;
        let ending = Ending {
            stop_reason: *stop_reason,
            stop_sequence: stop_sequence.as_deref(),
            stop_details: stop_details.as_ref(),
            interaction_stop_reason: Some(*interaction_stop_reason),
            errors: None,
            container: container.as_ref(),
        }
        .on(surface, errors);
        Self { id, kind: MessageType::Message, role: MessageRole::Assistant, model, content, ending, usage }
    }
}

impl Ending<'_> {
    /// In the words of one surface, with what it alone shows: how the interaction ended, and the errors where there are any.
    pub(crate) fn on(self, surface: Surface, errors: &[ApiError]) -> Self {
        match surface {
            Surface::Anthropic => Self { interaction_stop_reason: None, ..self },
            Surface::Zylon => {
                // Its contract has no word for a full context window.
                let stop_reason = match self.stop_reason {
                    Some(StopReason::ModelContextWindowExceeded) => Some(StopReason::MaxTokens),
                    other => other,
                };
                let objects = errors.iter().map(|error| error.object(surface)).collect();
                Self { stop_reason, errors: (!errors.is_empty()).then_some(objects), ..self }
            }
        }
    }
}
