//! Fenced blocks as turns of the demo model.
//!
//! Lines of a `turn` block, played in their order, each a JSON object:
//!
//! | line | does |
//! | --- | --- |
//! | `{"text": "..."}`, `{"thinking": "..."}` | says or thinks it |
//! | `{"tool": "name", "input": {...}}` | calls; `"raw": "..."` instead of `input` for broken JSON, `"id"` for a given id |
//! | `{"sleep_ms": 250}` | waits |
//! | `{"usage": {"input_tokens": 1, "output_tokens": 1}}` | what the sampling claims to have used |
//! | `{"stop": "max_tokens", "stop_sequence": null}` | why it stops |
//! | `{"error": {"status": 529, "after": 3}}` | fails in its place, or with `after` when only so many events of the turn got out; as the first line, or with `after` 0, before anything |

use serde_json::{Map, Value, json};
use wire::StopReason;

use super::fence::{Fence, fences};
use super::{NO_TOOL, Offered, failure};
use crate::model::ModelFailure;
use crate::profile::BASH;

/// One sampling's script.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Turn {
    pub(super) parts: Vec<Part>,
    pub(super) usage: ScriptedUsage,
    pub(super) stop: Option<StopReason>,
    pub(super) stop_sequence: Option<String>,
}

/// Tokens that the script claims.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ScriptedUsage {
    pub(super) input_tokens: Option<u64>,
    pub(super) output_tokens: Option<u64>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    Thinking(String),
    Call {
        id: Option<String>,
        name: String,
        json: String,
    },
    Sleep(u64),
    /// Fails in its place, or after that many events of the turn.
    Error {
        after: Option<usize>,
        failure: ModelFailure,
    },
}

impl Turn {
    pub(super) fn closing(text: String) -> Self {
        Self { parts: vec![Part::Text(text)], ..Self::default() }
    }
}

/// The turns of a script.
///
/// # Errors
/// What is wrong with it, for the model to say.
pub(super) fn read(text: &str, offered: &Offered) -> Result<Vec<Turn>, String> {
    let mut turns = Vec::new();
    let mut said: Vec<Part> = Vec::new();
    for Fence { language, content } in fences(text) {
        let mut turn = match language.as_str() {
            "bash" | "sh" => calling(offered.bash, BASH, &json!({ "command": content.trim_end() }))?,
            "python" if offered.cell => calling(true, "code_execution", &json!({ "code": content }))?,
            "python" => calling(offered.bash, BASH, &json!({ "command": heredoc(&content) }))?,
            "tool_use" => Turn { parts: calls(&content)?, ..Turn::default() },
            "turn" => lines(&content)?,
            "text" => {
                said.push(Part::Text(content.trim_end().to_owned()));
                continue;
            }
            _ => continue,
        };
        said.append(&mut turn.parts);
        turn.parts = std::mem::take(&mut said);
        turns.push(turn);
    }
    if !said.is_empty() {
        turns.push(Turn { parts: said, ..Turn::default() });
    }
    Ok(turns)
}

fn calling(offered: bool, name: &str, input: &Value) -> Result<Turn, String> {
    if !offered {
        return Err(NO_TOOL.to_owned());
    }
    let call = Part::Call { id: None, name: name.to_owned(), json: input.to_string() };
    Ok(Turn { parts: vec![call], ..Turn::default() })
}

/// A command that runs Python source, whatever is in it.
fn heredoc(source: &str) -> String {
    let mut end = "PYTHON".to_owned();
    while source.lines().any(|line| line == end) {
        end.push('_');
    }
    format!("python3 - <<'{end}'\n{source}{end}")
}

/// The JSON objects of a block, one a line, each with its number.
fn objects(content: &str) -> impl Iterator<Item = Result<Map<String, Value>, String>> {
    content.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(|(index, line)| {
        serde_json::from_str(line)
            .map_err(|error| format!("Script error: line {} of a block is not a JSON object ({error}).", index + 1))
    })
}

fn calls(content: &str) -> Result<Vec<Part>, String> {
    objects(content)
        .map(|object| {
            let object = object?;
            let name = object.get("name").and_then(Value::as_str).ok_or("Script error: a call needs a `name`.")?;
            Ok(call(name, &object))
        })
        .collect()
}

fn call(name: &str, object: &Map<String, Value>) -> Part {
    let text = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
    let json = text("raw").unwrap_or_else(|| object.get("input").map_or_else(|| "{}".to_owned(), Value::to_string));
    Part::Call { id: text("id"), name: name.to_owned(), json }
}

fn lines(content: &str) -> Result<Turn, String> {
    let mut turn = Turn::default();
    for object in objects(content) {
        line(&mut turn, &object?)?;
    }
    Ok(turn)
}

/// One line of a `turn` block: its first known key says what it is.
fn line(turn: &mut Turn, object: &Map<String, Value>) -> Result<(), String> {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64);
    if let Some(words) = text("text") {
        turn.parts.push(Part::Text(words.to_owned()));
    } else if let Some(words) = text("thinking") {
        turn.parts.push(Part::Thinking(words.to_owned()));
    } else if let Some(name) = text("tool") {
        turn.parts.push(call(name, object));
    } else if let Some(millis) = object.get("sleep_ms").and_then(Value::as_u64) {
        turn.parts.push(Part::Sleep(millis));
    } else if let Some(usage) = object.get("usage") {
        turn.usage = ScriptedUsage {
            input_tokens: number(usage, "input_tokens"),
            output_tokens: number(usage, "output_tokens"),
        };
    } else if let Some(name) = text("stop") {
        let stop = StopReason::parse(name).ok_or_else(|| format!("Script error: there is no stop reason `{name}`."))?;
        turn.stop = Some(stop);
        turn.stop_sequence = text("stop_sequence").map(str::to_owned);
    } else if let Some(error) = object.get("error") {
        let status = number(error, "status").and_then(|status| u16::try_from(status).ok()).unwrap_or(500);
        let after = number(error, "after").and_then(|after| usize::try_from(after).ok());
        turn.parts.push(Part::Error { after, failure: failure(status) });
    } else {
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        return Err(format!("Script error: a line of a `turn` block with {} means nothing.", keys.join(", ")));
    }
    Ok(())
}
