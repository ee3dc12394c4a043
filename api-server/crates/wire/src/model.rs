//! Models as `GET /v1/models` shows them.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

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
    pub fn body(&self, has_python: bool) -> Value {
        json!({
            "id": self.id,
            "type": "model",
            "display_name": self.display_name,
            "created_at": self.created_at,
            "lifecycle": "active",
            "line": null,
            "deprecated_at": null,
            "retires_at": null,
            "max_input_tokens": self.max_input_tokens,
            "max_tokens": self.max_tokens,
            "capabilities": self.capabilities.body(has_python),
        })
    }
}

impl ModelCapabilities {
    /// Every key of the contract: clients look some up without asking whether they are there.
    fn body(self, has_python: bool) -> Value {
        let thinking = group(self.thinking, &[("types", self.thinking_types())]);
        let no_context = ["clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112"];
        let efforts = ["low", "medium", "high", "max", "xhigh"];
        json!({
            "batch": flag(false),
            "citations": flag(self.citations),
            // Code that calls the request's other tools.
            "code_execution": flag(self.code_execution && has_python),
            "context_management": group(false, &no_context.map(|name| (name, flag(false)))),
            "effort": group(self.effort, &efforts.map(|name| (name, flag(self.effort)))),
            "image_input": flag(self.image_input),
            "pdf_input": flag(self.pdf_input),
            "server_tools": group(self.code_execution, &[
                ("code_execution", flag(self.code_execution)),
                ("web_search", flag(false)),
            ]),
            "structured_outputs": flag(self.structured_outputs),
            "thinking": thinking,
        })
    }

    fn thinking_types(self) -> Value {
        json!({
            "adaptive": flag(self.thinking),
            "between_tools": flag(false),
            "disabled": flag(true),
            "enabled": flag(self.thinking),
        })
    }
}

fn flag(supported: bool) -> Value {
    json!({ "supported": supported })
}

fn group(supported: bool, members: &[(&str, Value)]) -> Value {
    let mut group = Map::new();
    group.insert("supported".into(), supported.into());
    group.extend(members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    Value::Object(group)
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
            info.body(true).to_string(),
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
        assert_eq!(info.body(false)["capabilities"]["code_execution"]["supported"], false);
    }
}
