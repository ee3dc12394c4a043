//! Drives whole turns: a request, the demo model, and a function that plays the sandbox.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};
use wire::{ApiError, ApiVersion, ContentBlock, IdSeed, Message, MessagesRequest, Rules, StreamEvent, Surface};

use crate::*;

pub(crate) const DATED: &str = "code_execution_20250825";
pub(crate) const V1: &str = "code_execution_v1";
pub(crate) const LEGACY: &str = "code_execution_20250522";
pub(crate) const REPL: &str = "code_execution_20260521";

/// Counts up, so that ids differ and runs repeat.
pub(crate) struct Counter(pub(crate) u64);

impl TurnSource for Counter {
    fn id_seed(&mut self) -> IdSeed {
        self.0 += 1;
        IdSeed { millis: 1_796_000_000_000 + self.0, random: [7; 10] }
    }

    fn container_expiry(&mut self) -> jiff::Timestamp {
        "2026-12-01T10:28:40.590791Z".parse().unwrap()
    }
}

pub(crate) fn facts() -> SandboxFacts {
    SandboxFacts {
        runtime: "Debian 12 with bash and Python 3.11".into(),
        libraries: vec!["pandas 2.3.3".into(), "unzip".into()],
        absent: Vec::new(),
        working_directory: "/home/agent/workspace".into(),
        command_limit: Duration::from_mins(5),
        max_command_limit: Duration::from_mins(8),
        cell_limit: Duration::from_secs(90),
        repl: true,
        output_limit: 1 << 20,
        network: false,
    }
}

pub(crate) fn read(body: &Value, surface: Surface) -> Result<MessagesRequest, ApiError> {
    let default_max_tokens = (surface == Surface::Zylon).then_some(4_096);
    MessagesRequest::from_value(body, &Rules { surface, version: ApiVersion::Current, default_max_tokens })
}

pub(crate) fn history(body: &Value) -> Result<History, ApiError> {
    let request = read(body, Surface::Anthropic)?;
    History::read(&request, ToolProfile::of(&request, &facts()).as_ref(), &BTreeMap::new())
}

pub(crate) fn code_tool(kind: &str) -> Value {
    json!({ "type": kind, "name": "code_execution" })
}

pub(crate) fn weather() -> Value {
    json!({ "name": "get_weather", "input_schema": { "type": "object", "properties": { "city": { "type": "string" } } } })
}

/// A request with one user message and the tool.
pub(crate) fn ask(kind: &str, text: &str) -> Value {
    json!({
        "model": "demo", "max_tokens": 4096, "tools": [code_tool(kind)],
        "messages": [{ "role": "user", "content": text }],
    })
}

pub(crate) fn ok(stdout: &str) -> ToolOutcome {
    ToolOutcome::Finished {
        stdout: Captured { bytes: stdout.into(), truncated: false },
        stderr: Captured::default(),
        exit: Exit::Code(0),
        outputs: Vec::new(),
    }
}

/// The input of a call that is a command.
pub(crate) fn bash_of(call: &ServerCall) -> &BashInput {
    match &call.input {
        CallInput::Bash(input) => input,
        input @ (CallInput::Edit(_) | CallInput::Cell(_) | CallInput::Answers(_)) => panic!("no command: {input:?}"),
    }
}

/// What a turn did.
pub(crate) struct Driven {
    pub(crate) events: Vec<StreamEvent>,
    pub(crate) end: TurnEnd,
    pub(crate) samples: Vec<ModelRequest>,
    pub(crate) runs: Vec<ServerCall>,
    pub(crate) surface: Surface,
}

impl Driven {
    pub(crate) fn answer(&self) -> Result<Message, ApiError> {
        let mut fold = Fold::default();
        self.events.iter().for_each(|event| fold.push(event));
        fold.finish(&self.end, self.surface)
    }

    pub(crate) fn body(&self) -> Value {
        self.answer().unwrap().body(self.surface)
    }

    pub(crate) fn content(&self) -> Vec<Value> {
        self.body()["content"].as_array().unwrap().clone()
    }

    pub(crate) fn kinds(&self) -> Vec<String> {
        self.content().iter().map(|block| block["type"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn stop(&self) -> String {
        self.body()["stop_reason"].as_str().unwrap_or("null").to_owned()
    }
}

/// How a turn is driven; the defaults run every command to `ran: <command>`.
pub(crate) struct Rig<'a> {
    pub(crate) surface: Surface,
    pub(crate) max_samplings: u32,
    pub(crate) container: Option<String>,
    pub(crate) time_left: Duration,
    pub(crate) sandbox: Box<dyn FnMut(&ServerCall) -> ToolOutcome + 'a>,
}

impl Default for Rig<'_> {
    fn default() -> Self {
        Self {
            surface: Surface::Anthropic,
            max_samplings: 30,
            container: None,
            time_left: Duration::from_secs(500),
            sandbox: Box::new(|call| ok(&format!("ran: {}\n", bash_of(call).command))),
        }
    }
}

impl Rig<'_> {
    pub(crate) fn zylon() -> Self {
        Self { surface: Surface::Zylon, container: Some("mine".into()), ..Self::default() }
    }

    pub(crate) fn plan(&self, body: &Value) -> Result<TurnPlan, ApiError> {
        let request = read(body, self.surface)?;
        let history = History::read(&request, ToolProfile::of(&request, &facts()).as_ref(), &BTreeMap::new())?;
        let settings = TurnSettings {
            message_id: "msg_01Test".into(),
            container: request.container.clone().or_else(|| self.container.clone()),
            max_samplings: self.max_samplings,
            source: Box::new(Counter(request.messages.len() as u64 * 1_000)),
        };
        Ok(TurnPlan::new(&request, history, &facts(), settings))
    }

    pub(crate) fn drive(mut self, body: &Value) -> Result<Driven, ApiError> {
        let (mut turn, actions) = Turn::new(self.plan(body)?);
        let mut driven = Driven {
            events: Vec::new(),
            end: TurnEnd::Cancelled,
            samples: Vec::new(),
            runs: Vec::new(),
            surface: self.surface,
        };
        let mut todo = VecDeque::from(actions);
        let mut done = 0;
        while let Some(action) = todo.pop_front() {
            assert_eq!(done, 0, "nothing follows Done");
            match action {
                Action::Emit(event) => driven.events.push(event),
                Action::Sample(request) => {
                    for step in demo::respond(&request) {
                        if let demo::Step::Event(event) = step {
                            todo.extend(turn.step(Input::Model(event)));
                        }
                    }
                    driven.samples.push(*request);
                }
                Action::Run(call) => {
                    todo.extend(turn.step(Input::TimeLeft(self.time_left)));
                    let outcome = (self.sandbox)(&call);
                    todo.extend(turn.step(Input::Result { id: call.id.clone(), outcome }));
                    driven.runs.push(call);
                }
                Action::CancelModel | Action::CancelRun(_) => {}
                Action::Done(end) => {
                    done += 1;
                    driven.end = end;
                }
            }
        }
        assert_eq!(done, 1, "every turn ends");
        assert_well_formed(&driven.events, driven.end == TurnEnd::Finished);
        Ok(driven)
    }
}

/// What the SDKs' accumulators need of a stream.
pub(crate) fn assert_well_formed(events: &[StreamEvent], finished: bool) {
    let mut next = 0;
    let mut open = None;
    let mut deltas = 0;
    for (place, event) in events.iter().enumerate() {
        match event {
            StreamEvent::MessageStart(message) => {
                assert_eq!(place, 0, "message_start comes first, once");
                assert!(message.content.is_empty());
            }
            StreamEvent::BlockStart { index, block } => {
                assert_eq!((open, *index), (None, next), "one block at a time, indexes dense");
                open = Some(*index);
                match block.as_ref() {
                    ContentBlock::Text { text, .. } => assert!(text.is_empty()),
                    ContentBlock::ServerToolUse { input, caller, .. } | ContentBlock::ToolUse { input, caller, .. } => {
                        // A call from code comes whole.
                        assert!(*input == json!({}) || *caller != wire::Caller::Direct);
                    }
                    ContentBlock::Thinking { .. }
                    | ContentBlock::BashCodeExecutionToolResult { .. }
                    | ContentBlock::CodeExecutionToolResult { .. }
                    | ContentBlock::TextEditorCodeExecutionToolResult { .. }
                    | ContentBlock::Raw(_) => {}
                }
            }
            StreamEvent::BlockDelta { index, .. } => assert_eq!(open, Some(*index)),
            StreamEvent::BlockStop { index } => {
                assert_eq!(open.take(), Some(*index));
                next += 1;
            }
            StreamEvent::MessageDelta(_) => {
                assert_eq!(open, None);
                deltas += 1;
            }
            StreamEvent::MessageStop => assert_eq!(place, events.len() - 1, "message_stop comes last"),
            StreamEvent::Error(_) => assert_eq!(open, None),
            StreamEvent::Ping => {}
        }
        assert!(place > 0 || matches!(event, StreamEvent::MessageStart(_)), "message_start comes first");
    }
    if finished {
        assert_eq!(deltas, 1);
        assert_eq!(events.last(), Some(&StreamEvent::MessageStop));
    }
}
