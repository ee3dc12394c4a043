//! Step two: what is wanted. Reads spec and template once; the later steps never look at them again.

use crate::trouble::Trouble;
use crds::{
    ChildName, Duration, Effective, Lifecycle, OnExpiry, Quantity, Reason, Sandbox, SandboxStatus, SandboxTemplate,
    SandboxTemplateSpec, Workspace, child_name, fallback, keys,
};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

/// Which Sandbox, in the version that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Version of the object; a write on it fails when somebody else wrote since.
    pub resource_version: String,
    /// Generation of its spec.
    pub generation: Option<i64>,
}

/// What a pod is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSource {
    /// Name of the template.
    pub template: String,
    /// Its fields.
    pub spec: SandboxTemplateSpec,
    /// Hash over those of the pod.
    pub hash: String,
}

/// A Sandbox with everything resolved that its spec, its template and the fallbacks say.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidSandbox {
    /// Which one.
    pub identity: Identity,
    /// Name of its pod and claim.
    pub child: ChildName,
    /// Whether its pod should exist, lifetime aside.
    pub wanted: bool,
    /// The activity token, if there is one.
    pub activity: Option<String>,
    /// UID of a pod that its user found broken.
    pub replace_pod: Option<String>,
    /// End of its life.
    pub expires_at: Option<Timestamp>,
    /// What then happens.
    pub on_expiry: OnExpiry,
    /// Size of its workspace.
    pub workspace_size: Quantity,
    /// Storage class of its workspace.
    pub storage_class: Option<String>,
    /// What to make its pod of, or why that is unknown.
    pub source: Result<PodSource, Trouble>,
    /// For people and tools.
    pub effective: Effective,
    /// What was reported last.
    pub status: SandboxStatus,
}

/// An object that no API server sends.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the object has no {0}")]
pub struct Incomplete(&'static str);

/// Name of the template of a Sandbox.
pub fn template_name(sandbox: &Sandbox) -> &str {
    sandbox.spec.template_ref.as_ref().map_or(fallback::TEMPLATE, |template| &template.name)
}

/// Resolves a Sandbox. The template is `None` when it does not exist, and an error when it cannot be read.
pub fn validate(
    sandbox: &Sandbox,
    template: Option<Result<&SandboxTemplate, String>>,
) -> Result<ValidSandbox, Incomplete> {
    let identity = Identity {
        namespace: sandbox.namespace().ok_or(Incomplete("namespace"))?,
        name: sandbox.name_any(),
        uid: sandbox.uid().ok_or(Incomplete("uid"))?,
        resource_version: sandbox.resource_version().ok_or(Incomplete("resourceVersion"))?,
        generation: sandbox.metadata.generation,
    };
    let created = sandbox.creation_timestamp().ok_or(Incomplete("creationTimestamp"))?.0;
    let name = template_name(sandbox).to_owned();
    let source = pod_source(&name, template);
    let lifecycles =
        [sandbox.spec.lifecycle.as_ref(), source.as_ref().ok().and_then(|source| source.spec.lifecycle.as_ref())];
    let workspaces =
        [sandbox.spec.workspace.as_ref(), source.as_ref().ok().and_then(|source| source.spec.workspace.as_ref())];
    let effective = effective(name, source.as_ref().ok(), &lifecycles, &workspaces)?;
    Ok(ValidSandbox {
        child: child_name(&identity.name, &identity.uid),
        wanted: sandbox.spec.replicas > 0,
        activity: annotation(sandbox, keys::ACTIVITY),
        replace_pod: annotation(sandbox, keys::REPLACE_POD),
        // A lifetime beyond the end of all calendars is none.
        expires_at: effective
            .max_lifetime
            .and_then(|lifetime| SignedDuration::try_from(lifetime.get()).ok())
            .and_then(|lifetime| created.checked_add(lifetime).ok()),
        on_expiry: effective.on_expiry,
        workspace_size: effective.workspace_size.clone(),
        storage_class: effective.storage_class_name.clone(),
        source,
        effective,
        status: sandbox.status.clone().unwrap_or_default(),
        identity,
    })
}

fn annotation(sandbox: &Sandbox, key: &str) -> Option<String> {
    sandbox.annotations().get(key).filter(|value| !value.is_empty()).cloned()
}

fn pod_source(name: &str, template: Option<Result<&SandboxTemplate, String>>) -> Result<PodSource, Trouble> {
    match template {
        Some(Ok(template)) => {
            Ok(PodSource { template: name.to_owned(), hash: template.spec.pod_hash(), spec: template.spec.clone() })
        }
        Some(Err(error)) => {
            Err(Trouble::new(Reason::TemplateInvalid, format!("SandboxTemplate {name:?} cannot be read: {error}")))
        }
        None => Err(Trouble::new(
            Reason::TemplateNotFound,
            format!("SandboxTemplate {name:?} does not exist in this namespace"),
        )),
    }
}

/// Each value from the first that says one: the sandbox, its template, the fallbacks.
fn effective(
    template: String,
    source: Option<&PodSource>,
    lifecycles: &[Option<&Lifecycle>; 2],
    workspaces: &[Option<&Workspace>; 2],
) -> Result<Effective, Incomplete> {
    let lifecycles = || lifecycles.iter().flatten();
    let workspaces = || workspaces.iter().flatten();
    let size = match workspaces().find_map(|workspace| workspace.size.clone()) {
        Some(size) => size,
        None => fallback::WORKSPACE_SIZE.parse().map_err(|_| Incomplete("workspace size"))?,
    };
    Ok(Effective {
        template,
        image: source.map(|source| source.spec.image.clone()),
        idle_timeout: lifecycles()
            .find_map(|lifecycle| lifecycle.idle_timeout)
            .unwrap_or_else(|| Duration::from(fallback::IDLE_TIMEOUT)),
        max_lifetime: lifecycles().find_map(|lifecycle| lifecycle.max_lifetime).filter(|lifetime| !lifetime.is_zero()),
        on_expiry: lifecycles().find_map(|lifecycle| lifecycle.on_expiry).unwrap_or_default(),
        workspace_size: size,
        storage_class_name: workspaces().find_map(|workspace| workspace.storage_class_name.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use serde_json::json;

    #[test]
    fn what_the_sandbox_says_goes_before_its_template_and_that_before_the_fallbacks() {
        let template = fixture::template(&json!({
            "image": "python:3", "lifecycle": { "idleTimeout": "7m", "maxLifetime": "2h" }, "workspace": { "size": "3Gi" },
        }));
        let sandbox = fixture::sandbox(
            &json!({ "lifecycle": { "idleTimeout": "9m" }, "workspace": { "storageClassName": "fast" } }),
        );
        let valid = validate(&sandbox, Some(Ok(&template))).unwrap();
        assert_eq!(valid.effective.idle_timeout.to_string(), "9m");
        assert_eq!(valid.effective.workspace_size.as_str(), "3Gi");
        assert_eq!(valid.storage_class.as_deref(), Some("fast"));
        assert_eq!(valid.expires_at, Some(fixture::time(7200)));
        let bare = validate(&fixture::sandbox(&json!({})), None).unwrap();
        assert_eq!(bare.effective.idle_timeout.to_string(), "5m");
        assert_eq!(bare.effective.workspace_size.as_str(), "5Gi");
        assert_eq!(bare.source.unwrap_err().reason, Reason::TemplateNotFound);
    }

    #[test]
    fn a_lifetime_beyond_all_calendars_is_none() {
        let sandbox = fixture::sandbox(&json!({ "lifecycle": { "maxLifetime": "99999h99999h99999h99999h" } }));
        assert!(validate(&sandbox, None).unwrap().expires_at.is_some());
    }
}
