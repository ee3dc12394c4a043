//! The rendered objects.

use super::world::World;
use crate::{decide::Act, render::prepare};
use crds::keys;
use k8s_openapi::api::core::v1::{Container, PersistentVolumeClaim, Pod, PodSpec};
use sandboxd_protocol::layout;
use serde_json::{Value, json};

const IMAGE: &str = "registry.example/sandboxd:7";

fn rendered(template: &Value) -> (PersistentVolumeClaim, Pod) {
    let mut world = World::new(&json!({ "workspace": { "size": "3Gi", "storageClassName": "fast" } }));
    world.template = Some(crate::fixture::template(template));
    let prepared = prepare(&Act::Start { new_claim: true }, &world.valid(), "the-claim", IMAGE).unwrap();
    (prepared.claim.unwrap(), prepared.pod)
}

fn spec(template: &Value) -> PodSpec {
    rendered(template).1.spec.unwrap()
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

fn container<'a>(spec: &'a PodSpec, name: &str) -> &'a Container {
    containers(spec).find(|container| container.name == name).unwrap()
}

#[test]
fn every_container_is_restricted() {
    let spec = spec(&json!({ "image": "python:3" }));
    let pod = spec.security_context.clone().unwrap();
    assert_eq!(
        (pod.run_as_non_root, pod.run_as_user, pod.run_as_group, pod.fs_group),
        (Some(true), Some(1000), Some(1000), Some(1000))
    );
    assert_eq!(pod.seccomp_profile.unwrap().type_, "RuntimeDefault");
    assert_eq!(pod.fs_group_change_policy.as_deref(), Some("OnRootMismatch"));
    assert_eq!((spec.automount_service_account_token, spec.enable_service_links), (Some(false), Some(false)));
    assert_eq!(
        (spec.host_network, spec.host_pid, spec.host_ipc, spec.share_process_namespace),
        (None, None, None, None)
    );
    assert_eq!(spec.hostname.as_deref(), Some("sandbox"));
    assert_eq!(spec.termination_grace_period_seconds, Some(10));
    assert_eq!(
        containers(&spec).map(|container| container.name.as_str()).collect::<Vec<_>>(),
        ["init", "main", "files"]
    );
    for container in containers(&spec) {
        let security = container.security_context.clone().unwrap();
        assert_eq!(security.allow_privilege_escalation, Some(false), "{}", container.name);
        assert_eq!(security.read_only_root_filesystem, Some(true), "{}", container.name);
        assert_eq!(security.capabilities.unwrap().drop, Some(vec!["ALL".to_owned()]), "{}", container.name);
        let limits = container.resources.clone().unwrap().limits.unwrap();
        assert_eq!(limits.keys().collect::<Vec<_>>(), ["cpu", "ephemeral-storage", "memory"], "{}", container.name);
        assert!(
            container.liveness_probe.is_none()
                && container.readiness_probe.is_none()
                && container.startup_probe.is_none()
        );
    }
}

#[test]
fn volumes_are_one_claim_and_empty_folders_with_a_limit() {
    let spec = spec(&json!({ "image": "python:3" }));
    let mut claims = 0;
    for volume in spec.volumes.clone().unwrap() {
        match (&volume.empty_dir, &volume.persistent_volume_claim) {
            (Some(folder), None) => assert!(folder.size_limit.is_some(), "{}", volume.name),
            (None, Some(_)) => claims += 1,
            _ => panic!("volume {}", volume.name),
        }
    }
    assert_eq!(claims, 1);
    for container in containers(&spec) {
        for mount in container.volume_mounts.iter().flatten() {
            assert!(spec.volumes.iter().flatten().any(|volume| volume.name == mount.name), "{}", mount.name);
        }
    }
}

#[test]
fn main_sees_the_folders_as_agreed_and_home_before_the_workspace() {
    let spec = spec(&json!({ "image": "python:3" }));
    let mounts = container(&spec, "main").volume_mounts.clone().unwrap();
    for folder in layout::FOLDERS {
        let mount = mounts.iter().find(|mount| mount.mount_path == folder.path).unwrap();
        assert_eq!(
            (mount.sub_path.as_deref(), mount.read_only == Some(true)),
            (Some(folder.claim), !folder.writable),
            "{}",
            folder.path
        );
    }
    let place = |path: &str| mounts.iter().position(|mount| mount.mount_path == path).unwrap();
    assert!(place(layout::HOME) < place(layout::WORKSPACE));
    assert!(mounts.iter().all(|mount| mount.sub_path.as_deref() != Some(layout::SEALED)));
    assert!(
        mounts.iter().all(|mount| mount.name != "workspace" || mount.sub_path.is_some()),
        "main never mounts the whole claim"
    );
    for name in ["main", "files"] {
        let mounts = container(&spec, name).volume_mounts.clone().unwrap();
        let binary = mounts.iter().find(|mount| mount.mount_path == layout::BINARY_DIR).unwrap();
        assert_eq!(binary.read_only, Some(true), "{name}");
    }
    let sockets = ["main", "files"].map(|name| {
        let mounts = container(&spec, name).volume_mounts.clone().unwrap();
        mounts.into_iter().find(|mount| mount.mount_path == layout::SOCKET_DIR).unwrap().name
    });
    assert_ne!(sockets[0], sockets[1], "a socket is private to its container");
}

#[test]
fn commands_and_images_are_those_of_the_two_halves() {
    let spec = spec(&json!({ "image": "python:3" }));
    let command = |name: &str| container(&spec, name).command.clone().unwrap().join(" ");
    assert_eq!(command("init"), "/sandboxd init --binary-to /opt/sandboxd/sandboxd --claim /claim");
    assert_eq!(command("main"), "/opt/sandboxd/sandboxd serve --half main");
    assert_eq!(command("files"), "/opt/sandboxd/sandboxd serve --half files --claim /claim");
    let image = |name: &str| container(&spec, name).image.clone().unwrap();
    assert_eq!([image("init"), image("main"), image("files")], [IMAGE, "python:3", IMAGE]);
}

#[test]
fn no_part_of_the_spec_depends_on_the_sandbox() {
    let (claim, pod) = rendered(&json!({ "image": "python:3" }));
    let name = claim.metadata.name.unwrap();
    let text = serde_json::to_string(&pod.spec).unwrap().replace(&format!("\"claimName\":\"{name}\""), "");
    for part in [crate::fixture::UID, crate::fixture::NAME, crate::fixture::NAMESPACE, &name] {
        assert!(!text.contains(part), "{part}");
    }
}

#[test]
fn children_carry_their_owner_and_labels() {
    let (claim, pod) = rendered(&json!({ "image": "python:3" }));
    for metadata in [claim.metadata.clone(), pod.metadata.clone()] {
        let owner = metadata.owner_references.unwrap().remove(0);
        assert_eq!(
            (owner.uid.as_str(), owner.controller, owner.kind.as_str()),
            (crate::fixture::UID, Some(true), "Sandbox")
        );
        assert_eq!(metadata.labels.unwrap()[keys::SANDBOX_UID], crate::fixture::UID);
        assert_eq!(metadata.annotations.unwrap()[keys::SANDBOX], crate::fixture::NAME);
    }
    let spec = claim.spec.unwrap();
    assert_eq!(spec.storage_class_name.as_deref(), Some("fast"));
    assert_eq!(spec.resources.unwrap().requests.unwrap()["storage"].0, "3Gi");
    assert!(pod.metadata.annotations.unwrap().contains_key(keys::TEMPLATE_HASH));
}

#[test]
fn the_templates_fields_reach_the_pod() {
    let spec = spec(&json!({
        "image": "python:3", "runtimeClassName": "gvisor", "nodeSelector": { "pool": "boxes" },
        "tolerations": [{ "key": "boxes", "operator": "Exists", "effect": "NoSchedule" }],
        "imagePullSecrets": [{ "name": "pull" }], "env": [{ "name": "A", "value": "$(HOME) $x" }],
    }));
    assert_eq!(spec.runtime_class_name.as_deref(), Some("gvisor"));
    assert_eq!(spec.node_selector.as_ref().unwrap()["pool"], "boxes");
    let toleration = &spec.tolerations.as_ref().unwrap()[0];
    assert_eq!((toleration.operator.as_deref(), toleration.effect.as_deref()), (Some("Exists"), Some("NoSchedule")));
    assert_eq!(spec.image_pull_secrets.as_ref().unwrap()[0].name, "pull");
    let main = container(&spec, "main");
    assert_eq!(main.env.as_ref().unwrap()[0].value.as_deref(), Some("$$(HOME) $$x"), "taken as it is");
    assert!(container(&spec, "files").env.is_none());
}

#[test]
fn resources_are_what_the_template_says_and_limits_are_always_set() {
    // Limits and requests of the template; then limit and request of cpu and memory as rendered.
    let rows = [
        ("nothing said", json!({}), ["1", "100m", "5Gi", "256Mi"]),
        ("a limit", json!({ "limits": { "cpu": 2, "memory": "128Mi" } }), ["2", "-", "128Mi", "-"]),
        ("a request", json!({ "requests": { "cpu": "500m", "memory": "8Gi" } }), ["1", "500m", "8Gi", "8Gi"]),
        ("both", json!({ "requests": { "cpu": 1 }, "limits": { "cpu": 4 } }), ["4", "1", "5Gi", "256Mi"]),
    ];
    for (row, resources, expected) in rows {
        let spec = spec(&json!({ "image": "python:3", "resources": resources }));
        let rendered = container(&spec, "main").resources.clone().unwrap();
        let (limits, requests) = (rendered.limits.unwrap(), rendered.requests.unwrap_or_default());
        let amount =
            |name: &str| [&limits, &requests].map(|list| list.get(name).map_or("-", |amount| amount.0.as_str()));
        assert_eq!([amount("cpu"), amount("memory")].concat(), expected, "{row}");
    }
}
