//! Whole lives of a sandbox: what is written, in which order, and that everything comes to rest.

use super::world::World;
use crate::{
    observe::{ClaimPhase, Question, Warning},
    pod_state::PodState,
    status::ready_words,
    trouble::Trouble,
};
use crds::{Phase, Reason, keys};
use proptest::prelude::*;
use serde_json::json;

#[test]
fn a_cold_start_costs_four_writes_and_binds_before_it_makes_a_pod() {
    let mut world = World::new(&json!({}));
    let writes = world.writes_of(|world| {
        world.settle();
        assert_eq!(world.phase(), Some(Phase::Starting));
        world.pod_runs();
        world.settle();
    });
    assert_eq!(writes, ["status", "claim", "pod", "status"]);
    let binding = world.status().binding.unwrap();
    assert_eq!(binding.pod_uid.as_deref(), Some("pod-1"));
    assert_eq!(world.reason(), "PodReady");
}

#[test]
fn a_sandbox_at_rest_costs_nothing() {
    let mut world = World::ready(&json!({}));
    let writes = world.writes_of(|world| {
        for touch in 0..50 {
            world.later(240);
            world.annotate(keys::ACTIVITY, &format!("token {touch}"));
            world.settle();
        }
    });
    assert_eq!(writes, Vec::<&str>::new());
}

#[test]
fn suspend_and_wake_cost_three_writes_each_and_keep_the_claim() {
    let mut world = World::ready(&json!({}));
    let suspend = world.writes_of(|world| {
        world.scale(0);
        world.settle();
        assert_eq!(world.phase(), Some(Phase::Suspending));
        world.pod_is_gone();
        world.settle();
    });
    assert_eq!(suspend, ["status", "delete pod", "status"]);
    assert_eq!(world.phase(), Some(Phase::Suspended));
    let wake = world.writes_of(|world| {
        world.scale(1);
        world.settle();
        world.pod_runs();
        world.settle();
    });
    assert_eq!(wake, ["status", "pod", "status"]);
}

#[test]
fn a_suspension_that_has_begun_completes_before_the_wake() {
    let mut world = World::ready(&json!({}));
    world.scale(0);
    world.pass();
    assert_eq!(world.phase(), Some(Phase::Suspending));
    world.scale(1);
    let writes = world.writes_of(World::settle);
    assert!(writes.contains(&"delete pod"), "{writes:?}");
    world.pod_is_gone();
    world.later(10);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Starting));
    assert!(world.seen.pod.is_some());
}

#[test]
fn a_failed_pod_is_replaced_on_the_same_claim_after_a_wait() {
    let mut world = World::ready(&json!({}));
    world.pod_is(PodState::Finished(Trouble::new(Reason::Evicted, "low on memory")));
    assert_eq!(world.writes_of(World::settle), ["delete pod", "status"]);
    assert_eq!(world.reason(), "Evicted");
    world.pod_is_gone();
    world.settle();
    assert!(world.seen.pod.is_none(), "the wait since the last start is not over");
    assert!(world.plan().requeue.is_some());
    world.later(6);
    assert_eq!(world.writes_of(World::settle), ["pod", "status"]);
    assert_eq!(world.reason(), "Starting");
}

#[test]
fn a_pod_that_ended_for_no_stated_reason_is_asked_about_before_it_is_replaced() {
    let mut world = World::ready(&json!({}));
    world.pod_is(PodState::Finished(Trouble::new(Reason::PodFailed, "the pod ended (Succeeded)")));
    assert_eq!(world.plan().question, Some(Question::PodWarning("pod-1".to_owned())));
    for (reason, expected) in [("Evicted", "Evicted"), ("Other", "PodFailed")] {
        let warning = Warning { reason: reason.to_owned(), message: "too much in a folder".to_owned() };
        world.seen.facts.pod_warning = Some(Some(warning));
        let plan = world.plan();
        assert_eq!((ready_words(&plan.status).unwrap().0, plan.question), (expected, None));
    }
    world.seen.facts.pod_warning = Some(None);
    assert_eq!(ready_words(&world.plan().status), Some(("PodFailed", "the pod ended (Succeeded)")));
}

#[test]
fn a_refused_pod_is_reported_once_and_tried_again_ever_more_rarely() {
    let mut world = World::new(&json!({ "lifecycle": { "startTimeout": "1h" } }));
    world.refuse = Some(Trouble::new(Reason::QuotaExceeded, "exceeded quota"));
    world.settle();
    assert_eq!(world.reason(), "QuotaExceeded");
    let writes = world.writes_of(|world| {
        for _ in 0..600 {
            world.later(1);
            world.pass();
        }
    });
    assert!((4..12).contains(&writes.len()), "{writes:?}");
    assert!(writes.iter().all(|write| *write == "pod"), "{writes:?}");
    world.refuse = None;
    world.later(121);
    world.settle();
    world.pod_runs();
    world.settle();
    assert_eq!(world.reason(), "PodReady");
}

#[test]
fn new_activity_is_answered_although_nothing_else_changed() {
    let mut world = World::new(&json!({}));
    world.template = None;
    world.settle();
    assert_eq!(world.reason(), "TemplateNotFound");
    world.annotate(keys::ACTIVITY, "token");
    assert_eq!(world.writes_of(World::settle), ["status"]);
    assert_eq!(world.status().observed_activity.as_deref(), Some("token"));
}

#[test]
fn a_corrected_template_replaces_a_pod_that_is_not_ready_and_no_other() {
    let mut world = World::new(&json!({}));
    world.settle();
    world.pod_is(PodState::Waiting {
        trouble: Some(Trouble::new(Reason::ImagePullFailed, "no such image")),
        since: None,
    });
    world.settle();
    assert_eq!(world.reason(), "ImagePullFailed");
    world.template.as_mut().unwrap().spec.image = "python:4".to_owned();
    let writes = world.writes_of(World::settle);
    assert!(writes.contains(&"delete pod"), "{writes:?}");
    let mut world = World::ready(&json!({}));
    world.template.as_mut().unwrap().spec.image = "python:4".to_owned();
    let writes = world.writes_of(World::settle);
    assert!(!writes.contains(&"delete pod"), "{writes:?}");
}

#[test]
fn a_pod_that_its_user_found_broken_is_replaced_once() {
    let mut world = World::ready(&json!({}));
    world.annotate(keys::REPLACE_POD, "pod-1");
    let writes = world.writes_of(|world| {
        world.settle();
        world.pod_is_gone();
        world.later(10);
        world.settle();
        world.pod_runs();
        world.settle();
    });
    assert_eq!(writes.iter().filter(|write| **write == "delete pod").count(), 1, "{writes:?}");
    assert_eq!(world.status().binding.unwrap().pod_uid.as_deref(), Some("pod-2"));
}

#[test]
fn the_end_of_a_life_deletes_or_retains() {
    let mut deleted = World::ready(&json!({ "lifecycle": { "maxLifetime": "1h" } }));
    assert!(deleted.plan().requeue.is_some());
    deleted.later(3600);
    assert_eq!(deleted.writes_of(World::settle), ["delete sandbox"]);
    let mut retained = World::ready(&json!({ "lifecycle": { "maxLifetime": "1h", "onExpiry": "Retain" } }));
    retained.later(3600);
    retained.settle();
    retained.pod_is_gone();
    retained.settle();
    assert_eq!(retained.phase(), Some(Phase::Expired));
    assert!(retained.seen.claim.is_some());
}

#[test]
fn a_lost_workspace_is_never_replaced_by_an_empty_one() {
    let mut world = World::ready(&json!({}));
    world.seen.claim.as_mut().unwrap().deleting = true;
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Ready), "the pod still has its volume");
    world.pod_is_gone();
    world.seen.claim = None;
    let writes = world.writes_of(World::settle);
    assert!(writes.iter().all(|write| *write == "status"), "{writes:?}");
    assert_eq!(world.reason(), "WorkspaceLost");
    world.later(100);
    assert!(world.writes_of(World::settle).is_empty());
}

/// Something that happens to a sandbox.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Runs,
    Fails,
    Gone,
    Terminates,
    Scaled(i32),
    Touched(u8),
    Refused(bool),
    TemplateThere(bool),
    TemplateChanged(u8),
    Foreign(bool),
    ClaimLost,
    Later(u16),
    OnePass,
    /// A pass on what was seen before, of which so many writes are sent before the process dies.
    StalePass(u8),
    Restarted,
}

fn happens() -> impl Strategy<Value = Happens> {
    use Happens::{
        ClaimLost, Fails, Foreign, Gone, Later, OnePass, Refused, Restarted, Runs, Scaled, StalePass, TemplateChanged,
        TemplateThere, Terminates, Touched,
    };
    prop_oneof![
        1 => prop_oneof![3 => Just(Runs), 1 => Just(Fails), 2 => Just(Gone), 1 => Just(Terminates), 2 => (0i32..=1).prop_map(Scaled), 1 => any::<u8>().prop_map(Touched), 1 => any::<bool>().prop_map(Refused)],
        1 => prop_oneof![1 => any::<bool>().prop_map(TemplateThere), 1 => any::<u8>().prop_map(TemplateChanged), 1 => any::<bool>().prop_map(Foreign), 1 => Just(ClaimLost), 2 => any::<u16>().prop_map(Later), 3 => Just(OnePass), 2 => (0u8..4).prop_map(StalePass), 1 => Just(Restarted)],
    ]
}

fn happen(world: &mut World, what: Happens) {
    if world.sandbox.is_none() {
        return;
    }
    match (what, &mut world.seen.pod) {
        (Happens::Runs, Some(pod)) if pod.ours && !matches!(pod.state, PodState::Terminating { .. }) => {
            world.pod_runs();
        }
        (Happens::Fails, Some(pod)) if !matches!(pod.state, PodState::Terminating { .. }) => {
            pod.state = PodState::Finished(Trouble::new(Reason::PodFailed, "failed"));
        }
        (Happens::Gone, _) => world.seen.pod = None,
        (Happens::Terminates, Some(pod)) => pod.state = PodState::Terminating { until: world.now.time },
        (Happens::Scaled(replicas), _) => world.scale(replicas),
        (Happens::Touched(token), _) => world.annotate(keys::ACTIVITY, &token.to_string()),
        (Happens::Refused(refused), _) => world.refuse = refused.then(|| Trouble::new(Reason::QuotaExceeded, "full")),
        (Happens::TemplateThere(there), _) => {
            world.template = there.then(|| crate::fixture::template(&json!({ "image": "python:3" })));
        }
        (Happens::TemplateChanged(version), _) => {
            if let Some(template) = &mut world.template {
                template.spec.image = format!("python:{version}");
            }
        }
        (Happens::Foreign(foreign), Some(pod)) => pod.ours = !foreign,
        (Happens::ClaimLost, _) => {
            if let Some(claim) = &mut world.seen.claim {
                claim.phase = ClaimPhase::Lost;
            }
        }
        (Happens::Later(seconds), _) => world.later(i64::from(seconds)),
        (Happens::OnePass, _) => drop(world.pass()),
        (Happens::StalePass(writes), _) => drop(world.pass_on_cache(usize::from(writes))),
        (Happens::Restarted, _) => world.restart(),
        (Happens::Runs | Happens::Fails | Happens::Terminates | Happens::Foreign(_), _) => {}
    }
}

proptest! {
    /// The world itself asserts that no second pod is made and that only an own pod of the right UID is deleted.
    #[test]
    fn whatever_happens_it_comes_to_rest_and_touches_nothing_foreign(
        story in proptest::collection::vec(happens(), 0..40), mortal: bool,
    ) {
        let spec = if mortal { json!({ "lifecycle": { "maxLifetime": "24h", "onExpiry": "Retain" } }) } else { json!({}) };
        let mut world = World::new(&spec);
        for what in story {
            happen(&mut world, what);
        }
        world.settle();
        prop_assert!(!world.pass(), "a second pass at rest writes");
        prop_assert_eq!(world.plan().status.phase, world.phase());
    }

    #[test]
    fn with_all_obstacles_gone_no_use_is_lost(story in proptest::collection::vec(happens(), 0..40)) {
        // The steps below take longer than the shortest back-off and less than both time-outs.
        let mut world = World::new(&json!({ "lifecycle": { "idleTimeout": "20m", "startTimeout": "20m" } }));
        let harmless = |what: &&Happens| !matches!(what, Happens::ClaimLost);
        for what in story.iter().filter(harmless) {
            happen(&mut world, *what);
        }
        happen(&mut world, Happens::TemplateThere(true));
        happen(&mut world, Happens::Refused(false));
        happen(&mut world, Happens::Foreign(false));
        world.scale(1);
        world.touch("the last use");
        for _ in 0..6 {
            world.settle();
            if matches!(&world.seen.pod, Some(pod) if matches!(pod.state, PodState::Terminating { .. })) {
                world.pod_is_gone();
            }
            world.later(130);
            world.settle();
            happen(&mut world, Happens::Runs);
        }
        world.settle();
        prop_assert_eq!(world.phase(), Some(Phase::Ready));
    }
}
