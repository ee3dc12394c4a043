//! The definitions as a cluster takes them.

use crate::{Sandbox, SandboxTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

/// All definitions, in the order in which they are printed.
pub fn definitions() -> [CustomResourceDefinition; 2] {
    [Sandbox::crd(), SandboxTemplate::crd()].map(without_nulls)
}

/// Makes `field: null` mean the same as leaving the field out, as it does in the resources of Kubernetes itself: a null that is
/// not allowed is dropped by the API server, one that is allowed would count as set in every rule.
fn without_nulls(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut definition.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            forbid_null(schema);
        }
    }
    definition
}

fn forbid_null(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(forbid_null);
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => forbid_null(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(forbid_null),
        None => {}
    }
    match &mut schema.additional_properties {
        Some(JSONSchemaPropsOrBool::Schema(values)) => forbid_null(values),
        Some(JSONSchemaPropsOrBool::Bool(_)) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        serde_json::to_string(&definitions()).unwrap()
    }

    #[test]
    fn null_means_unset_everywhere() {
        assert!(!text().contains("nullable"));
    }

    #[test]
    fn every_field_is_documented() {
        fn undocumented(path: &str, schema: &JSONSchemaProps, found: &mut Vec<String>) {
            for (name, field) in schema.properties.iter().flatten() {
                let path = format!("{path}.{name}");
                if field.description.as_ref().is_none_or(|text| text.len() < 10) {
                    found.push(path.clone());
                }
                undocumented(&path, field, found);
                if let Some(JSONSchemaPropsOrArray::Schema(items)) = &field.items {
                    undocumented(&path, items, found);
                }
            }
        }
        let mut found = Vec::new();
        for definition in definitions() {
            let schema = definition.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
            undocumented(&definition.spec.names.kind, &schema, &mut found);
        }
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn helm_keeps_the_definitions_and_finds_nothing_to_expand() {
        for definition in definitions() {
            let annotations = definition.metadata.annotations.unwrap();
            assert_eq!(annotations["helm.sh/resource-policy"], "keep");
        }
        assert!(!text().contains("{{"));
    }

    #[test]
    fn every_rule_has_a_sentence() {
        let rules = text().matches("\"rule\":").count();
        assert!(rules > 5);
        assert_eq!(text().matches("\"message\":\"").count(), rules);
    }
}
