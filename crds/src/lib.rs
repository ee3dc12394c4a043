//! The custom resources of `codeexec.dev`: their types, validation, labels, reasons and the names of their children.
//!
//! What is decided here is the contract between the operator, the API server and people with `kubectl`. No function does IO.

mod activity;
mod definitions;
mod duration;
pub mod fallback;
pub mod keys;
mod names;
#[expect(clippy::doc_markdown, reason = "the docs are shown by kubectl as plain text")]
mod network;
mod overrides;
mod quantity;
mod reason;
#[expect(
    unreachable_pub,
    clippy::duplicated_attributes,
    clippy::doc_markdown,
    reason = "the schema derive repeats each struct inside a function, columns repeat their type, and the docs are shown by kubectl as plain text"
)]
mod sandbox;
#[expect(clippy::doc_markdown, reason = "the docs are shown by kubectl as plain text")]
mod status;
#[expect(
    unreachable_pub,
    clippy::doc_markdown,
    reason = "the schema derive repeats each struct inside a function, and the docs are shown by kubectl as plain text"
)]
mod template;
#[expect(
    unreachable_pub,
    clippy::doc_markdown,
    reason = "the schema derive repeats each struct inside a function, and the docs are shown by kubectl as plain text"
)]
mod workspace;

pub use activity::activity_token;
pub use definitions::definitions;
pub use duration::{Duration, DurationError};
pub use names::{ChildName, child_name};
pub use network::Network;
pub use overrides::{Override, Overrides};
pub use quantity::{Quantity, QuantityError};
pub use reason::{ConditionType, Reason};
pub use sandbox::{Lifecycle, OnExpiry, Sandbox, SandboxSpec, TemplateRef};
pub use status::{Binding, BindingSource, Effective, Phase, SandboxStatus, SandboxTemplateStatus};
pub use template::{
    EnvVar, Mount, PodMetadata, PullSecret, ResourceList, Resources, SandboxTemplate, SandboxTemplateSpec, Toleration,
    TolerationEffect, TolerationOperator,
};
pub use workspace::{AccessMode, ExistingClaim, WhenDeleted, Workspace};

/// API group of every resource here.
pub const GROUP: &str = "codeexec.dev";
/// Its only version so far.
pub const VERSION: &str = "v1alpha1";
