//! The JSON answer as a fold of the events that streaming sends.

use serde_json::Value;
use wire::{ApiError, ContentBlock, Delta, Message, StreamEvent, Surface};

use crate::raw::RawBlock;
use crate::turn::TurnEnd;

/// Collects a turn's events into one message.
#[derive(Debug, Default)]
pub struct Fold {
    message: Option<Message>,
    /// The open call's input as JSON text.
    json: String,
    /// The open block, when it is the upstream's own.
    raw: Option<RawBlock>,
}

impl Fold {
    /// Takes the next event.
    pub fn push(&mut self, event: &StreamEvent) {
        if let StreamEvent::MessageStart(message) = event {
            self.message = Some(message.as_ref().clone());
            return;
        }
        let Some(message) = &mut self.message else { return };
        match event {
            StreamEvent::BlockStart { block, .. } => {
                self.json.clear();
                self.raw = match block.as_ref() {
                    ContentBlock::Raw(block) => Some(RawBlock::new(block.clone())),
                    ContentBlock::Text { .. }
                    | ContentBlock::Thinking { .. }
                    | ContentBlock::ServerToolUse { .. }
                    | ContentBlock::BashCodeExecutionToolResult { .. }
                    | ContentBlock::CodeExecutionToolResult { .. }
                    | ContentBlock::TextEditorCodeExecutionToolResult { .. }
                    | ContentBlock::ToolUse { .. } => None,
                };
                message.content.push(block.as_ref().clone());
            }
            StreamEvent::BlockDelta { delta, .. } => {
                if let Some(raw) = &mut self.raw {
                    raw.extend(delta);
                } else if let Some(block) = message.content.last_mut() {
                    extend(block, delta, &mut self.json);
                }
            }
            StreamEvent::BlockStop { .. } => {
                if let Some(ContentBlock::ServerToolUse { input, .. } | ContentBlock::ToolUse { input, .. }) =
                    message.content.last_mut()
                    && let Ok(value) = serde_json::from_str::<Value>(&self.json)
                {
                    *input = value;
                }
                self.json.clear();
                if let (Some(raw), Some(block)) = (self.raw.take(), message.content.last_mut()) {
                    *block = ContentBlock::Raw(raw.finish());
                }
            }
            StreamEvent::MessageDelta(delta) => {
                message.stop_reason = delta.stop_reason;
                message.stop_sequence.clone_from(&delta.stop_sequence);
                message.stop_details.clone_from(&delta.stop_details);
                message.container.clone_from(&delta.container);
                message.interaction_stop_reason = delta.interaction_stop_reason;
                message.errors.clone_from(&delta.errors);
                message.usage.clone_from(&delta.usage);
            }
            StreamEvent::MessageStart(_) | StreamEvent::MessageStop | StreamEvent::Ping | StreamEvent::Error(_) => {}
        }
    }

    /// The answer, once the turn is over.
    ///
    /// # Errors
    /// What the turn failed with: always on the Anthropic surface, where an answer is whole or none; on the Zylon surface only
    /// before generation began, since later failures are in the message's `errors`.
    pub fn finish(self, end: &TurnEnd, surface: Surface) -> Result<Message, ApiError> {
        let nothing = || ApiError::new(wire::ErrorType::Api, "The turn ended before it began.");
        match (end, surface) {
            (TurnEnd::Failed { error, started: false }, _) | (TurnEnd::Failed { error, .. }, Surface::Anthropic) => {
                Err(error.clone())
            }
            (TurnEnd::Finished | TurnEnd::Cancelled, _) | (TurnEnd::Failed { .. }, Surface::Zylon) => {
                self.message.ok_or_else(nothing)
            }
        }
    }
}

fn extend(block: &mut ContentBlock, delta: &Delta, json: &mut String) {
    match (block, delta) {
        (ContentBlock::Text { text, .. }, Delta::TextDelta { text: more }) => text.push_str(more),
        (ContentBlock::Text { citations, .. }, Delta::CitationsDelta { citation }) => citations.push(citation.clone()),
        (ContentBlock::Thinking { thinking, .. }, Delta::ThinkingDelta { thinking: more }) => thinking.push_str(more),
        (ContentBlock::Thinking { signature, .. }, Delta::SignatureDelta { signature: more }) => {
            signature.clone_from(more);
        }
        (ContentBlock::ServerToolUse { .. } | ContentBlock::ToolUse { .. }, Delta::InputJsonDelta { partial_json }) => {
            json.push_str(partial_json);
        }
        // A delta that does not fit its block: the SDKs' accumulators leave the block alone too.
        (_, _) => {}
    }
}
