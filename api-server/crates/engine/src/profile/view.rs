//! What the model reads of a public result block: a pure function of the block, so that a replayed history makes the same prompt.

use serde_json::{Value, json};

/// Longest text of one stream that the model reads; a client gets all of it.
const MODEL_STREAM_CHARS: usize = 40_000;

/// How the base64 of a file begins that a model can look at, and what it is.
const MEDIA: [(&str, &str, &str); 5] = [
    ("iVBORw0KGgo", "image", "image/png"),
    ("/9j/", "image", "image/jpeg"),
    ("R0lGOD", "image", "image/gif"),
    ("UklGR", "image", "image/webp"),
    ("JVBERi0", "document", "application/pdf"),
];

/// The content of the upstream's result block, and whether it is an error.
pub(crate) fn model_view(content: &Value) -> (Value, bool) {
    let kind = content["type"].as_str().unwrap_or_default();
    if kind.ends_with("_tool_result_error") {
        return (error(content).into(), true);
    }
    let view: Value = match kind {
        "bash_code_execution_result" | "code_execution_result" => command(content).into(),
        "text_editor_code_execution_view_result" => viewed(content),
        "text_editor_code_execution_create_result" if content["is_file_update"] == true => "File overwritten.".into(),
        "text_editor_code_execution_create_result" => "File created.".into(),
        "text_editor_code_execution_str_replace_result" => replaced(content).into(),
        _ => head_and_tail(&content.to_string()).into(),
    };
    (view, false)
}

fn error(content: &Value) -> String {
    let code = content["error_code"].as_str().unwrap_or("unavailable");
    let reason = content["detail"]["explanation"].as_str().or_else(|| content["error_message"].as_str());
    reason.map_or_else(|| format!("error: {code}"), |reason| format!("error: {code}: {reason}"))
}

fn command(content: &Value) -> String {
    let mut text = format!("exit_code: {}", content["return_code"]);
    for stream in ["stdout", "stderr"] {
        let output = content[stream].as_str().unwrap_or_default();
        if !output.is_empty() {
            text.extend(["\n\n", stream, ":\n", &head_and_tail(output)]);
        }
    }
    text
}

fn viewed(content: &Value) -> Value {
    let shown = content["content"].as_str().unwrap_or_default();
    let kind = content["file_type"].as_str().unwrap_or_default();
    if kind == "image" || kind == "pdf" {
        return media(shown).unwrap_or_else(|| format!("(a file of the type {kind})").into());
    }
    let number = |key: &str| content[key].as_u64();
    match (number("start_line"), number("num_lines"), number("total_lines")) {
        (_, _, Some(0)) if shown.is_empty() => "(empty)".into(),
        (Some(start), Some(count), Some(total)) if count < total => {
            let end = start.saturating_add(count).saturating_sub(1);
            format!("[lines {start}-{end} / {total}]\n{}", head_and_tail(shown)).into()
        }
        _ => head_and_tail(shown).into(),
    }
}

/// The file itself; `None` when it is nothing that a model can look at.
fn media(data: &str) -> Option<Value> {
    let (_, kind, media_type) = MEDIA.iter().find(|(beginning, _, _)| data.starts_with(beginning))?;
    Some(json!([
        { "type": "text", "text": format!("({media_type})") },
        { "type": kind, "source": { "type": "base64", "media_type": media_type, "data": data } },
    ]))
}

fn replaced(content: &Value) -> String {
    let [line, removed, added] = ["new_start", "old_lines", "new_lines"].map(|key| content[key].as_u64().unwrap_or(0));
    let applied = format!("Applied at line {line} (-{removed} +{added})");
    let lines = content["lines"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let lines = lines.collect::<Vec<_>>().join("\n");
    if lines.is_empty() { format!("{applied}.") } else { format!("{applied}:\n{}", head_and_tail(&lines)) }
}

/// Long output as its beginning and its end, where the errors are.
fn head_and_tail(text: &str) -> String {
    let count = text.chars().count();
    if count <= MODEL_STREAM_CHARS {
        return text.to_owned();
    }
    let head = MODEL_STREAM_CHARS * 3 / 5;
    let tail = MODEL_STREAM_CHARS - head;
    let byte_at = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(byte, _)| byte);
    let (head_end, tail_start) = (byte_at(head), byte_at(count - tail));
    let omitted = count - MODEL_STREAM_CHARS;
    format!("{}\n...[{omitted} characters omitted]...\n{}", &text[..head_end], &text[tail_start..])
}
