//! One sampling: its blocks as they come, the calls in them, and what they leave in the prompt.

use serde_json::{Value, json};
use wire::{Caller, ContentBlock, Delta, Usage};

use super::Turn;
use crate::model::{BlockDelta, OpenBlock};
use crate::profile::{CallInput, SubTool, ToolProfile};
use crate::raw::RawBlock;

/// A sampling in progress.
#[derive(Default)]
pub(super) struct Sampling {
    pub(super) usage: Usage,
    /// Its blocks as the upstream will see them again.
    pub(super) prompt: Vec<Value>,
    pub(super) calls: Vec<Call>,
    /// Whether the client has seen any of its blocks.
    pub(super) emitted: bool,
    open: Option<Open>,
}

/// A call that the sampling made.
pub(super) enum Call {
    /// Emitted, and fit to run.
    Ours { id: String, input: CallInput },
    /// Emitted, for the client.
    Client,
    /// Not emitted.
    Invalid { id: String, tool: SubTool, input: Value, reason: String },
}

enum Open {
    /// Emitted from its first words on.
    Text {
        text: String,
        citations: Vec<Value>,
    },
    Thinking {
        thinking: String,
        signature: String,
        emitted: bool,
    },
    /// Held back until its input is known.
    Held {
        name: String,
        json: String,
    },
    Client {
        id: String,
        name: String,
        json: String,
    },
    Raw(RawBlock),
    /// Not for the client.
    Dropped,
}

/// Blocks that only this server may make, or that nobody asked the upstream for.
fn is_forged(block: &Value) -> bool {
    let kind = block["type"].as_str().unwrap_or_default();
    kind.is_empty()
        || kind == "tool_use"
        || kind == "tool_result"
        || kind == "server_tool_use"
        || kind == "container_upload"
        || kind.ends_with("_tool_result")
}

impl Turn {
    pub(super) fn open(&mut self, sampling: &mut Sampling, block: OpenBlock) {
        sampling.open = Some(match block {
            OpenBlock::Text => Open::Text { text: String::new(), citations: Vec::new() },
            OpenBlock::Thinking => Open::Thinking { thinking: String::new(), signature: String::new(), emitted: false },
            // Without a tool of ours every call is the client's business, also one of an unknown name.
            OpenBlock::Tool { id, name } if self.profile.is_none() || self.client_tools.contains(&name) => {
                let id = id
                    .filter(|id| is_legal_id(id) && !self.taken_ids.contains(id))
                    .unwrap_or_else(|| self.source.id_seed().tool_use());
                self.taken_ids.insert(id.clone());
                sampling.emitted = true;
                self.emitter.open(ContentBlock::ToolUse {
                    id: id.clone(),
                    name: name.clone(),
                    input: json!({}),
                    caller: Caller::Direct,
                });
                Open::Client { id, name, json: String::new() }
            }
            OpenBlock::Tool { name, .. } => Open::Held { name, json: String::new() },
            OpenBlock::Raw(block) if is_forged(&block) => Open::Dropped,
            OpenBlock::Raw(block) => {
                sampling.emitted = true;
                self.emitter.open(ContentBlock::Raw(block.clone()));
                Open::Raw(RawBlock::new(block))
            }
        });
    }

    pub(super) fn delta(&mut self, sampling: &mut Sampling, delta: BlockDelta) {
        let Some(open) = &mut sampling.open else { return };
        match (open, delta) {
            (Open::Text { text, .. }, BlockDelta::Text(more)) if !more.is_empty() => {
                if text.is_empty() {
                    sampling.emitted = true;
                    self.emitter.open(ContentBlock::Text { text: String::new(), citations: Vec::new() });
                }
                text.push_str(&more);
                self.emitter.delta(Delta::TextDelta { text: more });
            }
            (Open::Text { text, citations }, BlockDelta::Citation(citation)) if !text.is_empty() => {
                citations.push(citation.clone());
                self.emitter.delta(Delta::CitationsDelta { citation });
            }
            (
                Open::Thinking { thinking, signature, emitted },
                delta @ (BlockDelta::Thinking(_) | BlockDelta::Signature(_)),
            ) => {
                if !std::mem::replace(emitted, true) {
                    sampling.emitted = true;
                    self.emitter.open(ContentBlock::Thinking { thinking: String::new(), signature: String::new() });
                }
                match delta {
                    BlockDelta::Signature(more) => {
                        signature.push_str(&more);
                        self.emitter.delta(Delta::SignatureDelta { signature: more });
                    }
                    BlockDelta::Thinking(more) => {
                        thinking.push_str(&more);
                        self.emitter.delta(Delta::ThinkingDelta { thinking: more });
                    }
                    BlockDelta::Text(_) | BlockDelta::Json(_) | BlockDelta::Citation(_) | BlockDelta::Raw(_) => {}
                }
            }
            (Open::Held { json, .. }, BlockDelta::Json(more)) => json.push_str(&more),
            (Open::Client { json, .. }, BlockDelta::Json(more)) => {
                json.push_str(&more);
                self.emitter.delta(Delta::InputJsonDelta { partial_json: more });
            }
            (Open::Raw(block), delta) => {
                let delta = wire_delta(delta);
                block.extend(&delta);
                self.emitter.delta(delta);
            }
            // The emitter knows whether the client has seen the block begin.
            (Open::Text { .. } | Open::Thinking { .. } | Open::Client { .. }, BlockDelta::Raw(delta)) => {
                self.emitter.delta(Delta::Raw(delta));
            }
            // A delta that does not fit its block: of an upstream that we do not repeat.
            (_, _) => {}
        }
    }

    pub(super) fn close(&mut self, sampling: &mut Sampling) {
        let Some(open) = sampling.open.take() else { return };
        self.emitter.close_open();
        match open {
            Open::Text { text, citations } => {
                if !text.is_empty() {
                    let mut block = json!({ "type": "text", "text": text });
                    if !citations.is_empty() {
                        block["citations"] = citations.into();
                    }
                    sampling.prompt.push(block);
                }
            }
            Open::Thinking { thinking, signature, emitted } => {
                if emitted {
                    sampling.prompt.push(json!({ "type": "thinking", "thinking": thinking, "signature": signature }));
                }
            }
            Open::Raw(block) => sampling.prompt.push(block.finish()),
            Open::Client { id, name, json } => {
                let input = parse_input(&json).unwrap_or_else(|_| json!({}));
                sampling.prompt.push(json!({ "type": "tool_use", "id": id, "name": name, "input": input }));
                sampling.calls.push(Call::Client);
            }
            Open::Held { name, json } => self.close_call(sampling, &name, &json),
            Open::Dropped => {}
        }
    }

    fn close_call(&mut self, sampling: &mut Sampling, name: &str, json: &str) {
        let id = self.source.id_seed().server_tool_use();
        let parsed = parse_input(json);
        let offered = self.profile.as_ref().and_then(|profile| Some((profile, profile.offered(name)?)));
        let checked = match (offered, &parsed) {
            (None, _) => Err(format!("there is no tool `{}`", shortened(name))),
            (Some(_), Err(error)) => Err(format!("the input is not valid JSON: {error}")),
            (Some((profile, tool)), Ok(input)) => profile.parse(tool, input).map_err(|invalid| invalid.0),
        };
        let input = parsed.ok().filter(Value::is_object).unwrap_or_else(|| json!({}));
        // A call to a tool that does not exist is told as one of the tool that does: clients know no other result type.
        let fallback = self.profile.as_ref().map_or(SubTool::Bash, ToolProfile::main_tool);
        let tool = offered.map_or(fallback, |(_, tool)| tool);
        sampling.prompt.push(json!({ "type": "tool_use", "id": id, "name": tool.name(), "input": input }));
        match checked {
            Ok(checked) => {
                sampling.emitted = true;
                self.container_for(&id);
                self.emitter.server_tool_use(&id, tool.name(), &input);
                sampling.calls.push(Call::Ours { id, input: checked });
            }
            Err(reason) => sampling.calls.push(Call::Invalid { id, tool, input, reason }),
        }
    }
}

fn wire_delta(delta: BlockDelta) -> Delta {
    match delta {
        BlockDelta::Text(text) => Delta::TextDelta { text },
        BlockDelta::Thinking(thinking) => Delta::ThinkingDelta { thinking },
        BlockDelta::Signature(signature) => Delta::SignatureDelta { signature },
        BlockDelta::Json(partial_json) => Delta::InputJsonDelta { partial_json },
        BlockDelta::Citation(citation) => Delta::CitationsDelta { citation },
        BlockDelta::Raw(delta) => Delta::Raw(delta),
    }
}

/// No input at all is an empty object, as upstreams send for tools without parameters.
fn parse_input(json: &str) -> Result<Value, serde_json::Error> {
    if json.trim().is_empty() { Ok(json!({})) } else { serde_json::from_str(json) }
}

/// An id that an upstream may give: of a legal form, and not of the form that is ours.
fn is_legal_id(id: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !id.is_empty() && id.len() <= 128 && id.bytes().all(legal) && !wire::id::is_server_tool_use(id)
}

fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}
