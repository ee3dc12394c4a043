//! Decisions, row by row.

use super::world::World;
use crate::{
    decide::Act,
    observe::{ClaimPhase, ClaimSeen},
    pod_state::{PodSeen, PodState},
    trouble::Trouble,
};
use crds::{Phase, Reason};
use serde_json::json;

/// A sandbox whose pod has just been made, as long ago as said.
fn starting(seconds_ago: i64) -> World {
    let mut world = World::new(&json!({}));
    world.settle();
    world.later(seconds_ago);
    world
}

fn waiting(reason: Reason, words: &str, since: Option<i64>) -> PodState {
    PodState::Waiting { trouble: Some(Trouble::new(reason, words)), since: since.map(crate::fixture::time) }
}

#[test]
fn what_keeps_a_pod_from_being_ready_is_the_reason() {
    let volumes = "pod has unbound immediate PersistentVolumeClaims";
    let rows: [(&str, i64, ClaimPhase, PodState, Reason, bool); 8] = [
        (
            "all is well",
            1,
            ClaimPhase::Bound,
            PodState::Waiting { trouble: None, since: None },
            Reason::Starting,
            false,
        ),
        (
            "the image",
            1,
            ClaimPhase::Bound,
            waiting(Reason::ImagePullFailed, "no", None),
            Reason::ImagePullFailed,
            false,
        ),
        ("no node yet", 1, ClaimPhase::Bound, waiting(Reason::Unschedulable, "0/3", Some(5)), Reason::Starting, true),
        ("no node", 6, ClaimPhase::Bound, waiting(Reason::Unschedulable, "0/3", Some(5)), Reason::Unschedulable, false),
        (
            "no node, so no volume",
            60,
            ClaimPhase::Pending,
            waiting(Reason::Unschedulable, "0/3", Some(5)),
            Reason::Unschedulable,
            false,
        ),
        (
            "no volume, so no node",
            60,
            ClaimPhase::Pending,
            waiting(Reason::Unschedulable, volumes, Some(5)),
            Reason::WorkspacePending,
            false,
        ),
        (
            "no volume yet",
            1,
            ClaimPhase::Pending,
            PodState::Waiting { trouble: None, since: None },
            Reason::Starting,
            true,
        ),
        (
            "no volume",
            12,
            ClaimPhase::Pending,
            PodState::Waiting { trouble: None, since: None },
            Reason::WorkspacePending,
            false,
        ),
    ];
    for (row, age, claim, state, reason, looks_again) in rows {
        let mut world = starting(age);
        world.seen.claim.as_mut().unwrap().phase = claim;
        world.pod_is(state);
        let plan = world.plan();
        assert_eq!(plan.act, Act::Nothing, "{row}");
        assert_eq!(crate::status::ready_words(&plan.status).unwrap().0, reason.as_str(), "{row}");
        assert_eq!(plan.requeue.is_some(), looks_again, "{row}");
    }
}

#[test]
fn what_is_not_ours_is_said_and_never_touched() {
    for replicas in [0, 1] {
        let mut world = World::new(&json!({ "replicas": replicas }));
        world.seen.pod = Some(PodSeen {
            uid: "foreign".to_owned(),
            ours: false,
            template_hash: None,
            created: None,
            node: Some("elsewhere".to_owned()),
            ips: Vec::new(),
            state: PodState::Ready,
        });
        assert_eq!(world.writes_of(World::settle), ["status"]);
        assert_eq!(world.reason(), "ForeignObject");
        assert_eq!(world.status().node_name, None, "nothing of a foreign pod is shown as ours");
    }
    let mut world = World::new(&json!({}));
    world.seen.claim = Some(ClaimSeen { ours: false, phase: ClaimPhase::Bound, deleting: false, class: None });
    assert_eq!(world.writes_of(World::settle), ["status"]);
    assert_eq!(world.reason(), "ForeignObject");
}

#[test]
fn a_pod_on_a_silent_node_is_reported_and_not_replaced() {
    let mut world = World::ready(&json!({}));
    let until = world.now;
    world.pod_is(PodState::Terminating { until });
    world.settle();
    assert_eq!(world.reason(), "Starting");
    world.later(61);
    assert_eq!(world.writes_of(World::settle), ["status"]);
    assert_eq!(world.reason(), "NodeLost");
    assert_eq!(world.phase(), Some(Phase::Starting));
}

#[test]
fn a_start_waits_for_its_binding_to_be_known() {
    let world = World::new(&json!({}));
    let plan = world.plan();
    assert_eq!(plan.act, Act::Nothing, "the binding is reported alone");
    let binding = plan.status.binding.unwrap();
    assert_eq!((binding.pod_uid, binding.pod_name), (None, world.valid().child.to_string()));
}

#[test]
fn a_pod_of_a_deleted_template_keeps_running() {
    let mut world = World::ready(&json!({}));
    world.template = None;
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Ready));
}

#[test]
fn a_sandbox_made_with_replicas_0_has_neither_pod_nor_claim() {
    let mut world = World::new(&json!({ "replicas": 0 }));
    assert_eq!(world.writes_of(World::settle), ["status"]);
    assert_eq!(world.phase(), Some(Phase::Suspended));
}
