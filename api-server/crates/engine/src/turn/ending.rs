//! How a turn ends: in the ordinary way, in an error, or since somebody stopped it.

use serde_json::Value;
use wire::{
    ApiError, ContainerInfo, InteractionStopReason, MessageDelta, ServerToolUsage, StopReason, StreamEvent, Surface,
};

use super::sampling::{Call, Sampling};
use super::{Action, Queued, RETRIES, STOPPED, State, Turn, TurnEnd};
use crate::model::ModelFailure;
use crate::outcome::FailureKind;

impl Turn {
    pub(super) fn failed(&mut self, sampling: Box<Sampling>, failure: ModelFailure) {
        if failure.retryable && !sampling.emitted && self.retries < RETRIES {
            self.retries += 1;
            self.state = State::Sampling(Box::default());
            self.emitter.action(Action::Sample(Box::new(self.request.clone())));
            return;
        }
        self.settle(State::Sampling(sampling));
        self.fail(failure.error);
    }

    pub(super) fn fail(&mut self, error: ApiError) {
        if !self.emitter.started() {
            return self.emitter.done(TurnEnd::Failed { error, started: false });
        }
        if self.surface == Surface::Zylon {
            self.emit_message_delta(None, InteractionStopReason::Error, vec![error.clone()]);
        }
        self.emitter.event(StreamEvent::Error(Box::new(error.clone())));
        if self.surface == Surface::Zylon {
            self.emitter.event(StreamEvent::MessageStop);
        }
        self.emitter.done(TurnEnd::Failed { error, started: true });
    }

    pub(super) fn stop_by_server(&mut self, error: ApiError) {
        if self.surface == Surface::Anthropic || !self.emitter.started() {
            return self.fail(error);
        }
        self.emit_message_delta(None, InteractionStopReason::Cancelled, Vec::new());
        self.emitter.event(StreamEvent::MessageStop);
        self.emitter.done(TurnEnd::Cancelled);
    }

    pub(super) fn cancel_work(&mut self, state: &State) {
        match state {
            State::Sampling(_) => self.emitter.action(Action::CancelModel),
            State::Running { running, .. } => self.emitter.action(Action::CancelRun(running.clone())),
            State::Done => {}
        }
    }

    /// Leaves no block open, and on the Zylon surface, where the client keeps the message, no call without a result.
    pub(super) fn settle(&mut self, state: State) {
        self.emitter.close_open();
        if self.surface == Surface::Anthropic {
            return;
        }
        match state {
            State::Sampling(sampling) => {
                // The client was told of it when the message began.
                self.usage.add_tokens(&sampling.usage);
                self.abandon(&sampling.calls, STOPPED);
            }
            State::Running { running, tool, queue, .. } => {
                self.give_failure(tool, &running, FailureKind::Unavailable, STOPPED);
                for call in queue {
                    let (id, tool) = match call {
                        Queued::Run { id, input } => (id, input.tool()),
                        Queued::Refused { id, tool, .. } => (id, tool),
                        Queued::Unseen { .. } => continue,
                    };
                    self.give_failure(tool, &id, FailureKind::Unavailable, STOPPED);
                }
            }
            State::Done => {}
        }
    }

    pub(super) fn abandon(&mut self, calls: &[Call], reason: &str) {
        for call in calls {
            if let Call::Ours { id, input } = call {
                self.give_failure(input.tool(), id, FailureKind::Unavailable, reason);
            }
        }
    }

    pub(super) fn finish(&mut self, stop: StopReason, stop_sequence: Option<String>, stop_details: Option<Value>) {
        let interaction = match stop {
            StopReason::Refusal => InteractionStopReason::Refusal,
            StopReason::EndTurn
            | StopReason::MaxTokens
            | StopReason::StopSequence
            | StopReason::ToolUse
            | StopReason::PauseTurn
            | StopReason::ModelContextWindowExceeded => InteractionStopReason::Stop,
        };
        self.emit_message_delta(Some((stop, stop_sequence, stop_details)), interaction, Vec::new());
        self.emitter.event(StreamEvent::MessageStop);
        self.emitter.done(TurnEnd::Finished);
    }

    pub(super) fn emit_message_delta(
        &mut self,
        stop: Option<(StopReason, Option<String>, Option<Value>)>,
        interaction: InteractionStopReason,
        errors: Vec<ApiError>,
    ) {
        let container = match &self.container {
            Some(id) if self.container_used => {
                Some(ContainerInfo { id: id.clone(), expires_at: self.source.container_expiry() })
            }
            _ => None,
        };
        let mut usage = self.usage.clone();
        if self.runs > 0 {
            usage.server_tool_use =
                Some(ServerToolUsage { code_execution_requests: self.runs, ..ServerToolUsage::default() });
        }
        let (stop_reason, stop_sequence, stop_details) = match stop {
            Some((reason, sequence, details)) => (Some(reason), sequence, details),
            None => (None, None, None),
        };
        self.emitter.event(StreamEvent::MessageDelta(Box::new(MessageDelta {
            stop_reason,
            stop_sequence,
            stop_details,
            container,
            interaction_stop_reason: Some(interaction),
            errors,
            usage,
        })));
    }
}
