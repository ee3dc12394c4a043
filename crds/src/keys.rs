//! Labels and annotations.

/// Annotation of a Sandbox: the activity token, see [`crate::activity_token`]. Whoever uses the sandbox writes a new one.
pub const ACTIVITY: &str = "codeexec.dev/activity";
/// Annotation of a Sandbox: how long after its activity, at least, the sandbox is not idle, as a [`crate::Duration`]. Written
/// together with [`ACTIVITY`] by a user that waits for something outside.
pub const HOLD: &str = "codeexec.dev/hold";
/// Annotation of a Sandbox: hash of the API tenant it belongs to; written once by the API server, compared before every use.
pub const OWNER: &str = "codeexec.dev/owner";
/// Annotation of a Sandbox: UID of a pod that its user found broken; the operator deletes exactly that pod.
pub const REPLACE_POD: &str = "codeexec.dev/replace-pod";
/// Label of a sandbox's pod and claim: UID of the Sandbox.
pub const SANDBOX_UID: &str = "codeexec.dev/sandbox-uid";
/// Annotation of a sandbox's pod and claim: name of the Sandbox, for people (a label has no room for every name).
pub const SANDBOX: &str = "codeexec.dev/sandbox";
/// Label, with [`MOUNTABLE_VALUE`], of a claim that templates and sandboxes may mount. Whoever owns the claim sets it.
pub const MOUNTABLE: &str = "codeexec.dev/mountable";
/// Value of [`MOUNTABLE`].
pub const MOUNTABLE_VALUE: &str = "true";
/// Prefix of every key that is ours.
pub const PREFIX: &str = "codeexec.dev/";
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
