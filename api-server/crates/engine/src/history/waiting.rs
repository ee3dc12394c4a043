//! The cell at the end of a history that waits for the results of its calls.

use std::collections::HashMap;

use serde_json::Value;
use wire::{ApiError, Role};

use super::{Group, Located, OpenCall, calling_code};
use crate::outcome::{CodeAnswer, CodeAnswers};

/// A cell that waits.
pub(super) struct Waiting<'a> {
    /// Its call's id.
    pub(super) id: &'a str,
    /// The group of its call; other calls of that group wait behind it.
    pub(super) group: usize,
    pub(super) answers: CodeAnswers,
}

/// The cell whose calls the last message answers. Its calls have their numbers by their order in the history, over all answers
/// in which it made some.
pub(super) fn find<'a>(groups: &[Group<'a>], open: &[OpenCall<'a>]) -> Result<Option<Waiting<'a>>, ApiError> {
    let Some((end, before)) = groups.split_last().filter(|(end, _)| end.role == Role::User) else { return Ok(None) };
    let Some(asking) = before.iter().rfind(|group| group.role != Role::System) else { return Ok(None) };
    let asks = |call: &&OpenCall<'a>| {
        let id = call.block.text("id");
        asking
            .blocks
            .iter()
            .any(|located| located.block.kind() == "tool_use" && calling_code(located.block) == Some(id))
    };
    let Some(call) = open.iter().find(asks) else { return Ok(None) };
    let id = call.block.text("id");
    let calls = before.iter().flat_map(|group| &group.blocks).map(|located| located.block);
    let calls = calls.filter(|block| block.kind() == "tool_use" && calling_code(block) == Some(id));
    let numbers: HashMap<&str, u32> = calls.map(|block| block.text("id")).zip(0..).collect();
    let mut results = Vec::new();
    for located in &end.blocks {
        if let Some(number) = numbers.get(located.block.text("tool_use_id")) {
            let is_error = located.block.get("is_error") == Some(&Value::Bool(true));
            results.push(CodeAnswer { number: *number, content: text(located)?, is_error });
        }
    }
    let calls = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
    Ok(Some(Waiting { id, group: call.group, answers: CodeAnswers { results, calls } }))
}

/// What the code gets: the text of a result.
fn text(result: &Located<'_>) -> Result<String, ApiError> {
    let Located { block, message, place } = result;
    let blocks = match block.get("content") {
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(content) => content.as_array().map(Vec::as_slice).unwrap_or_default(),
    };
    let texts: Option<Vec<&str>> =
        blocks.iter().map(|block| if block["type"] == "text" { block["text"].as_str() } else { None }).collect();
    let texts = texts.ok_or_else(|| {
        ApiError::invalid(format!(
            "messages.{message}.content.{place}.content: the result of a call that code made may hold only text"
        ))
    })?;
    Ok(texts.join("\n"))
}
