//! The pods of the node: started when seen, ended when deleted.

use crate::{
    node::on_node,
    pod_status::{Stage, Step, address, status_patch, step},
    requests::Requests,
};
use anyhow::Context as _;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
    runtime::{WatchStreamExt as _, watcher, watcher::Event},
};
use std::{collections::HashSet, net::Ipv4Addr, time::Duration};

/// How often it is looked whether all pods are gone.
const POLL: Duration = Duration::from_millis(200);

/// Plays the kubelet for all pods of the node, for ever.
pub async fn run(client: Client, requests: Requests, node: String, delay: Duration) {
    let all: Api<Pod> = Api::all(client.clone());
    let mut events = watcher(all, watcher::Config::default().fields(&on_node(&node))).default_backoff().boxed();
    // UIDs of pods for which something is under way; every report of ours comes back as an event.
    let (mut started, mut ended) = (HashSet::new(), HashSet::new());
    let mut number: u32 = 0;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                let uid = pod.uid().unwrap_or_default();
                match step(&pod) {
                    Step::Start => {
                        if started.insert(uid) {
                            number = number.wrapping_add(1);
                            tokio::spawn(start(client.clone(), requests.clone(), pod, number, delay));
                        }
                    }
                    Step::End => {
                        if ended.insert(uid) {
                            tokio::spawn(end(client.clone(), requests.clone(), pod));
                        }
                    }
                    Step::Nothing => {}
                }
            }
            Ok(Event::Delete(pod)) => {
                let uid = pod.uid().unwrap_or_default();
                started.remove(&uid);
                ended.remove(&uid);
            }
            // A new list shows again what could not be ended. Starts stay known: a second one would take a Ready pod back.
            Ok(Event::Init) => ended.clear(),
            Ok(Event::InitDone) => {}
            Err(error) => tracing::warn!(%error, "the watch of pods was interrupted; it goes on after a pause"),
        }
    }
}

async fn start(client: Client, requests: Requests, pod: Pod, number: u32, delay: Duration) {
    let (pods, name) = (api(&client, &pod), pod.name_any());
    // The first report is at once, the others share the delay.
    let pause = delay / 3;
    for stage in Stage::START {
        if stage != Stage::Accepted && !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let patch = Patch::Strategic(status_patch(&pod, stage, address(number), Timestamp::now()));
        let params = PatchParams::default();
        if requests.send("reporting pod", &name, || pods.patch_status(&name, &params, &patch)).await.is_none() {
            return;
        }
    }
}

async fn end(client: Client, requests: Requests, pod: Pod) {
    let (pods, name) = (api(&client, &pod), pod.name_any());
    let ended = Patch::Strategic(status_patch(&pod, Stage::Ended, Ipv4Addr::UNSPECIFIED, Timestamp::now()));
    let patching = PatchParams::default();
    if requests.send("reporting pod", &name, || pods.patch_status(&name, &patching, &ended)).await.is_none() {
        return;
    }
    let parameters = now(pod.uid());
    requests.send("ending pod", &name, || pods.delete(&name, &parameters)).await;
}

fn api(client: &Client, pod: &Pod) -> Api<Pod> {
    Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default())
}

fn now(uid: Option<String>) -> DeleteParams {
    DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::default()
    }
}

/// Deletes what is left on the node, and waits until it is gone.
pub async fn remove_all(client: &Client, requests: &Requests, node: &str) -> anyhow::Result<()> {
    let all: Api<Pod> = Api::all(client.clone());
    loop {
        let left = all.list_metadata(&ListParams::default().fields(&on_node(node))).await.context("listing pods")?;
        if left.items.is_empty() {
            return Ok(());
        }
        let deletions = left.items.iter().map(|pod| {
            let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
            let (name, parameters) = (pod.name_any(), now(pod.uid()));
            async move { requests.send("deleting pod", &name, || pods.delete(&name, &parameters)).await.map(drop) }
        });
        futures_util::future::join_all(deletions).await;
        tokio::time::sleep(POLL).await;
    }
}
