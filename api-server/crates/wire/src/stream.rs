//! Server-sent events of a streamed answer.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::response::errors_json;
use crate::{ApiError, ContainerInfo, ContentBlock, InteractionStopReason, Message, StopReason, Surface, Usage};

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// The first event, with empty content.
    MessageStart(Box<Message>),
    /// Opens the next block.
    BlockStart {
        /// 0, 1, 2, ...
        index: usize,
        /// Complete for results, without its text or input for others.
        block: Box<ContentBlock>,
    },
    /// Goes on with the open block.
    BlockDelta {
        /// The open block's.
        index: usize,
        /// What is added.
        delta: Delta,
    },
    /// Closes the open block.
    BlockStop {
        /// The open block's.
        index: usize,
    },
    /// How the message ended, once.
    MessageDelta(Box<MessageDelta>),
    /// The last event of a message.
    MessageStop,
    /// Sent while there is nothing to say.
    Ping,
    /// The turn failed after it had begun.
    Error(Box<ApiError>),
}

/// What is added to a block.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Delta {
    /// To a text block.
    TextDelta {
        /// The text.
        text: String,
    },
    /// To a call's input.
    InputJsonDelta {
        /// A piece of the JSON text.
        partial_json: String,
    },
    /// To a thinking block.
    ThinkingDelta {
        /// The text.
        thinking: String,
    },
    /// The end of a thinking block.
    SignatureDelta {
        /// Opaque.
        signature: String,
    },
    /// To a text block: where it was found, raw.
    CitationsDelta {
        /// As the upstream put it.
        citation: Value,
    },
    /// Any other, as the upstream put it.
    #[serde(untagged)]
    Raw(Value),
}

/// The fields of `message_delta`.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageDelta {
    /// Why it stopped; null after an error.
    pub stop_reason: Option<StopReason>,
    /// Which of `stop_sequences` was met.
    pub stop_sequence: Option<String>,
    /// Why the model refused.
    pub stop_details: Option<Value>,
    /// The container that was used, or will be for the unresolved call.
    pub container: Option<ContainerInfo>,
    /// Only on the Zylon surface.
    pub interaction_stop_reason: Option<InteractionStopReason>,
    /// Only on the Zylon surface.
    pub errors: Vec<ApiError>,
    /// Of the whole turn.
    pub usage: Usage,
}

impl StreamEvent {
    /// The `event:` line, which equals the data's `type`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart(_) => "message_start",
            Self::BlockStart { .. } => "content_block_start",
            Self::BlockDelta { .. } => "content_block_delta",
            Self::BlockStop { .. } => "content_block_stop",
            Self::MessageDelta(_) => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
            Self::Error(_) => "error",
        }
    }

    /// The `data:` line's object; `request_id` goes into an error.
    pub fn data(&self, surface: Surface, request_id: &str) -> Value {
        let name = self.name();
        match self {
            Self::MessageStart(message) => json!({ "type": name, "message": message.body(surface) }),
            Self::BlockStart { index, block } => json!({ "type": name, "index": index, "content_block": block }),
            Self::BlockDelta { index, delta } => json!({ "type": name, "index": index, "delta": delta }),
            Self::BlockStop { index } => json!({ "type": name, "index": index }),
            Self::MessageDelta(delta) => {
                json!({ "type": name, "delta": delta.object(surface), "usage": delta.usage })
            }
            Self::MessageStop | Self::Ping => json!({ "type": name }),
            Self::Error(error) => error.body(surface, request_id),
        }
    }

    /// The event as it goes over the wire, blank line included.
    pub fn frame(&self, surface: Surface, request_id: &str) -> String {
        format!("event: {}\ndata: {}\n\n", self.name(), self.data(surface, request_id))
    }
}

impl MessageDelta {
    fn object(&self, surface: Surface) -> Value {
        let mut delta = Map::new();
        delta.insert("stop_reason".into(), json!(self.stop_reason));
        delta.insert("stop_sequence".into(), json!(self.stop_sequence));
        delta.insert("stop_details".into(), json!(self.stop_details));
        if surface == Surface::Zylon {
            delta.insert("interaction_stop_reason".into(), json!(self.interaction_stop_reason));
            if !self.errors.is_empty() {
                delta.insert("errors".into(), errors_json(&self.errors, surface));
            }
        }
        delta.insert("container".into(), json!(self.container));
        Value::Object(delta)
    }
}

#[cfg(test)]
mod tests;
