"""The operator is killed before and after each of its writes, and started again: the end is the same as if nothing had happened."""

import pytest
from world import wait_until


def moments(writes):
    """Before a later write is nearly the same moment as after the one in front of it."""
    yield 1, "before"
    for n in range(1, writes + 1):
        yield n, "after"
        if n > 1:
            yield pytest.param(n, "before", marks=pytest.mark.long)


steps = pytest.mark.parametrize(("n", "when"), moments(3))
start_steps = pytest.mark.parametrize(("n", "when"), moments(4))


def arm(operator, n, when):
    """Its n-th write from now on kills it."""
    operator.proxy.faults(signal={"pid": operator.pid, "nth": n, "when": when})


def killed_then_started(operator):
    assert operator.ended() == -9, "it should have been killed"
    operator.proxy.faults()
    operator.start()


@start_steps
def test_a_start(space, operator, n, when):
    arm(operator, n, when)
    space.sandbox()
    killed_then_started(operator)
    space.await_phase("Ready")
    space.assert_settled("Ready")
    assert (operator.proxy.made("pods"), operator.proxy.made("persistentvolumeclaims")) == (1, 1)


@steps
def test_idling_out_and_waking(space, operator, n, when):
    space.sandbox(idle="5s")
    space.await_phase("Ready")
    claim = space.claim()["metadata"]["uid"]
    arm(operator, n, when)
    killed_then_started(operator)
    space.await_phase("Suspended")
    space.assert_settled("Suspended")
    arm(operator, n, when)
    space.touch()
    killed_then_started(operator)
    space.await_phase("Ready")
    space.assert_settled("Ready")
    assert space.claim()["metadata"]["uid"] == claim
    assert operator.proxy.made("pods") == 2


@steps
def test_a_hold_and_its_end(space, operator, n, when):
    space.sandbox()
    space.await_phase("Ready")
    claim = space.claim()["metadata"]["uid"]
    for replicas, phase in [(0, "Suspended"), (1, "Ready")]:
        arm(operator, n, when)
        space.scale(replicas)
        killed_then_started(operator)
        space.await_phase(phase)
        space.assert_settled(phase)
    assert space.claim()["metadata"]["uid"] == claim
    assert operator.proxy.made("pods") == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_expiry_that_deletes(space, operator, when):
    space.sandbox()
    space.await_phase("Ready")
    arm(operator, 1, when)
    space.patch("sandboxes", "box", {"spec": {"lifecycle": {"maxLifetime": "1s"}}})
    killed_then_started(operator)
    wait_until(lambda: space.get("sandboxes", "box") is None, what="the sandbox to go")
    space.assert_empty()


@steps
def test_an_expiry_that_retains(space, operator, n, when):
    space.sandbox(lifecycle={"onExpiry": "Retain"})
    space.await_phase("Ready")
    claim = space.claim()["metadata"]["uid"]
    arm(operator, n, when)
    space.patch("sandboxes", "box", {"spec": {"lifecycle": {"maxLifetime": "1s"}}})
    killed_then_started(operator)
    space.await_phase("Expired")
    space.assert_settled("Expired")
    assert space.claim()["metadata"]["uid"] == claim


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_templates_network_policy(space, operator, when):
    arm(operator, 1, when)
    space.template("outward", network={"egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]})
    killed_then_started(operator)
    # Beside the one that denies everything.
    wait_until(lambda: len(space.list("networkpolicies")) == 2, what="the template's network policy")
    assert operator.proxy.made("networkpolicies") == 1


@start_steps
def test_a_deletion_while_no_operator_runs(space, operator, n, when):
    arm(operator, n, when)
    space.sandbox()
    assert operator.ended() == -9, "it should have been killed"
    space.delete("sandboxes", "box")
    operator.proxy.faults()
    operator.start()
    wait_until(lambda: space.get("sandboxes", "box") is None, what="the sandbox to go")
    space.assert_empty()


def test_a_deletion_leaves_a_claim_that_is_to_be_retained(space, operator):
    space.sandbox(workspace={"whenDeleted": "Retain"})
    space.await_phase("Ready")
    claim = space.claim()["metadata"]["uid"]
    operator.kill()
    space.delete("sandboxes", "box")
    operator.start()
    space.assert_empty(kept_claims=1)
    assert space.list("persistentvolumeclaims")[0]["metadata"]["uid"] == claim


def test_a_sandbox_that_is_made_again_has_no_pod_of_its_predecessor(space, operator):
    first = space.sandbox()
    space.await_phase("Ready")
    pod = space.pod()["metadata"]["name"]
    operator.kill()
    space.delete("sandboxes", "box")
    second = space.sandbox()
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    operator.start()
    space.await_phase("Ready")
    assert space.pod()["metadata"]["name"] != pod
    wait_until(lambda: len(space.list("pods")) == 1, what="the first pod to go")
    wait_until(lambda: len(space.list("persistentvolumeclaims")) == 1, what="the first claim to go")
    space.assert_settled("Ready")
