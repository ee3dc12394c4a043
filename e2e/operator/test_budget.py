"""What a sandbox costs the API server: etcd's rate of writes is what bounds a cluster."""

import time

from world import wait_until


def kinds(proxy):
    """The writes, short: verb and resource."""
    return [f"{it['verb']} {'/'.join(it['path'].split('?')[0].split('/namespaces/')[-1].split('/')[1::2])}" for it in proxy.writes()]


def test_a_cold_start_takes_4_writes_a_suspension_3_and_a_wake_3(space, operator):
    proxy = operator.proxy
    proxy.clear()
    space.sandbox(idle="5s")
    space.await_phase("Ready")
    made = ["POST persistentvolumeclaims", "POST pods", "PATCH sandboxes/status", "PATCH sandboxes/status"]
    assert sorted(kinds(proxy)) == sorted(made)
    proxy.clear()
    space.await_phase("Suspended")
    assert len(kinds(proxy)) == 3, kinds(proxy)
    proxy.clear()
    space.touch()
    space.await_phase("Ready")
    assert len(kinds(proxy)) == 3, kinds(proxy)


def test_a_hold_takes_3_writes_and_its_end_3(space, operator):
    space.sandbox()
    space.await_phase("Ready")
    for replicas, phase in [(0, "Suspended"), (1, "Ready")]:
        operator.proxy.clear()
        space.scale(replicas)
        space.await_phase(phase)
        assert len(kinds(operator.proxy)) == 3, kinds(operator.proxy)


def test_a_touch_of_a_sandbox_that_runs_is_no_write(space, operator):
    space.sandbox(idle="10m")
    space.await_phase("Ready")
    operator.proxy.clear()
    reads = operator.proxy.log()["reads"]
    for _ in range(5):
        space.touch()
    time.sleep(3)
    assert kinds(operator.proxy) == []
    assert operator.proxy.log()["reads"] == reads


def test_at_rest_nothing_is_written_for_a_minute(space, operator):
    space.sandbox("running")
    space.sandbox("idle", idle="5s")
    space.sandbox("held", replicas=0)
    space.await_phase("Ready", "running")
    space.await_phases("Suspended", ["idle", "held"])
    wait_until(lambda: space.phase("idle") == "Suspended")
    operator.proxy.clear()
    # What is measured, not a wait for something.
    time.sleep(60)
    assert operator.proxy.log()["writes"] == []
