//! Step two: what is wanted. Reads spec and template once; the later steps never look at them again.

use crate::trouble::Trouble;
use crds::{
    AccessMode, ChildName, Duration, Effective, ExistingClaim, Lifecycle, OnExpiry, Override, Overrides, Quantity,
    Reason, Sandbox, SandboxStatus, SandboxTemplate, SandboxTemplateSpec, WhenDeleted, Workspace, child_name, fallback,
    keys,
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
    /// Its fields, with what the sandbox overrides.
    pub spec: SandboxTemplateSpec,
    /// Hash over those of the pod.
    pub hash: String,
}

/// The workspace that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedWorkspace {
    /// A claim of the sandbox's own.
    Own {
        /// Its size.
        size: Quantity,
        /// Its storage class.
        class: Option<String>,
        /// How it may be mounted.
        modes: Vec<AccessMode>,
        /// What happens to it when the sandbox is deleted.
        when_deleted: WhenDeleted,
    },
    /// A claim that exists, or a folder of it.
    Existing(ExistingClaim),
}

/// A Sandbox with everything resolved that its spec, its template and the fallbacks say.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidSandbox {
    /// Which one.
    pub identity: Identity,
    /// Name of its pod and of its own claim.
    pub child: ChildName,
    /// Hash of the API tenant that it belongs to.
    pub owner: Option<String>,
    /// Whether its pod should exist, activity and lifetime aside.
    pub wanted: bool,
    /// The activity token, if there is one.
    pub activity: Option<String>,
    /// How long after its activity, at least, it is not idle.
    pub hold: Option<SignedDuration>,
    /// UID of a pod that its user found broken.
    pub replace_pod: Option<String>,
    /// Time without activity after which it is idle; `None`: never.
    pub idle_timeout: Option<SignedDuration>,
    /// How long a start may take.
    pub start_timeout: SignedDuration,
    /// End of its life.
    pub expires_at: Option<Timestamp>,
    /// What then happens.
    pub on_expiry: OnExpiry,
    /// Its workspace.
    pub workspace: WantedWorkspace,
    /// The size that the sandbox itself asks for: a template's size is that of new claims and enlarges none.
    pub own_size: Option<Quantity>,
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
    let spec = match template {
        Some(Ok(template)) => Some(&template.spec),
        Some(Err(_)) | None => None,
    };
    let lifecycles = [sandbox.spec.lifecycle.as_ref(), spec.and_then(|spec| spec.lifecycle.as_ref())];
    let workspaces = [sandbox.spec.workspace.as_ref(), spec.and_then(|spec| spec.workspace.as_ref())];
    let source = pod_source(&name, template, sandbox.spec.overrides.as_ref());
    let workspace = workspace(&workspaces)?;
    let start_timeout = start_timeout(&lifecycles);
    let effective = effective(name, source.as_ref().ok(), &lifecycles, &workspace);
    Ok(ValidSandbox {
        child: child_name(&identity.name, &identity.uid),
        owner: annotation(sandbox, keys::OWNER),
        wanted: sandbox.spec.replicas > 0,
        activity: annotation(sandbox, keys::ACTIVITY),
        // One that cannot be read holds nothing: annotations are checked by nobody.
        hold: annotation(sandbox, keys::HOLD).and_then(|hold| hold.parse::<Duration>().ok()).map(signed),
        replace_pod: annotation(sandbox, keys::REPLACE_POD),
        idle_timeout: Some(effective.idle_timeout).filter(|timeout| !timeout.is_zero()).map(signed),
        start_timeout: signed(start_timeout),
        // A lifetime beyond the end of all calendars is none.
        expires_at: effective.max_lifetime.and_then(|lifetime| created.checked_add(signed(lifetime)).ok()),
        on_expiry: effective.on_expiry,
        own_size: sandbox.spec.workspace.as_ref().and_then(|workspace| workspace.size.clone()),
        workspace,
        source,
        effective,
        status: sandbox.status.clone().unwrap_or_default(),
        identity,
    })
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration.get()).unwrap_or(SignedDuration::MAX)
}

fn annotation(sandbox: &Sandbox, key: &str) -> Option<String> {
    sandbox.annotations().get(key).filter(|value| !value.is_empty()).cloned()
}

fn pod_source(
    name: &str,
    template: Option<Result<&SandboxTemplate, String>>,
    overrides: Option<&Overrides>,
) -> Result<PodSource, Trouble> {
    match template {
        Some(Ok(template)) => {
            let spec = overrides
                .map_or_else(|| Ok(template.spec.clone()), |wanted| overridden(name, &template.spec, wanted))?;
            Ok(PodSource { template: name.to_owned(), hash: spec.pod_hash(), spec })
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

/// The template's fields with what a sandbox has instead, as far as the template lets it.
fn overridden(
    name: &str,
    template: &SandboxTemplateSpec,
    overrides: &Overrides,
) -> Result<SandboxTemplateSpec, Trouble> {
    let Overrides { resources, env, image, runtime_class_name } = overrides;
    let wanted = [
        (Override::Resources, resources.is_some()),
        (Override::Env, !env.is_empty()),
        (Override::Image, image.is_some()),
        (Override::RuntimeClassName, runtime_class_name.is_some()),
    ];
    let not_allowed = |what: String| Err(Trouble::new(Reason::OverrideNotAllowed, what));
    if let Some((field, _)) = wanted.into_iter().find(|(field, is_set)| *is_set && !template.allows(*field)) {
        return not_allowed(format!(
            "SandboxTemplate {name:?} does not let a sandbox override {field}; take overrides.{field} out, or add it to the template's allowedOverrides",
            field = field.as_str()
        ));
    }
    if let Some(image) = image.as_ref().filter(|image| !template.allows_image(image)) {
        return not_allowed(format!("image {image:?} is not among the allowedImages of SandboxTemplate {name:?}"));
    }
    let mut spec = template.clone();
    spec.resources = resources.clone().or(spec.resources);
    spec.runtime_class_name = runtime_class_name.clone().or(spec.runtime_class_name);
    if let Some(image) = image {
        spec.image.clone_from(image);
    }
    spec.env.retain(|variable| env.iter().all(|other| other.name != variable.name));
    spec.env.extend(env.iter().cloned());
    Ok(spec)
}

fn workspace(workspaces: &[Option<&Workspace>; 2]) -> Result<WantedWorkspace, Incomplete> {
    let workspaces = || workspaces.iter().flatten();
    if let Some(claim) = workspaces().find_map(|workspace| workspace.existing_claim.clone()) {
        return Ok(WantedWorkspace::Existing(claim));
    }
    let size = match workspaces().find_map(|workspace| workspace.size.clone()) {
        Some(size) => size,
        None => fallback::WORKSPACE_SIZE.parse().map_err(|_| Incomplete("workspace size"))?,
    };
    Ok(WantedWorkspace::Own {
        size,
        class: workspaces().find_map(|workspace| workspace.storage_class_name.clone()),
        modes: workspaces()
            .find_map(|workspace| workspace.access_modes.clone())
            .unwrap_or_else(|| vec![AccessMode::ReadWriteOnce]),
        when_deleted: workspaces().find_map(|workspace| workspace.when_deleted).unwrap_or_default(),
    })
}

fn start_timeout(lifecycles: &[Option<&Lifecycle>]) -> Duration {
    let said = lifecycles.iter().flatten().find_map(|lifecycle| lifecycle.start_timeout);
    said.filter(|timeout| !timeout.is_zero()).unwrap_or_else(|| Duration::from(fallback::START_TIMEOUT))
}

/// Each value from the first that says one: the sandbox, its template, the fallbacks.
fn effective(
    template: String,
    source: Option<&PodSource>,
    lifecycles: &[Option<&Lifecycle>; 2],
    workspace: &WantedWorkspace,
) -> Effective {
    let start_timeout = Some(start_timeout(lifecycles));
    let lifecycles = || lifecycles.iter().flatten();
    let (size, class, when_deleted) = match workspace {
        WantedWorkspace::Own { size, class, modes: _, when_deleted } => {
            (Some(size.clone()), class.clone(), Some(*when_deleted))
        }
        WantedWorkspace::Existing(_) => (None, None, None),
    };
    Effective {
        template,
        image: source.map(|source| source.spec.image.clone()),
        idle_timeout: lifecycles()
            .find_map(|lifecycle| lifecycle.idle_timeout)
            .unwrap_or_else(|| Duration::from(fallback::IDLE_TIMEOUT)),
        start_timeout,
        max_lifetime: lifecycles().find_map(|lifecycle| lifecycle.max_lifetime).filter(|lifetime| !lifetime.is_zero()),
        on_expiry: lifecycles().find_map(|lifecycle| lifecycle.on_expiry).unwrap_or_default(),
        when_deleted,
        workspace_size: size,
        storage_class_name: class,
    }
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
        assert_eq!(valid.effective.workspace_size.as_ref().map(Quantity::as_str), Some("3Gi"));
        assert_eq!(valid.effective.storage_class_name.as_deref(), Some("fast"));
        assert_eq!(valid.expires_at, Some(fixture::time(7200)));
        let bare = validate(&fixture::sandbox(&json!({})), None).unwrap();
        assert_eq!(bare.effective.idle_timeout.to_string(), "5m");
        assert_eq!(bare.effective.workspace_size.as_ref().map(Quantity::as_str), Some("5Gi"));
        assert_eq!(bare.start_timeout.as_mins(), 10);
        assert_eq!(bare.source.unwrap_err().reason, Reason::TemplateNotFound);
    }

    #[test]
    fn a_lifetime_beyond_all_calendars_is_none() {
        let sandbox = fixture::sandbox(&json!({ "lifecycle": { "maxLifetime": "99999h99999h99999h99999h" } }));
        assert!(validate(&sandbox, None).unwrap().expires_at.is_some());
    }

    #[test]
    fn a_sandbox_overrides_what_its_template_lets_it_and_nothing_else() {
        let template = fixture::template(&json!({
            "image": "python:3", "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
            "allowedOverrides": ["env", "image"], "allowedImages": ["ghcr.io/team/*"],
        }));
        let over = |overrides: serde_json::Value| {
            validate(&fixture::sandbox(&json!({ "overrides": overrides })), Some(Ok(&template))).unwrap().source
        };
        let allowed = over(json!({ "env": [{ "name": "B", "value": "3" }], "image": "ghcr.io/team/r:1" })).unwrap();
        assert_eq!(allowed.spec.image, "ghcr.io/team/r:1");
        let env: Vec<_> = allowed.spec.env.iter().map(|v| format!("{}={}", v.name, v.value)).collect();
        assert_eq!(env, ["A=1", "B=3"]);
        assert_ne!(allowed.hash, template.spec.pod_hash(), "the pod is another one");
        for (overrides, words) in [
            (json!({ "resources": { "limits": { "cpu": 2 } } }), "overrides.resources"),
            (json!({ "runtimeClassName": "gvisor" }), "overrides.runtimeClassName"),
            (json!({ "image": "ghcr.io/teams:1" }), "allowedImages"),
        ] {
            let trouble = over(overrides).unwrap_err();
            assert_eq!(trouble.reason, Reason::OverrideNotAllowed);
            assert!(trouble.message.contains(words), "{}", trouble.message);
        }
    }
}
