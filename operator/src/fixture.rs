//! Objects for tests, with names that are no defaults.

use crds::{Sandbox, SandboxSpec, SandboxTemplate, SandboxTemplateSpec};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

pub(crate) const UID: &str = "7d3a0c52-aaaa-4bbb-8ccc-1234567890ab";
pub(crate) const NAMESPACE: &str = "boxes";
pub(crate) const NAME: &str = "notebook.anna";

/// Seconds after the sandbox was created.
pub(crate) fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub(crate) fn template(spec: &Value) -> SandboxTemplate {
    SandboxTemplate::new("python", serde_json::from_value::<SandboxTemplateSpec>(spec.clone()).unwrap())
}

pub(crate) fn sandbox(spec: &Value) -> Sandbox {
    let mut sandbox = Sandbox::new(NAME, serde_json::from_value::<SandboxSpec>(spec.clone()).unwrap());
    sandbox.metadata.namespace = Some(NAMESPACE.to_owned());
    sandbox.metadata.uid = Some(UID.to_owned());
    sandbox.metadata.resource_version = Some("1".to_owned());
    sandbox.metadata.generation = Some(1);
    sandbox.metadata.creation_timestamp = Some(Time(time(0)));
    sandbox
}
