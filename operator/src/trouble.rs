//! What is wrong, as a reason and a sentence.

use crds::{ConditionType, Reason, SandboxStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Longest message kept, in characters: conditions and Events are read by people.
const MAX_MESSAGE: usize = 900;

/// A reason, and what happened in the words of whoever knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// One word for the condition.
    pub reason: Reason,
    /// The sentence beside it.
    pub message: String,
}

impl Trouble {
    /// A message that is too long is cut.
    pub fn new(reason: Reason, message: impl AsRef<str>) -> Self {
        Self { reason, message: message.as_ref().chars().take(MAX_MESSAGE).collect() }
    }

    /// What a status says of Ready, when that is not true.
    pub fn of_ready(status: &SandboxStatus) -> Option<Self> {
        let not_ready =
            |condition: &&Condition| condition.type_ == ConditionType::Ready.as_str() && condition.status != "True";
        let ready = status.conditions.iter().find(not_ready)?;
        Some(Self { reason: Reason::parse(&ready.reason)?, message: ready.message.clone() })
    }
}
