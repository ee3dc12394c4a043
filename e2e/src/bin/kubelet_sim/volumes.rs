//! The storage class and its volumes. A volume is an object only: nothing ever mounts it.

use crate::requests::{Requests, is_settled};
use anyhow::Context as _;
use futures_util::StreamExt as _;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher, watcher::Event},
};
use serde_json::json;
use std::{collections::HashSet, time::Duration};

/// Name of this provisioner.
const PROVISIONER: &str = "codeexec.dev/simulated";
/// How the control plane asks a provisioner for a volume.
const ASKED: &str = "volume.kubernetes.io/storage-provisioner";
/// Marks a volume as ours, so that the control plane leaves its deletion to us.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// A path that is on no node.
const NOWHERE: &str = "/nonexistent/codeexec-simulated";
/// How often it is looked whether all volumes are gone.
const POLL: Duration = Duration::from_millis(200);

/// Makes the class, or takes one that an earlier run left.
pub async fn make_class(client: &Client, name: &str) -> anyhow::Result<()> {
    let classes: Api<StorageClass> = Api::all(client.clone());
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": {"name": name},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }))?;
    match classes.create(&PostParams::default(), &class).await {
        Err(error) if !is_settled(&error) => Err(error).context("making the storage class"),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes a volume for each claim of the class, for ever.
pub async fn provide(client: Client, requests: Requests, class: String) {
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client);
    let mut events = watcher(claims, watcher::Config::default()).default_backoff().boxed();
    let mut provided = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(claim) | Event::InitApply(claim)) => {
                let Some(volume) = volume_for(&claim, &class) else { continue };
                if provided.insert(claim.uid()) {
                    let (volumes, requests) = (volumes.clone(), requests.clone());
                    tokio::spawn(async move {
                        let parameters = PostParams::default();
                        let name = volume.name_any();
                        requests.send("making volume", &name, || volumes.create(&parameters, &volume)).await;
                    });
                }
            }
            Ok(Event::Delete(claim)) => {
                provided.remove(&claim.uid());
            }
            Ok(Event::Init) => provided.clear(),
            Ok(Event::InitDone) => {}
            Err(error) => tracing::warn!(%error, "the watch of claims was interrupted; it goes on after a pause"),
        }
    }
}

/// Deletes the volumes of the class whose claims are gone, for ever.
pub async fn reclaim(client: Client, requests: Requests, class: String) {
    let volumes: Api<PersistentVolume> = Api::all(client);
    let mut events = watcher(volumes.clone(), watcher::Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(volume) | Event::InitApply(volume)) if is_released(&volume, &class) => {
                let (volumes, requests) = (volumes.clone(), requests.clone());
                tokio::spawn(async move { delete(&volumes, &requests, &volume.name_any()).await });
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the watch of volumes was interrupted; it goes on after a pause"),
        }
    }
}

/// Deletes the class, the claims that it has left, and all of its volumes, and waits until they are gone.
pub async fn remove_all(client: &Client, requests: &Requests, class: &str) -> anyhow::Result<()> {
    let classes: Api<StorageClass> = Api::all(client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let (plain, patching) = (DeleteParams::default(), PatchParams::default());
    requests.send("deleting class", class, || classes.delete(class, &plain)).await;
    loop {
        let mut left = claims.list(&ListParams::default()).await.context("listing claims")?.items;
        left.retain(|claim| claim_class(claim) == Some(class));
        for claim in &left {
            let own: Api<PersistentVolumeClaim> =
                Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
            let name = claim.name_any();
            requests.send("deleting claim", &name, || own.delete(&name, &plain)).await;
        }
        let mut volumes_left = volumes.list(&ListParams::default()).await.context("listing volumes")?.items;
        volumes_left.retain(|volume| volume_class(volume) == Some(class));
        if left.is_empty() && volumes_left.is_empty() {
            return Ok(());
        }
        if left.is_empty() {
            for volume in &volumes_left {
                // Without its claim nothing uses it, whatever the control plane has noticed so far.
                let (name, free) = (volume.name_any(), Patch::Merge(json!({"metadata": {"finalizers": null}})));
                delete(&volumes, requests, &name).await;
                requests.send("freeing volume", &name, || volumes.patch(&name, &patching, &free)).await;
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn delete(volumes: &Api<PersistentVolume>, requests: &Requests, name: &str) {
    let parameters = DeleteParams::default();
    requests.send("deleting volume", name, || volumes.delete(name, &parameters)).await;
}

fn claim_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.storage_class_name.as_deref()
}

fn volume_class(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.storage_class_name.as_deref()
}

/// Whether the volume's claim is gone and nobody has deleted the volume yet.
fn is_released(volume: &PersistentVolume, class: &str) -> bool {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    volume_class(volume) == Some(class)
        && volume.metadata.deletion_timestamp.is_none()
        && matches!(phase, Some("Released" | "Failed"))
}

/// The volume of a claim that asks for one and has none yet: bound to it beforehand, and usable from every node.
fn volume_for(claim: &PersistentVolumeClaim, class: &str) -> Option<PersistentVolume> {
    let spec = claim.spec.as_ref()?;
    let wanted = claim_class(claim) == Some(class)
        && claim.annotations().get(ASKED).is_some_and(|name| name == PROVISIONER)
        && spec.volume_name.is_none()
        && claim.metadata.deletion_timestamp.is_none();
    let uid = claim.uid().filter(|_| wanted)?;
    let volume = json!({
        "metadata": {"name": format!("pvc-{uid}"), "annotations": {(PROVISIONED_BY): PROVISIONER}},
        "spec": {
            "storageClassName": class,
            "capacity": spec.resources.as_ref()?.requests,
            "accessModes": spec.access_modes,
            "volumeMode": spec.volume_mode,
            "persistentVolumeReclaimPolicy": "Delete",
            "hostPath": {"path": NOWHERE},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace(), "name": claim.name_any(), "uid": uid,
            },
        },
    });
    serde_json::from_value(volume).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn claim(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
        let mut value = json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "u", "annotations": {(ASKED): PROVISIONER}},
            "spec": {"storageClassName": "sim", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_claim_gets_a_volume_of_its_size_that_only_it_can_take() {
        let volume = volume_for(&claim(|_| {}), "sim").unwrap().spec.unwrap();
        assert_eq!(volume.claim_ref.unwrap().uid.as_deref(), Some("u"));
        assert_eq!(volume.capacity.unwrap()["storage"].0, "1Gi");
        assert!(volume.node_affinity.is_none());
    }

    #[test]
    fn claims_of_others_bound_deleted_or_not_yet_asked_for_get_none() {
        assert!(volume_for(&claim(|_| {}), "standard").is_none());
        assert!(volume_for(&claim(|it| it["spec"]["volumeName"] = json!("pvc-u")), "sim").is_none());
        assert!(volume_for(&claim(|it| it["metadata"]["annotations"] = json!({})), "sim").is_none());
        assert!(
            volume_for(&claim(|it| it["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")), "sim")
                .is_none()
        );
    }

    #[test]
    fn only_released_volumes_of_the_class_are_deleted() {
        let volume = |class: &str, phase: &str| -> PersistentVolume {
            serde_json::from_value(json!({"spec": {"storageClassName": class}, "status": {"phase": phase}})).unwrap()
        };
        assert!(is_released(&volume("sim", "Released"), "sim"));
        assert!(!is_released(&volume("sim", "Bound"), "sim"));
        assert!(!is_released(&volume("standard", "Released"), "sim"));
    }
}
