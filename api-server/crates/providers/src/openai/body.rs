//! A prompt as a chat. What a chat has no words for is left out where the model can do without, and refused where it cannot.

use engine::{ModelMessage, ModelRequest};
use serde_json::{Map, Value, json};
use wire::{ApiError, Role};

use crate::upstream::MaxTokensField;

/// The body of a sampling.
///
/// # Errors
/// A 400 for what cannot be said in a chat.
pub(crate) fn body(request: &ModelRequest, model: &str, max_tokens: MaxTokensField) -> Result<Value, ApiError> {
    let mut body = Map::new();
    body.insert("model".into(), model.into());
    body.insert("messages".into(), messages(request)?.into());
    body.insert(max_tokens.name().into(), request.max_tokens.into());
    if !request.tools.is_empty() {
        let tools = request.tools.iter().enumerate().map(|(index, tool)| function(tool, index));
        body.insert("tools".into(), tools.collect::<Result<Vec<_>, _>>()?.into());
    }
    if let Some(choice) = &request.tool_choice {
        if let Some(choice) = tool_choice(choice) {
            body.insert("tool_choice".into(), choice);
        }
        if choice["disable_parallel_tool_use"] == true {
            body.insert("parallel_tool_calls".into(), false.into());
        }
    }
    if !request.stop_sequences.is_empty() {
        body.insert("stop".into(), json!(request.stop_sequences));
    }
    for name in ["temperature", "top_p"] {
        if let Some(value) = request.options.get(name) {
            body.insert(name.into(), value.clone());
        }
    }
    if let Some(config) = request.options.get("output_config") {
        if let Some(effort) = effort(&config["effort"]) {
            body.insert("reasoning_effort".into(), effort.into());
        }
        if config["format"]["type"] == "json_schema" {
            let schema = json!({ "name": "output", "schema": config["format"]["schema"], "strict": true });
            body.insert("response_format".into(), json!({ "type": "json_schema", "json_schema": schema }));
        }
    }
    body.insert("stream".into(), true.into());
    body.insert("stream_options".into(), json!({ "include_usage": true }));
    Ok(Value::Object(body))
}

/// The efforts that every server knows; what is more is the highest.
fn effort(effort: &Value) -> Option<&'static str> {
    match effort.as_str()? {
        "low" => Some("low"),
        "medium" => Some("medium"),
        "high" | "xhigh" | "max" => Some("high"),
        _ => None,
    }
}

fn function(tool: &Value, index: usize) -> Result<Value, ApiError> {
    // A tool with a type but no schema is known to models of another dialect alone.
    let Some(schema) = tool.get("input_schema") else {
        let kind = tool["type"].as_str().unwrap_or("without a schema");
        return Err(ApiError::invalid(format!(
            "tools.{index}.type: this model does not know `{kind}`; use a custom tool"
        )));
    };
    let mut function = Map::new();
    function.insert("name".into(), tool["name"].clone());
    for name in ["description", "strict"] {
        function.extend(tool.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    function.insert("parameters".into(), schema.clone());
    Ok(json!({ "type": "function", "function": function }))
}

/// `None` for what is meant without words: some servers take the word `auto` amiss when they stream.
fn tool_choice(choice: &Value) -> Option<Value> {
    Some(match choice["type"].as_str()? {
        "auto" => return None,
        "any" => "required".into(),
        "tool" => json!({ "type": "function", "function": { "name": choice["name"] } }),
        plain => plain.into(),
    })
}

fn messages(request: &ModelRequest) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    let system = texts(&request.system);
    if !system.is_empty() {
        messages.push(json!({ "role": "system", "content": system.join("\n\n") }));
    }
    for message in &request.messages {
        match message.role {
            Role::System => messages.push(json!({ "role": "system", "content": texts(&message.content).join("\n\n") })),
            Role::Assistant => messages.extend(assistant(message)),
            Role::User => user(message, &mut messages)?,
        }
    }
    Ok(messages)
}

fn texts(blocks: &[Value]) -> Vec<&str> {
    blocks.iter().filter(|block| block["type"] == "text").filter_map(|block| block["text"].as_str()).collect()
}

/// Text and calls. Reasoning is not sent back: servers of this dialect do not take it, or take it in forms of their own.
fn assistant(message: &ModelMessage) -> Option<Value> {
    let text = texts(&message.content).concat();
    let calls = message.content.iter().filter(|block| block["type"] == "tool_use").map(|call| {
        let function = json!({ "name": call["name"], "arguments": call["input"].to_string() });
        json!({ "id": call["id"], "type": "function", "function": function })
    });
    let calls: Vec<Value> = calls.collect();
    // Calls alone have an empty content: not every server takes null, nor none at all.
    match (calls.is_empty(), text.is_empty()) {
        (true, true) => None,
        (true, false) => Some(json!({ "role": "assistant", "content": text })),
        (false, _) => Some(json!({ "role": "assistant", "content": text, "tool_calls": calls })),
    }
}

/// Results first, each a message of its own, as a chat wants them right after the calls; then everything else.
fn user(message: &ModelMessage, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let (mut rest, mut shown) = (Vec::new(), Vec::new());
    for block in &message.content {
        if block["type"] == "tool_result" {
            messages.push(result(block, &mut shown)?);
        } else {
            rest.extend(part(block)?);
        }
    }
    // A result is text; its pictures come from the user.
    let parts: Vec<Value> = shown.into_iter().chain(rest).collect();
    let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
    let content = match texts {
        Some(texts) if texts.is_empty() => return Ok(()),
        // Plain text where it will do: not every server takes parts.
        Some(texts) => texts.join("\n\n").into(),
        None => Value::Array(parts),
    };
    messages.push(json!({ "role": "user", "content": content }));
    Ok(())
}

fn result(block: &Value, shown: &mut Vec<Value>) -> Result<Value, ApiError> {
    let mut texts = Vec::new();
    match &block["content"] {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(blocks) => {
            for inner in blocks {
                let Some(part) = part(inner)? else { continue };
                if let Some(text) = part["text"].as_str() {
                    texts.push(text.to_owned());
                } else {
                    texts.push("(shown in the next message)".to_owned());
                    shown.push(part);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
    }
    if texts.is_empty() && block["is_error"] == true {
        texts.push("error".to_owned());
    }
    Ok(json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": texts.join("\n\n") }))
}

/// What the user shows; `None` for what only models of another dialect read.
fn part(block: &Value) -> Result<Option<Value>, ApiError> {
    let source = &block["source"];
    let text = |text: &Value| json!({ "type": "text", "text": text.as_str().unwrap_or_default() });
    let data = || {
        let (kind, data) = (source["media_type"].as_str(), source["data"].as_str());
        format!("data:{};base64,{}", kind.unwrap_or_default(), data.unwrap_or_default())
    };
    let refused = |what: &str| Err(ApiError::invalid(format!("messages: this model takes no {what}")));
    Ok(Some(match (block["type"].as_str().unwrap_or_default(), source["type"].as_str().unwrap_or_default()) {
        ("text", _) => text(&block["text"]),
        ("image", "base64") => json!({ "type": "image_url", "image_url": { "url": data() } }),
        ("image", "url") => json!({ "type": "image_url", "image_url": { "url": source["url"] } }),
        ("document", "text") => text(&source["data"]),
        ("document", "content") => match &source["content"] {
            Value::Array(blocks) => json!({ "type": "text", "text": texts(blocks).join("\n\n") }),
            content => text(content),
        },
        ("document", "base64") => {
            let name = block["title"].as_str().unwrap_or("document.pdf");
            json!({ "type": "file", "file": { "filename": name, "file_data": data() } })
        }
        ("image", _) => return refused("images by `file_id`; send them as `base64` or `url`"),
        ("document", _) => return refused("documents by `url` or `file_id`; send them as `base64` or `text`"),
        ("search_result", _) => {
            let content = block["content"].as_array().map(|blocks| texts(blocks).join("\n\n")).unwrap_or_default();
            let head = |name: &str| block[name].as_str().unwrap_or_default();
            json!({ "type": "text", "text": format!("{} ({})\n{content}", head("title"), head("source")) })
        }
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(messages: Vec<(Role, Value)>) -> ModelRequest {
        let message =
            |(role, content): (Role, Value)| ModelMessage { role, content: content.as_array().unwrap().clone() };
        ModelRequest {
            model: "alias".into(),
            max_tokens: 50,
            system: Vec::new(),
            messages: messages.into_iter().map(message).collect(),
            tools: Vec::new(),
            tool_choice: None,
            stop_sequences: Vec::new(),
            options: Map::new(),
        }
    }

    fn chat(messages: Vec<(Role, Value)>) -> Value {
        body(&request(messages), "real", MaxTokensField::MaxTokens).unwrap()["messages"].clone()
    }

    #[test]
    fn everything_around_the_messages_has_its_place() {
        let mut request = request(vec![(Role::User, json!([{ "type": "text", "text": "hi", "cache_control": {} }]))]);
        request.system = vec![json!({ "type": "text", "text": "be" }), json!({ "type": "text", "text": "brief" })];
        request.tools =
            vec![json!({ "name": "f", "description": "d", "input_schema": { "type": "object" }, "cache_control": {} })];
        request.tool_choice = Some(json!({ "type": "any", "disable_parallel_tool_use": true }));
        request.stop_sequences = vec!["END".into()];
        let options = json!({ "temperature": 0.5, "top_k": 3, "thinking": { "type": "disabled" }, "metadata": { "user_id": "u" },
            "output_config": { "effort": "max", "format": { "type": "json_schema", "schema": { "type": "object" } } } });
        request.options = options.as_object().unwrap().clone();
        assert_eq!(
            body(&request, "real", MaxTokensField::MaxCompletionTokens).unwrap(),
            json!({
                "model": "real",
                "messages": [{ "role": "system", "content": "be\n\nbrief" }, { "role": "user", "content": "hi" }],
                "max_completion_tokens": 50,
                "tools": [{ "type": "function", "function": { "name": "f", "description": "d", "parameters": { "type": "object" } } }],
                "tool_choice": "required",
                "parallel_tool_calls": false,
                "stop": ["END"],
                "temperature": 0.5,
                "reasoning_effort": "high",
                "response_format": { "type": "json_schema", "json_schema": { "name": "output", "schema": { "type": "object" }, "strict": true } },
                "stream": true,
                "stream_options": { "include_usage": true },
            })
        );
        for (choice, expected) in [
            (json!({ "type": "auto" }), None),
            (json!({ "type": "none" }), Some(json!("none"))),
            (json!({ "type": "tool", "name": "f" }), Some(json!({ "type": "function", "function": { "name": "f" } }))),
        ] {
            assert_eq!(tool_choice(&choice), expected, "{choice}");
        }
    }

    #[test]
    fn calls_and_results_are_messages_of_the_chat() {
        let call = json!({ "type": "tool_use", "id": "call_1", "name": "f", "input": { "b": 1, "a": "x" } });
        let thinking = json!({ "type": "thinking", "thinking": "Hm", "signature": "" });
        let picture =
            json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "eA==" } });
        assert_eq!(
            chat(vec![
                (Role::User, json!([{ "type": "text", "text": "go" }])),
                (
                    Role::Assistant,
                    json!([thinking, { "type": "text", "text": "I " }, { "type": "text", "text": "go." }, call])
                ),
                (
                    Role::User,
                    json!([
                        { "type": "tool_result", "tool_use_id": "call_1", "content": [{ "type": "text", "text": "seen" }, picture] },
                        { "type": "tool_result", "tool_use_id": "call_2", "is_error": true },
                        { "type": "text", "text": "and?" },
                    ])
                ),
                (Role::System, json!([{ "type": "text", "text": "Hurry." }])),
                (Role::Assistant, json!([thinking])),
                (Role::Assistant, json!([call])),
                (Role::User, json!([{ "type": "tool_result", "tool_use_id": "call_1", "content": "plain" }])),
            ]),
            json!([
                { "role": "user", "content": "go" },
                { "role": "assistant", "content": "I go.", "tool_calls": [
                    { "id": "call_1", "type": "function", "function": { "name": "f", "arguments": "{\"b\":1,\"a\":\"x\"}" } }] },
                { "role": "tool", "tool_call_id": "call_1", "content": "seen\n\n(shown in the next message)" },
                { "role": "tool", "tool_call_id": "call_2", "content": "error" },
                { "role": "user", "content": [
                    { "type": "image_url", "image_url": { "url": "data:image/png;base64,eA==" } }, { "type": "text", "text": "and?" }] },
                { "role": "system", "content": "Hurry." },
                { "role": "assistant", "content": "", "tool_calls": [
                    { "id": "call_1", "type": "function", "function": { "name": "f", "arguments": "{\"b\":1,\"a\":\"x\"}" } }] },
                { "role": "tool", "tool_call_id": "call_1", "content": "plain" },
            ])
        );
    }

    #[test]
    fn what_the_user_shows_is_shown() {
        let user = |block: Value| chat(vec![(Role::User, json!([block]))])[0]["content"].clone();
        for (name, block, content) in [
            (
                "a url",
                json!({ "type": "image", "source": { "type": "url", "url": "https://x/y.png" } }),
                json!([{ "type": "image_url", "image_url": { "url": "https://x/y.png" } }]),
            ),
            (
                "a text document",
                json!({ "type": "document", "source": { "type": "text", "data": "abc" } }),
                json!("abc"),
            ),
            (
                "a document of blocks",
                json!({ "type": "document", "source": { "type": "content", "content": [{ "type": "text", "text": "abc" }] } }),
                json!("abc"),
            ),
            (
                "a pdf",
                json!({ "type": "document", "title": "a.pdf", "source": { "type": "base64", "media_type": "application/pdf", "data": "eA==" } }),
                json!([{ "type": "file", "file": { "filename": "a.pdf", "file_data": "data:application/pdf;base64,eA==" } }]),
            ),
            (
                "a search result",
                json!({ "type": "search_result", "title": "T", "source": "S", "content": [{ "type": "text", "text": "abc" }] }),
                json!("T (S)\nabc"),
            ),
        ] {
            assert_eq!(user(block), content, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        for (name, block) in [
            ("a file", json!({ "type": "image", "source": { "type": "file", "file_id": "file_x" } })),
            ("a document elsewhere", json!({ "type": "document", "source": { "type": "url", "url": "https://x" } })),
        ] {
            let refused = body(&request(vec![(Role::User, json!([block]))]), "real", MaxTokensField::MaxTokens);
            assert_eq!(refused.unwrap_err().status(), 400, "{name}");
        }
        let mut typed = request(vec![(Role::User, json!([{ "type": "text", "text": "hi" }]))]);
        typed.tools = vec![json!({ "type": "bash_20250124", "name": "bash" })];
        let message = body(&typed, "real", MaxTokensField::MaxTokens).unwrap_err().message;
        assert!(message.starts_with("tools.0.type: ") && message.contains("bash_20250124"), "{message}");
    }
}
