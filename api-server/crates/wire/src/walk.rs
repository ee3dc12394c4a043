//! Reading a JSON value by hand, so that every refusal names the path of what is wrong.

use serde_json::{Map, Value};

use crate::ApiError;

/// A 400 in the contract's form.
pub(crate) fn wrong(path: &str, reason: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(format!("{path}: {reason}"))
}

pub(crate) fn extra(path: &str) -> ApiError {
    wrong(path, "Extra inputs are not permitted")
}

/// The field, unless it is absent or null.
pub(crate) fn field<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

pub(crate) fn object<'a>(value: &'a Value, path: &str) -> Result<&'a Map<String, Value>, ApiError> {
    value.as_object().ok_or_else(|| wrong(path, "Input should be a valid dictionary"))
}

pub(crate) fn array<'a>(value: &'a Value, path: &str) -> Result<&'a [Value], ApiError> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| wrong(path, "Input should be a valid list"))
}

pub(crate) fn string<'a>(value: &'a Value, path: &str) -> Result<&'a str, ApiError> {
    value.as_str().ok_or_else(|| wrong(path, "Input should be a valid string"))
}

pub(crate) fn boolean(value: &Value, path: &str) -> Result<bool, ApiError> {
    value.as_bool().ok_or_else(|| wrong(path, "Input should be a valid boolean"))
}

/// The string under `name` of an object at `path`.
pub(crate) fn required_string<'a>(object: &'a Map<String, Value>, path: &str, name: &str) -> Result<&'a str, ApiError> {
    let at = join(path, name);
    string(object.get(name).ok_or_else(|| wrong(&at, "Field required"))?, &at)
}

pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Refuses keys that are not in `known`.
pub(crate) fn no_extras(object: &Map<String, Value>, path: &str, known: &[&str]) -> Result<(), ApiError> {
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(extra(&join(path, key))),
        None => Ok(()),
    }
}
