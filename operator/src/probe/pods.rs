//! Makes the probe's pod, waits for its end, and removes it.

use super::pod::{CONTAINER, DEADLINE_SECONDS, LABEL, PREFIX, Placement, probe_pod};
use crate::{
    apply::{namespace_is_terminating, request},
    isolation::Report,
    refusal::Refusal,
    render::template_pod,
    validate::PodSource,
};
use crds::{SandboxTemplate, fallback, keys};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
    runtime::wait::await_condition,
};
use std::{net::SocketAddr, time::Duration};
use tokio_util::sync::CancellationToken;

/// A little longer than the kubelet lets it run.
const DEADLINE: Duration = Duration::from_secs(DEADLINE_SECONDS.unsigned_abs() + 30);

/// What a probe's pod left.
pub(super) struct Ended {
    /// Node it ran on.
    pub(super) node: String,
    /// What it said.
    pub(super) report: Report,
}

/// Runs one pod. `Err` says why nothing can be said.
pub(super) async fn run_pod(
    client: &Client,
    namespace: &str,
    image: &str,
    canaries: &[SocketAddr],
    prefer: Option<&str>,
    stop: &CancellationToken,
) -> Result<Ended, String> {
    if namespace_is_terminating(client, namespace).await {
        return Err(format!("namespace {namespace} is being deleted"));
    }
    let chance = getrandom::u64().map_err(|error| format!("no random numbers: {error}"))?;
    let name = format!("{PREFIX}{chance:016x}");
    let placement = placement(client, namespace, image).await;
    let pod = probe_pod(namespace, &name, image, canaries, &placement, prefer);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let made = match request("creating the probe's pod", &name, pods.create(&PostParams::default(), &pod)).await {
        Ok(Ok(made)) => made,
        Ok(Err(Refusal::Refused(trouble))) => {
            return Err(format!("the API server refuses the probe's pod: {}", trouble.message));
        }
        Ok(Err(other)) => return Err(format!("the probe's pod was not created: {other:?}")),
        Err(error) => return Err(error.to_string()),
    };
    let uid = made.uid().unwrap_or_default();
    let ended = tokio::select! {
        ended = wait(&pods, &name) => ended,
        () = stop.cancelled() => Err("the operator stops".to_owned()),
    };
    remove(&pods, &name, uid).await;
    ended
}

/// As the pods of the default template are placed; anywhere, when there is none.
async fn placement(client: &Client, namespace: &str, image: &str) -> Placement {
    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), namespace);
    match request("reading template", fallback::TEMPLATE, templates.get(fallback::TEMPLATE)).await {
        Ok(Ok(template)) => {
            let source =
                PodSource { template: template.name_any(), hash: template.spec.pod_hash(), spec: template.spec };
            Placement::like(template_pod(namespace, &source, image))
        }
        Ok(Err(_)) | Err(_) => Placement::default(),
    }
}

async fn wait(pods: &Api<Pod>, name: &str) -> Result<Ended, String> {
    let ended = |pod: Option<&Pod>| pod.is_none_or(|pod| terminated(pod).is_some() || has_failed(pod));
    let found = tokio::time::timeout(DEADLINE, await_condition(pods.clone(), name, ended)).await;
    match found {
        Ok(Ok(Some(pod))) => read(&pod),
        Ok(Ok(None)) => Err("somebody deleted the probe's pod".to_owned()),
        Ok(Err(error)) => Err(format!("the probe's pod cannot be watched: {error}")),
        Err(_) => Err(format!("the probe's pod did not end within {} s", DEADLINE.as_secs())),
    }
}

/// A pod can fail without its container ever running.
fn has_failed(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Failed")
}

fn terminated(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let container = statuses.iter().find(|status| status.name == CONTAINER)?;
    container.state.as_ref()?.terminated.as_ref()
}

fn read(pod: &Pod) -> Result<Ended, String> {
    let status = pod.status.as_ref();
    let Some(end) = terminated(pod) else {
        let words = status.and_then(|status| status.message.clone().or_else(|| status.reason.clone()));
        return Err(format!("the probe's pod failed: {}", words.unwrap_or_default()));
    };
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let message = end.message.as_deref().unwrap_or_default();
    match serde_json::from_str(message) {
        Ok(report) if end.exit_code == 0 => Ok(Ended { node, report }),
        _ => Err(format!("the probe ended with exit code {} and without a report", end.exit_code)),
    }
}

/// Removes what an operator that ended in the middle has left.
pub(super) async fn remove_stale(client: &Client, namespace: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let selector = format!("{LABEL}=true,{}={}", keys::MANAGED_BY, keys::MANAGED_BY_VALUE);
    let found =
        request("listing probes in", namespace, pods.list_metadata(&ListParams::default().labels(&selector))).await;
    let left = match found {
        Ok(Ok(found)) => found.items,
        Ok(Err(_)) => return,
        Err(error) => {
            tracing::warn!(namespace, %error, "probes that are left cannot be looked for");
            return;
        }
    };
    for pod in left.iter().filter(|pod| pod.name_any().starts_with(PREFIX)) {
        remove(&pods, &pod.name_any(), pod.uid().unwrap_or_default()).await;
    }
}

async fn remove(pods: &Api<Pod>, name: &str, uid: String) {
    let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
    let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
    let failure = match request("deleting the probe's pod", name, pods.delete(name, &parameters)).await {
        Ok(Ok(_) | Err(Refusal::Outdated)) => return,
        Ok(Err(refusal)) => format!("{refusal:?}"),
        Err(error) => error.to_string(),
    };
    tracing::warn!(pod = name, failure, "the probe's pod cannot be deleted; the next leader does it");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(state: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "spec": { "containers": [], "nodeName": "n1" },
            "status": { "phase": "Failed", "message": "Pod was active longer than its deadline", "containerStatuses": [
                { "name": CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }] },
        }))
        .unwrap()
    }

    #[test]
    fn only_a_probe_that_ended_well_and_said_something_is_believed() {
        let message = r#"{"tried":[{"name":"canary","address":"10.0.0.9:80"}],"reached":[]}"#;
        let good = read(&pod(&json!({ "terminated": { "exitCode": 0, "message": message } })))
            .unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((good.node.as_str(), good.report.tried[0].address.as_str()), ("n1", "10.0.0.9:80"));
        let rows = [
            (json!({ "terminated": { "exitCode": 1, "message": message } }), "exit code 1"),
            (json!({ "terminated": { "exitCode": 0, "message": "" } }), "without a report"),
            (json!({ "terminated": { "exitCode": 137 } }), "137"),
            (json!({ "waiting": { "reason": "ImagePullBackOff" } }), "longer than its deadline"),
        ];
        for (state, words) in rows {
            let why = read(&pod(&state)).err().unwrap_or_default();
            assert!(why.contains(words), "{state}: {why}");
        }
    }
}
