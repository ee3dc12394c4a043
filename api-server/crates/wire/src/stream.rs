//! Server-sent events of a streamed answer.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::ErrorBody;
use crate::response::{Ending, MessageBody};
use crate::schema::{Citation, ForeignDelta};
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
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
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
        #[schemars(with = "Citation")]
        citation: Value,
    },
    /// Any other, as the upstream put it.
    #[serde(untagged)]
    Raw(#[schemars(with = "ForeignDelta")] Value),
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
        json!(match self {
            Self::MessageStart(message) => EventBody::MessageStart { message: MessageBody::of(message, surface) },
            Self::BlockStart { index, block } => EventBody::ContentBlockStart { index: *index, content_block: block },
            Self::BlockDelta { index, delta } => EventBody::ContentBlockDelta { index: *index, delta },
            Self::BlockStop { index } => EventBody::ContentBlockStop { index: *index },
            Self::MessageDelta(delta) => {
                EventBody::MessageDelta { delta: delta.object(surface), usage: &delta.usage }
            }
            Self::MessageStop => EventBody::MessageStop,
            Self::Ping => EventBody::Ping,
            Self::Error(error) => EventBody::Error(error.body(surface, request_id)),
        })
    }

    /// The event as it goes over the wire, blank line included.
    pub fn frame(&self, surface: Surface, request_id: &str) -> String {
        format!("event: {}\ndata: {}\n\n", self.name(), self.data(surface, request_id))
    }
}

/// The data of an event.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "StreamEvent")]
pub enum EventBody<'a> {
    /// The first event: the message without content.
    MessageStart {
        /// Its content is empty.
        message: MessageBody<'a>,
    },
    /// Opens the next block.
    ContentBlockStart {
        /// 0, 1, 2, ...
        index: usize,
        /// Complete for results, without its text or input for others.
        content_block: &'a ContentBlock,
    },
    /// Goes on with the open block.
    ContentBlockDelta {
        /// The open block's.
        index: usize,
        /// What is added.
        delta: &'a Delta,
    },
    /// Closes the open block.
    ContentBlockStop {
        /// The open block's.
        index: usize,
    },
    /// How the message ended, once.
    MessageDelta {
        /// What the message lacked.
        delta: Ending<'a>,
        /// Of the whole turn.
        usage: &'a Usage,
    },
    /// The last event of a message.
    MessageStop,
    /// Sent while there is nothing to say.
    Ping,
    /// The turn failed after it had begun.
    #[serde(untagged)]
    Error(ErrorBody),
}

impl MessageDelta {
    fn object(&self, surface: Surface) -> Ending<'_> {
        let Self { stop_reason, stop_sequence, stop_details, container, interaction_stop_reason, errors, usage: _ } =
            self;
        Ending {
            stop_reason: *stop_reason,
            stop_sequence: stop_sequence.as_deref(),
            stop_details: stop_details.as_ref(),
            interaction_stop_reason: Some(*interaction_stop_reason),
            errors: None,
            container: container.as_ref(),
        }
        .on(surface, errors)
    }
}

#[cfg(test)]
mod tests;
