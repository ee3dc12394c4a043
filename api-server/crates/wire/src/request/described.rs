//! The described shapes and what is read are the same fields.

use std::collections::BTreeSet;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::{OPTIONS, READ, SAMPLING, blocks::KNOWN};
use crate::SUPPORTED_SERVER_TOOLS;
use crate::schema::MessagesBody;

fn described() -> Value {
    SchemaSettings::draft2020_12().for_deserialize().into_generator().into_root_schema_for::<MessagesBody>().to_value()
}

/// Every constant under a schema's `property`, through references.
fn constants<'a>(root: &'a Value, schema: &'a Value, found: &mut BTreeSet<&'a str>) {
    if let Some(place) = schema["$ref"].as_str().and_then(|place| place.strip_prefix('#')) {
        constants(root, root.pointer(place).unwrap(), found);
    }
    found.extend(schema["const"].as_str());
    found.extend(schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str));
    for choice in ["oneOf", "anyOf"].into_iter().flat_map(|choice| schema[choice].as_array().into_iter().flatten()) {
        constants(root, choice, found);
        constants(root, &choice["properties"]["type"], found);
    }
    constants_of_type(root, schema, found);
}

fn constants_of_type<'a>(root: &'a Value, schema: &'a Value, found: &mut BTreeSet<&'a str>) {
    let kind = &schema["properties"]["type"];
    if !kind.is_null() {
        constants(root, kind, found);
    }
}

fn keys(schema: &Value) -> BTreeSet<&str> {
    schema["properties"].as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn every_field_that_is_read_is_described_and_no_other() {
    let schema = described();
    // A thread is read to be refused.
    let read: BTreeSet<_> = READ.into_iter().chain(OPTIONS).chain(SAMPLING).filter(|name| *name != "thread").collect();
    assert_eq!(keys(&schema), read);
}

#[test]
fn every_block_and_tool_that_is_known_is_described_and_no_other() {
    let schema = described();
    let types = |name: &str| {
        let mut found = BTreeSet::new();
        constants(&schema, &schema["$defs"][name], &mut found);
        found
    };
    assert_eq!(types("InputBlock"), BTreeSet::from(KNOWN));
    assert_eq!(types("CodeExecutionType"), BTreeSet::from(SUPPORTED_SERVER_TOOLS));
}
