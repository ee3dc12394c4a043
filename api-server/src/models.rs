//! The models: which there are at start, and the routes that show them, on both surfaces.

use crate::{
    App,
    config::{Config, ProviderKind},
    failure::Failure,
    request::Id,
};
use anyhow::{anyhow, bail};
use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use http::{HeaderMap, HeaderName};
use providers::{ModelEntry, Models, ModelsError, UpstreamEntry, UpstreamKind};
use std::{ops::Range, sync::Arc};
use wire::{ApiError, ModelBody, ModelList};

static BETA: HeaderName = HeaderName::from_static("anthropic-beta");
/// Models of a page, unless the request says otherwise, and at most.
const PAGE: usize = 20;
const MAX_PAGE: usize = 1000;
/// What a model without a name of its own is called.
const DEMO: &str = "demo";
/// In what state a model can be; here all are the first.
const LIFECYCLES: [&str; 3] = ["active", "deprecated", "retired"];

/// The models that the settings name. The error is one sentence for the person who started the server.
pub fn configured(config: &Config) -> anyhow::Result<Models> {
    let one = config.provider_url.is_some() || config.provider_key_file.is_some() || config.model.is_some();
    match (&config.models_file, config.provider) {
        (Some(path), ProviderKind::Demo) if !one => Models::open(path.clone()).map_err(|error| told(&error)),
        (Some(_), _) => bail!(
            "the models file names every model; leave out --model, --provider, --provider-url and --provider-key-file, or the file"
        ),
        (None, kind) => {
            let kind = match kind {
                ProviderKind::Demo => UpstreamKind::Demo,
                ProviderKind::Anthropic => UpstreamKind::Anthropic,
                ProviderKind::OpenAi => UpstreamKind::OpenAi,
            };
            let name = match (&config.model, kind) {
                (Some(name), _) => name,
                (None, UpstreamKind::Demo) => DEMO,
                (None, UpstreamKind::Anthropic | UpstreamKind::OpenAi) => {
                    bail!("--provider needs --model as well: the name by which the upstream knows its model")
                }
            };
            let upstream = UpstreamEntry {
                base_url: config.provider_url.clone(),
                api_key_file: config.provider_key_file.clone(),
                ..UpstreamEntry::of(kind)
            };
            Models::single(ModelEntry::of(name, upstream)).map_err(|error| told(&error))
        }
    }
}

/// Its sentence names its cause already, which must not be told twice.
fn told(error: &ModelsError) -> anyhow::Error {
    anyhow!("{error}")
}

/// The client's `anthropic-beta`: a list, in one header or several.
pub fn betas(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(&BETA).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|beta| beta.trim().to_owned()).collect()
}

/// `GET /v1/models`: a page.
pub async fn list(
    State(app): State<Arc<App>>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<ModelList>, Failure> {
    let Query(query) = query.map_err(|_| ApiError::invalid("The query cannot be read."))?;
    let query = PageQuery::read(&query)?;
    let catalog = app.models.catalog();
    let models = if query.active { catalog.models() } else { &[] };
    let ids: Vec<&str> = models.iter().map(|model| model.info.id.as_str()).collect();
    let (range, has_more) = query.page(&ids)?;
    let page = ids.get(range.clone()).unwrap_or_default();
    let id = |id: Option<&&str>| id.map(|id| (*id).to_owned());
    Ok(Json(ModelList {
        first_id: id(page.first()),
        last_id: id(page.last()),
        data: models.get(range).unwrap_or_default().iter().map(|model| model.info.body(app.repl)).collect(),
        has_more,
    }))
}

/// `GET /v1/models/{id}`; an alias shows the model that it stands for.
pub async fn retrieve(State(app): State<Arc<App>>, Id(id): Id) -> Result<Json<ModelBody>, Failure> {
    Ok(Json(app.models.catalog().find(&id)?.info.body(app.repl)))
}

struct PageQuery<'a> {
    limit: usize,
    after: Option<&'a str>,
    before: Option<&'a str>,
    active: bool,
}

impl<'a> PageQuery<'a> {
    /// Parameters that are not known are nobody's business.
    fn read(query: &'a [(String, String)]) -> Result<Self, ApiError> {
        let get = |wanted: &str| query.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        let wrong_limit = || ApiError::invalid(format!("limit: Input should be a valid integer from 1 to {MAX_PAGE}"));
        let limit = match get("limit") {
            None => PAGE,
            Some(text) => text.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit)).ok_or_else(wrong_limit)?,
        };
        let (after, before) = (get("after_id"), get("before_id"));
        if after.is_some() && before.is_some() {
            return Err(ApiError::invalid("before_id: may not be given together with `after_id`"));
        }
        let states = query.iter().filter(|(name, _)| name == "lifecycle[]" || name == "lifecycle");
        let states: Vec<&str> = states.map(|(_, value)| value.as_str()).collect();
        if let Some(unknown) = states.iter().find(|state| !LIFECYCLES.contains(state)) {
            let unknown: String = unknown.chars().take(100).collect();
            return Err(ApiError::invalid(format!(
                "lifecycle: `{unknown}` should be 'active', 'deprecated' or 'retired'"
            )));
        }
        Ok(Self { limit, after, before, active: states.is_empty() || states.contains(&LIFECYCLES[0]) })
    }

    /// Which of the ids are on the page, and whether more follow in the direction of the walk.
    fn page(&self, ids: &[&str]) -> Result<(Range<usize>, bool), ApiError> {
        let place = |name: &str, cursor: &str| {
            let unknown = || ApiError::invalid(format!("{name}: there is no such model"));
            ids.iter().position(|id| *id == cursor).ok_or_else(unknown)
        };
        if let Some(cursor) = self.before {
            let end = place("before_id", cursor)?;
            let start = end.saturating_sub(self.limit);
            return Ok((start..end, start > 0));
        }
        let start = self.after.map_or(Ok(0), |cursor| Ok(place("after_id", cursor)? + 1))?;
        let end = ids.len().min(start + self.limit);
        Ok((start..end, end < ids.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(pairs: &[(&str, &str)]) -> Result<(Range<usize>, bool), String> {
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let ids = ["a", "b", "c", "d", "e"];
        let query = PageQuery::read(&pairs).map_err(|error| error.message)?;
        query.page(if query.active { &ids } else { &[] }).map_err(|error| error.message)
    }

    #[test]
    fn pages_are_walked_both_ways() {
        for (name, query, expected) in [
            ("all", &[][..], (0..5, false)),
            ("the first", &[("limit", "2")], (0..2, true)),
            ("the next", &[("limit", "2"), ("after_id", "b")], (2..4, true)),
            ("the last", &[("limit", "2"), ("after_id", "d")], (4..5, false)),
            ("behind the last", &[("after_id", "e")], (5..5, false)),
            ("back", &[("limit", "2"), ("before_id", "d")], (1..3, true)),
            ("back to the first", &[("limit", "2"), ("before_id", "b")], (0..1, false)),
            ("active ones", &[("lifecycle[]", "retired"), ("lifecycle[]", "active")], (0..5, false)),
            ("retired ones", &[("lifecycle[]", "retired")], (0..0, false)),
            ("what is not known", &[("beta", "true")], (0..5, false)),
        ] {
            assert_eq!(page(query), Ok(expected), "{name}");
        }
        for (query, words) in [
            (&[("limit", "0")][..], "limit: "),
            (&[("limit", "1001")], "limit: "),
            (&[("limit", "many")], "limit: "),
            (&[("after_id", "z")], "after_id: "),
            (&[("before_id", "z")], "before_id: "),
            (&[("after_id", "a"), ("before_id", "c")], "before_id: "),
            (&[("lifecycle[]", "tired")], "lifecycle: `tired`"),
        ] {
            let message = page(query).unwrap_err();
            assert!(message.starts_with(words), "{message}");
        }
    }

    #[test]
    fn betas_are_a_list_in_one_header_or_several() {
        let mut headers = HeaderMap::new();
        assert!(betas(&headers).is_empty());
        headers.append(&BETA, "a,b".parse().unwrap());
        headers.append(&BETA, " c , d".parse().unwrap());
        assert_eq!(betas(&headers), ["a", "b", "c", "d"]);
    }
}
