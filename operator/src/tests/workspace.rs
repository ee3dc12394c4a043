//! The workspace over the life of sandboxes.

use super::world::World;
use crate::{
    decide::Act,
    observe::{ClaimOwner, ClaimPhase, ClaimSeen},
    trouble::Trouble,
};
use crds::{BindingSource, Phase, Reason};
use serde_json::json;

fn retained(world: &World, name: &str) -> ClaimSeen {
    let seen = world.new_claim();
    ClaimSeen { name: name.to_owned(), owner: ClaimOwner::Foreign, phase: ClaimPhase::Bound, ..seen }
}

fn retaining() -> World {
    World::new(&json!({ "workspace": { "whenDeleted": "Retain" } }))
}

#[test]
fn a_retained_claim_is_taken_back_by_the_next_sandbox_of_its_name() {
    let mut world = retaining();
    world.seen.left_behind = vec![retained(&world, "left-behind")];
    let writes = world.writes_of(|world| {
        world.settle();
        world.pod_runs();
        world.settle();
    });
    assert_eq!(writes, ["status", "take back", "pod", "status"]);
    let binding = world.status().binding.unwrap();
    assert_eq!((binding.workspace_claim.as_str(), binding.source), ("left-behind", BindingSource::Existing));
    assert_eq!(world.status().effective.unwrap().when_deleted, Some(crds::WhenDeleted::Retain));
}

#[test]
fn several_retained_claims_are_for_a_person_to_choose_from() {
    let mut world = retaining();
    world.seen.left_behind = vec![retained(&world, "one"), retained(&world, "two")];
    assert_eq!(world.writes_of(World::settle), ["status"]);
    assert_eq!((world.phase(), world.reason().as_str()), (Some(Phase::Pending), "WorkspaceAmbiguous"));
    world.seen.left_behind.pop();
    world.settle();
    assert_eq!(world.status().binding.unwrap().workspace_claim, "one");
}

#[test]
fn a_sandbox_that_does_not_retain_takes_nothing_back_and_one_that_does_makes_a_claim_that_nobody_owns() {
    let mut world = retaining();
    world.settle();
    assert_eq!(world.seen.claim.as_ref().unwrap().owner, ClaimOwner::Retained);
    let claim = crate::render::prepare(&Act::Start { new_claim: true }, &world.valid(), "claim", "image")
        .unwrap()
        .claim
        .unwrap();
    assert_eq!(claim.metadata.owner_references, None);
    let owned = World::new(&json!({})).valid();
    let claim =
        crate::render::prepare(&Act::Start { new_claim: true }, &owned, "claim", "image").unwrap().claim.unwrap();
    assert_eq!(claim.metadata.owner_references.unwrap().len(), 1);
}

#[test]
fn an_existing_claim_is_used_as_it_is() {
    let mut world = World::new(&json!({ "workspace": { "existingClaim": { "name": "data", "subPath": "anna" } } }));
    world.settle();
    assert_eq!((world.phase(), world.reason().as_str()), (Some(Phase::Pending), "ClaimNotMountable"));
    world.seen.claim =
        Some(ClaimSeen { name: "data".to_owned(), phase: ClaimPhase::Bound, requested: None, ..world.new_claim() });
    let writes = world.writes_of(World::settle);
    assert_eq!(writes, ["status", "pod"], "and no claim");
    let pod = crate::render::prepare(&Act::Start { new_claim: false }, &world.valid(), "data", "image").unwrap().pod;
    let spec = pod.spec.unwrap();
    let claims: Vec<_> = spec
        .volumes
        .iter()
        .flatten()
        .filter_map(|volume| volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str()))
        .collect();
    assert_eq!(claims, ["data"]);
    let on_the_claim = |container: &k8s_openapi::api::core::v1::Container| -> Vec<_> {
        let mounts = container.volume_mounts.iter().flatten().filter(|mount| mount.name == "workspace");
        mounts.map(|mount| mount.sub_path.clone().unwrap_or_default()).collect()
    };
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        let paths = on_the_claim(container);
        assert!(!paths.is_empty() && paths.iter().all(|path| path.split('/').next() == Some("anna")), "{paths:?}");
    }
}

#[test]
fn a_claim_grows_once_and_what_cannot_be_is_said_once() {
    let mut world = World::ready(&json!({ "workspace": { "size": "1Gi" } }));
    world.edit(&json!({ "workspace": { "size": "2Gi" } }));
    assert_eq!(world.writes_of(World::settle), ["grow", "status"]);
    assert_eq!(world.condition("WorkspaceBound"), Some(("True".to_owned(), "ResizePending".to_owned())));
    world.seen.claim.as_mut().unwrap().capacity = Some("2Gi".parse().unwrap());
    world.settle();
    assert_eq!(world.condition("WorkspaceBound"), Some(("True".to_owned(), "Bound".to_owned())));
    assert_eq!(world.phase(), Some(Phase::Ready));

    world.refuse = Some(Trouble::new(Reason::Refused, "only dynamically provisioned pvc can be resized"));
    world.edit(&json!({ "workspace": { "size": "3Gi" } }));
    let writes = world.writes_of(World::settle);
    assert_eq!(writes.iter().filter(|write| **write == "grow").count(), 1, "{writes:?}");
    assert_eq!(world.condition("WorkspaceBound"), Some(("True".to_owned(), "ResizeRefused".to_owned())));
    assert_eq!(world.phase(), Some(Phase::Ready), "it is no reason to stop");
    world.refuse = None;
    world.edit(&json!({ "workspace": { "size": "4Gi" } }));
    assert!(world.writes_of(World::settle).contains(&"grow"), "another size is another question");
}

#[test]
fn mounts_that_are_missing_are_named_before_a_pod_is_made() {
    let mut world = World::new(&json!({}));
    world.seen.mounts = Err(crate::observe::not_mountable("models"));
    assert_eq!(world.writes_of(World::settle), ["status"]);
    assert_eq!(world.reason(), "ClaimNotMountable");
    world.seen.mounts = Ok(());
    world.settle();
    assert!(world.seen.pod.is_some());
}

#[test]
fn a_template_enlarges_no_claim_and_its_absence_none_either() {
    let mut world = World::new(&json!({}));
    world.template = Some(crate::fixture::template(&json!({ "image": "python:3", "workspace": { "size": "1Gi" } })));
    world.settle();
    world.pod_runs();
    world.settle();
    world.template = Some(crate::fixture::template(&json!({ "image": "python:3", "workspace": { "size": "2Gi" } })));
    assert!(world.writes_of(World::settle).is_empty());
    world.template = None;
    assert!(world.writes_of(World::settle).iter().all(|write| *write == "status"));
    assert_eq!(world.status().effective.unwrap().workspace_size.unwrap().as_str(), "1Gi");
}
