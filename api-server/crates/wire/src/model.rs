//! Models as `GET /v1/models` shows them.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

/// One model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// What requests name.
    pub id: String,
    /// For people.
    pub display_name: String,
    /// The epoch where nobody knows.
    pub created_at: Timestamp,
    /// Tokens that a prompt may have; `None`: unknown.
    pub max_input_tokens: Option<u64>,
    /// Largest `max_tokens`; `None`: unknown.
    pub max_tokens: Option<u64>,
    /// What it can do.
    pub capabilities: ModelCapabilities,
}

/// What a model can do. What is not here is not supported by this server, whatever the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCapabilities {
    /// The code execution tool works: the model calls tools.
    pub code_execution: bool,
    /// Takes images.
    pub image_input: bool,
    /// Takes PDF documents.
    pub pdf_input: bool,
    /// Cites its sources.
    pub citations: bool,
    /// Thinks, and takes `thinking`.
    pub thinking: bool,
    /// Takes `output_config.effort`.
    pub effort: bool,
    /// Takes `output_config.format`.
    pub structured_outputs: bool,
}

impl ModelInfo {
    /// The JSON object; `has_python` says whether code that runs here can call the request's other tools.
    pub fn body(&self, has_python: bool) -> ModelBody {
        ModelBody {
            id: self.id.clone(),
            kind: ModelType::Model,
            display_name: self.display_name.clone(),
            created_at: self.created_at,
            lifecycle: Lifecycle::Active,
            line: None,
            deprecated_at: None,
            retires_at: None,
            max_input_tokens: self.max_input_tokens,
            max_tokens: self.max_tokens,
            capabilities: self.capabilities.body(has_python),
        }
    }
}

/// A model as clients see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Model")]
pub struct ModelBody {
    /// What requests name.
    pub id: String,
    #[serde(rename = "type")]
    kind: ModelType,
    /// For people.
    pub display_name: String,
    /// The epoch where nobody knows.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub created_at: Timestamp,
    lifecycle: Lifecycle,
    /// Always null.
    line: Option<String>,
    /// Always null.
    deprecated_at: Option<String>,
    /// Always null.
    retires_at: Option<String>,
    /// Tokens that a prompt may have; null: unknown.
    pub max_input_tokens: Option<u64>,
    /// Largest `max_tokens`; null: unknown.
    pub max_tokens: Option<u64>,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// A page of models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelList {
    /// The models, in the order of the settings.
    pub data: Vec<ModelBody>,
    /// Whether there are more, in the direction that was asked for.
    pub has_more: bool,
    /// Id of the first one.
    pub first_id: Option<String>,
    /// Id of the last one.
    pub last_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum ModelType {
    Model,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Lifecycle {
    Active,
}

/// Whether there is such a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Support {
    /// Whether there is.
    pub supported: bool,
}

/// What a model can do here. Every key of the contract: clients look some up without asking whether they are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Capabilities {
    /// Never.
    pub batch: Support,
    /// Cites its sources.
    pub citations: Support,
    /// Code that calls the request's other tools.
    pub code_execution: Support,
    /// Never.
    pub context_management: ContextManagement,
    /// Takes `output_config.effort`.
    pub effort: Efforts,
    /// Takes images.
    pub image_input: Support,
    /// Takes PDF documents.
    pub pdf_input: Support,
    /// Which tools this server runs for it.
    pub server_tools: ServerTools,
    /// Takes `output_config.format`.
    pub structured_outputs: Support,
    /// Thinks, and takes `thinking`.
    pub thinking: Thinking,
}

/// `capabilities.context_management`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ContextManagement {
    /// Never.
    pub supported: bool,
    /// Never.
    pub clear_thinking_20251015: Support,
    /// Never.
    pub clear_tool_uses_20250919: Support,
    /// Never.
    pub compact_20260112: Support,
}

/// `capabilities.effort`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Efforts {
    /// Takes any.
    pub supported: bool,
    /// Takes it.
    pub low: Support,
    /// Takes it.
    pub medium: Support,
    /// Takes it.
    pub high: Support,
    /// Takes it.
    pub max: Support,
    /// Takes it.
    pub xhigh: Support,
}

/// `capabilities.server_tools`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ServerTools {
    /// Any of them.
    pub supported: bool,
    /// The code execution tool.
    pub code_execution: Support,
    /// Never.
    pub web_search: Support,
}

/// `capabilities.thinking`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Thinking {
    /// Any but `disabled`.
    pub supported: bool,
    /// By `thinking.type`.
    pub types: ThinkingTypes,
}

/// `capabilities.thinking.types`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ThinkingTypes {
    /// As much as the model sees fit.
    pub adaptive: Support,
    /// Never.
    pub between_tools: Support,
    /// Always.
    pub disabled: Support,
    /// Within a budget.
    pub enabled: Support,
}

impl ModelCapabilities {
    fn body(self, has_python: bool) -> Capabilities {
        let of = |supported| Support { supported };
        let (no, effort, code) = (of(false), of(self.effort), of(self.code_execution));
        Capabilities {
            batch: no,
            citations: of(self.citations),
            code_execution: of(self.code_execution && has_python),
            context_management: ContextManagement {
                supported: false,
                clear_thinking_20251015: no,
                clear_tool_uses_20250919: no,
                compact_20260112: no,
            },
            effort: Efforts {
                supported: self.effort,
                low: effort,
                medium: effort,
                high: effort,
                max: effort,
                xhigh: effort,
            },
            image_input: of(self.image_input),
            pdf_input: of(self.pdf_input),
            server_tools: ServerTools { supported: self.code_execution, code_execution: code, web_search: no },
            structured_outputs: of(self.structured_outputs),
            thinking: Thinking {
                supported: self.thinking,
                types: ThinkingTypes {
                    adaptive: of(self.thinking),
                    between_tools: no,
                    disabled: of(true),
                    enabled: of(self.thinking),
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_of_the_contract_is_told() {
        let capabilities = ModelCapabilities {
            code_execution: true,
            image_input: true,
            pdf_input: false,
            citations: false,
            thinking: true,
            effort: false,
            structured_outputs: false,
        };
        let info = ModelInfo {
            id: "local-model".into(),
            display_name: "Local model".into(),
            created_at: "2026-10-01T00:00:00Z".parse().unwrap(),
            max_input_tokens: Some(200_000),
            max_tokens: None,
            capabilities,
        };
        assert_eq!(
            serde_json::to_string(&info.body(true)).unwrap(),
            concat!(
                r#"{"id":"local-model","type":"model","display_name":"Local model","created_at":"2026-10-01T00:00:00Z","#,
                r#""lifecycle":"active","line":null,"deprecated_at":null,"retires_at":null,"max_input_tokens":200000,"max_tokens":null,"#,
                r#""capabilities":{"batch":{"supported":false},"citations":{"supported":false},"code_execution":{"supported":true},"#,
                r#""context_management":{"supported":false,"clear_thinking_20251015":{"supported":false},"clear_tool_uses_20250919":{"supported":false},"compact_20260112":{"supported":false}},"#,
                r#""effort":{"supported":false,"low":{"supported":false},"medium":{"supported":false},"high":{"supported":false},"max":{"supported":false},"xhigh":{"supported":false}},"#,
                r#""image_input":{"supported":true},"pdf_input":{"supported":false},"#,
                r#""server_tools":{"supported":true,"code_execution":{"supported":true},"web_search":{"supported":false}},"#,
                r#""structured_outputs":{"supported":false},"#,
                r#""thinking":{"supported":true,"types":{"adaptive":{"supported":true},"between_tools":{"supported":false},"disabled":{"supported":true},"enabled":{"supported":true}}}}}"#,
            )
        );
        assert!(!info.body(false).capabilities.code_execution.supported);
    }
}
