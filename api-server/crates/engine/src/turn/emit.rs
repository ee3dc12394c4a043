//! Puts events in order: one `message_start`, dense indexes, one open block.

use serde_json::{Value, json};
use wire::{Caller, ContentBlock, Delta, Message, StreamEvent, Usage};

use super::{Action, TurnEnd};

/// A call's input goes out in at most this many deltas, since some clients parse the whole text again at each.
const INPUT_DELTAS: usize = 16;
/// Bytes of a delta that are worth a split.
const INPUT_DELTA_BYTES: usize = 1024;

pub(super) struct Emitter {
    actions: Vec<Action>,
    message_id: String,
    model: String,
    started: bool,
    open: bool,
    next: usize,
}

impl Emitter {
    pub(super) fn new(message_id: String, model: String) -> Self {
        Self { actions: Vec::new(), message_id, model, started: false, open: false, next: 0 }
    }

    pub(super) fn started(&self) -> bool {
        self.started
    }

    pub(super) fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub(super) fn action(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn event(&mut self, event: StreamEvent) {
        self.actions.push(Action::Emit(event));
    }

    pub(super) fn done(&mut self, end: TurnEnd) {
        self.actions.push(Action::Done(end));
    }

    /// The first event, once.
    pub(super) fn start(&mut self, usage: &Usage) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let message = Message {
            id: self.message_id.clone(),
            model: self.model.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            stop_details: None,
            container: None,
            usage: usage.clone(),
            interaction_stop_reason: None,
            errors: Vec::new(),
        };
        self.event(StreamEvent::MessageStart(Box::new(message)));
    }

    pub(super) fn open(&mut self, block: ContentBlock) {
        self.close_open();
        self.open = true;
        self.event(StreamEvent::BlockStart { index: self.next, block: Box::new(block) });
    }

    pub(super) fn delta(&mut self, delta: Delta) {
        if self.open {
            self.event(StreamEvent::BlockDelta { index: self.next, delta });
        }
    }

    pub(super) fn close_open(&mut self) {
        if std::mem::replace(&mut self.open, false) {
            self.event(StreamEvent::BlockStop { index: self.next });
            self.next += 1;
        }
    }

    /// A block that needs no deltas.
    pub(super) fn whole(&mut self, block: ContentBlock) {
        self.open(block);
        self.close_open();
    }

    pub(super) fn server_tool_use(&mut self, id: &str, name: &str, input: &Value) {
        self.open(ContentBlock::ServerToolUse {
            id: id.to_owned(),
            name: name.to_owned(),
            input: json!({}),
            caller: Caller::Direct,
        });
        let text = input.to_string();
        let size = text.len().div_ceil(INPUT_DELTAS).max(INPUT_DELTA_BYTES);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let mut cut = size.min(rest.len());
            while !rest.is_char_boundary(cut) {
                cut += 1;
            }
            let (piece, more) = rest.split_at(cut);
            self.delta(Delta::InputJsonDelta { partial_json: piece.to_owned() });
            rest = more;
        }
        self.close_open();
    }
}
