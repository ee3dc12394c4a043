//! The rules of the types, evaluated as the API server does.

#![expect(clippy::unwrap_used, reason = "a test ends with a panic")]

use crds::{Sandbox, SandboxSpec, SandboxTemplate, SandboxTemplateSpec};
use serde_json::{Value, json};

fn sandbox(spec: &Value) -> Sandbox {
    Sandbox::new("notebook", serde_json::from_value::<SandboxSpec>(spec.clone()).unwrap())
}

fn template(spec: &Value) -> SandboxTemplate {
    SandboxTemplate::new("python", serde_json::from_value::<SandboxTemplateSpec>(spec.clone()).unwrap())
}

/// The refusal's text, or nothing.
fn refusal<E: std::fmt::Debug>(result: Result<(), E>) -> String {
    result.err().map_or_else(String::new, |error| format!("{error:?}"))
}

#[test]
fn sandboxes_that_could_never_work_are_refused_with_a_sentence() {
    let rows = [
        ("nothing said", json!({}), ""),
        ("held", json!({ "replicas": 0 }), ""),
        ("a lifetime", json!({ "lifecycle": { "maxLifetime": "720h", "onExpiry": "Retain" } }), ""),
        ("no lifetime at all", json!({ "lifecycle": { "maxLifetime": "0s" } }), "longer than 0s"),
        ("no start at all", json!({ "lifecycle": { "startTimeout": "0s" } }), "startTimeout must"),
        ("an existing claim", json!({ "workspace": { "existingClaim": { "name": "a", "subPath": "b" } } }), ""),
        (
            "an existing claim of another size",
            json!({ "workspace": { "existingClaim": { "name": "a" }, "size": "2Gi" } }),
            "has its own size",
        ),
        ("an end that the template names", json!({ "lifecycle": { "onExpiry": "Retain" } }), ""),
    ];
    for (row, spec, expected) in rows {
        let said = refusal(sandbox(&spec).validate_cel());
        assert_eq!(said.is_empty(), expected.is_empty(), "{row}: {said}");
        assert!(said.contains(expected), "{row}: {said}");
    }
}

#[test]
fn what_cannot_be_changed_is_refused_with_a_sentence() {
    let named = json!({ "templateRef": { "name": "python" }, "workspace": { "size": "2Gi" } });
    let rows = [
        ("same", named.clone(), named.clone(), ""),
        (
            "held",
            named.clone(),
            json!({ "replicas": 0, "templateRef": { "name": "python" }, "workspace": { "size": "2Gi" } }),
            "",
        ),
        (
            "other template",
            json!({ "templateRef": { "name": "a" } }),
            json!({ "templateRef": { "name": "b" } }),
            "templateRef cannot",
        ),
        ("template set later", json!({}), json!({ "templateRef": { "name": "b" } }), "templateRef cannot"),
        ("template unset later", json!({ "templateRef": { "name": "a" } }), json!({}), "templateRef cannot"),
        ("a larger size", json!({ "workspace": { "size": "1Gi" } }), json!({ "workspace": { "size": "2Gi" } }), ""),
        ("a size set later", json!({}), json!({ "workspace": { "size": "2Gi" } }), ""),
        (
            "a smaller size",
            json!({ "workspace": { "size": "2Gi" } }),
            json!({ "workspace": { "size": "2000Mi" } }),
            "may only grow",
        ),
        ("a size unset later", json!({ "workspace": { "size": "2Gi" } }), json!({ "workspace": {} }), "may only grow"),
        ("the workspace unset later", json!({ "workspace": {} }), json!({}), "taken away"),
        (
            "a class set later",
            json!({ "workspace": { "size": "2Gi" } }),
            json!({ "workspace": { "size": "2Gi", "storageClassName": "fast" } }),
            "only the size",
        ),
        (
            "another claim",
            json!({ "workspace": { "existingClaim": { "name": "a" } } }),
            json!({ "workspace": { "existingClaim": { "name": "b" } } }),
            "only the size",
        ),
        (
            "another end",
            json!({ "workspace": { "whenDeleted": "Retain" } }),
            json!({ "workspace": { "whenDeleted": "Delete" } }),
            "only the size",
        ),
        ("a claim set later", json!({}), json!({ "workspace": { "existingClaim": { "name": "a" } } }), "only the size"),
        ("idle time", json!({}), json!({ "lifecycle": { "idleTimeout": "1h" } }), ""),
    ];
    for (row, old, new, expected) in rows {
        let said = refusal(sandbox(&new).validate_cel_update(&sandbox(&old)));
        assert_eq!(said.is_empty(), expected.is_empty(), "{row}: {said}");
        assert!(said.contains(expected), "{row}: {said}");
    }
}

#[test]
fn templates_that_could_never_work_are_refused_with_a_sentence() {
    let with = |field: &str, value: Value| {
        let mut spec = json!({ "image": "python:3" });
        spec[field] = value;
        spec
    };
    let resources = |request: Value, limit: Value| {
        with("resources", json!({ "requests": { "cpu": request }, "limits": { "cpu": limit } }))
    };
    let rows = [
        ("an image", json!({ "image": "python:3" }), ""),
        ("requests below limits", resources(json!("500m"), json!(1)), ""),
        ("requests above limits", resources(json!(2), json!("1500m")), "requests.cpu must not"),
        ("a claim for all", with("workspace", json!({ "existingClaim": { "name": "a" } })), "use mounts"),
        ("images for nobody", with("allowedImages", json!(["a/*"])), "needs image"),
        ("our label", with("podMetadata", json!({ "labels": { "codeexec.dev/template": "x" } })), "the operator's"),
        ("a label", with("podMetadata", json!({ "labels": { "team": "x" } })), ""),
        ("a mount", with("mounts", json!([{ "claimName": "data", "mountPath": "/mnt/data" }])), ""),
        ("a mount over ours", with("mounts", json!([{ "claimName": "data", "mountPath": "/tmp/x" }])), "is taken"),
        ("a mount over many", with("mounts", json!([{ "claimName": "data", "mountPath": "/mnt" }])), "would hide"),
        ("any taint", with("tolerations", json!([{ "operator": "Exists" }])), ""),
        ("a key", with("tolerations", json!([{ "key": "gpu" }])), ""),
        ("no key", with("tolerations", json!([{ "value": "x" }])), "needs operator: Exists"),
        (
            "any value, and one",
            with("tolerations", json!([{ "key": "a", "operator": "Exists", "value": "x" }])),
            "takes no value",
        ),
        (
            "seconds for nothing",
            with("tolerations", json!([{ "key": "a", "tolerationSeconds": 5 }])),
            "needs effect: NoExecute",
        ),
    ];
    for (row, spec, expected) in rows {
        let said = refusal(template(&spec).validate_cel());
        assert_eq!(said.is_empty(), expected.is_empty(), "{row}: {said}");
        assert!(said.contains(expected), "{row}: {said}");
    }
    let long = SandboxTemplate::new(&"x".repeat(64), template(&json!({ "image": "python:3" })).spec);
    assert!(refusal(long.validate_cel()).contains("63 characters"));
}
