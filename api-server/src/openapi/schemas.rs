//! The shapes of bodies.

use schemars::{
    JsonSchema, SchemaGenerator,
    generate::{Contract, SchemaSettings},
};
use serde_json::{Map, Value, json};
use wire::{
    DeletedFile, DeletedPrefix, ErrorBody, FileList, FileMetadata, ModelBody, ModelList, SessionFile, SessionFileList,
    response::MessageBody,
    schema::{MessagesBody, TokenCount, Validation},
    stream::EventBody,
};

/// Where schemas are in the document.
const PLACE: &str = "/components/schemas";

/// All of them, by their names.
pub fn all() -> Map<String, Value> {
    let mut schemas = printed();
    merge(&mut schemas, read());
    let zylon = variant(schemas.get("MessagesRequest"), &["messages"], &[], true);
    schemas.insert("ZylonMessagesRequest".to_owned(), zylon);
    // Nothing is answered, and nothing runs.
    let counted = [
        "max_tokens",
        "container",
        "stream",
        "stop_sequences",
        "metadata",
        "service_tier",
        "inference_geo",
        "diagnostics",
    ];
    let count = variant(schemas.get("MessagesRequest"), &["model", "messages"], &counted, false);
    schemas.insert("CountTokensRequest".to_owned(), count);
    let error = json!({
        "description": "An error of the Zylon surface.",
        "allOf": [
            { "$ref": format!("#{PLACE}/Error") },
            { "required": ["detail"], "properties": { "error": { "required": ["detail"] } } },
        ],
    });
    schemas.insert("ZylonError".to_owned(), error);
    schemas
}

fn generator(contract: Contract) -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        PLACE.clone_into(settings.definitions_path.to_mut());
        settings.meta_schema = None;
        settings.contract = contract;
    });
    settings.into_generator()
}

fn printed() -> Map<String, Value> {
    let mut generator = generator(Contract::Serialize);
    let mut add = Add(&mut generator);
    add.one::<MessageBody<'_>>().one::<EventBody<'_>>().one::<TokenCount>().one::<Validation>().one::<ErrorBody>();
    add.one::<ModelBody>().one::<ModelList>().one::<FileMetadata>().one::<FileList>().one::<DeletedFile>();
    add.one::<SessionFile>().one::<SessionFileList>().one::<DeletedPrefix>();
    generator.take_definitions(true)
}

fn read() -> Map<String, Value> {
    let mut generator = generator(Contract::Deserialize);
    Add(&mut generator).one::<MessagesBody>();
    generator.take_definitions(true)
}

struct Add<'a>(&'a mut SchemaGenerator);

impl Add<'_> {
    fn one<T: JsonSchema>(&mut self) -> &mut Self {
        // Only its definition counts.
        let _ = self.0.subschema_for::<T>();
        self
    }
}

/// Adds what is read. A type that is printed as well, with other fields required, gets a name of its own.
fn merge(schemas: &mut Map<String, Value>, mut read: Map<String, Value>) {
    let own: Vec<String> = read
        .iter()
        .filter(|(name, schema)| schemas.get(*name).is_some_and(|other| other != *schema))
        .map(|(name, _)| name.clone())
        .collect();
    let place = |name: &str| format!("#{PLACE}/{name}");
    let renamed: Vec<(String, String)> = own.iter().map(|name| (place(name), place(&format!("Input{name}")))).collect();
    read.values_mut().for_each(|schema| rename(schema, &renamed));
    for (name, schema) in read {
        let name = if own.contains(&name) { format!("Input{name}") } else { name };
        schemas.entry(name).or_insert(schema);
    }
}

fn rename(schema: &mut Value, renamed: &[(String, String)]) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match renamed.iter().find(|(from, _)| key == "$ref" && *value == **from) {
                    Some((_, to)) => *value = to.clone().into(),
                    None => rename(value, renamed),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| rename(value, renamed)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Another form of a request: what it requires, what it lacks, and whether fields that nobody knows are ignored.
fn variant(base: Option<&Value>, required: &[&str], lacks: &[&str], ignores: bool) -> Value {
    let mut schema = base.cloned().unwrap_or_default();
    schema["required"] = json!(required);
    if let Some(fields) = schema["properties"].as_object_mut() {
        fields.retain(|name, _| !lacks.contains(&name.as_str()));
    }
    if let Some(fields) = schema.as_object_mut().filter(|_| ignores) {
        fields.shift_remove("additionalProperties");
    }
    schema
}
