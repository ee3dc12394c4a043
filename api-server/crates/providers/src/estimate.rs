//! Tokens of a prompt where nobody counts them: four characters each, and as many for a picture as a large one has.

use engine::{ModelRequest, demo};
use serde_json::Value;

/// Characters that stand for a picture's or a document's bytes: 1,600 tokens.
const FILE_CHARS: usize = 6_400;

/// At least 1.
pub(crate) fn tokens(request: &ModelRequest) -> u64 {
    let mut request = request.clone();
    let blocks = request.messages.iter_mut().flat_map(|message| &mut message.content);
    blocks.for_each(without_bytes);
    demo::count_tokens(&request)
}

fn without_bytes(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(without_bytes),
        Value::Object(fields) => {
            let bytes = fields.get("type").is_some_and(|kind| kind == "base64");
            if let Some(data) = fields.get_mut("data").filter(|_| bytes) {
                *data = "x".repeat(FILE_CHARS).into();
            }
            fields.values_mut().for_each(without_bytes);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use engine::ModelMessage;
    use serde_json::json;
    use wire::Role;

    use super::*;

    #[test]
    fn a_picture_counts_as_a_picture_and_not_as_text() {
        let count = |content: Value| {
            tokens(&ModelRequest {
                model: "m".into(),
                max_tokens: 1,
                system: Vec::new(),
                messages: vec![ModelMessage { role: Role::User, content: vec![content] }],
                tools: Vec::new(),
                tool_choice: None,
                stop_sequences: Vec::new(),
                options: serde_json::Map::new(),
            })
        };
        let source = json!({ "type": "base64", "media_type": "image/png", "data": "x".repeat(1 << 20) });
        let image = json!({ "type": "image", "source": source });
        let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": [image] });
        for block in [image, result] {
            assert!((1_600..1_700).contains(&count(block)));
        }
        assert!((25_000..25_100).contains(&count(json!({ "type": "text", "text": "word ".repeat(20_000) }))));
    }
}
