//! Idle sandboxes stop, and used ones wake.

use super::world::World;
use crate::{pod_state::PodState, trouble::Trouble};
use crds::{Phase, Reason, keys};
use serde_json::json;

/// A sandbox with an idle time-out of a minute that was just used.
fn used() -> World {
    let mut world = World::new(&json!({ "lifecycle": { "idleTimeout": "1m" } }));
    world.touch("first");
    world.settle();
    world.pod_runs();
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Ready));
    world
}

fn suspended() -> World {
    let mut world = used();
    world.later(60);
    world.settle();
    world.pod_is_gone();
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Suspended));
    world
}

#[test]
fn an_idle_sandbox_stops_at_the_very_moment_and_says_why() {
    let mut world = used();
    world.later(59);
    assert!(world.writes_of(World::settle).is_empty());
    assert_eq!(world.plan().requeue.map(|wait| wait.as_secs()), Some(1));
    world.later(1);
    let writes = world.writes_of(|world| {
        world.settle();
        assert_eq!((world.phase(), world.reason().as_str()), (Some(Phase::Suspending), "Suspending"));
        world.pod_is_gone();
        world.settle();
    });
    assert_eq!(writes, ["status", "delete pod", "status"]);
    assert_eq!((world.phase(), world.reason().as_str()), (Some(Phase::Suspended), "Suspended"));
    assert_eq!(world.condition("Suspended"), Some(("True".to_owned(), "Idle".to_owned())));
    let status = world.status();
    assert_eq!((status.suspended_activity.as_deref(), status.replicas), (Some("first"), 0));
    assert!(status.suspended_at.is_some() && status.node_name.is_none() && status.pod_ips.is_empty());
    assert!(world.seen.claim.is_some());
    world.later(86_400);
    assert!(world.writes_of(World::settle).is_empty(), "rest costs nothing");
}

#[test]
fn only_another_token_wakes_a_sandbox() {
    let mut world = suspended();
    world.touch("first");
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Suspended));
    world.touch("");
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Suspended), "a removed token is no use");
    world.touch("second");
    let wake = world.writes_of(|world| {
        world.settle();
        world.pod_runs();
        world.settle();
    });
    assert_eq!(wake, ["status", "pod", "status"]);
    assert_eq!(world.status().suspended_activity, None);
    assert_eq!(world.condition("Suspended"), Some(("False".to_owned(), "Active".to_owned())));
}

#[test]
fn a_sandbox_without_any_token_stops_and_its_first_one_wakes_it() {
    let mut world = World::ready(&json!({ "lifecycle": { "idleTimeout": "1m" } }));
    world.later(60);
    world.settle();
    world.pod_is_gone();
    world.settle();
    assert_eq!(world.status().suspended_activity.as_deref(), Some(""));
    world.touch("first");
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Starting));
}

#[test]
fn scaling_up_wakes_a_sandbox_that_was_idle() {
    let mut world = suspended();
    world.scale(0);
    world.settle();
    assert_eq!(world.condition("Suspended"), Some(("True".to_owned(), "ScaledToZero".to_owned())));
    world.touch("second");
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Suspended), "held whatever the activity");
    world.touch("second");
    world.scale(1);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Starting));
}

#[test]
fn a_touch_during_a_suspension_is_not_lost() {
    let mut world = used();
    world.later(60);
    world.pass();
    assert_eq!(world.phase(), Some(Phase::Suspending));
    world.touch("second");
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Suspending), "what has begun completes");
    world.pod_is_gone();
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Starting));
    assert!(world.seen.pod.is_some());
}

#[test]
fn a_touch_during_a_suspension_lasts_until_the_start_that_it_brings() {
    let mut world = used();
    world.later(60);
    world.pass();
    world.touch("second");
    world.pass();
    world.pod_is_gone();
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Starting));
    world.later(120);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Starting), "the pod that went was no use that idles out");
}

#[test]
fn a_touch_that_the_watch_has_not_brought_yet_stops_the_suspension() {
    let mut world = used();
    world.later(60);
    world.refresh();
    world.touch("second");
    world.pass_on_cache(usize::MAX);
    assert_eq!(world.phase(), Some(Phase::Ready), "the write was made on an old version");
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Ready));
    world.later(59);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Ready));
}

#[test]
fn the_count_begins_at_the_first_ready_of_a_start() {
    let mut world = World::new(&json!({ "lifecycle": { "idleTimeout": "1m" } }));
    world.touch("first");
    world.settle();
    world.later(300);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Starting), "a slow start is not idleness");
    world.pod_runs();
    world.settle();
    world.later(59);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Ready));
    world.later(1);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Suspending));
}

#[test]
fn a_restart_begins_the_count_again() {
    let mut world = used();
    world.later(59);
    world.restart();
    world.settle();
    world.later(59);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Ready));
    world.later(1);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Suspending));
}

#[test]
fn clocks_that_are_set_change_nothing() {
    let mut world = used();
    world.now.time += jiff::SignedDuration::from_hours(48);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Ready));
    world.now.time -= jiff::SignedDuration::from_hours(96);
    world.later(60);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Suspending));
}

#[test]
fn a_hold_keeps_a_sandbox_longer_and_zero_for_ever() {
    let mut held = used();
    held.annotate(keys::HOLD, "3m");
    held.later(179);
    held.settle();
    assert_eq!(held.phase(), Some(Phase::Ready));
    held.later(1);
    held.settle();
    assert_eq!(held.phase(), Some(Phase::Suspending));
    let mut nonsense = used();
    nonsense.annotate(keys::HOLD, "for ever");
    nonsense.later(60);
    nonsense.settle();
    assert_eq!(nonsense.phase(), Some(Phase::Suspending));
    let mut never = World::ready(&json!({ "lifecycle": { "idleTimeout": "0s" } }));
    never.later(86_400);
    never.settle();
    assert_eq!(never.phase(), Some(Phase::Ready));
}

#[test]
fn a_start_that_takes_too_long_is_given_up_with_its_reason_until_the_next_use() {
    let spec = json!({ "lifecycle": { "startTimeout": "2m" } });
    for (state, reason) in [
        (PodState::Waiting { trouble: None, since: None }, "StartTimedOut"),
        (
            PodState::Waiting { trouble: Some(Trouble::new(Reason::ImagePullFailed, "no such image")), since: None },
            "ImagePullFailed",
        ),
    ] {
        let mut world = World::new(&spec);
        world.touch("first");
        world.settle();
        world.seen.claim.as_mut().unwrap().phase = crate::observe::ClaimPhase::Bound;
        world.pod_is(state);
        world.settle();
        world.later(119);
        world.settle();
        assert_eq!(world.phase(), Some(Phase::Starting));
        world.later(1);
        world.settle();
        assert_eq!((world.phase(), world.reason().as_str()), (Some(Phase::Suspending), reason));
        world.pod_is_gone();
        world.settle();
        assert_eq!((world.phase(), world.reason().as_str()), (Some(Phase::Suspended), reason));
        assert_eq!(world.condition("Suspended"), Some(("True".to_owned(), "StartTimedOut".to_owned())));
        world.later(3600);
        assert!(world.writes_of(World::settle).is_empty());
        world.touch("second");
        world.settle();
        assert_eq!((world.phase(), world.reason().as_str()), (Some(Phase::Starting), "Starting"));
    }
}

#[test]
fn new_use_during_a_start_gives_it_more_time() {
    let mut world = World::new(&json!({ "lifecycle": { "startTimeout": "2m" } }));
    world.settle();
    for token in ["a", "b", "c"] {
        world.later(100);
        world.touch(token);
        world.settle();
    }
    assert_eq!(world.phase(), Some(Phase::Starting));
}

#[test]
fn a_failed_pod_is_replaced_within_the_idle_time_and_not_after_it() {
    let mut world = used();
    world.later(30);
    world.pod_is(PodState::Finished(Trouble::new(Reason::Evicted, "low on memory")));
    world.settle();
    world.pod_is_gone();
    world.settle();
    assert!(world.seen.pod.is_some(), "it was ready under this token, and its time is not over");
    world.later(30);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Suspending), "the count goes on");
}

#[test]
fn what_holds_the_workspace_of_a_deleted_claim_is_never_stopped_for_idleness() {
    let mut world = used();
    world.seen.claim.as_mut().unwrap().deleting = true;
    world.later(3600);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Ready));
    assert_eq!(world.condition("WorkspaceBound"), Some(("False".to_owned(), "WorkspaceLost".to_owned())));
}

#[test]
fn transition_times_move_with_the_condition_and_with_nothing_else() {
    let mut world = suspended();
    let time = |world: &World| {
        let status = world.status();
        status.conditions.iter().find(|known| known.type_ == "Suspended").unwrap().last_transition_time.0
    };
    let first = time(&world);
    world.later(10);
    world.touch("second");
    world.settle();
    let second = time(&world);
    assert!(second > first);
    world.later(5);
    world.pod_runs();
    world.settle();
    assert_eq!(time(&world), second, "it was false before");
}
