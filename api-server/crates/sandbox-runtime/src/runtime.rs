//! The seam between the kinds of sandboxes.

use crate::{ContainerName, OwnerTag};
use std::{fmt, time::Duration};
use tokio::io::{AsyncRead, AsyncWrite};

/// Which sandbox, and what to make it with when it is absent.
#[derive(Clone, Debug)]
pub struct ContainerSpec {
    /// Its name; also the lock under which simultaneous first uses converge.
    pub name: ContainerName,
    /// Whose it is; compared before every use.
    pub owner: OwnerTag,
    /// Age at which it is deleted; `None`: never.
    pub lifetime: Option<Duration>,
}

/// One start of a sandbox: a pod by its UID, or a local start. What ran in another instance is gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InstanceId {
    /// Name of the pod, or of the sandbox on this machine.
    pub name: String,
    /// Differs between any two starts.
    pub uid: String,
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.uid)
    }
}

/// A sandbox that is ready to run commands.
#[derive(Clone, Debug)]
pub struct Acquired {
    /// The start that is ready.
    pub instance: InstanceId,
    /// Unused for this long it is stopped (its files stay); zero: never.
    pub idle_timeout: Duration,
    /// What it took.
    pub start: Start,
}

/// What it took to have a sandbox ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// Nothing: it was used a moment ago.
    Reused,
    /// A look: it was ready.
    Ready,
    /// A start with the files it had.
    Woken,
    /// It was made.
    Created,
}

impl Start {
    /// A short label, for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reused => "reused",
            Self::Ready => "ready",
            Self::Woken => "woken",
            Self::Created => "created",
        }
    }
}

/// The two containers of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// Runs commands.
    Main,
    /// Serves files; code of the sandbox cannot reach it.
    Files,
}

impl Half {
    /// Its name: of the container in the pod, and of `sandboxd serve --half`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Files => "files",
        }
    }
}

/// A two-way stream of bytes to `sandboxd`.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// What stands between a caller and a ready sandbox: each has its own public text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UnavailableReason {
    /// The namespace's quota has no room.
    Quota,
    /// The namespace's limits refuse its resources.
    Limits,
    /// The image cannot be pulled.
    Image,
    /// The template is missing or wrong, or does not allow this.
    Template,
    /// It starts and dies, over and over.
    CrashLoop,
    /// It was killed for want of memory.
    OutOfMemory {
        /// Its memory limit, such as `5Gi`.
        limit: Option<String>,
    },
    /// Its files are gone.
    WorkspaceLost,
    /// Its files cannot be used: not written, or not told from others that were kept.
    WorkspaceUnusable,
    /// Its volume cannot be made or found.
    Volume,
    /// Something else has taken its place in the cluster.
    Conflict,
    /// An operator holds it stopped.
    Suspended,
    /// Its network is not isolated as required.
    Network,
    /// The node that runs it is lost.
    NodeLost,
    /// It was not ready within the time that a start may take.
    Start,
    /// We may not do what is needed.
    Denied,
    /// What runs sandboxes cannot be reached or failed.
    Runtime,
    /// The server has nothing that runs them.
    NotConfigured,
}

impl UnavailableReason {
    /// Every reason, for tables.
    pub const ALL: &[Self] = &[
        Self::Quota,
        Self::Limits,
        Self::Image,
        Self::Template,
        Self::CrashLoop,
        Self::OutOfMemory { limit: None },
        Self::WorkspaceLost,
        Self::WorkspaceUnusable,
        Self::Volume,
        Self::Conflict,
        Self::Suspended,
        Self::Network,
        Self::NodeLost,
        Self::Start,
        Self::Denied,
        Self::Runtime,
        Self::NotConfigured,
    ];

    /// A short label, for logs, metrics and tables.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Limits => "limits",
            Self::Image => "image",
            Self::Template => "template",
            Self::CrashLoop => "crash_loop",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::WorkspaceLost => "workspace_lost",
            Self::WorkspaceUnusable => "workspace_unusable",
            Self::Volume => "volume",
            Self::Conflict => "conflict",
            Self::Suspended => "suspended",
            Self::Network => "network",
            Self::NodeLost => "node_lost",
            Self::Start => "start",
            Self::Denied => "denied",
            Self::Runtime => "runtime",
            Self::NotConfigured => "not_configured",
        }
    }
}

/// What a start that took too long was still waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slow {
    /// A machine with room for it.
    Room,
    /// Its volume.
    Volume,
    /// Its start, and nothing is known to be wrong: a large image, a slow machine.
    Start,
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Room => "a machine with room",
            Self::Volume => "its volume",
            Self::Start => "its start",
        })
    }
}

/// What is known about the end of a start that was lost under its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It was killed at its memory limit.
    OutOfMemory {
        /// The limit, such as `5Gi`.
        limit: Option<String>,
    },
}

impl fmt::Display for UnavailableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why there is no sandbox to use.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum AcquireError {
    /// It does not exist, or it is another owner's: nobody can tell which.
    #[error("no such sandbox")]
    NotFound,
    /// It lived for its lifetime and is gone.
    #[error("the sandbox has expired")]
    Expired,
    /// It cannot be made ready, and waiting would not help.
    #[error("sandbox unavailable ({reason}): {message}")]
    Unavailable {
        /// For a table of public texts.
        reason: UnavailableReason,
        /// For the log only: it names objects of the cluster.
        message: String,
    },
    /// It was not ready in time, and nothing is known to be wrong.
    #[error("the sandbox was not ready in time; it waited for {0}")]
    TimedOut(Slow),
}

impl AcquireError {
    pub(crate) fn unavailable(reason: UnavailableReason, message: impl fmt::Display) -> Self {
        Self::Unavailable { reason, message: message.to_string() }
    }
}

/// Why a stream did not open. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// This start of the sandbox is over: acquire it again.
    #[error("this start of the sandbox is over: {0}")]
    Gone(String),
    /// It does not run at this moment, as while its container is started again: look again a little later.
    #[error("not running at this moment: {0}")]
    NotRunning(String),
    /// It did not work this time.
    #[error("cannot open a stream: {0}")]
    Failed(String),
    /// We may not; neither the sandbox nor another try is to blame.
    #[error("may not open a stream: {0}")]
    Denied(String),
}

/// What a sandbox's image offers beside a shell, in words for the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct Installed {
    /// What is there, such as `pandas 2.3.3`.
    pub libraries: Vec<String>,
    /// Names of what models expect and do not find.
    pub absent: Vec<String>,
}

/// A kind of sandboxes.
#[async_trait::async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Whether the sandbox exists and is this owner's; marks it as used. Never waits for it to start.
    async fn find(&self, spec: &ContainerSpec) -> Result<bool, AcquireError>;

    /// Marks it as used, however young the last mark is.
    async fn mark(&self, spec: &ContainerSpec) -> Result<(), AcquireError> {
        self.find(spec).await.map(drop)
    }

    /// A sandbox that is ready: made when absent, woken when asleep, waited for at most `deadline`; marks it as used.
    async fn acquire(&self, spec: &ContainerSpec, deadline: Duration) -> Result<Acquired, AcquireError>;

    /// Opens a stream to `sandboxd` in one half. The hello line is still unread.
    async fn open(&self, instance: &InstanceId, half: Half) -> Result<Box<dyn ByteStream>, OpenError>;

    /// After how long without a request a stream is closed; `None`: it lives as long as the sandbox.
    fn stream_idle(&self) -> Option<Duration> {
        Some(Duration::from_mins(1))
    }

    /// Called when this start of a sandbox takes no requests any more: the next acquire looks again.
    fn forget(&self, instance: &InstanceId);

    /// Called when a sandbox that should work does not: it is to be replaced.
    async fn replace(&self, instance: &InstanceId);

    /// Why a start that was lost has ended, where that can be known within seconds.
    async fn loss(&self, _instance: &InstanceId) -> Option<Loss> {
        None
    }

    /// What keeps it from working, as sentences; empty when all is well.
    async fn problems(&self) -> Vec<String>;

    /// What the sandboxes' image offers, as far as the runtime can tell.
    async fn installed(&self) -> Installed {
        Installed::default()
    }

    /// Whether sandboxes have Python, as far as the runtime can tell; others find out when they use it.
    fn has_python(&self) -> bool {
        true
    }

    /// What this machine or cluster cannot limit, as sentences. No reason not to work.
    fn limitations(&self) -> Vec<String> {
        Vec::new()
    }

    /// Ends what lives only as long as this process.
    async fn shut_down(&self);
}
