//! Condition types and their reasons.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Type of a condition in a Sandbox's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConditionType {
    /// A command can run now.
    Ready,
    /// The workspace's claim is bound to a volume.
    WorkspaceBound,
}

impl ConditionType {
    /// As it stands in the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::WorkspaceBound => "WorkspaceBound",
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
    /// Held by `replicas: 0`; the pod is going.
    Suspending,
    /// Held by `replicas: 0`; there is no pod.
    Suspended,
    /// Past its `maxLifetime`.
    Expired,
    /// The claim is bound to a volume.
    Bound,
    /// The claim waits for a volume.
    WorkspacePending,
    /// The claim lost its volume, or is being deleted.
    WorkspaceLost,
    /// No node takes the pod.
    Unschedulable,
    /// An image cannot be pulled.
    ImagePullFailed,
    /// The init container failed: the workspace's folders or the binary could not be made.
    InitFailed,
    /// A container cannot be created (a bad mount, a bad runtime).
    ContainerRefused,
    /// A container keeps ending.
    CrashLooping,
    /// A container was killed at its memory limit and keeps ending.
    OOMKilled,
    /// The node evicted the pod.
    Evicted,
    /// The pod ended.
    PodFailed,
    /// The pod's deletion was never confirmed by its node.
    NodeLost,
    /// The namespace's `ResourceQuota` has no room.
    QuotaExceeded,
    /// The namespace's `LimitRange` refuses the resources.
    LimitRefused,
    /// The template's runtime class does not exist.
    RuntimeClassNotFound,
    /// The API server refuses the pod or the claim for another reason.
    Refused,
    /// The template does not exist.
    TemplateNotFound,
    /// The template cannot be used.
    TemplateInvalid,
    /// The name of the pod or the claim is taken by an object that is not this Sandbox's.
    ForeignObject,
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
            | Self::Refused
            | Self::TemplateNotFound
            | Self::TemplateInvalid
            | Self::ForeignObject
            | Self::WorkspaceLost
            | Self::NodeLost
            | Self::Suspending
            | Self::Suspended
            | Self::Expired => true,
            Self::PodReady
            | Self::Starting
            | Self::Bound
            | Self::WorkspacePending
            | Self::Unschedulable
            | Self::Evicted
            | Self::PodFailed => false,
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
