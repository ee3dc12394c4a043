//! Reads the API server's refusals.

use crate::trouble::Trouble;
use crds::Reason;
use kube::core::Status;

/// What a refused write means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An object of this name exists.
    Exists,
    /// The namespace is being deleted: nothing is written any more.
    NamespaceTerminating,
    /// Somebody else wrote first, or the object is gone: the watch brings what is true.
    Outdated,
    /// The object as it is will not be taken; sending it again only helps when something else changes.
    Refused(Trouble),
    /// The API server could not answer; worth another try.
    Unavailable,
}

/// Reads a refusal of a POST, PATCH or DELETE.
pub fn read_refusal(status: &Status) -> Refusal {
    let terminating =
        status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == "NamespaceTerminating");
    match status.code {
        _ if terminating => Refusal::NamespaceTerminating,
        409 if status.reason == "AlreadyExists" => Refusal::Exists,
        404 | 409 => Refusal::Outdated,
        // Too many requests, and the time-outs among the 4xx.
        408 | 429 => Refusal::Unavailable,
        400..500 => Refusal::Refused(Trouble::new(refusal_reason(&status.message), &status.message)),
        _ => Refusal::Unavailable,
    }
}

/// What went wrong, without the dump of the whole answer.
pub fn words_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Admission plugins have no codes of their own, so their words have to do.
fn refusal_reason(message: &str) -> Reason {
    let says = |words: &str| message.contains(words);
    if says("exceeded quota") || says("failed quota") {
        Reason::QuotaExceeded
    } else if says("RuntimeClass") && says("not found") {
        Reason::RuntimeClassNotFound
    } else if says("usage per Container") || says("usage per Pod") || says("usage per PersistentVolumeClaim") {
        Reason::LimitRefused
    } else {
        Reason::Refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(code: u16, reason: &str, message: &str) -> Refusal {
        let status: Status =
            serde_json::from_value(json!({ "code": code, "reason": reason, "message": message })).unwrap();
        read_refusal(&status)
    }

    #[test]
    fn each_refusal_has_its_reason_in_the_servers_words() {
        let rows = [
            ("pods \"a\" is forbidden: exceeded quota: small, requested: pods=1", Reason::QuotaExceeded),
            ("pods \"a\" is forbidden: [maximum cpu usage per Container is 1, but limit is 2]", Reason::LimitRefused),
            ("pods \"a\" is forbidden: pod rejected: RuntimeClass \"gvisor\" not found", Reason::RuntimeClassNotFound),
            ("pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\"", Reason::Refused),
        ];
        for (message, reason) in rows {
            assert_eq!(read(403, "Forbidden", message), Refusal::Refused(Trouble::new(reason, message)));
        }
    }

    #[test]
    fn what_may_pass_is_no_refusal() {
        assert_eq!(read(409, "AlreadyExists", ""), Refusal::Exists);
        assert_eq!(read(409, "Conflict", ""), Refusal::Outdated);
        assert_eq!(read(404, "NotFound", ""), Refusal::Outdated);
        assert_eq!(read(429, "TooManyRequests", ""), Refusal::Unavailable);
        assert_eq!(read(500, "InternalError", ""), Refusal::Unavailable);
    }

    #[test]
    fn a_terminating_namespace_is_known_by_its_cause() {
        let status: Status = serde_json::from_value(json!({ "code": 403, "reason": "Forbidden", "message": "m",
            "details": { "causes": [{ "reason": "NamespaceTerminating", "message": "", "field": "" }] } }))
        .unwrap();
        assert_eq!(read_refusal(&status), Refusal::NamespaceTerminating);
    }
}
