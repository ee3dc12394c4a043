"""Two operators: one works, the other takes over, and never do both write."""

import time

import pytest
from world import kubectl, wait_until

LEASE = 6
FLAGS = ("--leader-election=true", f"--lease-duration={LEASE}s", "--lease-renew-deadline=4s", "--lease-retry=1s")
# Beside the lease itself: two pauses between attempts, and a busy machine.
SLACK = 12


@pytest.fixture
def pair(space):
    """A leader and a standby, each behind a proxy of its own."""
    leader = space.operator(*FLAGS, name="first")
    wait_until(leader.leads, what="the first to lead")
    standby = space.operator(*FLAGS, name="second")
    wait_until(standby.ready, what="the standby to be ready")
    assert not standby.leads()
    return leader, standby


def took_over(standby, since, seconds):
    wait_until(standby.leads, seconds + 30, "the standby to lead", every=0.05)
    took = time.monotonic() - since
    assert took < seconds, f"it took over after {took:.1f} s"


def pods_made(*operators):
    return sum(operator.proxy.made("pods") for operator in operators)


def test_only_the_leader_writes(space, pair):
    leader, standby = pair
    space.sandbox()
    space.await_phase("Ready")
    space.assert_settled("Ready")
    assert len(leader.proxy.writes()) >= 4
    assert standby.proxy.writes() == []


def test_a_leader_that_was_stopped_past_its_lease_writes_nothing_more_and_ends(space, pair):
    leader, standby = pair
    space.sandbox("one")
    space.await_phase("Ready", "one")
    leader.pause()
    stopped = time.monotonic()
    # There is work for it the moment it goes on.
    space.sandbox("two")
    space.scale(0, "one")
    took_over(standby, stopped, LEASE + SLACK)
    space.await_phase("Ready", "two")
    space.await_phase("Suspended", "one")
    leader.proxy.clear()
    space.scale(1, "one")
    leader.go_on()
    assert leader.ended(seconds=LEASE + SLACK) != 0
    space.await_phase("Ready", "one")
    space.assert_settled("Ready", ["one", "two"])
    assert [it for it in leader.proxy.log()["writes"] if it["n"]] == []
    assert pods_made(leader, standby) == 2


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_leader_that_was_stopped_in_the_middle_of_a_start_does_not_go_on_with_it(space, pair, n):
    leader, standby = pair
    leader.proxy.faults(signal={"pid": leader.pid, "signal": "STOP", "nth": n, "when": "after"})
    space.sandbox()
    wait_until(lambda: len(leader.proxy.writes()) == n, what="the leader to be stopped")
    wait_until(standby.leads, what="the standby to lead")
    space.await_phase("Ready")
    leader.go_on()
    assert leader.ended(seconds=LEASE + SLACK) != 0
    space.assert_settled("Ready")
    assert len(leader.proxy.writes()) == n
    assert pods_made(leader, standby) == 1


def test_a_write_that_waits_to_be_tried_again_is_not_sent_after_the_lease_is_lost(space, pair):
    leader, standby = pair
    leader.proxy.faults(answers=[{"on": {"verb": "POST", "path": "/pods$"}, "times": 10**6, "with": 503, "retryAfter": 1}])
    space.sandbox()
    wait_until(lambda: leader.proxy.writes("POST", "/pods$"), what="the leader to be refused")
    leader.pause()
    wait_until(standby.leads, what="the standby to lead")
    space.await_phase("Ready")
    # Gone for everybody but the leader that still waits to make its pod.
    space.delete("sandboxes", "box")
    space.assert_empty()
    sent = len(leader.proxy.writes())
    leader.go_on()
    assert leader.ended(seconds=LEASE + SLACK) != 0
    assert len(leader.proxy.writes()) == sent


def test_a_killed_leader_is_replaced_within_the_lease(space, pair):
    leader, standby = pair
    leader.kill()
    took_over(standby, time.monotonic(), LEASE + SLACK)
    space.sandbox()
    space.await_phase("Ready")
    space.assert_settled("Ready")


def test_a_leader_that_is_told_to_end_hands_over_at_once(space, pair):
    leader, standby = pair
    space.sandbox()
    space.await_phase("Ready")
    told = time.monotonic()
    leader.process.terminate()
    took_over(standby, told, LEASE - 1)
    assert leader.ended() == 0
    space.scale(0)
    space.await_phase("Suspended")
    space.assert_settled("Suspended")


def test_a_leader_that_does_not_reach_the_api_server_ends_and_is_replaced(space, pair):
    leader, standby = pair
    leader.proxy.faults(answers=[{"on": {"verb": "."}, "times": 10**9, "with": "hang"}])
    leader.proxy.cut()
    cut = time.monotonic()
    space.sandbox()
    took_over(standby, cut, LEASE + SLACK)
    assert leader.ended(seconds=LEASE + SLACK) != 0
    space.await_phase("Ready")
    space.assert_settled("Ready")
    assert pods_made(leader, standby) == 1


def test_a_lease_that_somebody_deletes_never_makes_two_leaders(space, pair):
    leader, standby = pair
    for lease in space.list("leases"):
        kubectl("delete", "lease", lease["metadata"]["name"], namespace=space.name)
    space.sandbox()
    space.await_phase("Ready")
    space.assert_settled("Ready")
    wait_until(lambda: sum(it.runs() and bool(it.leads()) for it in pair) == 1, what="one leader")
    assert pods_made(leader, standby) == 1
