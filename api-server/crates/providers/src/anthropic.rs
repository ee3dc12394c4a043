//! The Anthropic dialect: nearly what the turn machine speaks itself.

use engine::{BlockDelta, ModelEvent, ModelRequest, OpenBlock};
use serde_json::Value;
use wire::{CacheCreation, OutputTokensDetails, StopReason, Usage};

use crate::decode::Reader;
use crate::failure::{Fault, message_of, status_of_type};
use crate::sse::Event;

/// What `count_tokens` takes of a request.
const COUNTED: [&str; 9] =
    ["model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control", "speed"];
/// Betas that concern what this server does itself; upstreams know nothing of its containers, files and threads.
const OWN_BETAS: [&str; 6] =
    ["code-execution-", "files-api-", "skills-", "message-threads-", "message-batches-", "mcp-client-"];
/// More than any client sends; the header must stay short.
const MAX_BETAS: usize = 32;

/// The body of a sampling.
pub(crate) fn body(request: &ModelRequest, model: &str) -> Value {
    let mut body = request.body(true);
    body["model"] = model.into();
    body
}

/// The body of a count.
pub(crate) fn count_body(request: &ModelRequest, model: &str) -> Value {
    let mut body = body(request, model);
    if let Value::Object(fields) = &mut body {
        fields.retain(|name, _| COUNTED.contains(&name.as_str()));
    }
    body
}

/// The client's betas that are the upstream's business, as one header.
pub(crate) fn beta_header(betas: &[String]) -> Option<String> {
    let legal = |beta: &str| {
        !beta.is_empty() && beta.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let passed = betas.iter().map(|beta| beta.trim());
    let passed = passed.filter(|beta| legal(beta) && !OWN_BETAS.iter().any(|own| beta.starts_with(own)));
    let header = passed.take(MAX_BETAS).collect::<Vec<_>>().join(",");
    (!header.is_empty()).then_some(header)
}

/// Reads one stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    open: Option<u64>,
    usage: Usage,
    stop: Option<StopReason>,
    stop_sequence: Option<String>,
    stop_details: Option<Value>,
}

impl Reader for Stream {
    fn read(&mut self, event: &Event) -> Result<Vec<ModelEvent>, Fault> {
        let event: Value = serde_json::from_str(&event.data).map_err(|_| Fault::Malformed("an event is not JSON"))?;
        let index = event["index"].as_u64();
        Ok(match event["type"].as_str().unwrap_or_default() {
            "message_start" => {
                take_usage(&mut self.usage, &event["message"]["usage"]);
                vec![ModelEvent::Start { usage: self.usage.clone() }]
            }
            "content_block_start" => {
                // One that was not said to be over is, when the next begins.
                let mut events = self.close();
                self.open = Some(index.ok_or(Fault::Malformed("a block has no number"))?);
                events.extend(open(&event["content_block"])?);
                events
            }
            "content_block_delta" if index == self.open && index.is_some() => {
                vec![ModelEvent::Delta(delta(&event["delta"])?)]
            }
            "content_block_stop" if index == self.open && index.is_some() => self.close(),
            "content_block_delta" | "content_block_stop" => {
                return Err(Fault::Malformed("an event belongs to a block that is not open"));
            }
            "message_delta" => {
                take_usage(&mut self.usage, &event["usage"]);
                let delta = &event["delta"];
                if let Some(reason) = delta["stop_reason"].as_str() {
                    // One that is not known yet is an end like any other.
                    self.stop = Some(StopReason::parse(reason).unwrap_or(StopReason::EndTurn));
                    self.stop_sequence = delta["stop_sequence"].as_str().map(str::to_owned);
                    self.stop_details = Some(&delta["stop_details"]).filter(|details| !details.is_null()).cloned();
                }
                Vec::new()
            }
            "message_stop" => {
                let mut events = self.close();
                events.push(ModelEvent::End {
                    stop: self.stop.unwrap_or(StopReason::EndTurn),
                    stop_sequence: self.stop_sequence.take(),
                    stop_details: self.stop_details.take(),
                    usage: self.usage.clone(),
                });
                events
            }
            "error" => {
                let kind = event["error"]["type"].as_str().unwrap_or_default();
                let message = message_of(event.to_string().as_bytes());
                return Err(Fault::Answer { status: status_of_type(kind), message, retry_after: None });
            }
            // `ping`, and whatever comes to be: clients are told to ignore what they do not know.
            _ => Vec::new(),
        })
    }

    fn at_end(&mut self) -> Result<Vec<ModelEvent>, Fault> {
        Err(Fault::Cut)
    }
}

impl Stream {
    fn close(&mut self) -> Vec<ModelEvent> {
        self.open.take().map(|_| ModelEvent::Close).into_iter().collect()
    }
}

fn open(block: &Value) -> Result<Vec<ModelEvent>, Fault> {
    let text = |name: &str| block[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let mut events = Vec::new();
    match block["type"].as_str() {
        None => return Err(Fault::Malformed("a block has no type")),
        Some("text") => {
            events.push(ModelEvent::Open(OpenBlock::Text));
            events.extend(text("text").map(BlockDelta::Text).map(ModelEvent::Delta));
            let citations = block["citations"].as_array().into_iter().flatten();
            events.extend(citations.cloned().map(BlockDelta::Citation).map(ModelEvent::Delta));
        }
        Some("thinking") => {
            events.push(ModelEvent::Open(OpenBlock::Thinking));
            events.extend(text("thinking").map(BlockDelta::Thinking).map(ModelEvent::Delta));
            events.extend(text("signature").map(BlockDelta::Signature).map(ModelEvent::Delta));
        }
        Some("tool_use") => {
            let name = text("name").ok_or(Fault::Malformed("a call has no name"))?;
            events.push(ModelEvent::Open(OpenBlock::Tool { id: text("id"), name }));
            if block["input"].as_object().is_some_and(|input| !input.is_empty()) {
                events.push(ModelEvent::Delta(BlockDelta::Json(block["input"].to_string())));
            }
        }
        Some(_) => events.push(ModelEvent::Open(OpenBlock::Raw(block.clone()))),
    }
    Ok(events)
}

fn delta(delta: &Value) -> Result<BlockDelta, Fault> {
    let text = |name: &str| delta[name].as_str().unwrap_or_default().to_owned();
    Ok(match delta["type"].as_str() {
        None => return Err(Fault::Malformed("a delta has no type")),
        Some("text_delta") => BlockDelta::Text(text("text")),
        Some("input_json_delta") => BlockDelta::Json(text("partial_json")),
        Some("thinking_delta") => BlockDelta::Thinking(text("thinking")),
        Some("signature_delta") => BlockDelta::Signature(text("signature")),
        Some("citations_delta") => BlockDelta::Citation(delta["citation"].clone()),
        Some(_) => BlockDelta::Raw(delta.clone()),
    })
}

/// Numbers so far; what is not said stays as it was.
fn take_usage(usage: &mut Usage, said: &Value) {
    for (field, name) in [
        (&mut usage.input_tokens, "input_tokens"),
        (&mut usage.cache_creation_input_tokens, "cache_creation_input_tokens"),
        (&mut usage.cache_read_input_tokens, "cache_read_input_tokens"),
        (&mut usage.output_tokens, "output_tokens"),
    ] {
        *field = said[name].as_u64().unwrap_or(*field);
    }
    let written = &said["cache_creation"];
    if written.is_object() {
        let tokens = |name: &str| written[name].as_u64().unwrap_or(0);
        usage.cache_creation = Some(CacheCreation {
            ephemeral_5m_input_tokens: tokens("ephemeral_5m_input_tokens"),
            ephemeral_1h_input_tokens: tokens("ephemeral_1h_input_tokens"),
        });
    }
    if let Some(thinking_tokens) = said["output_tokens_details"]["thinking_tokens"].as_u64() {
        usage.output_tokens_details = Some(OutputTokensDetails { thinking_tokens });
    }
}

#[cfg(test)]
mod tests;
