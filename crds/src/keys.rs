//! Labels and annotations.

/// Annotation of a Sandbox: the activity token, see [`crate::activity_token`]. Whoever uses the sandbox writes a new one.
pub const ACTIVITY: &str = "codeexec.dev/activity";
/// Annotation of a Sandbox: hash of the API tenant it belongs to; written once by the API server, compared before every use.
pub const OWNER: &str = "codeexec.dev/owner";
/// Annotation of a Sandbox: UID of a pod that its user found broken; the operator deletes exactly that pod.
pub const REPLACE_POD: &str = "codeexec.dev/replace-pod";
/// Label of a sandbox's pod and claim: UID of the Sandbox.
pub const SANDBOX_UID: &str = "codeexec.dev/sandbox-uid";
/// Annotation of a sandbox's pod and claim: name of the Sandbox, for people (a label has no room for every name).
pub const SANDBOX: &str = "codeexec.dev/sandbox";
/// Label of a sandbox's pod: the template it was made from.
pub const TEMPLATE: &str = "codeexec.dev/template";
/// Annotation of a sandbox's pod: hash over the user's fields of the template, see [`crate::SandboxTemplateSpec::pod_hash`].
pub const TEMPLATE_HASH: &str = "codeexec.dev/template-hash";
/// Standard label, with [`MANAGED_BY_VALUE`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] on everything the operator makes.
pub const MANAGED_BY_VALUE: &str = "codeexec-operator";
/// Standard label, with [`NAME_VALUE`].
pub const NAME: &str = "app.kubernetes.io/name";
/// Value of [`NAME`] on pods and claims of sandboxes.
pub const NAME_VALUE: &str = "codeexec-sandbox";
