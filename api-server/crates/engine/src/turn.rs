//! The turn machine: one Messages request from its first sampling to its last event.
//!
//! Invariants: the first event is `message_start`; indexes are dense; one block is open at a time; a result comes whole; `Done` is
//! the last action, and comes once.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::time::Duration;

use serde_json::Value;
use wire::{Caller, ContentBlock, Role, StopReason, Surface, Usage};

use crate::history::DeferredCall;
use crate::model::{ModelEvent, ModelRequest};
use crate::outcome::{CodeCall, FailureKind, ToolFailure, ToolOutcome};
use crate::profile::{CallInput, SubTool, ToolProfile};

mod emit;
mod ending;
mod plan;
mod sampling;

use emit::Emitter;
pub use plan::{Action, Input, ServerCall, TurnEnd, TurnPlan, TurnSettings, TurnSource};
use sampling::{Call, Sampling};

/// Less than this after a result, and the turn pauses: a sampling and a command need that much.
const PAUSE_BELOW: Duration = Duration::from_mins(1);
/// A failed sampling of which nothing was emitted is repeated at most this often in a turn.
const RETRIES: u32 = 2;
/// Invalid calls that the model may correct before the client sees one.
const UNSEEN_INVALID: u32 = 3;

/// Why a call of a turn that ended early has no result.
const STOPPED: &str = "The turn was stopped before the command came to an end.";

/// A call of which the input is known, in the order in which results are due.
enum Queued {
    Run {
        id: String,
        input: CallInput,
    },
    /// Answered to the model only.
    Unseen {
        id: String,
        reason: String,
    },
    /// Told to the client as well; its `server_tool_use` has been emitted.
    Refused {
        id: String,
        tool: SubTool,
        reason: String,
    },
}

enum State {
    Sampling(Box<Sampling>),
    /// `running` is out; `queue` waits; then the turn ends with `stop`, or goes on.
    Running {
        running: String,
        tool: SubTool,
        queue: VecDeque<Queued>,
        stop: Option<StopReason>,
    },
    Done,
}

/// A turn in progress.
pub struct Turn {
    surface: Surface,
    profile: Option<ToolProfile>,
    request: ModelRequest,
    client_tools: BTreeSet<String>,
    /// Ids of the client's calls so far: some upstreams count from nought in each answer.
    taken_ids: HashSet<String>,
    source: Box<dyn TurnSource>,
    emitter: Emitter,
    state: State,
    /// Tool results of the calls in hand, for the prompt.
    results: Vec<Value>,
    container: Option<String>,
    container_used: bool,
    usage: Usage,
    runs: u64,
    max_tokens: u64,
    samplings: u32,
    max_samplings: u32,
    retries: u32,
    invalid: u32,
    short_of_time: bool,
}

impl Turn {
    /// Starts a turn: deferred calls first, else the model is asked.
    pub fn new(plan: TurnPlan) -> (Self, Vec<Action>) {
        let max_tokens = plan.request.max_tokens;
        let mut turn = Self {
            surface: plan.surface,
            profile: plan.profile,
            taken_ids: call_ids(&plan.request),
            emitter: Emitter::new(plan.message_id, plan.request.model.clone()),
            request: plan.request,
            client_tools: plan.client_tools,
            source: plan.source,
            state: State::Done,
            results: Vec::new(),
            container: plan.container,
            container_used: false,
            usage: Usage::default(),
            runs: 0,
            max_tokens,
            samplings: 0,
            max_samplings: plan.max_samplings.max(1),
            retries: 0,
            invalid: 0,
            short_of_time: false,
        };
        if plan.deferred.is_empty() {
            turn.sample();
        } else {
            turn.emitter.start(&Usage::default());
            let queue = plan.deferred.into_iter().map(|call| turn.queue_deferred(call)).collect();
            turn.advance(queue, None);
        }
        let actions = turn.emitter.take();
        (turn, actions)
    }

    /// Takes what happened, and says what to do. Inputs that no longer matter are ignored.
    pub fn step(&mut self, input: Input) -> Vec<Action> {
        match (input, std::mem::replace(&mut self.state, State::Done)) {
            (_, State::Done) => {}
            (Input::TimeLeft(left), state) => {
                self.short_of_time = left < PAUSE_BELOW;
                self.state = state;
            }
            (Input::ClientGone, state) => {
                self.cancel_work(&state);
                self.emitter.done(TurnEnd::Cancelled);
            }
            (Input::Cancel(error), state) => {
                self.cancel_work(&state);
                self.settle(state);
                self.stop_by_server(error);
            }
            (Input::Model(event), State::Sampling(sampling)) => self.model(event, sampling),
            (Input::Result { id, outcome }, State::Running { running, tool, queue, stop }) if id == running => {
                self.give_result(tool, &id, &outcome);
                self.advance(queue, stop);
            }
            (Input::Calls { id, calls }, State::Running { running, .. }) if id == running => {
                self.call_from_code(&id, calls);
            }
            (Input::Model(_) | Input::Result { .. } | Input::Calls { .. }, state) => self.state = state,
        }
        self.emitter.take()
    }

    fn model(&mut self, event: ModelEvent, mut sampling: Box<Sampling>) {
        match event {
            ModelEvent::Start { usage } => {
                self.emitter.start(&usage);
                sampling.usage = usage;
                self.state = State::Sampling(sampling);
            }
            ModelEvent::Open(block) => {
                self.emitter.start(&sampling.usage);
                self.close(&mut sampling);
                self.open(&mut sampling, block);
                self.state = State::Sampling(sampling);
            }
            ModelEvent::Delta(delta) => {
                self.delta(&mut sampling, delta);
                self.state = State::Sampling(sampling);
            }
            ModelEvent::Close => {
                self.close(&mut sampling);
                self.state = State::Sampling(sampling);
            }
            ModelEvent::End { stop, stop_sequence, stop_details, usage } => {
                self.emitter.start(&usage);
                self.close(&mut sampling);
                self.usage.add_tokens(&usage);
                self.end(*sampling, stop, stop_sequence, stop_details);
            }
            ModelEvent::Fail(failure) => self.failed(sampling, failure),
        }
    }

    fn sample(&mut self) {
        self.samplings += 1;
        self.request.max_tokens = self.max_tokens.saturating_sub(self.usage.output_tokens).max(1);
        self.state = State::Sampling(Box::default());
        self.emitter.action(Action::Sample(Box::new(self.request.clone())));
    }

    fn end(
        &mut self,
        sampling: Sampling,
        stop: StopReason,
        stop_sequence: Option<String>,
        stop_details: Option<Value>,
    ) {
        self.request.append(Role::Assistant, sampling.prompt);
        self.request.release_tool_choice();
        let calls = sampling.calls;
        let cut = matches!(stop, StopReason::MaxTokens | StopReason::ModelContextWindowExceeded);
        if calls.is_empty() {
            // Without a call the client could answer neither of them: there is no tool to run, and no result to go on from.
            let done = matches!(stop, StopReason::ToolUse | StopReason::PauseTurn);
            let stop = if done { StopReason::EndTurn } else { stop };
            return self.finish(stop, stop_sequence, stop_details);
        }
        if stop == StopReason::Refusal {
            self.abandon(&calls, "The model refused to go on; the call did not run.");
            return self.finish(stop, stop_sequence, stop_details);
        }
        if calls.iter().any(|call| matches!(call, Call::Client)) {
            return self.hand_over(calls, if cut { stop } else { StopReason::ToolUse }, cut);
        }
        let queue = calls.into_iter().filter_map(|call| self.queue(call, cut)).collect();
        self.advance(queue, cut.then_some(stop));
    }

    /// The client's tools come first: ours wait for the continuation, and nothing runs.
    fn hand_over(&mut self, calls: Vec<Call>, stop: StopReason, cut: bool) {
        let last = calls.len() - 1;
        for (place, call) in calls.into_iter().enumerate() {
            match call {
                Call::Client => {}
                Call::Ours { .. } => self.container_used = true,
                Call::Invalid { id, tool, input, reason } => {
                    if cut && place == last {
                        self.emit_refused(&id, tool, &input);
                        self.give_failure(tool, &id, FailureKind::InvalidInput, &reason);
                    }
                }
            }
        }
        self.finish(stop, None, None);
    }

    /// The client runs what code calls; the cell, and what is due behind it, wait for the continuation.
    fn call_from_code(&mut self, id: &str, calls: Vec<CodeCall>) {
        for CodeCall { number, name, input } in calls {
            self.emitter.whole(ContentBlock::ToolUse {
                id: wire::id::call_from_code(id, number),
                name,
                input: Value::Object(input),
                caller: Caller::Code { tool_id: id.to_owned() },
            });
        }
        self.finish(StopReason::ToolUse, None, None);
    }

    /// What is due for a call; nothing for the client's.
    fn queue(&mut self, call: Call, cut: bool) -> Option<Queued> {
        Some(match call {
            Call::Ours { id, input } => Queued::Run { id, input },
            Call::Client => return None,
            Call::Invalid { id, tool, input, reason } => {
                let last_chance = cut || self.short_of_time || self.samplings >= self.max_samplings;
                if self.invalid < UNSEEN_INVALID && !last_chance {
                    self.invalid += 1;
                    return Some(Queued::Unseen { id, reason });
                }
                self.emit_refused(&id, tool, &input);
                Queued::Refused { id, tool, reason }
            }
        })
    }

    fn queue_deferred(&mut self, call: DeferredCall) -> Queued {
        let offered = self.profile.as_ref().and_then(|profile| Some((profile, profile.offered(&call.name)?)));
        let Some((profile, tool)) = offered else {
            let reason = format!("no `{}` tool was provided", call.name);
            let tool = self.profile.as_ref().map_or(SubTool::Bash, ToolProfile::main_tool);
            return Queued::Refused { id: call.id, tool, reason };
        };
        if let Some(answers) = call.answers {
            return Queued::Run { id: call.id, input: CallInput::Answers(answers) };
        }
        match profile.parse(tool, &call.input) {
            Ok(input) => Queued::Run { id: call.id, input },
            Err(invalid) => Queued::Refused { id: call.id, tool, reason: invalid.0 },
        }
    }

    /// Works the queue off up to the next run; after the last result the turn stops, pauses or goes on.
    fn advance(&mut self, mut queue: VecDeque<Queued>, stop: Option<StopReason>) {
        while let Some(next) = queue.pop_front() {
            match next {
                Queued::Run { id, input } => {
                    let container = self.container_for(&id);
                    self.container_used = true;
                    // A cell that goes on was counted when it began.
                    self.runs += u64::from(!matches!(input, CallInput::Answers(_)));
                    let tool = input.tool();
                    self.emitter.action(Action::Run(ServerCall { id: id.clone(), input, container }));
                    self.state = State::Running { running: id, tool, queue, stop };
                    return;
                }
                Queued::Unseen { id, reason } => self.results.push(invalid_result(&id, &reason)),
                Queued::Refused { id, tool, reason } => {
                    self.give_failure(tool, &id, FailureKind::InvalidInput, &reason);
                }
            }
        }
        let results = std::mem::take(&mut self.results);
        self.request.append(Role::User, results);
        let remaining = self.max_tokens.saturating_sub(self.usage.output_tokens);
        if let Some(stop) = stop {
            self.finish(stop, None, None);
        } else if remaining <= self.request.thinking_budget() {
            self.finish(StopReason::MaxTokens, None, None);
        } else if self.short_of_time || self.samplings >= self.max_samplings {
            self.finish(StopReason::PauseTurn, None, None);
        } else {
            self.sample();
        }
    }

    fn container_for(&mut self, call_id: &str) -> String {
        let source = &mut self.source;
        let name = || wire::id::container_of_call(call_id).unwrap_or_else(|| source.id_seed().container());
        self.container.get_or_insert_with(name).clone()
    }

    fn emit_refused(&mut self, id: &str, tool: SubTool, input: &Value) {
        self.container_for(id);
        self.emitter.server_tool_use(id, tool.name(), input);
    }

    fn give_failure(&mut self, tool: SubTool, id: &str, kind: FailureKind, explanation: &str) {
        let failure = ToolFailure { kind, explanation: explanation.to_owned() };
        self.give_result(tool, id, &ToolOutcome::Failed(failure));
    }

    fn give_result(&mut self, tool: SubTool, id: &str, outcome: &ToolOutcome) {
        let Some(profile) = &self.profile else { return };
        let block = profile.result(tool, id, outcome);
        // Strings, numbers and flags always serialise.
        let public = serde_json::to_value(&block).unwrap_or_default();
        self.results.push(crate::history::prompt::tool_result(id, &public["content"]));
        self.emitter.whole(block);
    }
}

fn call_ids(request: &ModelRequest) -> HashSet<String> {
    let blocks = request.messages.iter().flat_map(|message| &message.content);
    blocks
        .filter(|block| block["type"] == "tool_use")
        .filter_map(|block| block["id"].as_str().map(str::to_owned))
        .collect()
}

fn invalid_result(id: &str, reason: &str) -> Value {
    serde_json::json!({ "type": "tool_result", "tool_use_id": id, "content": format!("error: invalid_tool_input: {reason}"), "is_error": true })
}

#[cfg(test)]
mod tests;
