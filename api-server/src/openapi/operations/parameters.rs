//! What operations take and fail with, in groups.

use super::Parameter;
use serde_json::{Value, json};

fn text() -> Value {
    json!({ "type": "string" })
}

fn word() -> Value {
    json!({ "type": "string", "minLength": 1 })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": 1000 })
}

fn date() -> Value {
    json!({ "type": "string", "format": "date", "examples": ["2023-06-01", "2026-10-21"] })
}

fn container() -> Value {
    json!({ "type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$" })
}

fn lifecycles() -> Value {
    json!({ "type": "array", "items": { "enum": ["active", "deprecated", "retired"] } })
}

fn ids() -> Value {
    json!({ "type": "array", "items": { "type": "string" }, "maxItems": 100 })
}

fn disposition() -> Value {
    json!({ "enum": ["attachment", "inline"] })
}

pub fn upload() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["file"],
        "properties": {
            "file": { "type": "string", "format": "binary" },
            "expires_in_seconds": { "type": "integer", "minimum": 3600, "maximum": 7_776_000 },
        },
    })
}

pub fn session_upload() -> Value {
    json!({
        "type": "object",
        "required": ["file"],
        "properties": {
            "path": { "type": "string", "description": "Its key; before the file." },
            "file": { "type": "string", "format": "binary" },
        },
    })
}

const fn query(name: &'static str, schema: fn() -> Value, text: &'static str) -> Parameter {
    Parameter { name, place: "query", required: false, schema, text }
}

pub const VERSION: &[Parameter] = &[Parameter {
    name: "anthropic-version",
    place: "header",
    required: true,
    schema: date,
    text: "Which generation of the contract; before 2026-10-21 sampling parameters are taken.",
}];
pub const BETA: &[Parameter] = &[Parameter {
    name: "anthropic-beta",
    place: "header",
    required: false,
    schema: text,
    text: "A list; goes on to the model's server, but for what this server does itself.",
}];
pub const SCOPE: &[Parameter] =
    &[Parameter { name: "scope_id", place: "query", required: true, schema: container, text: "The container." }];
pub const LIMIT: &[Parameter] = &[query("limit", count, "How many at most; 20 without it.")];
pub const CURSORS: &[Parameter] = &[
    query("after_id", word, "What comes after this id."),
    query("before_id", word, "What comes before this id; not beside `after_id`."),
];
pub const LIFECYCLE: &[Parameter] = &[query("lifecycle[]", lifecycles, "Only models in these states.")];
pub const PAGE: &[Parameter] =
    &[query("page", word, "The `next_page` of an answer."), query("ids[]", ids, "These files instead of a page.")];
pub const DISPOSITION: &[Parameter] =
    &[query("disposition", disposition, "`inline`: to be shown, where its type cannot run.")];
pub const KEY: &[Parameter] = &[query("path", word, "The file's key; its name without it.")];
pub const PREFIX: &[Parameter] = &[query("prefix", text, "Only files whose keys begin so.")];
pub const DELETED_PREFIX: &[Parameter] = &[Parameter {
    name: "prefix",
    place: "query",
    required: true,
    schema: word,
    text: "All files whose keys begin so; outputs where it begins with `outputs/`.",
}];
pub const PATH: &[Parameter] = &[Parameter {
    name: "path",
    place: "query",
    required: true,
    schema: word,
    text: "The file's path in the sandbox.",
}];

pub const INVALID: &[u16] = &[400];
pub const MISSING: &[u16] = &[404];
/// What a model's server may answer.
pub const MODEL: &[u16] = &[404, 413, 429, 504, 529];
pub const RUN: &[u16] = &[409];
pub const STORE: &[u16] = &[529];
pub const SESSION: &[u16] = &[404, 409, 529];
pub const SENT: &[u16] = &[413, 429];
pub const CONDITIONS: &[u16] = &[412];
pub const RANGES: &[u16] = &[416];
