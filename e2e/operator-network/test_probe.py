"""The probe: it sees a cluster that does not enforce policies, and says so."""

import pytest
from conftest import wait_until
from helpers import await_condition, condition, events, isolated, message

LEAK = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "everything"},
    "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]},
}


def probes(space):
    return [it for it in space.list("pods") if it["metadata"]["name"].startswith("codeexec-network-probe-")]


def test_isolation_is_seen_and_leaves_nothing_behind(space):
    wait_until(lambda: isolated(space) == 1, 180, "isolation to be seen")
    wait_until(lambda: not probes(space), what="the probe's pod to go")
    assert condition(space, "NetworkIsolated") is None
    assert events(space, "NetworkNotIsolated") == []


def test_a_leak_is_told_on_the_template_by_an_event_and_a_metric_until_it_is_gone(space):
    wait_until(lambda: isolated(space) == 1, 180, "isolation to be seen")
    space.create("networkpolicies", LEAK)
    await_condition(space, "NetworkIsolated", ("False", "NetworkNotIsolated"), seconds=180)
    told = message(space, "NetworkIsolated")
    for place in ("canary", "kubernetes", "kubelet"):
        assert f"{place} (" in told, told
    assert isolated(space) == 0
    about = lambda: {it["involvedObject"]["kind"] for it in events(space, "NetworkNotIsolated")}  # noqa: E731
    wait_until(lambda: about() == {"NetworkPolicy", "SandboxTemplate"}, what="the Events")
    space.template("later")
    await_condition(space, "NetworkIsolated", ("False", "NetworkNotIsolated"), "later")
    space.delete("networkpolicies", "everything")
    await_condition(space, "NetworkIsolated", ("True", "Isolated"), seconds=240)
    assert isolated(space) == 1


def test_a_canary_that_answers_nobody_shows_nothing(bare, outside):
    operator = bare.operator("--leader-election=false", "--canary", f"{outside.node_ip}:9")
    wait_until(lambda: "could not be tried" in operator.log_file.read_text(), 180, "the operator to say so")
    assert "did not reach the canary" in operator.log_file.read_text()
    assert isolated(bare) is None
    assert condition(bare, "NetworkIsolated") is None


def test_what_a_killed_operator_left_is_removed(space, outside):
    operator = space.operators[0]
    left = wait_until(lambda: probes(space), 60, "a probe's pod")[0]["metadata"]["uid"]
    operator.kill()
    assert [it["metadata"]["uid"] for it in probes(space)] == [left]
    operator.start()
    wait_until(lambda: left not in [it["metadata"]["uid"] for it in probes(space)], 60, "the pod that was left to go")
    wait_until(lambda: isolated(space) == 1, 180, "isolation to be seen")
    wait_until(lambda: not probes(space), what="the probe's pod to go")


def start_required(bare, outside):
    bare.operator("--leader-election=false", "--canary", outside.canary, "--require-network-enforcement")
    wait_until(bare.operators[0].ready, what="the operator to be ready")
    wait_until(lambda: bare.get("networkpolicies", "codeexec-deny-all"), what="the policy that denies everything")


def assert_refused(space, name="box"):
    """A sandbox does not start, and says why."""
    why = lambda: {(it["type"], it["status"], it["reason"]) for it in space.status(name).get("conditions", [])}  # noqa: E731
    wait_until(lambda: ("Ready", "False", "NetworkNotIsolated") in why(), what="the sandbox to say why it does not start")
    assert space.of("pods", name) == []


def test_a_leaking_network_is_refused_when_enforcement_is_required(bare, outside):
    bare.create("networkpolicies", LEAK)
    start_required(bare, outside)
    await_condition(bare, "NetworkIsolated", ("False", "NetworkNotIsolated"), seconds=180)
    bare.sandbox()
    assert_refused(bare)
    bare.delete("networkpolicies", "everything")
    await_condition(bare, "NetworkIsolated", ("True", "Isolated"), seconds=240)
    bare.await_phase("Ready")


@pytest.mark.disruptive
def test_a_cluster_without_its_policy_controller_is_seen(bare, outside, component):
    component("stop", "kube-router")
    try:
        start_required(bare, outside)
        await_condition(bare, "NetworkIsolated", ("False", "NetworkNotIsolated"), seconds=240)
        bare.sandbox()
        assert_refused(bare)
    finally:
        component("start", "kube-router")
    await_condition(bare, "NetworkIsolated", ("True", "Isolated"), seconds=300)
    bare.await_phase("Ready")
