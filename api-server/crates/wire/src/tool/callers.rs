//! `allowed_callers` of the client's tools: whether the model calls them, or its Python code, or both.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{CodeToolVersion, Tool};
use crate::ApiError;
use crate::walk::{array, field, string, wrong};

/// Who calls a tool of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Callers {
    /// The model.
    pub direct: bool,
    /// Its Python code.
    pub code: bool,
}

/// The model alone.
const DIRECT: Callers = Callers { direct: true, code: false };

/// Values of a schema that are looked at for circular references.
const MAX_VALUES: usize = 1_000_000;
/// Places of a schema that references may lead to.
const MAX_PLACES: usize = 1_000;
const TOO_MANY: &str = "too many references";

/// Who may call it. The caller of the version without calls from code is legal, and means nothing.
pub(super) fn parse(tool: &Map<String, Value>, path: &str) -> Result<Callers, ApiError> {
    let Some(list) = field(tool, "allowed_callers") else { return Ok(DIRECT) };
    let at = format!("{path}.allowed_callers");
    let mut callers = Callers { direct: false, code: false };
    for caller in array(list, &at)? {
        match string(caller, &at)? {
            "direct" => callers.direct = true,
            "code_execution_20260120" | "code_execution_20260521" => callers.code = true,
            "code_execution_20250825" => {}
            _ => {
                return Err(wrong(
                    &at,
                    "Input should be 'direct', 'code_execution_20250825', 'code_execution_20260120' or 'code_execution_20260521'",
                ));
            }
        }
    }
    if !callers.code {
        return Ok(DIRECT);
    }
    if field(tool, "strict") == Some(&Value::Bool(true)) {
        return Err(wrong(&format!("{path}.strict"), "a strict tool cannot be called from code"));
    }
    if let Some(schema) = field(tool, "input_schema") {
        check_references(schema, &format!("{path}.input_schema"))?;
    }
    Ok(callers)
}

/// Code that calls needs a code execution tool that has it.
pub(super) fn check(tools: &[Tool]) -> Result<(), ApiError> {
    let remembers = |tool: &Tool| match tool {
        Tool::Code(code) => {
            matches!(code.version, CodeToolVersion::Dated20260120 | CodeToolVersion::Dated20260521)
        }
        Tool::Client(_) => false,
    };
    let called = tools.iter().position(|tool| matches!(tool, Tool::Client(client) if client.callers.code));
    match called {
        Some(index) if !tools.iter().any(remembers) => Err(wrong(
            &format!("tools.{index}.allowed_callers"),
            "calls from code need `code_execution_20260120` or `code_execution_20260521` in `tools`",
        )),
        Some(_) | None => Ok(()),
    }
}

/// What cannot be chosen beside code that calls.
pub(crate) fn check_choice(choice: &Map<String, Value>, tools: &[Tool]) -> Result<(), ApiError> {
    let mut clients = tools.iter().filter_map(|tool| match tool {
        Tool::Client(client) => Some(client),
        Tool::Code(_) => None,
    });
    if field(choice, "disable_parallel_tool_use") == Some(&Value::Bool(true))
        && clients.clone().any(|client| client.callers.code)
    {
        return Err(wrong("tool_choice.disable_parallel_tool_use", "not possible with tools that code may call"));
    }
    let name = field(choice, "name");
    match clients.find(|client| name.is_some_and(|name| *name == client.name)) {
        Some(client) if !client.callers.direct => Err(wrong(
            "tool_choice",
            format!("Tool '{}' is called from code only: `direct` is not among its `allowed_callers`", client.name),
        )),
        Some(_) | None => Ok(()),
    }
}

/// Refuses a schema that refers to itself. A reference leads to a place in the schema; one place leads to another when a
/// reference to it is somewhere inside.
fn check_references(schema: &Value, path: &str) -> Result<(), ApiError> {
    let mut left = MAX_VALUES;
    let mut leads: HashMap<&str, HashSet<&str>> = HashMap::new();
    let mut todo = vec!["#"];
    while let Some(place) = todo.pop() {
        if leads.contains_key(place) {
            continue;
        }
        if leads.len() >= MAX_PLACES {
            return Err(wrong(path, TOO_MANY));
        }
        let found = match place.strip_prefix('#').and_then(|pointer| schema.pointer(pointer)) {
            Some(value) => references(value, &mut left).ok_or_else(|| wrong(path, TOO_MANY))?,
            None => HashSet::new(),
        };
        todo.extend(&found);
        leads.insert(place, found);
    }
    // Places that lead nowhere any more go, until none is left or all that are left lead to each other.
    while !leads.is_empty() {
        let done: HashSet<&str> = leads.iter().filter(|(_, to)| to.is_empty()).map(|(place, _)| *place).collect();
        if done.is_empty() {
            return Err(wrong(path, "Circular $ref detected; a tool that code may call needs a schema without"));
        }
        for place in &done {
            leads.remove(place);
        }
        for to in leads.values_mut() {
            to.retain(|place| !done.contains(place));
        }
    }
    Ok(())
}

/// The references somewhere inside; `None` when that is too much to look at.
fn references<'a>(value: &'a Value, left: &mut usize) -> Option<HashSet<&'a str>> {
    let mut found = HashSet::new();
    let mut todo = vec![value];
    while let Some(value) = todo.pop() {
        *left = left.checked_sub(1)?;
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                todo.extend(fields.values());
            }
            Value::Array(values) => todo.extend(values),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_that_refers_to_itself_is_refused() {
        let node = json!({ "type": "object", "properties": { "next": { "$ref": "#/$defs/node" } } });
        let leaf = json!({ "type": "string" });
        for (name, schema, circular) in [
            ("none", json!({ "type": "object" }), false),
            (
                "to a leaf",
                json!({ "$defs": { "leaf": leaf }, "properties": { "a": { "$ref": "#/$defs/leaf" } } }),
                false,
            ),
            ("itself", json!({ "$defs": { "node": node }, "$ref": "#/$defs/node" }), true),
            ("the root", json!({ "properties": { "a": { "$ref": "#" } } }), true),
            (
                "nowhere",
                json!({ "properties": { "a": { "$ref": "#/$defs/missing" }, "b": { "$ref": "https://x" } } }),
                false,
            ),
        ] {
            let refused = check_references(&schema, "s").err().map(|error| error.message);
            let told = "s: Circular $ref detected; a tool that code may call needs a schema without";
            assert_eq!(refused.as_deref(), circular.then_some(told), "{name}");
        }
        let chain = |length: usize| {
            let link = |n: usize| (format!("d{n}"), json!({ "$ref": format!("#/$defs/d{}", n + 1) }));
            json!({ "$defs": Value::Object((0..length).map(link).collect()) })
        };
        assert!(check_references(&chain(400), "s").is_ok());
        assert!(check_references(&chain(5_000), "s").is_err(), "bounded");
    }
}
