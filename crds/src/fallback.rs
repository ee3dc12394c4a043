//! What holds when neither the Sandbox nor its template says anything.

use std::time::Duration;

/// Name of the template of a Sandbox that names none.
pub const TEMPLATE: &str = "default";
/// Time without activity after which a sandbox counts as idle.
pub const IDLE_TIMEOUT: Duration = Duration::from_mins(5);
/// How long a start may take before whoever waits for it gives up.
pub const START_TIMEOUT: Duration = Duration::from_mins(10);
/// Size of the workspace's volume.
pub const WORKSPACE_SIZE: &str = "5Gi";
/// CPU limit of the `main` container.
pub const CPU_LIMIT: &str = "1";
/// Memory limit of the `main` container.
pub const MEMORY_LIMIT: &str = "5Gi";
/// Limit of what `main` may write outside its workspace: HOME, caches, logs.
pub const EPHEMERAL_STORAGE_LIMIT: &str = "2Gi";
/// What `main` asks of a node when the template says nothing: sandboxes wait most of the time, so far less than the limit.
pub const CPU_REQUEST: &str = "100m";
/// See [`CPU_REQUEST`].
pub const MEMORY_REQUEST: &str = "256Mi";
/// See [`CPU_REQUEST`].
pub const EPHEMERAL_STORAGE_REQUEST: &str = "128Mi";
