//! The stream of a chat completion. Its tool calls may come interleaved; the turn machine is given one block at a time.

use engine::{BlockDelta, ModelEvent, OpenBlock};
use serde_json::Value;
use wire::{OutputTokensDetails, StopReason, Usage};

use crate::decode::Reader;
use crate::failure::{Fault, message_of};
use crate::sse::Event;

/// More calls than any model makes at once.
const MAX_CALLS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    Text,
    Thinking,
}

/// A call as far as it is known.
#[derive(Debug, Default)]
struct Call {
    /// The upstream's number for it.
    index: Option<u64>,
    id: Option<String>,
    name: String,
    /// Not said yet.
    arguments: String,
}

/// Reads one stream. The first call is said as it comes; those after it are kept until the first is known to be whole, which is at
/// the end.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    begun: bool,
    words: Option<Words>,
    calls: Vec<Call>,
    /// The first call has been opened.
    calling: bool,
    /// Words after the first call.
    late: Vec<(Words, String)>,
    stop: Option<StopReason>,
    stop_sequence: Option<String>,
    refused: bool,
    usage: Usage,
}

impl Reader for Stream {
    fn read(&mut self, event: &Event) -> Result<Vec<ModelEvent>, Fault> {
        if event.data.trim() == "[DONE]" {
            return self.at_end();
        }
        let chunk: Value = serde_json::from_str(&event.data).map_err(|_| Fault::Malformed("an event is not JSON"))?;
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            return Err(told(&chunk));
        }
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            events.push(ModelEvent::Start { usage: Usage::default() });
        }
        self.take_usage(&chunk["usage"]);
        let choices = chunk["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
        for choice in choices.iter().filter(|choice| choice["index"].as_u64().unwrap_or(0) == 0) {
            self.choice(choice, &mut events)?;
        }
        Ok(events)
    }

    fn at_end(&mut self) -> Result<Vec<ModelEvent>, Fault> {
        let stop = self.stop.ok_or(Fault::Cut)?;
        let stop = if self.refused { StopReason::Refusal } else { stop };
        Ok(vec![ModelEvent::End {
            stop,
            stop_sequence: self.stop_sequence.take(),
            stop_details: None,
            usage: self.usage.clone(),
        }])
    }
}

impl Stream {
    fn choice(&mut self, choice: &Value, events: &mut Vec<ModelEvent>) -> Result<(), Fault> {
        // Nothing belongs to an answer that has ended.
        if self.stop.is_some() {
            return Ok(());
        }
        let delta = &choice["delta"];
        let text = |name: &str| delta[name].as_str().filter(|text| !text.is_empty());
        if let Some(thinking) = text("reasoning_content").or_else(|| text("reasoning")) {
            self.say(Words::Thinking, thinking, events);
        }
        if let Some(content) = text("content") {
            self.say(Words::Text, content, events);
        }
        if let Some(refusal) = text("refusal") {
            self.refused = true;
            self.say(Words::Text, refusal, events);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.call(call, events)?;
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish(events)?;
            self.stop_sequence = choice["stop_reason"].as_str().filter(|_| reason == "stop").map(str::to_owned);
            self.stop = Some(match reason {
                "length" => StopReason::MaxTokens,
                "tool_calls" | "function_call" => StopReason::ToolUse,
                "content_filter" => StopReason::Refusal,
                _ if self.stop_sequence.is_some() => StopReason::StopSequence,
                // `stop`, and whatever comes to be.
                _ => StopReason::EndTurn,
            });
        }
        Ok(())
    }

    fn say(&mut self, words: Words, text: &str, events: &mut Vec<ModelEvent>) {
        if self.calling {
            match self.late.last_mut() {
                Some((kind, late)) if *kind == words => late.push_str(text),
                _ => self.late.push((words, text.to_owned())),
            }
            return;
        }
        if self.words != Some(words) {
            self.close_words(events);
            self.words = Some(words);
            events.push(opened(words));
        }
        events.push(said(words, text));
    }

    fn close_words(&mut self, events: &mut Vec<ModelEvent>) {
        if self.words.take().is_some() {
            events.push(ModelEvent::Close);
        }
    }

    fn call(&mut self, delta: &Value, events: &mut Vec<ModelEvent>) -> Result<(), Fault> {
        let place = self.place(delta)?;
        let function = &delta["function"];
        let call = &mut self.calls[place];
        if call.name.is_empty() {
            function["name"].as_str().unwrap_or_default().clone_into(&mut call.name);
        }
        match &function["arguments"] {
            Value::String(more) => call.arguments.push_str(more),
            // Some servers give the arguments as they are, whole.
            whole @ Value::Object(_) => call.arguments.push_str(&whole.to_string()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {}
        }
        if place == 0 && !call.name.is_empty() {
            self.go_on_with_first(events);
        }
        Ok(())
    }

    /// Which call a delta goes on with: by number, unless its id says that it is another; without either, the last.
    fn place(&mut self, delta: &Value) -> Result<usize, Fault> {
        let (index, id) = (delta["index"].as_u64(), delta["id"].as_str().filter(|id| !id.is_empty()));
        let same = |call: &Call| match (index, id) {
            (index, Some(id)) if call.id.is_some() => {
                call.id.as_deref() == Some(id) && (index.is_none() || call.index == index)
            }
            (Some(_), _) => call.index == index,
            (None, None) => true,
            (None, Some(_)) => false,
        };
        if let Some(place) = self.calls.iter().rposition(same) {
            let call = &mut self.calls[place];
            call.id = call.id.take().or_else(|| id.map(str::to_owned));
            return Ok(place);
        }
        if self.calls.len() == MAX_CALLS {
            return Err(Fault::Malformed("there is no end of calls"));
        }
        self.calls.push(Call { index, id: id.map(str::to_owned), ..Call::default() });
        Ok(self.calls.len() - 1)
    }

    fn go_on_with_first(&mut self, events: &mut Vec<ModelEvent>) {
        self.close_words(events);
        let Some(call) = self.calls.first_mut() else { return };
        if !std::mem::replace(&mut self.calling, true) {
            events.push(ModelEvent::Open(OpenBlock::Tool { id: call.id.clone(), name: call.name.clone() }));
        }
        let arguments = std::mem::take(&mut call.arguments);
        if !arguments.is_empty() {
            events.push(ModelEvent::Delta(BlockDelta::Json(arguments)));
        }
    }

    /// Says what was kept.
    fn finish(&mut self, events: &mut Vec<ModelEvent>) -> Result<(), Fault> {
        self.close_words(events);
        for (place, call) in std::mem::take(&mut self.calls).into_iter().enumerate() {
            if call.name.is_empty() {
                return Err(Fault::Malformed("a call has no name"));
            }
            if place > 0 {
                events.push(ModelEvent::Open(OpenBlock::Tool { id: call.id, name: call.name }));
                events.push(ModelEvent::Delta(BlockDelta::Json(call.arguments)));
            }
            events.push(ModelEvent::Close);
        }
        for (words, text) in std::mem::take(&mut self.late) {
            events.extend([opened(words), said(words, &text), ModelEvent::Close]);
        }
        Ok(())
    }

    /// Prompts are counted with what came from the cache; here they are counted apart.
    fn take_usage(&mut self, usage: &Value) {
        let Some(prompt) = usage["prompt_tokens"].as_u64() else { return };
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0).min(prompt);
        self.usage = Usage {
            input_tokens: prompt - cached,
            cache_read_input_tokens: cached,
            output_tokens: usage["completion_tokens"].as_u64().unwrap_or(0),
            output_tokens_details: usage["completion_tokens_details"]["reasoning_tokens"]
                .as_u64()
                .map(|thinking_tokens| OutputTokensDetails { thinking_tokens }),
            ..Usage::default()
        };
    }
}

fn opened(words: Words) -> ModelEvent {
    ModelEvent::Open(match words {
        Words::Text => OpenBlock::Text,
        Words::Thinking => OpenBlock::Thinking,
    })
}

fn said(words: Words, text: &str) -> ModelEvent {
    ModelEvent::Delta(match words {
        Words::Text => BlockDelta::Text(text.to_owned()),
        Words::Thinking => BlockDelta::Thinking(text.to_owned()),
    })
}

/// An error in the middle of a stream.
fn told(chunk: &Value) -> Fault {
    let code = &chunk["error"]["code"];
    let code = code.as_u64().or_else(|| code.as_str()?.parse().ok());
    let status = code.and_then(|code| u16::try_from(code).ok()).filter(|code| (400..600).contains(code)).unwrap_or(500);
    Fault::Answer { status, message: message_of(chunk.to_string().as_bytes()), retry_after: None }
}

#[cfg(test)]
mod tests;
