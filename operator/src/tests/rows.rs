//! Decisions, row by row.

use super::world::World;
use crate::{
    decide::Act,
    observe::{ClaimOwner, ClaimPhase, ClaimSeen, Question, Warning},
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
        ("all is well", 1, ClaimPhase::Bound, PodState::Waiting { trouble: None, since: None }, Reason::Starting, true),
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
        let give_up = world.valid().start_timeout - jiff::SignedDuration::from_secs(age);
        assert_eq!(plan.requeue.is_some_and(|wait| wait < give_up), looks_again, "{row}");
    }
}

#[test]
fn what_is_not_ours_is_said_and_never_touched() {
    for replicas in [0, 1] {
        let mut world = World::new(&json!({ "replicas": replicas }));
        world.seen.pod = Some(PodSeen {
            name: world.valid().child.to_string(),
            uid: "foreign".to_owned(),
            resource_version: "7".to_owned(),
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
    world.seen.claim = Some(ClaimSeen { owner: ClaimOwner::Foreign, ..world.new_claim() });
    assert_eq!(world.writes_of(World::settle), ["status"]);
    assert_eq!(world.reason(), "ForeignObject");
}

#[test]
fn a_pod_on_a_silent_node_is_reported_and_not_replaced() {
    let mut world = World::ready(&json!({}));
    let until = world.now.time;
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
    let mut world = World::new(&json!({}));
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

#[test]
fn what_the_cluster_knows_of_a_silent_start_is_asked_and_said() {
    let waits = || PodState::Waiting { trouble: None, since: None };
    let mut world = starting(9);
    world.seen.claim.as_mut().unwrap().phase = ClaimPhase::Bound;
    world.pod_is(waits());
    assert_eq!(world.plan().question, Some(Question::PodWarning("pod-1".to_owned())));
    let warning =
        |reason: &str| Some(Some(Warning { reason: reason.to_owned(), message: "no such volume".to_owned() }));
    for (reason, expected) in
        [("FailedMount", "WorkspacePending"), ("FailedCreatePodSandBox", "ContainerRefused"), ("Other", "Starting")]
    {
        world.seen.facts.pod_warning = warning(reason);
        let plan = world.plan();
        let (said, words) = crate::status::ready_words(&plan.status).unwrap();
        assert_eq!((said, words, plan.question), (expected, "no such volume", None));
    }
}

#[test]
fn a_storage_class_that_is_missing_is_named() {
    let mut world = starting(2);
    world.seen.claim.as_mut().unwrap().class = Some("fast".to_owned());
    assert_eq!(world.plan().question, Some(Question::StorageClass("fast".to_owned())));
    world.seen.facts.storage_class_exists = Some(false);
    let plan = world.plan();
    assert_eq!(crate::status::ready_words(&plan.status).unwrap().0, "StorageClassNotFound");
    world.seen.facts.storage_class_exists = Some(true);
    assert_eq!(crate::status::ready_words(&world.plan().status).unwrap().0, "Starting");
    world.later(3);
    assert_eq!(world.plan().question, Some(Question::ClaimWarning("claim-1".to_owned())));
    world.seen.facts.claim_warning = Some(None);
    assert_eq!(crate::status::ready_words(&world.plan().status).unwrap().0, "WorkspacePending");
}

#[test]
fn a_pod_that_was_ready_on_a_node_that_is_silent_now_is_lost_and_comes_back() {
    let mut world = World::ready(&json!({}));
    world.seen.pod.as_mut().unwrap().node = Some("node-7".to_owned());
    world.pod_is(PodState::Waiting { trouble: None, since: None });
    assert_eq!(world.plan().question, Some(Question::Node("node-7".to_owned())));
    world.seen.facts.node_trouble = Some(Some("Kubelet stopped posting node status.".to_owned()));
    assert_eq!(world.writes_of(World::settle), ["status"]);
    assert_eq!(world.reason(), "NodeLost");
    world.seen.facts = crate::observe::Facts::default();
    world.pod_is(PodState::Ready);
    world.settle();
    assert_eq!(world.reason(), "PodReady");
}

#[test]
fn two_pods_are_reported_and_neither_is_touched() {
    for replicas in [1, 0] {
        let mut world = World::ready(&json!({}));
        world.seen.more_pods = vec!["the-other".to_owned()];
        world.scale(replicas);
        assert_eq!(world.writes_of(World::settle), ["status"], "replicas {replicas}");
        assert_eq!(world.reason(), "MultiplePods");
        world.seen.more_pods.clear();
        world.scale(1);
        world.settle();
        assert_eq!(world.reason(), "PodReady");
    }
}

#[test]
fn a_pod_of_ours_under_another_name_is_used() {
    let mut world = World::ready(&json!({}));
    world.seen.pod.as_mut().unwrap().name = "from-elsewhere".to_owned();
    let writes = world.writes_of(World::settle);
    assert_eq!(writes, ["status"]);
    assert_eq!(world.status().binding.unwrap().pod_name, "from-elsewhere");
    world.scale(0);
    world.refresh();
    world.settle();
    assert!(matches!(world.seen.pod.as_ref().unwrap().state, PodState::Terminating { .. }));
}

#[test]
fn no_pod_starts_in_a_network_that_must_be_isolated_and_is_not() {
    use crate::isolation::Isolation;
    let mut world = World::new(&json!({}));
    world.seen.isolation_required = true;
    assert_eq!(world.writes_of(World::settle), ["status"]);
    assert_eq!(world.reason(), "NetworkNotIsolated");
    world.seen.isolation = Isolation::Isolated;
    world.settle();
    world.pod_runs();
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Ready));
    assert_eq!(world.condition("NetworkIsolated").unwrap().0, "True");
    world.seen.isolation = Isolation::Broken("a pod reached the canary".to_owned());
    assert_eq!(world.writes_of(World::settle), ["status"]);
    assert_eq!(
        (world.reason().as_str(), world.condition("NetworkIsolated").unwrap().0.as_str()),
        ("NetworkNotIsolated", "False")
    );
    world.seen.isolation_required = false;
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Ready), "it is said, and nothing is refused");
    assert_eq!(world.condition("NetworkIsolated").unwrap().0, "False");
}

#[test]
fn every_reason_is_explained_to_the_platform_engineer() {
    let guide = include_str!("../../../docs/operator.md");
    let unexplained: Vec<_> =
        Reason::ALL.iter().map(|reason| reason.as_str()).filter(|name| !guide.contains(&format!("`{name}`"))).collect();
    assert_eq!(unexplained, Vec::<&str>::new());
}
