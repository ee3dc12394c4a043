//! The conversation so far: is it whole, what is still to be run, and which prompt does it make.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;
use wire::{ApiError, Block, MessagesRequest, Role};

use crate::model::ModelMessage;
use crate::profile::ToolProfile;

pub(crate) mod prompt;

/// A server call of an earlier answer that has no result yet.
#[derive(Clone, Debug, PartialEq)]
pub struct DeferredCall {
    /// Its id, which the result names.
    pub id: String,
    /// Sub-tool.
    pub name: String,
    /// As the client sent it back; checked again before it runs.
    pub input: Value,
}

/// A valid history.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// The prompt for the upstream; deferred calls are in it, their results are not.
    pub messages: Vec<ModelMessage>,
    /// To be run before the model is asked, in order.
    pub deferred: Vec<DeferredCall>,
    /// Whether the request goes on with a turn that this server stopped (pause, or deferred calls).
    pub open_turn: bool,
    /// The fresh container of that turn, named by its first server call.
    pub turn_container: Option<String>,
}

/// The sub-tools of every code execution tool.
const SUB_TOOLS: [&str; 3] = ["bash_code_execution", "text_editor_code_execution", "code_execution"];

struct Located<'a> {
    block: &'a Block,
    message: usize,
    place: usize,
}

/// Consecutive messages of one role, which count as one.
struct Group<'a> {
    role: Role,
    blocks: Vec<Located<'a>>,
    /// Index of the last of the messages.
    last: usize,
}

struct OpenCall<'a> {
    block: &'a Block,
    group: usize,
}

impl History {
    /// Checks the messages of a request and makes the prompt.
    ///
    /// `uploads` maps the ids of `container_upload` blocks to the paths at which code finds the files.
    ///
    /// # Errors
    /// A 400 with the contract's text.
    pub fn read(
        request: &MessagesRequest,
        profile: Option<&ToolProfile>,
        uploads: &BTreeMap<String, String>,
    ) -> Result<Self, ApiError> {
        let groups = group(request);
        check_client_calls(&groups)?;
        check_client_results(&groups)?;
        check_callers(&groups)?;
        if profile.is_none() {
            check_no_uploads(&groups)?;
        }
        let open = open_server_calls(&groups)?;
        let deferred = check_end(&groups, &open, profile)?;
        let paused = groups.last().is_some_and(|group| group.role == Role::Assistant);
        let open_turn = paused || !deferred.is_empty();
        let turn_container = if open_turn { turn_container(&groups) } else { None };
        Ok(Self { messages: prompt::build(&groups, uploads), deferred, open_turn, turn_container })
    }
}

fn group(request: &MessagesRequest) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (index, message) in request.messages.iter().enumerate() {
        let blocks = message.content.iter().enumerate().map(|(place, block)| Located { block, message: index, place });
        match groups.last_mut() {
            Some(group) if group.role == message.role => {
                group.blocks.extend(blocks);
                group.last = index;
            }
            _ => groups.push(Group { role: message.role, blocks: blocks.collect(), last: index }),
        }
    }
    groups
}

fn ids<'a>(group: &'a Group<'_>, kind: &'a str, field: &'a str) -> impl Iterator<Item = &'a str> {
    let blocks = group.blocks.iter().map(|located| located.block);
    blocks.filter(move |block| block.kind() == kind).map(move |block| block.text(field))
}

/// The neighbour that is not a system message, which may stand anywhere.
fn speaker<'a, 'b>(mut groups: impl Iterator<Item = &'a Group<'b>>) -> Option<&'a Group<'b>>
where
    'b: 'a,
{
    groups.find(|group| group.role != Role::System)
}

fn check_client_calls(groups: &[Group<'_>]) -> Result<(), ApiError> {
    let mut seen = HashSet::new();
    for (index, group) in groups.iter().enumerate() {
        if let Some(twice) = ids(group, "tool_use", "id").find(|id| !seen.insert(*id)) {
            return Err(ApiError::invalid(format!("messages.{}: `tool_use` ids must be unique: {twice}", group.last)));
        }
        let next = speaker(groups[index + 1..].iter()).filter(|next| next.role == Role::User);
        let results: HashSet<&str> =
            next.into_iter().flat_map(|next| ids(next, "tool_result", "tool_use_id")).collect();
        let missing: Vec<&str> = ids(group, "tool_use", "id").filter(|id| !results.contains(id)).collect();
        if !missing.is_empty() {
            return Err(ApiError::invalid(format!(
                "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
                group.last,
                missing.join(", ")
            )));
        }
    }
    Ok(())
}

fn check_client_results(groups: &[Group<'_>]) -> Result<(), ApiError> {
    for (index, group) in groups.iter().enumerate() {
        let previous = speaker(groups[..index].iter().rev()).filter(|previous| previous.role == Role::Assistant);
        let calls: HashSet<&str> = previous.into_iter().flat_map(|previous| ids(previous, "tool_use", "id")).collect();
        let mut seen = HashSet::new();
        for Located { block, message, place } in &group.blocks {
            if block.kind() != "tool_result" {
                continue;
            }
            let id = block.text("tool_use_id");
            if !calls.contains(id) {
                return Err(ApiError::invalid(format!(
                    "messages.{message}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
                )));
            }
            if !seen.insert(id) {
                return Err(ApiError::invalid(format!(
                    "messages.{message}.content.{place}: each `tool_use` must have a single result. Found multiple `tool_result` blocks with id: {id}"
                )));
            }
        }
    }
    Ok(())
}

/// The id of the code call that a client call came from.
fn calling_code(block: &Block) -> Option<&str> {
    let caller = block.get("caller")?;
    let from_code = caller["type"].as_str().is_some_and(|kind| kind.starts_with("code_execution_"));
    if from_code { Some(caller["tool_id"].as_str().unwrap_or_default()) } else { None }
}

fn check_callers(groups: &[Group<'_>]) -> Result<(), ApiError> {
    let mut known = HashSet::new();
    for Located { block, .. } in groups.iter().flat_map(|group| &group.blocks) {
        match block.kind() {
            "server_tool_use" => {
                known.insert(block.text("id"));
            }
            "tool_use" => {
                if let Some(source) = calling_code(block)
                    && !known.contains(source)
                {
                    return Err(ApiError::invalid(format!(
                        "source tool `{source}` not found for tool use block `{}`",
                        block.text("id")
                    )));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_no_uploads(groups: &[Group<'_>]) -> Result<(), ApiError> {
    let mut blocks = groups.iter().flat_map(|group| &group.blocks);
    match blocks.find(|located| located.block.kind() == "container_upload") {
        None => Ok(()),
        Some(Located { message, place, .. }) => Err(ApiError::invalid(format!(
            "messages.{message}.content.{place}: `container_upload` blocks need a code execution tool in `tools`"
        ))),
    }
}

/// A result of a server tool; `tool_result` itself belongs to the client's tools.
fn is_server_result(kind: &str) -> bool {
    kind.ends_with("_tool_result")
}

fn open_server_calls<'a>(groups: &[Group<'a>]) -> Result<Vec<OpenCall<'a>>, ApiError> {
    let mut calls: Vec<Option<OpenCall<'a>>> = Vec::new();
    let mut places = HashMap::new();
    for (index, group) in groups.iter().enumerate() {
        for Located { block, message, place } in &group.blocks {
            let kind = block.kind();
            if kind == "server_tool_use" || kind == "mcp_tool_use" {
                let id = block.text("id");
                if places.insert(id, calls.len()).is_some() {
                    return Err(ApiError::invalid(format!(
                        "messages.{message}.content.{place}: `{kind}` ids must be unique: {id}"
                    )));
                }
                calls.push(Some(OpenCall { block, group: index }));
            } else if is_server_result(kind) {
                let id = block.text("tool_use_id");
                let call = places.get(id).and_then(|place| calls.get_mut(*place));
                if call.and_then(Option::take).is_none() {
                    return Err(ApiError::invalid(format!(
                        "messages.{message}.content.{place}: unexpected `tool_use_id` found in `{kind}` blocks: {id}. Each `{kind}` block must have a corresponding `server_tool_use` block before it."
                    )));
                }
            }
        }
    }
    Ok(calls.into_iter().flatten().collect())
}

/// What the end of the history leaves to be run. Open calls are legal only there: in the last message when it is the assistant's
/// (a pause), or right before a last message that holds the results of the client's tools and nothing else.
fn check_end(
    groups: &[Group<'_>],
    open: &[OpenCall<'_>],
    profile: Option<&ToolProfile>,
) -> Result<Vec<DeferredCall>, ApiError> {
    let last = groups.len().saturating_sub(1);
    let Some(end) = groups.last() else { return Ok(Vec::new()) };
    let results_only = end.blocks.iter().all(|located| located.block.kind() == "tool_result");
    let resumed = match end.role {
        Role::Assistant => Some(last),
        Role::User if results_only && !end.blocks.is_empty() => {
            groups[..last].iter().rposition(|group| group.role != Role::System)
        }
        Role::User | Role::System => None,
    };
    if let Some(call) = open.iter().find(|call| Some(call.group) != resumed) {
        return Err(unresolved(call.block, true));
    }
    let offered = |block: &Block| profile.is_some_and(|profile| profile.offered(block.text("name")).is_some());
    if let Some(call) = open.iter().find(|call| !offered(call.block)) {
        return Err(unresolved(call.block, false));
    }
    let after_result = end.blocks.last().is_some_and(|located| is_server_result(located.block.kind()));
    let ends_well = match end.role {
        Role::User => true,
        Role::Assistant => after_result || !open.is_empty(),
        Role::System => false,
    };
    if !ends_well {
        return Err(ApiError::invalid(
            "This model does not support assistant message prefill. The conversation must end with a user message.",
        ));
    }
    Ok(open
        .iter()
        .map(|call| DeferredCall {
            id: call.block.text("id").to_owned(),
            name: call.block.text("name").to_owned(),
            input: call.block.get("input").cloned().unwrap_or_default(),
        })
        .collect())
}

fn unresolved(call: &Block, offered: bool) -> ApiError {
    let (name, id) = (call.text("name"), call.text("id"));
    let missing = if offered { String::new() } else { format!(", but no `{name}` tool was provided") };
    ApiError::invalid(format!(
        "`{name}` tool use with id `{id}` was found without a corresponding `{name}_tool_result` block{missing}"
    ))
}

/// The first of our calls since the user last said something.
fn turn_container(groups: &[Group<'_>]) -> Option<String> {
    let spoke = |group: &Group<'_>| {
        group.role == Role::User && group.blocks.iter().any(|located| located.block.kind() != "tool_result")
    };
    let start = groups.iter().rposition(spoke).map_or(0, |index| index + 1);
    groups[start..]
        .iter()
        .flat_map(|group| &group.blocks)
        .find(|located| located.block.kind() == "server_tool_use" && SUB_TOOLS.contains(&located.block.text("name")))
        .and_then(|located| wire::id::container_of_call(located.block.text("id")))
}

#[cfg(test)]
mod tests;
