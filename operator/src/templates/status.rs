//! Builds the status of a template, and says when it is worth a write. Pure.

use crate::{isolation::Isolation, trouble::Trouble};
use crds::{ConditionType, Reason, SandboxTemplateStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::runtime::events::EventType;

/// What is known of a template.
#[derive(Clone, Debug)]
pub struct Findings<'a> {
    /// Generation that was looked at.
    pub generation: Option<i64>,
    /// Why no pod can be made from it as it says.
    pub trouble: Option<Trouble>,
    /// Whether policies are enforced.
    pub isolation: &'a Isolation,
}

/// An Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Bad or good.
    pub type_: EventType,
    /// Reason of the condition.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// The status to write; none when there is nothing new to say.
pub fn next_status(
    previous: &SandboxTemplateStatus,
    findings: &Findings<'_>,
    now: Timestamp,
) -> Option<SandboxTemplateStatus> {
    let Findings { generation, trouble, isolation } = findings;
    let accepted = match trouble {
        Some(trouble) => Some((false, trouble.clone())),
        None => had(previous, ConditionType::Accepted)
            .map(|_| (true, Trouble::new(Reason::PodAccepted, "the API server takes pods of this template"))),
    };
    let isolated = match isolation {
        Isolation::Broken(sentence) => Some((false, Trouble::new(Reason::NetworkNotIsolated, sentence))),
        Isolation::Isolated => had(previous, ConditionType::NetworkIsolated)
            .map(|_| (true, Trouble::new(Reason::Isolated, "the cluster was seen to enforce network policies"))),
        Isolation::Unknown => had(previous, ConditionType::NetworkIsolated).and_then(kept),
    };
    let conditions: Vec<Condition> = [(ConditionType::Accepted, accepted), (ConditionType::NetworkIsolated, isolated)]
        .into_iter()
        .filter_map(|(kind, said)| {
            said.map(|(holds, words)| condition(previous, kind, holds, &words, *generation, now))
        })
        .collect();
    let was_silent = previous.conditions.is_empty() && previous.observed_generation.is_none();
    if conditions.is_empty() && was_silent {
        return None;
    }
    // A generation that stays behind reads as "not looked at yet" to tools, so it follows once there is a status at all.
    let next = SandboxTemplateStatus { conditions, observed_generation: *generation };
    (next != *previous).then_some(next)
}

fn had(status: &SandboxTemplateStatus, kind: ConditionType) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

/// What was said before.
fn kept(condition: &Condition) -> Option<(bool, Trouble)> {
    Some((condition.status == "True", Trouble::new(Reason::parse(&condition.reason)?, &condition.message)))
}

/// The time of a condition moves only when its status does.
fn condition(
    previous: &SandboxTemplateStatus,
    kind: ConditionType,
    holds: bool,
    words: &Trouble,
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let status = if holds { "True" } else { "False" };
    let since = had(previous, kind).filter(|known| known.status == status);
    Condition {
        type_: kind.as_str().to_owned(),
        status: status.to_owned(),
        reason: words.reason.as_str().to_owned(),
        message: words.message.clone(),
        observed_generation: generation,
        last_transition_time: since.map_or(Time(now), |known| known.last_transition_time.clone()),
    }
}

/// Whether the status says that this generation was looked at, and had no problem with its pods.
pub fn known_to_be_fine(status: Option<&SandboxTemplateStatus>, generation: Option<i64>) -> bool {
    status.is_some_and(|status| {
        let refused = had(status, ConditionType::Accepted).is_some_and(|condition| condition.status != "True");
        status.observed_generation == generation && generation.is_some() && !refused
    })
}

/// What changed, as Events: each new problem, and each that is gone.
pub fn announcements(previous: &SandboxTemplateStatus, next: &SandboxTemplateStatus) -> Vec<Announcement> {
    let said = |status: &SandboxTemplateStatus, type_: &str| {
        let known = status.conditions.iter().find(|condition| condition.type_ == type_);
        known.map(|condition| (condition.status.clone(), condition.reason.clone()))
    };
    let new = |condition: &&Condition| {
        said(previous, &condition.type_) != Some((condition.status.clone(), condition.reason.clone()))
    };
    next.conditions
        .iter()
        .filter(new)
        .map(|condition| Announcement {
            type_: if condition.status == "True" { EventType::Normal } else { EventType::Warning },
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::time;

    fn found(generation: i64, trouble: Option<Reason>, isolation: &Isolation) -> Findings<'_> {
        let trouble = trouble.map(|reason| Trouble::new(reason, "words"));
        Findings { generation: Some(generation), trouble, isolation }
    }

    fn said(status: &SandboxTemplateStatus) -> Vec<(&str, &str, &str)> {
        let conditions = status.conditions.iter();
        conditions
            .map(|condition| (condition.type_.as_str(), condition.status.as_str(), condition.reason.as_str()))
            .collect()
    }

    #[test]
    fn nothing_is_said_of_a_template_without_a_problem() {
        let silent = SandboxTemplateStatus::default();
        for isolation in [Isolation::Unknown, Isolation::Isolated] {
            assert_eq!(next_status(&silent, &found(1, None, &isolation), time(0)), None);
        }
        assert!(!known_to_be_fine(None, Some(1)));
    }

    #[test]
    fn a_problem_is_said_once_and_so_is_its_end() {
        let silent = SandboxTemplateStatus::default();
        let refused =
            next_status(&silent, &found(3, Some(Reason::LimitRefused), &Isolation::Unknown), time(1)).unwrap();
        assert_eq!(said(&refused), [("Accepted", "False", "LimitRefused")]);
        assert_eq!(refused.observed_generation, Some(3));
        assert!(!known_to_be_fine(Some(&refused), Some(3)));
        assert_eq!(next_status(&refused, &found(3, Some(Reason::LimitRefused), &Isolation::Unknown), time(2)), None);
        let accepted = next_status(&refused, &found(4, None, &Isolation::Unknown), time(3)).unwrap();
        assert_eq!(said(&accepted), [("Accepted", "True", "PodAccepted")]);
        assert_eq!(accepted.conditions[0].last_transition_time, Time(time(3)));
        assert!(known_to_be_fine(Some(&accepted), Some(4)) && !known_to_be_fine(Some(&accepted), Some(5)));
        assert_eq!(next_status(&accepted, &found(4, None, &Isolation::Isolated), time(4)), None);
    }

    #[test]
    fn another_problem_keeps_the_time_since_when_there_is_one() {
        let silent = SandboxTemplateStatus::default();
        let first = next_status(&silent, &found(1, Some(Reason::Refused), &Isolation::Unknown), time(1)).unwrap();
        let second =
            next_status(&first, &found(2, Some(Reason::ClaimNotMountable), &Isolation::Unknown), time(9)).unwrap();
        assert_eq!(said(&second), [("Accepted", "False", "ClaimNotMountable")]);
        assert_eq!(second.conditions[0].last_transition_time, Time(time(1)));
    }

    #[test]
    fn the_generation_follows_once_there_is_a_status() {
        let silent = SandboxTemplateStatus::default();
        let refused = next_status(&silent, &found(1, Some(Reason::Refused), &Isolation::Unknown), time(1)).unwrap();
        let accepted = next_status(&refused, &found(2, None, &Isolation::Unknown), time(2)).unwrap();
        let edited = next_status(&accepted, &found(3, None, &Isolation::Unknown), time(3)).unwrap();
        assert_eq!((edited.observed_generation, edited.conditions[0].observed_generation), (Some(3), Some(3)));
    }

    #[test]
    fn a_leak_is_said_beside_the_rest_and_forgotten_only_when_it_was_seen_to_be_gone() {
        let silent = SandboxTemplateStatus::default();
        let leak = Isolation::Broken("a pod reached the node".to_owned());
        let leaking = next_status(&silent, &found(1, Some(Reason::Refused), &leak), time(1)).unwrap();
        assert_eq!(
            said(&leaking),
            [("Accepted", "False", "Refused"), ("NetworkIsolated", "False", "NetworkNotIsolated")]
        );
        assert_eq!(next_status(&leaking, &found(1, Some(Reason::Refused), &Isolation::Unknown), time(2)), None);
        let tight = next_status(&leaking, &found(1, Some(Reason::Refused), &Isolation::Isolated), time(3)).unwrap();
        assert_eq!(said(&tight), [("Accepted", "False", "Refused"), ("NetworkIsolated", "True", "Isolated")]);
        assert_eq!(tight.conditions[0].last_transition_time, Time(time(1)));
    }

    #[test]
    fn each_change_to_a_problem_is_an_event() {
        let silent = SandboxTemplateStatus::default();
        let leak = Isolation::Broken("a pod reached the node".to_owned());
        let leaking = next_status(&silent, &found(1, None, &leak), time(1)).unwrap();
        let told = announcements(&silent, &leaking);
        assert_eq!((told.len(), told[0].type_, told[0].reason.as_str()), (1, EventType::Warning, "NetworkNotIsolated"));
        assert_eq!(told[0].message, "a pod reached the node");
        let both = next_status(&leaking, &found(1, Some(Reason::Refused), &leak), time(2)).unwrap();
        assert_eq!(
            announcements(&leaking, &both).iter().map(|told| told.reason.as_str()).collect::<Vec<_>>(),
            ["Refused"]
        );
        let fine = next_status(&both, &found(2, None, &leak), time(3)).unwrap();
        assert_eq!(announcements(&both, &fine)[0].type_, EventType::Normal);
        assert!(announcements(&fine, &fine).is_empty());
    }
}
