//! Asks the API server whether it would take a pod of a template.

use crate::{
    apply::{ApplyError, request},
    observe::not_mountable,
    refusal::Refusal,
    render::template_pod,
    trouble::Trouble,
    validate::PodSource,
};
use crds::{Reason, SandboxTemplate, keys};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Client, ResourceExt, api::PostParams};

/// What the API server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It would.
    Accepted,
    /// It would not.
    Refused(Trouble),
    /// It says nothing about the template.
    Unclear,
    /// The namespace is being deleted.
    NamespaceTerminating,
}

/// Asks it: a pod that is not made, and each claim that it mounts.
pub async fn ask(
    client: &Client,
    namespace: &str,
    template: &SandboxTemplate,
    sandboxd_image: &str,
) -> Result<Answer, ApplyError> {
    let source =
        PodSource { template: template.name_any(), hash: template.spec.pod_hash(), spec: template.spec.clone() };
    let pod = template_pod(namespace, &source, sandboxd_image);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let trial = PostParams { dry_run: true, ..PostParams::default() };
    let answer = read_answer(request("trying a pod of template", &source.template, pods.create(&trial, &pod)).await?);
    if answer != Answer::Accepted {
        return Ok(answer);
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    for mount in &source.spec.mounts {
        let name = &mount.claim_name;
        let found = request("reading claim", name, claims.get_metadata(name)).await?;
        let marked =
            found.map(|claim| claim.labels().get(keys::MOUNTABLE).is_some_and(|value| value == keys::MOUNTABLE_VALUE));
        match marked {
            Ok(true) => {}
            // Outdated: there is none.
            Ok(false) | Err(Refusal::Outdated) => return Ok(Answer::Refused(not_mountable(name))),
            Err(_) => return Ok(Answer::Unclear),
        }
    }
    Ok(Answer::Accepted)
}

fn read_answer<T>(answer: Result<T, Refusal>) -> Answer {
    match answer {
        // A pod that is there already has passed everything that can refuse one.
        Ok(_) | Err(Refusal::Exists) => Answer::Accepted,
        // The quota is looked at last, and it is no problem of the template.
        Err(Refusal::Refused(trouble)) if trouble.reason == Reason::QuotaExceeded => Answer::Accepted,
        Err(Refusal::Refused(trouble)) => Answer::Refused(trouble),
        Err(Refusal::NamespaceTerminating) => Answer::NamespaceTerminating,
        Err(Refusal::Outdated | Refusal::Unavailable) => Answer::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_quota_is_no_problem_of_the_template() {
        let refused = |reason| Err::<(), _>(Refusal::Refused(Trouble::new(reason, "words of the API server")));
        let rows = [
            (Ok(()), Answer::Accepted),
            (Err(Refusal::Exists), Answer::Accepted),
            (refused(Reason::QuotaExceeded), Answer::Accepted),
            (
                refused(Reason::LimitRefused),
                Answer::Refused(Trouble::new(Reason::LimitRefused, "words of the API server")),
            ),
            (Err(Refusal::NamespaceTerminating), Answer::NamespaceTerminating),
            (Err(Refusal::Outdated), Answer::Unclear),
        ];
        for (answer, expected) in rows {
            assert_eq!(read_answer(answer.clone()), expected, "{answer:?}");
        }
    }
}
