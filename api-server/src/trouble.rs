//! The public words for what keeps a command from its result: nothing of the cluster's own names, paths or texts.

use engine::{FailureKind, ToolFailure};
use sandbox_runtime::{AcquireError, Loss, RunError, Slow, UnavailableReason};
use std::borrow::Cow;

/// For a sandbox that is not to be had. The causes themselves stand in the Sandbox resource and in the log.
pub fn explain(error: &AcquireError) -> Cow<'static, str> {
    let text = match error {
        AcquireError::NotFound => "The container is gone.",
        AcquireError::Expired => "The container has expired.",
        AcquireError::TimedOut(Slow::Start) => {
            "The sandbox did not start in time; its start goes on, so try again in a minute."
        }
        AcquireError::TimedOut(Slow::Room) => {
            "The sandbox did not start in time: no machine has room for it yet. Try again later."
        }
        AcquireError::TimedOut(Slow::Volume) => {
            "The sandbox did not start in time: it still waits for its volume. Try again later."
        }
        AcquireError::Unavailable { reason, .. } => return reason_words(reason),
    };
    Cow::Borrowed(text)
}

fn reason_words(reason: &UnavailableReason) -> Cow<'static, str> {
    let text = match reason {
        UnavailableReason::Quota => "The quota for sandboxes is used up; try again later or ask your operator.",
        UnavailableReason::Limits => "The sandbox's resources exceed what is allowed to it; ask your operator.",
        UnavailableReason::Image => "The sandbox's image cannot be pulled; ask your operator.",
        UnavailableReason::Template => "The sandbox's template is missing or wrong; ask your operator.",
        UnavailableReason::CrashLoop => "The sandbox starts and ends at once, over and over; ask your operator.",
        UnavailableReason::OutOfMemory { limit } => {
            let limit = limit_words(limit.as_deref());
            return format!("The sandbox ran out of memory and was killed{limit}; try again with less.").into();
        }
        UnavailableReason::WorkspaceLost => "The sandbox's files are lost; use a new container.",
        UnavailableReason::WorkspaceUnusable => "The sandbox's files cannot be used; ask your operator.",
        UnavailableReason::Volume => "The sandbox's volume cannot be made or found; ask your operator.",
        UnavailableReason::Conflict => "Something else stands in the sandbox's place; ask your operator.",
        UnavailableReason::Suspended => "The sandbox is held stopped by an operator.",
        UnavailableReason::Network => "The sandbox's network is not isolated as required; ask your operator.",
        UnavailableReason::NodeLost => "The machine of the sandbox is lost; try again later.",
        UnavailableReason::Start => "The sandbox was not ready within the time that a start may take; try again.",
        UnavailableReason::Denied => "The server may not start or use sandboxes; ask your operator.",
        // The published words.
        UnavailableReason::NotConfigured => "code_execution provider is not configured.",
        UnavailableReason::Runtime => "Sandboxes are temporarily unavailable; try again later.",
    };
    Cow::Borrowed(text)
}

fn limit_words(limit: Option<&str>) -> String {
    limit.map(|limit| format!(" at its limit of {limit}")).unwrap_or_default()
}

/// For a command without a result.
pub fn run_failure(error: &RunError) -> ToolFailure {
    let (kind, explanation) = match error {
        RunError::Unknown(_) => (
            FailureKind::Unavailable,
            "The sandbox was lost while the command ran: it may have run in part. It is not run again by itself."
                .into(),
        ),
        RunError::Lost(Loss::OutOfMemory { limit }) => {
            let limit = limit_words(limit.as_deref());
            let text = format!(
                "The sandbox ran out of memory and was killed{limit} while the command ran: it may have run in part. It is not \
                 run again by itself; files are kept, processes are not."
            );
            (FailureKind::Unavailable, text.into())
        }
        RunError::TooManyRequests => {
            (FailureKind::TooManyRequests, "Too many commands run in this container at the same time.".into())
        }
        RunError::TooLarge { limit } => {
            let text = format!("The call is too large: its input may take {limit} bytes of JSON. Write it in parts.");
            (FailureKind::InvalidInput, text.into())
        }
        RunError::NoSandbox(error) => (FailureKind::Unavailable, explain(error)),
        RunError::NotInImage(what) => (FailureKind::Unavailable, what.into()),
        RunError::Unavailable(_) => (FailureKind::Unavailable, "The sandbox could not run the command.".into()),
    };
    ToolFailure { kind, explanation: explanation.into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn unavailable(reason: UnavailableReason) -> AcquireError {
        AcquireError::Unavailable { reason, message: "QuotaExceeded: pods \"p\" in namespace n".to_owned() }
    }

    #[test]
    fn each_reason_has_words_of_its_own_and_none_of_the_clusters() {
        let slow = [Slow::Start, Slow::Room, Slow::Volume].map(AcquireError::TimedOut);
        let errors = UnavailableReason::ALL.iter().cloned().map(unavailable).chain(slow);
        let texts: Vec<_> = errors.map(|error| explain(&error)).collect();
        assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), UnavailableReason::ALL.len() + 3);
        for text in texts {
            assert!(text.ends_with('.') && text.len() < 120, "{text}");
            for inside in ["namespace", "pod", "node", "claim", "Sandbox ", "Kubernetes", "/"] {
                assert!(!text.contains(inside), "{text} names {inside}");
            }
        }
    }

    #[test]
    fn want_of_memory_names_the_limit() {
        let limit = Some("96Mi".to_owned());
        let failure = run_failure(&RunError::Lost(Loss::OutOfMemory { limit: limit.clone() }));
        assert_eq!(failure.kind, FailureKind::Unavailable);
        for text in [failure.explanation.as_str(), &explain(&unavailable(UnavailableReason::OutOfMemory { limit }))] {
            assert!(text.contains("memory") && text.contains("limit of 96Mi"), "{text}");
        }
        let unknown = run_failure(&RunError::Lost(Loss::OutOfMemory { limit: None }));
        assert!(unknown.explanation.contains("memory and was killed while"), "{}", unknown.explanation);
    }

    #[test]
    fn a_command_that_met_no_sandbox_says_why() {
        let failure = run_failure(&RunError::NoSandbox(unavailable(UnavailableReason::Quota)));
        assert_eq!(failure.kind, FailureKind::Unavailable);
        assert!(failure.explanation.contains("quota"), "{}", failure.explanation);
    }
}
