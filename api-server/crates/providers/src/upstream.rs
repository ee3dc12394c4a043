//! What can be asked of a model, whichever it is.

use std::sync::Arc;
use std::time::Duration;

use engine::{ModelEvent, ModelFailure, ModelRequest, demo};
use futures_util::{StreamExt, stream};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use wire::ApiError;

use crate::failure::Fault;
use crate::http::Http;
use crate::{Sampling, anthropic, estimate, openai};

/// The version that is spoken with upstreams: its streams are those of every later one, and it takes sampling parameters.
const VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");
const VERSION_HEADER: HeaderName = HeaderName::from_static("anthropic-version");
const BETA_HEADER: HeaderName = HeaderName::from_static("anthropic-beta");

/// How an upstream over HTTP is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// The Messages API.
    Anthropic,
    /// Chat completions.
    OpenAi,
}

/// Which header carries the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
pub enum KeyHeader {
    /// `x-api-key: <key>`
    #[serde(rename = "x-api-key")]
    XApiKey,
    /// `authorization: Bearer <key>`
    #[serde(rename = "bearer")]
    Bearer,
}

/// What a chat's limit is called: servers know one name or the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaxTokensField {
    /// `max_tokens`
    #[default]
    MaxTokens,
    /// `max_completion_tokens`
    MaxCompletionTokens,
}

impl MaxTokensField {
    /// The name on the wire.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }
}

/// Where an upstream is, and what goes with every request.
#[derive(Clone)]
pub(crate) struct Address {
    /// How it is spoken to.
    pub(crate) dialect: Dialect,
    /// `http://...` or `https://...`, with or without the version at its end.
    pub(crate) base_url: String,
    /// What it calls the model.
    pub(crate) model: String,
    /// The credential, if it wants one.
    pub(crate) key: Option<String>,
    /// Where the credential goes; `None`: where the dialect has it.
    pub(crate) key_header: Option<KeyHeader>,
    /// What a chat's limit is called; of no meaning for the Messages API.
    pub(crate) max_tokens_field: MaxTokensField,
    /// Further headers, name and value.
    pub(crate) headers: Vec<(String, String)>,
}

/// Why an address cannot be used; one sentence for the operator, without the key.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// No URL, or one that holds more than an address.
    #[error("the base URL {0:?} must be like https://host[:port][/path], without user, query or fragment")]
    Url(String),
    /// A header that cannot be sent.
    #[error("the header {0:?} has a name or a value that HTTP does not allow")]
    Header(String),
    /// The key cannot be sent.
    #[error("the API key holds characters that no header can carry; it must be one line of text")]
    Key,
    /// The client cannot be made.
    #[error("cannot make an HTTP client: {0}")]
    Client(#[source] reqwest::Error),
}

/// A model.
#[derive(Clone)]
pub(crate) struct Upstream(Kind);

#[derive(Clone)]
enum Kind {
    Demo,
    Http { http: Arc<Http>, dialect: Dialect, url: String, model: String, max_tokens_field: MaxTokensField },
}

impl Upstream {
    /// The demo model, inside this process.
    pub(crate) fn demo() -> Self {
        Self(Kind::Demo)
    }

    /// A model behind HTTP, with a client and connections of its own.
    ///
    /// # Errors
    /// What is wrong with the address.
    pub(crate) fn http(address: &Address) -> Result<Self, AddressError> {
        crate::install_tls();
        let base = base(address)?;
        let url = match address.dialect {
            Dialect::Anthropic => format!("{}/v1", base.trim_end_matches("/v1")),
            // Here the version is part of the address; an address alone means the usual one.
            Dialect::OpenAi if base.matches('/').count() == 2 => format!("{base}/v1"),
            Dialect::OpenAi => base.clone(),
        };
        let http = Http::new(headers(address)?, secrets(address, &base), address.model.clone());
        let http = Arc::new(http.map_err(AddressError::Client)?);
        let (dialect, model) = (address.dialect, address.model.clone());
        Ok(Self(Kind::Http { http, dialect, url, model, max_tokens_field: address.max_tokens_field }))
    }

    /// Asks for one sampling. `betas` are the client's.
    pub(crate) fn sample(&self, request: &ModelRequest, betas: &[String]) -> Sampling {
        match &self.0 {
            Kind::Demo => demo_steps(request),
            Kind::Http { http, dialect: Dialect::Anthropic, url, model, .. } => {
                let body = anthropic::body(request, model);
                let reader = anthropic::Stream::default();
                Arc::clone(http).stream(&format!("{url}/messages"), &body, beta_header(betas), reader)
            }
            Kind::Http { http, dialect: Dialect::OpenAi, url, model, max_tokens_field } => {
                match openai::body(request, model, *max_tokens_field) {
                    Ok(body) => {
                        let reader = openai::Stream::default();
                        Arc::clone(http).stream(&format!("{url}/chat/completions"), &body, None, reader)
                    }
                    Err(error) => {
                        let failure = ModelFailure { error, retryable: false };
                        stream::iter([ModelEvent::Fail(failure)]).boxed()
                    }
                }
            }
        }
    }

    /// The prompt's tokens: as the upstream counts them, or an estimate where it cannot count.
    ///
    /// # Errors
    /// What the client is told.
    pub(crate) async fn count_tokens(&self, request: &ModelRequest, betas: &[String]) -> Result<u64, ApiError> {
        match &self.0 {
            Kind::Demo | Kind::Http { dialect: Dialect::OpenAi, .. } => Ok(estimate::tokens(request)),
            Kind::Http { http, dialect: Dialect::Anthropic, url, model, .. } => {
                let body = anthropic::count_body(request, model);
                match http.whole(&format!("{url}/messages/count_tokens"), &body, beta_header(betas)).await {
                    Ok(answer) => answer["input_tokens"]
                        .as_u64()
                        .ok_or_else(|| http.failure(&Fault::Malformed("the count is no number")).error),
                    // Many servers of this dialect have no such route.
                    Err(Fault::Answer { status: 404 | 405 | 501, .. }) => Ok(estimate::tokens(request)),
                    Err(fault) => Err(http.failure(&fault).error),
                }
            }
        }
    }
}

/// The demo model's sampling, at its own pace.
fn demo_steps(request: &ModelRequest) -> Sampling {
    let steps = stream::iter(demo::respond(request));
    steps
        .filter_map(|step| async move {
            match step {
                demo::Step::Event(event) => Some(event),
                demo::Step::SleepMs(millis) => {
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                    None
                }
            }
        })
        .boxed()
}

fn beta_header(betas: &[String]) -> Option<(HeaderName, HeaderValue)> {
    let value = anthropic::beta_header(betas)?;
    Some((BETA_HEADER, HeaderValue::from_str(&value).ok()?))
}

/// The base URL without a slash at its end.
fn base(address: &Address) -> Result<String, AddressError> {
    // User and query may hold a key.
    let shown = address.base_url.split(['?', '#']).next().and_then(|url| url.split('@').next_back());
    let wrong = || AddressError::Url(shown.unwrap_or_default().to_owned());
    let url = reqwest::Url::parse(&address.base_url).map_err(|_| wrong())?;
    let plain = matches!(url.scheme(), "http" | "https") && url.has_host();
    let nothing_else =
        url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
    if plain && nothing_else { Ok(url.as_str().trim_end_matches('/').to_owned()) } else { Err(wrong()) }
}

fn headers(address: &Address) -> Result<HeaderMap, AddressError> {
    let mut headers = HeaderMap::new();
    match address.dialect {
        Dialect::Anthropic => {
            headers.insert(VERSION_HEADER, VERSION);
        }
        Dialect::OpenAi => {}
    }
    if let Some(key) = &address.key {
        let usual = match address.dialect {
            Dialect::Anthropic => KeyHeader::XApiKey,
            Dialect::OpenAi => KeyHeader::Bearer,
        };
        let (name, value) = match address.key_header.unwrap_or(usual) {
            KeyHeader::XApiKey => (HeaderName::from_static("x-api-key"), key.clone()),
            KeyHeader::Bearer => (AUTHORIZATION, format!("Bearer {key}")),
        };
        headers.insert(name, secret_value(&value).ok_or(AddressError::Key)?);
    }
    for (name, value) in &address.headers {
        let parsed = HeaderName::try_from(name).ok().zip(secret_value(value));
        let (name, value) = parsed.ok_or_else(|| AddressError::Header(name.clone()))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

/// A value that debug output leaves out.
fn secret_value(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// What an upstream's own words must not give away: longer ones first, so that none is left in part.
fn secrets(address: &Address, base: &str) -> Vec<String> {
    let authority = base.split("//").nth(1).and_then(|rest| rest.split('/').next());
    // A word such as `vllm` alone tells nothing, and may be meant otherwise.
    let authority = authority.filter(|authority| authority.contains(['.', ':'])).map(str::to_owned);
    let values = address.headers.iter().map(|(_, value)| value.clone());
    let mut secrets: Vec<String> =
        values.chain(address.key.clone()).chain([base.to_owned()]).chain(authority).filter(|s| s.len() > 3).collect();
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(base_url: &str) -> Address {
        Address {
            dialect: Dialect::Anthropic,
            base_url: base_url.into(),
            model: "m".into(),
            key: None,
            key_header: None,
            max_tokens_field: MaxTokensField::default(),
            headers: Vec::new(),
        }
    }

    #[test]
    fn a_base_url_is_an_address_and_nothing_else() {
        for (given, url) in [
            ("https://api.example", "https://api.example/v1"),
            ("https://api.example/", "https://api.example/v1"),
            ("https://api.example/v1/", "https://api.example/v1"),
            ("http://127.0.0.1:8000/proxy", "http://127.0.0.1:8000/proxy/v1"),
        ] {
            let Upstream(Kind::Http { url: made, .. }) = Upstream::http(&address(given)).unwrap() else { panic!() };
            assert_eq!(made, url, "{given}");
        }
        for (given, url) in [
            ("https://api.example", "https://api.example/v1"),
            ("https://api.example/v1/", "https://api.example/v1"),
            ("http://127.0.0.1:8000/openai/v2", "http://127.0.0.1:8000/openai/v2"),
        ] {
            let chat = Address { dialect: Dialect::OpenAi, ..address(given) };
            let Upstream(Kind::Http { url: made, .. }) = Upstream::http(&chat).unwrap() else { panic!() };
            assert_eq!(made, url, "{given}");
        }
        for wrong in [
            "",
            "api.example",
            "ftp://api.example",
            "https://u:secret@api.example",
            "https://api.example?key=secret",
            "https://x#y",
        ] {
            let message = Upstream::http(&address(wrong)).err().unwrap().to_string();
            assert!(message.contains("https://host") && !message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn the_key_goes_where_it_is_wanted() {
        for (key_header, name, value) in [
            (None, "x-api-key", "sk-1"),
            (Some(KeyHeader::XApiKey), "x-api-key", "sk-1"),
            (Some(KeyHeader::Bearer), "authorization", "Bearer sk-1"),
        ] {
            let address = Address { key: Some("sk-1".into()), key_header, ..address("https://api.example") };
            let headers = headers(&address).unwrap();
            assert_eq!(headers[name], value);
            assert_eq!(headers.len(), 2, "the key and the version");
            assert!(!format!("{headers:?}").contains("sk-1"));
        }
        let broken = Address { key: Some("sk\n1".into()), ..address("https://api.example") };
        assert!(matches!(headers(&broken), Err(AddressError::Key)));
        let broken = Address { headers: vec![("a b".into(), "c".into())], ..address("https://api.example") };
        assert!(matches!(headers(&broken), Err(AddressError::Header(_))));
    }

    #[test]
    fn keys_and_addresses_are_secret() {
        let address = Address {
            key: Some("sk-1".into()),
            headers: vec![("x-more".into(), "more-secret".into())],
            ..address("http://10.0.0.7:8000/v1")
        };
        let base = base(&address).unwrap();
        assert_eq!(secrets(&address, &base), ["http://10.0.0.7:8000/v1", "10.0.0.7:8000", "more-secret", "sk-1"]);
    }
}
