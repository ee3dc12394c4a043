//! The Messages request.

use schemars::JsonSchema;

use super::{InputContent, ToolChoice, ToolEntry};

/// What is asked of a model.
#[derive(JsonSchema)]
#[schemars(rename = "MessagesRequest", deny_unknown_fields)]
pub struct MessagesBody {
    /// A model's name, an alias, or `default`.
    #[schemars(example = &"default")]
    pub model: String,
    /// Tokens that the whole answer may have.
    #[schemars(range(min = 1), example = 1024)]
    pub max_tokens: u64,
    /// The conversation; it ends with the user, or with an answer that paused.
    #[schemars(length(min = 1, max = 100_000))]
    pub messages: Vec<InputMessage>,
    /// What the model is told before the conversation.
    pub system: Option<System>,
    /// Where code runs: an id of an earlier answer, or of the client's own choice on the Zylon surface.
    pub container: Option<ContainerChoice>,
    /// What the model may use.
    pub tools: Option<Vec<ToolEntry>>,
    /// Whether it has to.
    pub tool_choice: Option<ToolChoice>,
    /// Events as they come, instead of one JSON answer.
    pub stream: Option<bool>,
    /// Texts that end the answer.
    pub stop_sequences: Option<Vec<String>>,
    /// Handed on to the model's server.
    pub metadata: Option<Metadata>,
    /// Handed on to the model's server.
    pub thinking: Option<ThinkingConfig>,
    /// Handed on to the model's server.
    pub output_config: Option<OutputConfig>,
    /// Handed on to the model's server.
    pub cache_control: Option<CacheControl>,
    /// Handed on to the model's server.
    pub service_tier: Option<ServiceTier>,
    /// Handed on to the model's server.
    pub speed: Option<Speed>,
    /// Handed on to the model's server.
    pub inference_geo: Option<String>,
    /// Accepted; answers carry no diagnostics.
    pub diagnostics: Option<Diagnostics>,
    /// With `anthropic-version: 2023-06-01`, and on the Zylon surface.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub temperature: Option<f64>,
    /// With `anthropic-version: 2023-06-01`, and on the Zylon surface.
    pub top_p: Option<f64>,
    /// With `anthropic-version: 2023-06-01`, and on the Zylon surface.
    pub top_k: Option<u64>,
}

/// One message of a conversation.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct InputMessage {
    /// Who speaks.
    pub role: InputRole,
    /// What.
    pub content: InputContent,
}

/// Who speaks.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum InputRole {
    /// The client.
    User,
    /// The model and this server.
    Assistant,
    /// The operator of the conversation, in the middle of it; in text only.
    System,
}

/// What the model is told before the conversation.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum System {
    /// A text.
    Text(String),
    /// Texts.
    Blocks(Vec<SystemEntry>),
    /// One text, as the Zylon surface has it.
    Entry(SystemEntry),
}

/// A part of the system prompt.
#[derive(JsonSchema)]
pub struct SystemEntry {
    /// `text`
    #[schemars(rename = "type")]
    pub kind: Option<String>,
    /// The text; only beside `extensions` it may be missing.
    pub text: Option<String>,
    /// Handed on to the model's server.
    pub cache_control: Option<CacheControl>,
    /// `zylon`: results as the Zylon surface has them, with `detail`, whatever the tool's type.
    pub extensions: Option<Vec<String>>,
}

/// The container that code runs in.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum ContainerChoice {
    /// By its id.
    Id(#[schemars(regex(pattern = r"^[A-Za-z0-9._-]{0,128}$"))] String),
    /// As an object.
    Object(ContainerObject),
}

/// The container that code runs in, as an object.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ContainerObject {
    /// Its id.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{0,128}$"))]
    pub id: Option<String>,
    /// Not supported: none.
    #[schemars(length(max = 0))]
    pub skills: Option<Vec<Skill>>,
}

/// A skill.
#[derive(JsonSchema)]
pub struct Skill {
    /// Whose.
    #[schemars(rename = "type")]
    pub kind: SkillSource,
    /// Which.
    pub skill_id: String,
    /// `latest` without it.
    pub version: Option<String>,
}

/// Whose skill.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum SkillSource {
    /// Built in.
    Anthropic,
    /// The client's own.
    Custom,
}

/// About the client's own user.
#[derive(JsonSchema)]
pub struct Metadata {
    /// For the model's server; selects nothing here.
    pub user_id: Option<String>,
}

/// Whether the model thinks before it speaks.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum ThinkingConfig {
    /// Within a budget.
    Enabled {
        /// In tokens; less than `max_tokens`.
        #[schemars(range(min = 1024))]
        budget_tokens: u64,
        /// How it is shown.
        display: Option<ThinkingDisplay>,
    },
    /// As much as it sees fit.
    Adaptive {
        /// How it is shown.
        display: Option<ThinkingDisplay>,
    },
    /// Between calls.
    BetweenTools,
    /// Not at all.
    Disabled,
}

/// How thinking is shown.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum ThinkingDisplay {
    /// In short.
    Summarized,
    /// Not at all.
    Omitted,
}

/// What the answer is to be like.
#[derive(JsonSchema)]
pub struct OutputConfig {
    /// How hard the model tries.
    pub effort: Option<Effort>,
    /// The form of its answer.
    pub format: Option<OutputFormat>,
}

/// How hard the model tries.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum Effort {
    /// Least.
    Low,
    /// Less.
    Medium,
    /// As usual.
    High,
    /// More.
    Xhigh,
    /// Most.
    Max,
}

/// The form of an answer.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum OutputFormat {
    /// JSON that a schema describes.
    JsonSchema {
        /// The schema.
        schema: serde_json::Map<String, serde_json::Value>,
    },
}

/// That the prompt up to here is to be cached.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum CacheControl {
    /// For a while.
    Ephemeral {
        /// For how long.
        ttl: Option<CacheLifetime>,
    },
}

/// For how long a prompt is cached.
#[derive(JsonSchema)]
pub enum CacheLifetime {
    /// Five minutes.
    #[schemars(rename = "5m")]
    Short,
    /// An hour.
    #[schemars(rename = "1h")]
    Long,
}

/// Which capacity of the model's server is used.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum ServiceTier {
    /// Any.
    Auto,
    /// The usual.
    StandardOnly,
}

/// How fast the model answers.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum Speed {
    /// As usual.
    Standard,
    /// Faster.
    Fast,
}

/// Why a prompt was not found in the cache.
#[derive(JsonSchema)]
pub struct Diagnostics {
    /// The message to compare with.
    pub previous_message_id: Option<String>,
}
