//! Sandboxes behind one trait: on Kubernetes, on this machine under bubblewrap, or none.
//!
//! The seam is [`Runtime`]: it finds, makes and wakes sandboxes and opens byte streams to the `sandboxd` inside. Everything
//! above it ([`Sandboxes`], [`Sandbox`]) is shared: one HTTP/2 connection per half of a sandbox, runs that happen exactly
//! once or end in an honest [`RunError::Unknown`], and files.
//!
//! What comes out of a sandbox is untrusted: every wait has a deadline and every answer a bound.

mod edit;
pub mod kubernetes;
pub mod local;
mod metrics;
mod names;
mod none;
mod runtime;
mod sandbox;
mod stream;

pub use names::{ContainerKey, ContainerKind, ContainerName, OwnerTag};
pub use none::NoRuntime;
pub use runtime::{
    AcquireError, Acquired, ByteStream, ContainerSpec, Half, Installed, InstanceId, Loss, OpenError, Runtime, Slow,
    Start, UnavailableReason,
};
pub use sandbox::{Sandbox, Sandboxes};
pub use sandboxd_protocol::{
    CallResult, Edit, EditOutcome, Exit, FileStat, Limits, OutputFile, RunKind, RunRequest, Tool, ToolCall,
    TreeDeleted, TreeFile, TreePage,
};
pub use stream::{CellStep, FileBody, FileError, FileRange, Resume, RunError, RunOutcome, TreeQuery, WriteIf};
