//! Blocks of the upstream that this server does not act on: what their deltas add up to.

use serde_json::{Map, Value};
use wire::Delta;

/// Such a block, open.
#[derive(Debug)]
pub(crate) struct RawBlock {
    block: Value,
    /// Its input as JSON text, if that comes in deltas.
    json: String,
}

impl RawBlock {
    /// As it began.
    pub(crate) fn new(block: Value) -> Self {
        Self { block, json: String::new() }
    }

    /// Adds a delta. One of an unknown type is taken to name the fields that it adds to.
    pub(crate) fn extend(&mut self, delta: &Delta) {
        let Value::Object(block) = &mut self.block else { return };
        match delta {
            Delta::InputJsonDelta { partial_json } => self.json.push_str(partial_json),
            Delta::TextDelta { text } => add(block, "text", &text.as_str().into()),
            Delta::ThinkingDelta { thinking } => add(block, "thinking", &thinking.as_str().into()),
            Delta::SignatureDelta { signature } => add(block, "signature", &signature.as_str().into()),
            Delta::CitationsDelta { citation } => add(block, "citations", &vec![citation.clone()].into()),
            Delta::Raw(Value::Object(fields)) => {
                for (name, value) in fields.iter().filter(|(name, _)| *name != "type") {
                    add(block, name, value);
                }
            }
            Delta::Raw(_) => {}
        }
    }

    /// The whole block.
    pub(crate) fn finish(mut self) -> Value {
        if let Ok(input) = serde_json::from_str::<Value>(&self.json) {
            self.block["input"] = input;
        }
        self.block
    }
}

/// Texts and lists grow, anything else is replaced.
fn add(block: &mut Map<String, Value>, name: &str, more: &Value) {
    match (block.get_mut(name), more) {
        (Some(Value::String(text)), Value::String(more)) => text.push_str(more),
        (Some(Value::Array(list)), Value::Array(more)) => list.extend_from_slice(more),
        (Some(value), more) => *value = more.clone(),
        (None, more) => {
            block.insert(name.to_owned(), more.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deltas_add_up_in_the_blocks_own_fields() {
        let rows = [
            (
                "a call of a tool that runs elsewhere",
                json!({ "type": "mcp_tool_use", "id": "x", "input": {} }),
                vec![
                    Delta::InputJsonDelta { partial_json: "{\"a\":".into() },
                    Delta::InputJsonDelta { partial_json: "1}".into() },
                ],
                json!({ "type": "mcp_tool_use", "id": "x", "input": { "a": 1 } }),
            ),
            (
                "a delta of an unknown type",
                json!({ "type": "new", "content": null, "parts": [1] }),
                vec![
                    Delta::Raw(json!({ "type": "new_delta", "content": "a" })),
                    Delta::Raw(json!({ "type": "new_delta", "content": "b", "parts": [2], "more": true })),
                ],
                json!({ "type": "new", "content": "ab", "parts": [1, 2], "more": true }),
            ),
            (
                "known deltas",
                json!({ "type": "new", "text": "a" }),
                vec![
                    Delta::TextDelta { text: "b".into() },
                    Delta::CitationsDelta { citation: json!({ "at": 1 }) },
                    Delta::SignatureDelta { signature: "s".into() },
                ],
                json!({ "type": "new", "text": "ab", "citations": [{ "at": 1 }], "signature": "s" }),
            ),
            (
                "none",
                json!({ "type": "redacted_thinking", "data": "x" }),
                vec![],
                json!({ "type": "redacted_thinking", "data": "x" }),
            ),
        ];
        for (name, start, deltas, whole) in rows {
            let mut block = RawBlock::new(start);
            for delta in &deltas {
                block.extend(delta);
            }
            assert_eq!(block.finish().to_string(), whole.to_string(), "{name}");
        }
    }
}
