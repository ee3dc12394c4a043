//! Drives one turn: performs what the turn machine asks for and feeds it what comes of it. Decides nothing itself.

use crate::{commands::Commands, entropy, request::new_seed};
use engine::{Action, Input, ModelEvent, ModelRequest, ServerCall, Turn, TurnEnd, TurnPlan, TurnSource};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use jiff::{SignedDuration, Timestamp, Unit};
use providers::{Model, Sampling};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;
use wire::{ApiError, ErrorType, IdSeed, StreamEvent};

/// How long a turn may take: SDKs give up after 600 s.
const TURN_LIMIT: Duration = Duration::from_mins(9);
/// Events that wait for a slow reader; then the turn waits.
pub const EVENTS_AHEAD: usize = 32;
/// Wait before a failed sampling is tried again, unless its failure says how long; twice as long before the next.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// Ids and times for one turn.
pub struct Source {
    /// The container's idle timeout in seconds, known once it is acquired.
    idle_seconds: Arc<AtomicU64>,
}

impl Source {
    /// For a turn whose container stops after `idle` without use, until better is known.
    pub fn new(idle: Duration) -> (Self, Arc<AtomicU64>) {
        let idle_seconds = Arc::new(AtomicU64::new(idle.as_secs()));
        (Self { idle_seconds: Arc::clone(&idle_seconds) }, idle_seconds)
    }
}

impl TurnSource for Source {
    fn id_seed(&mut self) -> IdSeed {
        new_seed()
    }

    fn container_expiry(&mut self) -> Timestamp {
        let idle = i64::try_from(self.idle_seconds.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        let now = entropy::now();
        let expiry = now.checked_add(SignedDuration::from_secs(idle)).unwrap_or(now);
        expiry.round(Unit::Microsecond).unwrap_or(expiry)
    }
}

/// A turn under way. Dropping the receiver cancels it.
pub struct Running {
    /// What to tell the client.
    pub events: mpsc::Receiver<StreamEvent>,
    /// How it ended.
    pub end: tokio::task::JoinHandle<TurnEnd>,
}

/// Whom a turn asks.
pub struct Asked {
    /// The model.
    pub model: Arc<Model>,
    /// The client's betas.
    pub betas: Vec<String>,
}

/// Starts a turn in a task of its own.
pub fn start(
    plan: TurnPlan,
    asked: Asked,
    commands: Commands,
    idle_seconds: Arc<AtomicU64>,
    stop: CancellationToken,
) -> Running {
    let (sender, events) = mpsc::channel(EVENTS_AHEAD);
    let driver = Driver {
        asked,
        commands: Arc::new(commands),
        idle_seconds,
        sender,
        stop,
        deadline: Instant::now() + TURN_LIMIT,
        sampling: None,
        asked_at: None,
        call: None,
        retry_after: None,
        wait: RETRY_AFTER,
    };
    let span = tracing::Span::current();
    let end = tokio::spawn(tracing::Instrument::instrument(driver.drive(plan), span));
    Running { events, end }
}

struct Driver {
    asked: Asked,
    commands: Arc<Commands>,
    idle_seconds: Arc<AtomicU64>,
    sender: mpsc::Sender<StreamEvent>,
    stop: CancellationToken,
    deadline: Instant,
    sampling: Option<Sampling>,
    /// When it was asked for, until it begins.
    asked_at: Option<Instant>,
    call: Option<BoxFuture<'static, Input>>,
    /// The sampling before this one failed: how long to wait.
    retry_after: Option<Duration>,
    /// For the next failure that does not say.
    wait: Duration,
}

impl Driver {
    async fn drive(mut self, plan: TurnPlan) -> TurnEnd {
        let (mut turn, actions) = Turn::new(plan);
        let mut actions = VecDeque::from(actions);
        loop {
            while let Some(action) = actions.pop_front() {
                match action {
                    Action::Emit(event) => {
                        if !self.emit(event).await {
                            actions.extend(turn.step(Input::ClientGone));
                        }
                    }
                    Action::Sample(request) => self.sample(&request),
                    Action::Run(call) => self.run(call),
                    Action::CancelModel => self.sampled("cancelled"),
                    // Dropping the call ends its processes, but for a cell that goes on: its answer may be asked for again.
                    Action::CancelRun(_) => self.call = None,
                    Action::Done(end) => return end,
                }
            }
            for input in self.next().await {
                actions.extend(turn.step(input));
            }
        }
    }

    /// Waits for a slow reader; false when there is none any more.
    async fn emit(&mut self, event: StreamEvent) -> bool {
        let limit = self.deadline + RETRY_AFTER;
        matches!(tokio::time::timeout_at(limit, self.sender.send(event)).await, Ok(Ok(())))
    }

    /// A wait before it is part of the sampling, so that the turn can be stopped meanwhile.
    fn sample(&mut self, request: &ModelRequest) {
        let sampling = self.asked.model.sample(request, &self.asked.betas);
        self.asked_at = Some(Instant::now() + self.retry_after.unwrap_or_default());
        self.sampling = Some(match self.retry_after.take() {
            Some(wait) => stream::once(async move {
                tokio::time::sleep(wait).await;
                sampling
            })
            .flatten()
            .boxed(),
            None => sampling,
        });
    }

    fn run(&mut self, call: ServerCall) {
        let (commands, idle) = (Arc::clone(&self.commands), Arc::clone(&self.idle_seconds));
        let left = self.deadline.saturating_duration_since(Instant::now());
        let run = async move {
            let input = commands.run(call, left).await;
            if let Some(sandbox) = commands.sandbox.get() {
                idle.store(sandbox.idle_timeout().as_secs(), Ordering::Relaxed);
            }
            input
        };
        self.call = Some(run.boxed());
    }

    /// The next thing that happens.
    async fn next(&mut self) -> Vec<Input> {
        let (sampling, call) = (&mut self.sampling, &mut self.call);
        tokio::select! {
            () = self.sender.closed() => vec![Input::ClientGone],
            () = self.stop.cancelled() => vec![Input::Cancel(stopping())],
            () = tokio::time::sleep_until(self.deadline) => vec![Input::Cancel(too_long())],
            event = async { sampling.as_mut()?.next().await }, if sampling.is_some() => {
                let mut inputs = vec![self.heard(event)];
                // To wait anew for what is there already costs more than the event.
                while inputs.len() < EVENTS_AHEAD
                    && let Some(event) = self.sampling.as_mut().and_then(|sampling| sampling.next().now_or_never())
                {
                    inputs.push(self.heard(event));
                }
                inputs
            }
            Some(input) = async { Some(call.as_mut()?.await) }, if call.is_some() => {
                self.call = None;
                let left = self.deadline.saturating_duration_since(Instant::now());
                vec![Input::TimeLeft(left), input]
            }
        }
    }

    /// What the model says next, or that it says no more.
    fn heard(&mut self, event: Option<ModelEvent>) -> Input {
        let event = event.unwrap_or_else(ended_early);
        match &event {
            ModelEvent::End { .. } => self.sampled("ended"),
            ModelEvent::Fail(failure) => {
                self.sampled(failure.error.kind.name());
                self.retry_after = Some(failure.error.retry_after.unwrap_or(self.wait));
                self.wait *= 2;
            }
            ModelEvent::Start { .. } | ModelEvent::Open(_) | ModelEvent::Delta(_) | ModelEvent::Close => {}
        }
        if let Some(asked) = self.asked_at.take() {
            self.commands.app.metrics.began(&self.asked.model.info.id, asked.elapsed());
        }
        Input::Model(event)
    }

    /// The sampling is over.
    fn sampled(&mut self, outcome: &'static str) {
        if self.sampling.take().is_some() {
            self.commands.app.metrics.sampled(&self.asked.model.info.id, outcome);
        }
    }
}

fn ended_early() -> ModelEvent {
    let error = ApiError::new(ErrorType::Api, "The model's answer ended early.");
    ModelEvent::Fail(engine::ModelFailure { error, retryable: true })
}

fn stopping() -> ApiError {
    ApiError::new(ErrorType::Overloaded, "The server is stopping; send the request again.")
}

fn too_long() -> ApiError {
    ApiError::new(ErrorType::Timeout, "The turn took longer than 540 seconds.")
}
