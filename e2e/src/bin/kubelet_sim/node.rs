//! The node and its heartbeat.

use crate::requests::is_settled;
use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::time::Duration;

/// Label and key of the taint of a simulated node.
pub const SIMULATED: &str = "codeexec.dev/simulated";
/// Where nodes keep their Leases.
const LEASES: &str = "kube-node-lease";
/// As real kubelets do it; the control plane takes a node for lost after 40 s and more.
const RENEW: Duration = Duration::from_secs(10);
const LEASE_SECONDS: u32 = 40;
/// Renewals between two reports of the node's status: five minutes, as real kubelets do it.
const RENEWALS_PER_STATUS: u32 = 30;

/// Makes the node, or takes one that an earlier run left.
pub async fn register(client: &Client, name: &str) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node: Node = serde_json::from_value(node(name))?;
    match nodes.create(&PostParams::default(), &node).await {
        Err(error) if !is_settled(&error) => return Err(error).context("registering the node"),
        Ok(_) | Err(_) => {}
    }
    let schedulable = json!({"spec": {"unschedulable": null}});
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(schedulable)).await.context("opening the node")?;
    renew(client, name).await?;
    report(client, name).await
}

/// Renews the Lease, and now and then the status, for ever.
pub async fn keep_alive(client: Client, name: String) {
    let mut renewals = 0;
    loop {
        tokio::time::sleep(RENEW).await;
        renewals += 1;
        let mut beat = renew(&client, &name).await;
        if beat.is_ok() && renewals % RENEWALS_PER_STATUS == 0 {
            beat = report(&client, &name).await;
        }
        if let Err(error) = beat {
            tracing::warn!(error = format!("{error:#}"), "a heartbeat failed; the next one comes");
        }
    }
}

/// No more pods come.
pub async fn cordon(client: &Client, name: &str) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let closed = json!({"spec": {"unschedulable": true}});
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(closed)).await.context("closing the node")?;
    Ok(())
}

/// Removes the node and its Lease.
pub async fn remove(client: &Client, name: &str) -> anyhow::Result<()> {
    let left = Api::<Pod>::all(client.clone())
        .list_metadata(&ListParams::default().fields(&on_node(name)))
        .await
        .context("looking for pods left on the node")?;
    anyhow::ensure!(left.items.is_empty(), "{} pods are still on the node", left.items.len());
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    for outcome in [
        nodes.delete(name, &DeleteParams::default()).await.map(drop),
        leases.delete(name, &DeleteParams::default()).await.map(drop),
    ] {
        match outcome {
            Err(error) if !is_settled(&error) => return Err(error).context("removing the node"),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Field selector of the pods on a node.
pub fn on_node(name: &str) -> String {
    format!("spec.nodeName={name}")
}

async fn renew(client: &Client, name: &str) -> anyhow::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let lease = lease(name, Timestamp::now());
    match leases.patch(name, &PatchParams::default(), &Patch::Merge(&lease)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let lease: Lease = serde_json::from_value(lease)?;
            leases.create(&PostParams::default(), &lease).await.context("making the node's Lease")?;
        }
        outcome => {
            outcome.context("renewing the node's Lease")?;
        }
    }
    Ok(())
}

async fn report(client: &Client, name: &str) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let status = status(name, Timestamp::now());
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Strategic(status))
        .await
        .context("reporting the node's status")?;
    Ok(())
}

fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                (SIMULATED): "true",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
        },
        "spec": {"taints": [{"key": SIMULATED, "value": "true", "effect": "NoSchedule"}]},
    })
}

/// Large enough for any benchmark, so that only the number of requests matters.
fn status(name: &str, now: Timestamp) -> Value {
    let capacity = json!({"cpu": "100000", "memory": "1000000Gi", "ephemeral-storage": "1000000Gi", "pods": "20000"});
    let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "message": "simulated", "lastHeartbeatTime": now, "lastTransitionTime": now});
    json!({"status": {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [
            condition("Ready", "True", "KubeletReady"),
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        ],
        "addresses": [{"type": "Hostname", "address": name}],
        "nodeInfo": {
            "architecture": "amd64", "operatingSystem": "linux", "osImage": "simulated", "kernelVersion": "simulated",
            "kubeletVersion": "v0.0.0-simulated", "kubeProxyVersion": "", "containerRuntimeVersion": "simulated://0",
            "machineID": name, "systemUUID": name, "bootID": name,
        },
    }})
}

fn lease(name: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": LEASES},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": format!("{now:.6}")},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_are_what_kubernetes_reads() {
        let now: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let made: Node = serde_json::from_value(node("sim")).unwrap();
        assert_eq!(made.spec.unwrap().taints.unwrap()[0].key, SIMULATED);
        let reported: Node = serde_json::from_value(status("sim", now)).unwrap();
        assert!(
            reported.status.unwrap().conditions.unwrap().iter().any(|it| it.type_ == "Ready" && it.status == "True")
        );
        let renewed: Lease = serde_json::from_value(lease("sim", now)).unwrap();
        assert_eq!(renewed.spec.unwrap().renew_time.unwrap().0, now);
    }
}
