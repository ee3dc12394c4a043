//! The prompt that a history makes: our server calls as client tools of the upstream, everything else as it came.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};
use wire::{Block, Role};

use super::{Group, SUB_TOOLS, calling_code, is_server_result};
use crate::model::ModelMessage;
use crate::profile::model_view;

pub(super) fn build(groups: &[Group<'_>], uploads: &BTreeMap<String, String>) -> Vec<ModelMessage> {
    let mut prompt = Prompt::default();
    for group in groups {
        for located in &group.blocks {
            prompt.add(group.role, located.block, uploads);
        }
    }
    for message in &mut prompt.messages {
        if message.role == Role::User {
            // Upstreams want results first; ours may have come after the client's, and a client may put its text first.
            message.content.sort_by_key(|block| block["type"] != "tool_result");
        }
    }
    prompt.messages
}

#[derive(Default)]
struct Prompt {
    messages: Vec<ModelMessage>,
    /// Server calls of ours.
    ours: HashSet<String>,
    /// Client calls that code made: neither they nor their results are the model's business.
    from_code: HashSet<String>,
}

impl Prompt {
    fn add(&mut self, role: Role, block: &Block, uploads: &BTreeMap<String, String>) {
        match block.kind() {
            "text" => {
                if !block.text("text").is_empty() {
                    self.push(role, without(block, &["parsed_output"]));
                }
            }
            "tool_use" if calling_code(block).is_some() => {
                self.from_code.insert(block.text("id").to_owned());
            }
            "tool_use" => self.push(role, without(block, &["caller"])),
            "tool_result" if self.from_code.contains(block.text("tool_use_id")) => {}
            "server_tool_use" if SUB_TOOLS.contains(&block.text("name")) => {
                self.ours.insert(block.text("id").to_owned());
                let mut call = without(block, &["caller"]);
                call["type"] = "tool_use".into();
                self.push(role, call);
            }
            kind if is_server_result(kind) && self.ours.contains(block.text("tool_use_id")) => {
                self.push(Role::User, result(block));
            }
            "container_upload" => self.push(role, upload(block, uploads)),
            _ => self.push(role, block.value()),
        }
    }

    fn push(&mut self, role: Role, block: Value) {
        match self.messages.last_mut() {
            Some(message) if message.role == role => message.content.push(block),
            _ => self.messages.push(ModelMessage { role, content: vec![block] }),
        }
    }
}

/// The block without these keys, and without the nulls that clients print for what was not set.
fn without(block: &Block, keys: &[&str]) -> Value {
    let mut value = block.value();
    if let Value::Object(fields) = &mut value {
        fields.retain(|key, value| !value.is_null() && !keys.contains(&key.as_str()));
    }
    value
}

fn result(block: &Block) -> Value {
    let content = block.get("content").unwrap_or(&Value::Null);
    let mut value = tool_result(block.text("tool_use_id"), content);
    if let Some(cache) = block.get("cache_control") {
        value["cache_control"] = cache.clone();
    }
    value
}

/// What the upstream gets for a public result block's content.
pub(crate) fn tool_result(tool_use_id: &str, content: &Value) -> Value {
    let (view, is_error) = model_view(content);
    let mut value = Map::new();
    value.insert("type".into(), "tool_result".into());
    value.insert("tool_use_id".into(), tool_use_id.into());
    value.insert("content".into(), view);
    if is_error {
        value.insert("is_error".into(), true.into());
    }
    Value::Object(value)
}

fn upload(block: &Block, uploads: &BTreeMap<String, String>) -> Value {
    let id = block.text("file_id");
    let path = uploads.get(id).map_or(id, String::as_str);
    let mut value = json!({ "type": "text", "text": format!("(A file was uploaded to the sandbox: {path})") });
    if let Some(cache) = block.get("cache_control") {
        value["cache_control"] = cache.clone();
    }
    value
}
