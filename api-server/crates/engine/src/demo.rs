//! The demo model: a deterministic "model" whose script is the fenced blocks of the user's last text.
//!
//! It makes the whole server triable without a model, and is the script language of the tests. A pure function of the request.

use serde_json::{Value, json};
use wire::{ErrorType, Role, StopReason, Usage};

use crate::model::{BlockDelta, ModelEvent, ModelFailure, ModelMessage, ModelRequest, OpenBlock};

mod fence;
mod script;

use script::{Part, Turn};

/// What the model does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Says something.
    Event(ModelEvent),
    /// Waits this many milliseconds.
    SleepMs(u64),
}

/// Characters of a delta: small, so that even short texts stream in several.
const DELTA_CHARS: usize = 24;
/// Characters that count as a token.
const TOKEN_CHARS: u64 = 4;
/// Characters of a result that the closing text quotes.
const QUOTED_CHARS: usize = 2_000;

const USAGE: &str = "I am the demo model: I do exactly what the fenced blocks of your message say. Write a ```bash block, and I run \
                     it in the sandbox; ```python runs Python, ```text is what I say, and ```tool_use takes one JSON object a \
                     line with `name` and `input` for any tool.";
const NO_TOOL: &str = "Your message holds a script to run, but the request offers no code execution tool. Add \
                       {\"type\": \"code_execution_20250825\", \"name\": \"code_execution\"} to `tools`.";

/// The next sampling.
pub fn respond(request: &ModelRequest) -> Vec<Step> {
    let (text, taken, since) = position(&request.messages);
    let turns = script::read(&text, &Offered::of(request));
    let turn = match turns {
        Err(problem) => Turn::closing(problem),
        Ok(turns) => match turns.into_iter().nth(taken) {
            Some(turn) => turn,
            None => Turn::closing(closing_text(since)),
        },
    };
    perform(turn, request)
}

/// An estimate of the prompt's tokens, at least 1.
pub fn count_tokens(request: &ModelRequest) -> u64 {
    let length = request.body(false).to_string().len();
    u64::try_from(length).unwrap_or(u64::MAX).div_ceil(TOKEN_CHARS).max(1)
}

/// Which of our sub-tools the request offers.
struct Offered {
    bash: bool,
    cell: bool,
}

impl Offered {
    fn of(request: &ModelRequest) -> Self {
        let has = |name: &str| request.tools.iter().any(|tool| tool["name"] == name);
        Self { bash: has("bash_code_execution"), cell: has("code_execution") }
    }
}

/// The script, how many of its turns were taken, and the messages since.
fn position(messages: &[ModelMessage]) -> (String, usize, &[ModelMessage]) {
    let text_of = |message: &ModelMessage| {
        let texts =
            message.content.iter().filter(|block| block["type"] == "text").filter_map(|block| block["text"].as_str());
        texts.collect::<Vec<_>>().join("\n\n")
    };
    let found = messages.iter().rposition(|message| message.role == Role::User && !text_of(message).trim().is_empty());
    let Some(start) = found else { return (String::new(), 0, messages) };
    let since = &messages[start + 1..];
    let taken = since.iter().filter(|message| message.role == Role::Assistant).count();
    (text_of(&messages[start]), taken, since)
}

fn closing_text(since: &[ModelMessage]) -> String {
    let results = since.iter().rfind(|message| message.role == Role::User);
    let mut quoted = Vec::new();
    for block in results.map(|message| message.content.as_slice()).unwrap_or_default() {
        if block["type"] == "tool_result" {
            quoted.push(result_text(&block["content"]));
        }
    }
    if quoted.is_empty() {
        return USAGE.to_owned();
    }
    let all = quoted.join("\n\n");
    let shown: String = all.chars().take(QUOTED_CHARS).collect();
    let more = if shown.len() < all.len() { "\n..." } else { "" };
    format!("Done. The last result:\n\n{shown}{more}")
}

fn result_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n"),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

/// Turns a scripted turn into events, within `max_tokens` and up to the first stop sequence.
fn perform(turn: Turn, request: &ModelRequest) -> Vec<Step> {
    let input_tokens = turn.usage.input_tokens.unwrap_or_else(|| count_tokens(request));
    let mut speaker = Speaker {
        steps: Vec::new(),
        left: request.max_tokens.saturating_mul(TOKEN_CHARS),
        stop_sequences: &request.stop_sequences,
        stopped: None,
    };
    if let Some(Part::Error { after: None, failure }) = turn.parts.first() {
        return vec![Step::Event(ModelEvent::Fail(failure.clone()))];
    }
    speaker.event(ModelEvent::Start { usage: Usage { input_tokens, ..Usage::default() } });
    let mut failure = None;
    let mut calls = false;
    for part in turn.parts {
        if speaker.stopped.is_some() || failure.is_some() {
            break;
        }
        match part {
            Part::Text(text) => speaker.text(&text),
            Part::Thinking(text) => speaker.thinking(&text),
            Part::Call { id, name, json } => {
                calls = true;
                speaker.call(id, name, &json);
            }
            Part::Sleep(millis) => speaker.steps.push(Step::SleepMs(millis)),
            Part::Error { after: None, failure: now } => failure = Some(now),
            Part::Error { after: Some(events), failure: later } => {
                speaker.steps = keep_events(speaker.steps, events);
                failure = Some(later);
            }
        }
    }
    if let Some(failure) = failure {
        speaker.event(ModelEvent::Fail(failure));
        return speaker.steps;
    }
    let spent = request.max_tokens.saturating_mul(TOKEN_CHARS).saturating_sub(speaker.left).div_ceil(TOKEN_CHARS);
    let usage = Usage {
        input_tokens,
        output_tokens: turn.usage.output_tokens.unwrap_or_else(|| spent.max(1)),
        ..Usage::default()
    };
    let natural = if calls { StopReason::ToolUse } else { StopReason::EndTurn };
    let (stop, stop_sequence) = match speaker.stopped.take() {
        Some(stopped) => stopped,
        None => (turn.stop.unwrap_or(natural), turn.stop_sequence),
    };
    let stop_details = (stop == StopReason::Refusal)
        .then(|| json!({ "type": "refusal", "category": null, "explanation": "The script refuses." }));
    speaker.event(ModelEvent::End { stop, stop_sequence, stop_details, usage });
    speaker.steps
}

/// The steps up to the given number of events.
fn keep_events(steps: Vec<Step>, events: usize) -> Vec<Step> {
    let mut seen = 0;
    let keep = |step: &Step| {
        if matches!(step, Step::Event(_)) {
            seen += 1;
        }
        seen <= events
    };
    steps.into_iter().take_while(keep).collect()
}

struct Speaker<'a> {
    steps: Vec<Step>,
    /// Characters that `max_tokens` still allows.
    left: u64,
    stop_sequences: &'a [String],
    stopped: Option<(StopReason, Option<String>)>,
}

impl Speaker<'_> {
    fn event(&mut self, event: ModelEvent) {
        self.steps.push(Step::Event(event));
    }

    fn text(&mut self, text: &str) {
        let found = self
            .stop_sequences
            .iter()
            .filter_map(|sequence| text.find(sequence.as_str()).map(|place| (place, sequence)))
            .min_by_key(|(place, _)| *place);
        let said = found.map_or(text, |(place, _)| &text[..place]);
        self.event(ModelEvent::Open(OpenBlock::Text));
        self.deltas(said, BlockDelta::Text);
        self.event(ModelEvent::Close);
        if let (Some((_, sequence)), None) = (found, &self.stopped) {
            self.stopped = Some((StopReason::StopSequence, Some(sequence.clone())));
        }
    }

    fn thinking(&mut self, text: &str) {
        self.event(ModelEvent::Open(OpenBlock::Thinking));
        self.deltas(text, BlockDelta::Thinking);
        self.event(ModelEvent::Delta(BlockDelta::Signature("demo".to_owned())));
        self.event(ModelEvent::Close);
    }

    fn call(&mut self, id: Option<String>, name: String, json: &str) {
        self.event(ModelEvent::Open(OpenBlock::Tool { id, name }));
        self.deltas(json, BlockDelta::Json);
        self.event(ModelEvent::Close);
    }

    /// Says as much as `max_tokens` allows.
    fn deltas(&mut self, text: &str, delta: fn(String) -> BlockDelta) {
        let count = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
        let allowed = usize::try_from(count.min(self.left)).unwrap_or(usize::MAX);
        let characters: Vec<char> = text.chars().take(allowed).collect();
        // Long inputs stream in larger pieces: a megabyte in pieces of two dozen characters would be all overhead.
        for piece in characters.chunks(DELTA_CHARS.max(characters.len() / 256)) {
            self.event(ModelEvent::Delta(delta(piece.iter().collect())));
        }
        if count > self.left {
            self.stopped = Some((StopReason::MaxTokens, None));
        }
        self.left = self.left.saturating_sub(count);
    }
}

fn failure(status: u16) -> ModelFailure {
    let error =
        wire::ApiError::new(ErrorType::of_status(status), format!("The scripted model failed with status {status}."));
    ModelFailure { error, retryable: status == 408 || status == 409 || status == 429 || status >= 500 }
}

#[cfg(test)]
mod tests;
