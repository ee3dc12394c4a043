//! What a turn starts from, what happens to it, and what it asks for.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use wire::{ApiError, IdSeed, MessagesRequest, StreamEvent, Surface, Tool};

use crate::history::{DeferredCall, History};
use crate::model::{ModelEvent, ModelRequest};
use crate::outcome::{CodeCall, ToolOutcome};
use crate::profile::{CallInput, SandboxFacts, ToolProfile};

/// Time and ids, passed in.
pub trait TurnSource: Send {
    /// For the next id.
    fn id_seed(&mut self) -> IdSeed;
    /// Until when the container stays warm: now + its idle timeout, never earlier than what was given before.
    fn container_expiry(&mut self) -> Timestamp;
}

/// What a turn starts from.
pub struct TurnPlan {
    /// `msg_...`
    pub message_id: String,
    /// Decides how a failure is told.
    pub surface: Surface,
    /// `None`: the request offers no code execution.
    pub profile: Option<ToolProfile>,
    /// The first sampling; its `max_tokens` is the turn's.
    pub request: ModelRequest,
    /// Names of the client's tools.
    pub client_tools: BTreeSet<String>,
    /// Calls to run before the first sampling.
    pub deferred: Vec<DeferredCall>,
    /// `None`: a fresh one, named by the first server call.
    pub container: Option<String>,
    /// At least 1.
    pub max_samplings: u32,
    /// Time and ids.
    pub source: Box<dyn TurnSource>,
}

impl TurnPlan {
    /// The plan for a request with a valid history. `container` is the one that the request or the surface names.
    pub fn new(request: &MessagesRequest, history: History, facts: &SandboxFacts, settings: TurnSettings) -> Self {
        let profile = ToolProfile::of(request, facts);
        let model_request = ModelRequest::build(request, &history, profile.as_ref(), facts);
        let client_tools = request
            .tools
            .iter()
            .filter_map(|tool| match tool {
                Tool::Client(tool) => Some(tool.name.clone()),
                Tool::Code(_) => None,
            })
            .collect();
        Self {
            message_id: settings.message_id,
            surface: request.surface,
            profile,
            request: model_request,
            client_tools,
            deferred: history.deferred,
            container: settings.container.or(history.turn_container),
            max_samplings: settings.max_samplings.max(1),
            source: settings.source,
        }
    }
}

/// What a turn needs beside its request.
pub struct TurnSettings {
    /// `msg_...`
    pub message_id: String,
    /// As the request or the surface names it; `None`: the open turn's, or a fresh one.
    pub container: Option<String>,
    /// How often the model is asked at most.
    pub max_samplings: u32,
    /// Time and ids.
    pub source: Box<dyn TurnSource>,
}

/// What happens to a turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The model says something.
    Model(ModelEvent),
    /// A server call ended; its output files are stored already.
    Result {
        /// The call's.
        id: String,
        /// How.
        outcome: ToolOutcome,
    },
    /// A cell calls the client's tools, and waits.
    Calls {
        /// The cell's call.
        id: String,
        /// In the order of their numbers.
        calls: Vec<CodeCall>,
    },
    /// What is left of the turn's time; fed in before a `Result`.
    TimeLeft(Duration),
    /// Nobody listens any more.
    ClientGone,
    /// This server stops the turn, and says why.
    Cancel(ApiError),
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send it.
    Emit(StreamEvent),
    /// Ask the model, and feed in what it says.
    Sample(Box<ModelRequest>),
    /// Run it, and feed in its result.
    Run(ServerCall),
    /// Drop the sampling.
    CancelModel,
    /// End the run of this call.
    CancelRun(String),
    /// The turn is over; nothing follows.
    Done(TurnEnd),
}

/// A call to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCall {
    /// `srvtoolu_...`
    pub id: String,
    /// What to run.
    pub input: CallInput,
    /// Where.
    pub container: String,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnEnd {
    /// With `message_stop`.
    Finished,
    /// In an error.
    Failed {
        /// For the client.
        error: ApiError,
        /// `false`: nothing was emitted, so that the error is the HTTP answer; `true`: the error event went out already.
        started: bool,
    },
    /// The client or the server stopped it.
    Cancelled,
}
