//! Shapes for the description of the API: of requests, which are read by hand so that every refusal names its path, and of what
//! passes through from a model's server. Tests hold them to what is read.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

mod blocks;
mod messages;
mod tools;

pub use blocks::{
    CitationsSwitch, DocumentSource, EchoedCaller, HandedOnBlock, HandedOnType, ImageSource, InputBlock, InputContent,
    InputText, ResultContent, TextBlock, Uploaded,
};
pub use messages::{
    CacheControl, CacheLifetime, ContainerChoice, ContainerObject, Diagnostics, Effort, InputMessage, InputRole,
    MessagesBody, Metadata, OutputConfig, OutputFormat, ServiceTier, Skill, SkillSource, Speed, System, SystemEntry,
    ThinkingConfig, ThinkingDisplay,
};
pub use tools::{
    ClientRunTool, CodeExecutionName, CodeExecutionTool, CodeExecutionType, CustomTool, CustomType, ToolCaller,
    ToolChoice, ToolEntry,
};

/// Where a text was found, as the model's server puts it.
#[derive(JsonSchema)]
pub struct Citation {
    /// Which kind of place.
    #[schemars(rename = "type")]
    pub kind: String,
}

/// Why the model refused, as its server puts it.
#[derive(JsonSchema)]
pub struct StopDetails {
    /// Such as `refusal`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// Which kind of refusal.
    #[schemars(default)]
    pub category: Option<String>,
    /// In words.
    #[schemars(default)]
    pub explanation: Option<String>,
}

/// A block of the model's server that is passed on as it came: of none of the types that this server makes.
pub struct Foreign;

/// A delta of the model's server that is passed on as it came.
pub struct ForeignDelta;

fn foreign(what: &str, ours: &[&str]) -> Schema {
    json_schema!({
        "description": what,
        "type": "object",
        "properties": { "type": { "type": "string", "not": { "enum": ours } } },
        "required": ["type"],
    })
}

impl JsonSchema for Foreign {
    fn schema_name() -> Cow<'static, str> {
        "ForeignBlock".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        foreign(
            "A block of the model's server, passed on as it came.",
            &[
                "text",
                "thinking",
                "server_tool_use",
                "bash_code_execution_tool_result",
                "code_execution_tool_result",
                "text_editor_code_execution_tool_result",
                "tool_use",
            ],
        )
    }
}

impl JsonSchema for ForeignDelta {
    fn schema_name() -> Cow<'static, str> {
        "ForeignDelta".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        foreign(
            "A delta of the model's server, passed on as it came.",
            &["text_delta", "input_json_delta", "thinking_delta", "signature_delta", "citations_delta"],
        )
    }
}

/// Answer to `count_tokens`.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct TokenCount {
    /// Tokens of the prompt.
    pub input_tokens: u64,
}

/// Answer to `validate`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Validation {
    /// Whether the request would be taken.
    pub valid: bool,
    /// What speaks against it; null where nothing does.
    pub errors: Option<Vec<String>>,
}
