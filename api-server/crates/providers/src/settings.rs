//! The models file: which models there are, and where each is asked. Read strictly, since a key that is not understood is a setting
//! that does not hold.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use jiff::Timestamp;
use serde::Deserialize;
use wire::{ModelCapabilities, ModelInfo};

use crate::upstream::{KeyHeader, MaxTokensField};

/// Longest name or alias, in characters.
const MAX_NAME: usize = 200;
/// Stands for the default model, whichever that is.
pub(crate) const DEFAULT: &str = "default";

/// One model of the file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ModelEntry {
    /// What requests name.
    pub name: String,
    /// For people; the name without it.
    pub display_name: Option<String>,
    /// Further names.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The one that `default` names; without any, the first.
    #[serde(default)]
    pub default: bool,
    /// When it was made; the epoch without it.
    pub created_at: Option<Timestamp>,
    /// Where it is asked.
    pub upstream: UpstreamEntry,
    /// What it can do.
    #[serde(default)]
    pub capabilities: CapabilitiesEntry,
}

/// Where a model is asked.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct UpstreamEntry {
    /// Of what kind.
    #[serde(rename = "type")]
    pub kind: UpstreamKind,
    /// `http://...` or `https://...`
    pub base_url: Option<String>,
    /// What the upstream calls the model; the name without it.
    pub model: Option<String>,
    /// The file that holds the key; read again when it changes.
    pub api_key_file: Option<PathBuf>,
    /// The environment variable that holds the key.
    pub api_key_env: Option<String>,
    /// Where the key goes; without it, where the kind has it.
    pub key_header: Option<KeyHeader>,
    /// What a chat's limit is called; `max_tokens` without it.
    pub max_tokens_field: Option<MaxTokensField>,
    /// Further headers of every request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

/// How a model is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamKind {
    /// The built-in demo model.
    Demo,
    /// The Messages API.
    Anthropic,
    /// Chat completions.
    OpenAi,
}

/// What a model can do.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct CapabilitiesEntry {
    /// Tokens that a prompt may have.
    pub max_input_tokens: Option<u64>,
    /// Largest `max_tokens`; requests for more are refused.
    pub max_tokens: Option<u64>,
    /// `false`: requests with a code execution tool are refused.
    pub code_execution: bool,
    /// Takes images.
    pub image_input: bool,
    /// Takes PDF documents.
    pub pdf_input: bool,
    /// Cites its sources.
    pub citations: bool,
    /// Thinks.
    pub thinking: bool,
    /// Takes an effort.
    pub effort: bool,
    /// Takes an output format.
    pub structured_outputs: bool,
}

impl Default for CapabilitiesEntry {
    fn default() -> Self {
        Self {
            max_input_tokens: None,
            max_tokens: None,
            code_execution: true,
            image_input: false,
            pdf_input: false,
            citations: false,
            thinking: false,
            effort: false,
            structured_outputs: false,
        }
    }
}

/// What is wrong with the entries; a clause that says what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not YAML, a key that is unknown or missing, a value of another kind.
    #[error(
        "{0}; it must be a list of models, each with `name` and `upstream` (`type`, `baseUrl`, ...), as docs/install.md shows"
    )]
    Yaml(String),
    /// No entry.
    #[error("it names no model; add one, or start without it for the demo model")]
    Empty,
    /// More than one default.
    #[error("`{0}` and `{1}` both say `default: true`; only one may")]
    Defaults(String, String),
    /// A name that cannot be one.
    #[error("{0:?} cannot name a model: names have 1 to 200 letters without spaces, and `default` is taken")]
    Name(String),
    /// A name that two models have.
    #[error("the name or alias `{0}` is given twice; each must be its own")]
    Twice(String),
    /// A model whose upstream is not complete.
    #[error("the upstream of `{model}` {reason}")]
    Upstream {
        /// Its name.
        model: String,
        /// What is wrong.
        reason: &'static str,
    },
}

/// Reads the file's text.
pub(crate) fn parse(text: &str) -> Result<Vec<ModelEntry>, SettingsError> {
    // Without the snippet, which would quote the file over several lines.
    let options = serde_saphyr::options! { with_snippet: false };
    let entries: Vec<ModelEntry> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| SettingsError::Yaml(error.to_string().replace('\n', " ")))?;
    check(&entries)?;
    Ok(entries)
}

/// What the types alone do not say.
pub(crate) fn check(entries: &[ModelEntry]) -> Result<(), SettingsError> {
    if entries.is_empty() {
        return Err(SettingsError::Empty);
    }
    let mut names = BTreeSet::new();
    for name in entries.iter().flat_map(|entry| std::iter::once(&entry.name).chain(&entry.aliases)) {
        let legal = |letter: char| !letter.is_whitespace() && !letter.is_control();
        if name.is_empty() || name.chars().count() > MAX_NAME || !name.chars().all(legal) || name == DEFAULT {
            return Err(SettingsError::Name(name.chars().take(MAX_NAME).collect()));
        }
        if !names.insert(name) {
            return Err(SettingsError::Twice(name.clone()));
        }
    }
    let mut defaults = entries.iter().filter(|entry| entry.default);
    if let (Some(one), Some(other)) = (defaults.next(), defaults.next()) {
        return Err(SettingsError::Defaults(one.name.clone(), other.name.clone()));
    }
    for entry in entries {
        if let Some(reason) = entry.upstream.incomplete() {
            return Err(SettingsError::Upstream { model: entry.name.clone(), reason });
        }
    }
    Ok(())
}

impl UpstreamEntry {
    fn incomplete(&self) -> Option<&'static str> {
        let has_key = self.api_key_file.is_some() || self.api_key_env.is_some();
        let addressed = self.base_url.is_some() || has_key || self.key_header.is_some() || !self.headers.is_empty();
        match self.kind {
            UpstreamKind::Demo if addressed || self.model.is_some() => {
                Some("is the built-in demo model, which has no address, key or model name; leave them out")
            }
            UpstreamKind::Anthropic if self.base_url.is_none() => {
                Some("lacks `baseUrl`, such as https://api.anthropic.com")
            }
            UpstreamKind::OpenAi if self.base_url.is_none() => Some("lacks `baseUrl`, such as http://vllm:8000/v1"),
            UpstreamKind::Demo | UpstreamKind::Anthropic if self.max_tokens_field.is_some() => {
                Some("has `maxTokensField`, which only the type `openai` reads; leave it out")
            }
            UpstreamKind::Anthropic | UpstreamKind::OpenAi
                if self.api_key_file.is_some() && self.api_key_env.is_some() =>
            {
                Some("has both `apiKeyFile` and `apiKeyEnv`; keep one")
            }
            UpstreamKind::Anthropic | UpstreamKind::OpenAi if self.key_header.is_some() && !has_key => {
                Some("has `keyHeader` but no key; add `apiKeyFile` or `apiKeyEnv`")
            }
            UpstreamKind::Demo | UpstreamKind::Anthropic | UpstreamKind::OpenAi => None,
        }
    }
}

impl ModelEntry {
    /// The demo model under this name.
    pub fn demo(name: &str) -> Self {
        Self::of(name, UpstreamEntry::of(UpstreamKind::Demo))
    }

    /// A model with nothing but what it needs.
    pub fn of(name: &str, upstream: UpstreamEntry) -> Self {
        Self {
            name: name.to_owned(),
            display_name: None,
            aliases: Vec::new(),
            default: false,
            created_at: None,
            upstream,
            capabilities: CapabilitiesEntry::default(),
        }
    }

    /// As `GET /v1/models` shows it.
    pub(crate) fn info(&self) -> ModelInfo {
        let can = &self.capabilities;
        ModelInfo {
            id: self.name.clone(),
            display_name: self.display_name.clone().unwrap_or_else(|| self.name.clone()),
            created_at: self.created_at.unwrap_or(Timestamp::UNIX_EPOCH),
            max_input_tokens: can.max_input_tokens,
            max_tokens: can.max_tokens,
            capabilities: ModelCapabilities {
                code_execution: can.code_execution,
                image_input: can.image_input,
                pdf_input: can.pdf_input,
                citations: can.citations,
                thinking: can.thinking,
                effort: can.effort,
                structured_outputs: can.structured_outputs,
            },
        }
    }
}

impl UpstreamEntry {
    /// One of which nothing but the kind is said.
    pub fn of(kind: UpstreamKind) -> Self {
        Self {
            kind,
            base_url: None,
            model: None,
            api_key_file: None,
            api_key_env: None,
            key_header: None,
            max_tokens_field: None,
            headers: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "
- name: local-model
  displayName: Local model
  aliases: [local, fast]
  createdAt: 2026-10-01T00:00:00Z
  upstream:
    type: anthropic
    baseUrl: https://api.example
    model: real-model
    apiKeyFile: /etc/codeexec/key
    keyHeader: bearer
    headers: {x-team: blue}
  capabilities: {maxInputTokens: 200000, maxTokens: 64000, imageInput: true, thinking: true}
- name: demo
  default: true
  upstream: {type: demo}
";

    #[test]
    fn a_whole_file_is_understood() {
        let entries = parse(WHOLE).unwrap();
        assert_eq!(entries[1], ModelEntry { default: true, ..ModelEntry::demo("demo") });
        let first = &entries[0];
        assert_eq!(first.upstream.key_header, Some(KeyHeader::Bearer));
        assert_eq!(first.upstream.headers["x-team"], "blue");
        let info = first.info();
        assert_eq!((info.display_name.as_str(), info.max_tokens), ("Local model", Some(64_000)));
        assert_eq!(info.created_at.to_string(), "2026-10-01T00:00:00Z");
        assert!(info.capabilities.image_input && info.capabilities.code_execution && !info.capabilities.pdf_input);
        assert_eq!(entries[1].info().created_at, Timestamp::UNIX_EPOCH);
        let json = r#"[{"name":"a","createdAt":"2026-10-01T00:00:00Z","upstream":{"type":"demo"},"capabilities":{"maxTokens":2000000}}]"#;
        assert_eq!(parse(json).unwrap()[0].info().max_tokens, Some(2_000_000));
    }

    #[test]
    fn what_is_wrong_is_named_in_one_line() {
        let demo = "upstream: {type: demo}";
        let http = "type: anthropic, baseUrl: https://api.example";
        let rows = [
            ("not yaml", "- name: [".to_owned(), "must be a list of models"),
            ("no list", "name: a".to_owned(), "must be a list of models"),
            ("nothing", "[]".to_owned(), "names no model"),
            ("an unknown key", format!("- {{name: a, {demo}, contextLength: 9}}"), "contextLength"),
            ("an unknown key within", "- {name: a, upstream: {type: demo, url: x}}".to_owned(), "url"),
            ("an unknown capability", format!("- {{name: a, {demo}, capabilities: {{vision: true}}}}"), "vision"),
            ("no upstream", "- name: a".to_owned(), "upstream"),
            ("an unknown type", "- {name: a, upstream: {type: telepathy}}".to_owned(), "telepathy"),
            ("a key twice", format!("- {{name: a, name: b, {demo}}}"), "name"),
            ("a space in a name", format!("- {{name: a b, {demo}}}"), "a b"),
            ("an empty name", format!("- {{name: '', {demo}}}"), "cannot name a model"),
            ("a taken name", format!("- {{name: default, {demo}}}"), "default"),
            (
                "a name twice",
                format!("- {{name: a, {demo}}}\n- {{name: b, aliases: [a], {demo}}}"),
                "`a` is given twice",
            ),
            (
                "two defaults",
                format!("- {{name: a, default: true, {demo}}}\n- {{name: b, default: true, {demo}}}"),
                "`a` and `b`",
            ),
            ("no address", "- {name: a, upstream: {type: anthropic}}".to_owned(), "lacks `baseUrl`"),
            ("a demo with an address", "- {name: a, upstream: {type: demo, baseUrl: x}}".to_owned(), "demo model"),
            ("two keys", format!("- {{name: a, upstream: {{{http}, apiKeyFile: f, apiKeyEnv: E}}}}"), "keep one"),
            ("no address of a chat", "- {name: a, upstream: {type: openai}}".to_owned(), "lacks `baseUrl`"),
            (
                "a chat's setting",
                format!("- {{name: a, upstream: {{{http}, maxTokensField: max_tokens}}}}"),
                "leave it out",
            ),
            ("a place for no key", format!("- {{name: a, upstream: {{{http}, keyHeader: bearer}}}}"), "no key"),
        ];
        for (name, text, words) in rows {
            let message = parse(&text).unwrap_err().to_string();
            assert!(message.contains(words), "{name}: {message}");
            assert!(!message.contains('\n'), "{name}: {message}");
        }
    }
}
