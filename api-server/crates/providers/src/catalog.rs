//! The models of a server, by name; read again when their file, or a key's, changes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::SystemTime;

use engine::ModelRequest;
use wire::{ApiError, ErrorType, MessagesRequest, ModelInfo, Surface, Tool};

use crate::Sampling;
use crate::settings::{self, DEFAULT, ModelEntry, SettingsError, UpstreamEntry, UpstreamKind};
use crate::upstream::{Address, AddressError, Dialect, Upstream};

/// Why the models cannot be used; one sentence.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The file cannot be read.
    #[error("cannot read the models file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file does not say what it should.
    #[error("the models file {path} cannot be used: {source}")]
    Settings {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: SettingsError,
    },
    /// The settings given on the command line do not fit together.
    #[error("the model cannot be used: {0}")]
    Flags(#[source] SettingsError),
    /// A key that is not there.
    #[error("the API key of the model `{model}` cannot be had: {reason}")]
    Key {
        /// The model.
        model: String,
        /// Where it was looked for, and what came of it.
        reason: String,
    },
    /// An address that leads nowhere.
    #[error("the upstream of the model `{model}` cannot be used: {source}")]
    Address {
        /// The model.
        model: String,
        /// What is wrong.
        source: AddressError,
    },
}

/// One model.
pub struct Model {
    /// As it is shown.
    pub info: ModelInfo,
    upstream: Upstream,
}

impl Model {
    /// Asks for one sampling; `betas` are the client's.
    pub fn sample(&self, request: &ModelRequest, betas: &[String]) -> Sampling {
        self.upstream.sample(request, betas)
    }

    /// The prompt's tokens, or an estimate where the upstream cannot count.
    ///
    /// # Errors
    /// What the client is told.
    pub async fn count_tokens(&self, request: &ModelRequest, betas: &[String]) -> Result<u64, ApiError> {
        self.upstream.count_tokens(request, betas).await
    }

    /// Holds a request to what the model can do. On the Zylon surface, where `max_tokens` may be left out, it becomes what the
    /// model allows.
    ///
    /// # Errors
    /// A 400.
    pub fn check(&self, request: &mut MessagesRequest) -> Result<(), ApiError> {
        let name = &self.info.id;
        let code = request.tools.iter().position(|tool| matches!(tool, Tool::Code(_)));
        if let Some(index) = code.filter(|_| !self.info.capabilities.code_execution) {
            let text = format!("tools.{index}: the model `{name}` does not support the code execution tool");
            return Err(ApiError::invalid(text));
        }
        let (asked, most) = (request.max_tokens, self.info.max_tokens.unwrap_or(u64::MAX));
        match request.surface {
            Surface::Anthropic if asked > most => Err(ApiError::invalid(format!(
                "max_tokens: {asked} > {most}, which is the maximum allowed number of output tokens for {name}"
            ))),
            Surface::Anthropic => Ok(()),
            Surface::Zylon => {
                request.max_tokens = asked.min(most);
                Ok(())
            }
        }
    }
}

/// All models, in the order of their file.
pub struct Catalog {
    models: Vec<Arc<Model>>,
    places: HashMap<String, usize>,
}

impl Catalog {
    fn build(entries: &[ModelEntry]) -> Result<Self, ModelsError> {
        let (mut models, mut places) = (Vec::new(), HashMap::new());
        let default = entries.iter().position(|entry| entry.default).unwrap_or(0);
        for (place, entry) in entries.iter().enumerate() {
            models.push(Arc::new(Model { info: entry.info(), upstream: upstream(entry)? }));
            places.extend(entry.aliases.iter().chain([&entry.name]).map(|name| (name.clone(), place)));
        }
        places.insert(DEFAULT.to_owned(), default);
        Ok(Self { models, places })
    }

    /// The model of a name, an alias, or `default`.
    ///
    /// # Errors
    /// A 404.
    pub fn find(&self, name: &str) -> Result<&Arc<Model>, ApiError> {
        self.places.get(name).and_then(|place| self.models.get(*place)).ok_or_else(|| {
            let name: String = name.chars().take(100).collect();
            ApiError::new(ErrorType::NotFound, format!("model: {name}"))
        })
    }

    /// All of them, the file's first one first.
    pub fn models(&self) -> &[Arc<Model>] {
        &self.models
    }
}

fn upstream(entry: &ModelEntry) -> Result<Upstream, ModelsError> {
    let dialect = match entry.upstream.kind {
        UpstreamKind::Demo => return Ok(Upstream::demo()),
        UpstreamKind::Anthropic => Dialect::Anthropic,
        UpstreamKind::OpenAi => Dialect::OpenAi,
    };
    let address = Address {
        dialect,
        base_url: entry.upstream.base_url.clone().unwrap_or_default(),
        model: entry.upstream.model.clone().unwrap_or_else(|| entry.name.clone()),
        key: key(&entry.upstream).map_err(|reason| ModelsError::Key { model: entry.name.clone(), reason })?,
        key_header: entry.upstream.key_header,
        max_tokens_field: entry.upstream.max_tokens_field.unwrap_or_default(),
        headers: entry.upstream.headers.clone().into_iter().collect(),
    };
    Upstream::http(&address).map_err(|source| ModelsError::Address { model: entry.name.clone(), source })
}

fn key(upstream: &UpstreamEntry) -> Result<Option<String>, String> {
    let key = if let Some(path) = &upstream.api_key_file {
        std::fs::read_to_string(path).map_err(|error| format!("cannot read the file {}: {error}", path.display()))?
    } else if let Some(name) = &upstream.api_key_env {
        std::env::var(name).map_err(|_| format!("the environment variable {name} is not set"))?
    } else {
        return Ok(None);
    };
    let key = key.trim();
    if key.is_empty() { Err("what should hold it is empty".to_owned()) } else { Ok(Some(key.to_owned())) }
}

/// A file, and when it was last written.
type Stamp = (PathBuf, Option<SystemTime>);

struct Loaded {
    catalog: Arc<Catalog>,
    stamps: Vec<Stamp>,
}

/// The models in force.
pub struct Models {
    /// `None`: settings of the command line.
    path: Option<PathBuf>,
    entries: Vec<ModelEntry>,
    loaded: RwLock<Loaded>,
}

impl Models {
    /// Those of a file.
    ///
    /// # Errors
    /// Why none can be used.
    pub fn open(path: PathBuf) -> Result<Self, ModelsError> {
        let loaded = load(Some(&path), &[])?;
        Ok(Self { path: Some(path), entries: Vec::new(), loaded: RwLock::new(loaded) })
    }

    /// One alone.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn single(entry: ModelEntry) -> Result<Self, ModelsError> {
        let entries = vec![entry];
        settings::check(&entries).map_err(ModelsError::Flags)?;
        let loaded = load(None, &entries)?;
        Ok(Self { path: None, entries, loaded: RwLock::new(loaded) })
    }

    /// Those in force now.
    pub fn catalog(&self) -> Arc<Catalog> {
        // A writer replaces a whole value, so that what a panic left behind is sound.
        Arc::clone(&self.loaded.read().unwrap_or_else(std::sync::PoisonError::into_inner).catalog)
    }

    /// Reads the file, and the keys' files, again if one changed. If that cannot be used, the former models stay in force.
    pub fn reload(&self) {
        let unchanged = |loaded: &Loaded| loaded.stamps.iter().all(|(path, time)| *time == modified(path));
        if self.loaded.read().is_ok_and(|loaded| unchanged(&loaded)) {
            return;
        }
        match load(self.path.as_deref(), &self.entries) {
            Ok(new) => {
                tracing::info!(models.count = new.catalog.models.len(), "models read again");
                if let Ok(mut loaded) = self.loaded.write() {
                    *loaded = new;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "models not read again; the former ones stay in force");
                // Told once for each change.
                if let Ok(mut loaded) = self.loaded.write() {
                    for (path, time) in &mut loaded.stamps {
                        *time = modified(path);
                    }
                }
            }
        }
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

fn load(path: Option<&Path>, entries: &[ModelEntry]) -> Result<Loaded, ModelsError> {
    let mut stamps: Vec<Stamp> = path.map(|path| (path.to_owned(), modified(path))).into_iter().collect();
    let entries = match path {
        None => entries.to_vec(),
        Some(path) => {
            let text =
                std::fs::read_to_string(path).map_err(|source| ModelsError::Read { path: path.to_owned(), source })?;
            settings::parse(&text).map_err(|source| ModelsError::Settings { path: path.to_owned(), source })?
        }
    };
    let keys = entries.iter().filter_map(|entry| entry.upstream.api_key_file.as_deref());
    stamps.extend(keys.map(|path| (path.to_owned(), modified(path))));
    Ok(Loaded { catalog: Arc::new(Catalog::build(&entries)?), stamps })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use wire::{ApiVersion, Rules};

    use super::*;

    const FILE: &str = "
- {name: one, aliases: [first], upstream: {type: demo}, capabilities: {codeExecution: false, maxTokens: 100}}
- {name: two, default: true, upstream: {type: demo}}
";

    fn write(path: &Path, text: &str, second: u64) {
        std::fs::write(path, text).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }

    fn found(models: &Models, name: &str) -> Option<String> {
        models.catalog().find(name).ok().map(|model| model.info.id.clone())
    }

    #[test]
    fn models_are_found_by_name_alias_and_default() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("models.yaml");
        write(&path, FILE, 1);
        let models = Models::open(path).unwrap();
        for (name, id) in [("one", "one"), ("first", "one"), ("two", "two"), ("default", "two")] {
            assert_eq!(found(&models, name).as_deref(), Some(id), "{name}");
        }
        let error = models.catalog().find("three").err().unwrap();
        assert_eq!((error.status(), error.message.as_str()), (404, "model: three"));
        let alone = Models::single(ModelEntry::demo("mine")).unwrap();
        assert_eq!(found(&alone, "default").as_deref(), Some("mine"));
    }

    #[test]
    fn a_changed_file_counts_after_a_reload_and_a_broken_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("models.yaml");
        write(&path, FILE, 1);
        let models = Models::open(path.clone()).unwrap();
        write(&path, "- {name: three, upstream: {type: demo}}", 2);
        models.reload();
        assert_eq!((found(&models, "one"), found(&models, "three")), (None, Some("three".into())));
        write(&path, "- {name: four}", 3);
        models.reload();
        assert_eq!(found(&models, "three"), Some("three".into()));
        std::fs::remove_file(&path).unwrap();
        models.reload();
        assert_eq!(found(&models, "three"), Some("three".into()));
        write(&path, FILE, 4);
        models.reload();
        assert_eq!(found(&models, "one"), Some("one".into()));
    }

    #[test]
    fn a_changed_key_makes_the_models_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (path, key) = (dir.path().join("models.yaml"), dir.path().join("key"));
        write(&key, "sk-1\n", 1);
        let upstream = format!("{{type: anthropic, baseUrl: https://api.example, apiKeyFile: {}}}", key.display());
        write(&path, &format!("- {{name: a, upstream: {upstream}}}"), 1);
        let models = Models::open(path).unwrap();
        let before = models.catalog();
        models.reload();
        assert!(Arc::ptr_eq(&before, &models.catalog()), "nothing changed");
        write(&key, "sk-2", 2);
        models.reload();
        assert!(!Arc::ptr_eq(&before, &models.catalog()));
    }

    #[test]
    fn a_key_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (path, empty) = (dir.path().join("models.yaml"), dir.path().join("empty"));
        write(&empty, " \n", 1);
        for (key, words) in [
            ("apiKeyFile: /nowhere/key".to_owned(), "/nowhere/key"),
            (format!("apiKeyFile: {}", empty.display()), "is empty"),
            ("apiKeyEnv: CODEEXEC_TEST_NOT_SET".to_owned(), "CODEEXEC_TEST_NOT_SET is not set"),
        ] {
            write(
                &path,
                &format!("- {{name: a, upstream: {{type: anthropic, baseUrl: https://api.example, {key}}}}}"),
                1,
            );
            let message = Models::open(path.clone()).err().unwrap().to_string();
            assert!(message.contains(words) && message.contains("`a`"), "{message}");
        }
        let message = Models::open(dir.path().join("none")).err().unwrap().to_string();
        assert!(message.starts_with("cannot read the models file"), "{message}");
    }

    #[test]
    fn a_request_is_held_to_what_its_model_can_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("models.yaml");
        write(&path, FILE, 1);
        let catalog = Models::open(path).unwrap().catalog();
        let check = |model: &str, surface: Surface, max_tokens: u64, tools: serde_json::Value| {
            let body = json!({ "model": model, "max_tokens": max_tokens, "tools": tools, "messages": [{ "role": "user", "content": "hi" }] });
            let rules = Rules { surface, version: ApiVersion::Current, default_max_tokens: None };
            let mut request = MessagesRequest::from_value(&body, &rules).unwrap();
            let checked = catalog.find(model).unwrap().check(&mut request);
            checked.map(|()| request.max_tokens).map_err(|error| error.message)
        };
        let code = json!([{ "type": "code_execution_20250825", "name": "code_execution" }]);
        assert_eq!(check("one", Surface::Anthropic, 100, json!([])), Ok(100));
        assert!(check("one", Surface::Anthropic, 101, json!([])).unwrap_err().starts_with("max_tokens: 101 > 100"));
        assert_eq!(check("one", Surface::Zylon, 101, json!([])), Ok(100));
        for surface in [Surface::Anthropic, Surface::Zylon] {
            assert!(check("one", surface, 1, code.clone()).unwrap_err().starts_with("tools.0: the model `one`"));
            assert_eq!(check("two", surface, 9_999_999, code.clone()), Ok(9_999_999));
        }
    }
}
