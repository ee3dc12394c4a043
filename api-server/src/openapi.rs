//! The description of the API, `/openapi.json`: made of the types that are printed and read and of one table of
//! operations.

mod operations;
mod schemas;

use axum::response::IntoResponse;
use http::header;
use operations::{ALL, Answer, Body, Operation, Parameter};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use wire::{ErrorType, Surface};

static DOCUMENT: LazyLock<String> = LazyLock::new(|| description().to_string());

/// `GET /openapi.json`.
pub async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// The paths and methods that are described; what a GET answers, a HEAD does too.
#[cfg(test)]
pub fn described() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALL.iter().flat_map(|operation| match operation.method {
        "GET" => vec![(operation.path, "GET"), (operation.path, "HEAD")],
        method => vec![(operation.path, method)],
    })
}

fn description() -> Value {
    let mut paths = Map::new();
    for operation in ALL {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method.to_ascii_lowercase()] = operation.description();
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "codeexec",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "The Messages and Files API with code execution, self-hosted.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "key": [] }, { "bearer": [] }],
        "tags": [
            { "name": "Anthropic", "description": "Messages, models, and the files of a workspace." },
            { "name": "Zylon", "description": "Messages, models, and the files of containers." },
            { "name": "Server", "description": "About the server itself; without a key." },
        ],
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "responses": responses(),
            "headers": {
                "RequestId": {
                    "description": "The request's id, as in errors and in the server's log.",
                    "required": true,
                    "schema": { "type": "string", "pattern": "^req_[0-9A-Z]{26}$" },
                },
                "RetryAfter": {
                    "description": "Seconds until the same request may succeed.",
                    "required": true,
                    "schema": { "type": "integer", "minimum": 0 },
                },
            },
            "securitySchemes": {
                "key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
                "bearer": { "type": "http", "scheme": "bearer" },
            },
        },
    })
}

/// Statuses of errors, and the `error.type` of each.
const ERRORS: &[(u16, ErrorType, &str)] = &[
    (400, ErrorType::InvalidRequest, "The request is not valid; the message says where."),
    (401, ErrorType::Authentication, "No key, or a wrong one."),
    (403, ErrorType::Permission, "Not allowed."),
    (404, ErrorType::NotFound, "There is no such thing, or it is somebody else's."),
    (409, ErrorType::Conflict, "Something else is changing the same thing."),
    (412, ErrorType::InvalidRequest, "The file is not the one that `If-Match` or `If-None-Match` asks for."),
    (413, ErrorType::RequestTooLarge, "The body or the file is too large."),
    (416, ErrorType::InvalidRequest, "The range is not in the file."),
    (429, ErrorType::RateLimit, "Too much at a time, here or at the model's server."),
    (500, ErrorType::Api, "Something went wrong here, or at the model's server."),
    (504, ErrorType::Timeout, "The model's server, or the whole turn, took too long."),
    (529, ErrorType::Overloaded, "Overloaded, here or at the model's server, or there is no sandbox to be had."),
];

fn headers_of(status: u16) -> Value {
    let mut headers = json!({ "request-id": reference("headers", "RequestId") });
    if matches!(status, 429 | 529) {
        headers["retry-after"] = reference("headers", "RetryAfter");
    }
    headers
}

fn responses() -> Map<String, Value> {
    let mut responses = Map::new();
    for (surface, base) in [(Surface::Anthropic, "Error"), (Surface::Zylon, "ZylonError")] {
        for (status, kind, text) in ERRORS {
            let schema = json!({ "allOf": [
                reference("schemas", base),
                { "properties": { "error": { "properties": { "type": { "const": kind.name() } } } } },
            ] });
            let response = json!({
                "description": text,
                "headers": headers_of(*status),
                "content": { "application/json": { "schema": schema } },
            });
            responses.insert(response_name(surface, *status), response);
        }
    }
    responses
}

fn response_name(surface: Surface, status: u16) -> String {
    match surface {
        Surface::Anthropic => format!("Error{status}"),
        Surface::Zylon => format!("ZylonError{status}"),
    }
}

fn reference(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
}

impl Operation {
    fn surface(&self) -> Surface {
        if self.path.starts_with("/api/") { Surface::Zylon } else { Surface::Anthropic }
    }

    fn description(&self) -> Value {
        let is_open = !self.path.starts_with("/api/") && !self.path.starts_with("/v1/");
        let tag = match self.surface() {
            _ if is_open => "Server",
            Surface::Anthropic => "Anthropic",
            Surface::Zylon => "Zylon",
        };
        let mut operation = json!({ "operationId": self.id, "summary": self.summary, "tags": [tag] });
        let parameters = self.parameters.iter().flat_map(|group| group.iter()).map(Parameter::description);
        let parameters: Vec<Value> = self.path_parameters().chain(parameters).collect();
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if let Some(body) = &self.body {
            operation["requestBody"] = body.description();
        }
        if is_open {
            operation["security"] = json!([]);
        }
        operation["responses"] = self.responses(is_open).into();
        operation
    }

    /// What stands in braces in the path.
    fn path_parameters(&self) -> impl Iterator<Item = Value> {
        let names = self.path.split('{').skip(1).filter_map(|part| part.split('}').next());
        names.map(|name| {
            json!({ "name": name, "in": "path", "required": true, "description": self.named, "schema": { "type": "string", "minLength": 1 } })
        })
    }

    fn responses(&self, is_open: bool) -> Map<String, Value> {
        let mut responses: Map<String, Value> =
            self.answers.iter().map(|(status, answer)| (status.to_string(), self.answered(*status, answer))).collect();
        let known = if is_open { &[][..] } else { &[401, 403, 500][..] };
        for status in known.iter().chain(self.errors.iter().copied().flatten()) {
            let name = response_name(self.surface(), *status);
            let response = if self.method == "HEAD" {
                json!({ "description": "As that of GET, without its body.", "headers": headers_of(*status) })
            } else {
                reference("responses", &name)
            };
            // An answer of its own goes before.
            responses.entry(status.to_string()).or_insert(response);
        }
        responses
    }

    fn answered(&self, status: u16, answer: &Answer) -> Value {
        let mut headers = headers_of(status);
        for (name, text) in answer.headers() {
            headers[*name] = json!({ "description": text, "schema": { "type": "string" } });
        }
        let mut response = json!({ "description": answer.text(), "headers": headers });
        if self.method != "HEAD"
            && let Some(content) = answer.content(self.surface())
        {
            response["content"] = content;
        }
        response
    }
}

impl Parameter {
    fn description(&self) -> Value {
        let Self { name, place, required, schema, text } = self;
        json!({ "name": name, "in": place, "required": required, "description": text, "schema": schema() })
    }
}

impl Body {
    fn description(&self) -> Value {
        let content = match self {
            Self::Json(name) => json!({ "application/json": { "schema": reference("schemas", name) } }),
            Self::Form(schema) => json!({ "multipart/form-data": { "schema": schema() } }),
            Self::Bytes => {
                json!({ "application/octet-stream": { "schema": { "type": "string", "format": "binary" } } })
            }
        };
        json!({ "required": true, "content": content })
    }
}
