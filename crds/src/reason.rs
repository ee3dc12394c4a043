//! Condition types and their reasons.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Type of a condition in the status of a Sandbox or a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConditionType {
    /// A command can run now.
    Ready,
    /// The workspace's claim is bound to a volume.
    WorkspaceBound,
    /// There is no pod, and none is wanted.
    Suspended,
    /// The template's pod fields have changed since the pod was made.
    UpdatePending,
    /// The cluster was seen to enforce network policies on a pod like this one.
    NetworkIsolated,
    /// The API server takes the pods of a template.
    Accepted,
}

impl ConditionType {
    /// As it stands in the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::WorkspaceBound => "WorkspaceBound",
            Self::Suspended => "Suspended",
            Self::UpdatePending => "UpdatePending",
            Self::NetworkIsolated => "NetworkIsolated",
            Self::Accepted => "Accepted",
        }
    }
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Reason of a condition: one word for people and tools. What exactly happened is in the message, in the words of the API
        /// server or the kubelet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// As it stands in the status.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

reasons! {
    /// The pod is ready.
    PodReady,
    /// The pod is being made, and nothing is known to be wrong.
    Starting,
    /// The pod is going; the files are kept.
    Suspending,
    /// There is no pod; the files are kept.
    Suspended,
    /// Past its `maxLifetime`.
    Expired,
    /// The claim is bound to a volume.
    Bound,
    /// The claim waits for a volume.
    WorkspacePending,
    /// The claim lost its volume, or is being deleted.
    WorkspaceLost,
    /// The sandbox's user cannot write the workspace.
    WorkspaceUnwritable,
    /// Several retained claims could be this sandbox's workspace.
    WorkspaceAmbiguous,
    /// An existing claim that is named does not exist, or does not carry the label that lets sandboxes mount it.
    ClaimNotMountable,
    /// The storage class does not exist.
    StorageClassNotFound,
    /// The volume is being enlarged.
    ResizePending,
    /// The volume cannot be enlarged.
    ResizeRefused,
    /// No node takes the pod.
    Unschedulable,
    /// An image cannot be pulled.
    ImagePullFailed,
    /// The init container failed.
    InitFailed,
    /// A container cannot be created (a bad mount, a bad runtime).
    ContainerRefused,
    /// A container keeps ending.
    CrashLooping,
    /// A container was killed at its memory limit.
    OOMKilled,
    /// The node evicted the pod.
    Evicted,
    /// The pod ended.
    PodFailed,
    /// The node does not answer any more, or never confirmed that the pod ended.
    NodeLost,
    /// Two pods belong to this sandbox.
    MultiplePods,
    /// The pod was not ready within the start time-out.
    StartTimedOut,
    /// The namespace's `ResourceQuota` has no room.
    QuotaExceeded,
    /// The namespace's `LimitRange` refuses the resources.
    LimitRefused,
    /// The runtime class does not exist.
    RuntimeClassNotFound,
    /// The API server refuses the pod or the claim for another reason.
    Refused,
    /// The template does not exist.
    TemplateNotFound,
    /// The template cannot be used.
    TemplateInvalid,
    /// The sandbox overrides what its template does not let it.
    OverrideNotAllowed,
    /// The name of the pod or the claim is taken by an object that is not this Sandbox's.
    ForeignObject,
    /// The cluster was seen not to enforce network policies, or could not be tested although that is required.
    NetworkNotIsolated,
    /// Suspended because nobody used it for its idle time-out.
    Idle,
    /// Suspended by `replicas: 0`.
    ScaledToZero,
    /// Not suspended.
    Active,
    /// The template changed after the pod was made.
    TemplateChanged,
    /// The pod is as its template says.
    UpToDate,
    /// The cluster was seen to enforce network policies.
    Isolated,
    /// The API server takes the pods of the template.
    PodAccepted,
}

impl Reason {
    /// The reason of this name, if there is one.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == name)
    }

    /// Whether waiting is not expected to help: something has to be changed by a person.
    ///
    /// A missing volume or node may still come (a slow provisioner, an autoscaler), so those are no such trouble.
    pub const fn needs_action(self) -> bool {
        match self {
            Self::ImagePullFailed
            | Self::InitFailed
            | Self::ContainerRefused
            | Self::CrashLooping
            | Self::OOMKilled
            | Self::QuotaExceeded
            | Self::LimitRefused
            | Self::RuntimeClassNotFound
            | Self::StorageClassNotFound
            | Self::Refused
            | Self::TemplateNotFound
            | Self::TemplateInvalid
            | Self::OverrideNotAllowed
            | Self::ForeignObject
            | Self::MultiplePods
            | Self::ClaimNotMountable
            | Self::WorkspaceLost
            | Self::WorkspaceUnwritable
            | Self::WorkspaceAmbiguous
            | Self::NodeLost
            | Self::StartTimedOut
            | Self::NetworkNotIsolated
            | Self::ScaledToZero
            | Self::Expired => true,
            Self::PodReady
            | Self::Starting
            | Self::Bound
            | Self::WorkspacePending
            | Self::ResizePending
            | Self::ResizeRefused
            | Self::Unschedulable
            | Self::Evicted
            | Self::PodFailed
            | Self::Suspending
            | Self::Suspended
            | Self::Idle
            | Self::Active
            | Self::TemplateChanged
            | Self::UpToDate
            | Self::Isolated
            | Self::PodAccepted => false,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_found_by_its_name() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(*reason));
        }
        assert_eq!(Reason::parse("Nonsense"), None);
    }
}
