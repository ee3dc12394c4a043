"""The operator sees its own writes late, or not for a while: it makes nothing twice."""

import collections
import concurrent.futures
import time

import pytest
from world import assert_quiet, kubectl, wait_until

MANY = 40


def create(space, names, **spec):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: space.sandbox(name, **spec), names))


def assert_one_each(space, proxy, count):
    assert (proxy.made("pods"), proxy.made("persistentvolumeclaims")) == (count, count)
    for kind in ("pods", "persistentvolumeclaims"):
        owners = [it["metadata"]["labels"]["codeexec.dev/sandbox-uid"] for it in space.list(kind)]
        assert len(owners) == len(set(owners)) == count, kind


@pytest.mark.parametrize("lag_ms", [50, 500, 2000])
def test_forty_at_once_have_one_pod_and_one_claim_each(space, operator, lag_ms):
    """No node takes these pods, so that only the operator's work is measured."""
    space.template("nowhere", nodeSelector={"codeexec.dev/no-such-node": "true"})
    operator.proxy.faults(watchDelayMs=lag_ms)
    names = [f"box-{n}" for n in range(MANY)]
    create(space, names, templateRef={"name": "nowhere"})
    wait_until(lambda: operator.proxy.made("pods") >= MANY, 120, "all pods to be made")
    time.sleep(3 * lag_ms / 1000)
    assert_one_each(space, operator.proxy, MANY)
    failed = [it for it in operator.proxy.writes() if it["status"] and it["status"] >= 500]
    assert not failed, failed


@pytest.mark.parametrize("lag_ms", [500, 2000])
def test_whole_lives_under_lag(space, operator, lag_ms):
    operator.proxy.faults(watchDelayMs=lag_ms)
    names = [f"box-{n}" for n in range(6)]
    create(space, names)
    space.await_phases("Ready", names)
    assert_one_each(space, operator.proxy, len(names))
    for name in names:
        space.scale(0, name)
    space.await_phases("Suspended", names)
    space.assert_settled("Suspended", names)
    for name in names:
        space.scale(1, name)
    space.await_phases("Ready", names)
    space.assert_settled("Ready", names)
    assert operator.proxy.made("pods") == 2 * len(names)
    assert operator.proxy.made("persistentvolumeclaims") == len(names)


@pytest.mark.parametrize("kind", ["sandboxes", "pods"])
def test_what_happened_while_a_watch_was_interrupted_is_seen_when_it_starts_anew(space, operator, kind):
    """The list that a watch starts anew with does not tell what is gone, and the store shows it at its end only."""
    for name in ("asleep", "running"):
        space.sandbox(name)
    space.await_phases("Ready", ["asleep", "running"])
    space.scale(0, "asleep")
    space.await_phase("Suspended", "asleep")
    watches = {"verb": "GET", "path": f"/{kind}\\?.*watch=true"}
    operator.proxy.faults(answers=[{"on": watches, "times": 10**6, "with": 503}])
    operator.proxy.cut()
    if kind == "sandboxes":
        space.scale(1, "asleep")
    else:
        uid = space.pod("running")["metadata"]["uid"]
        kubectl("delete", "pod", space.pod("running")["metadata"]["name"], "--grace-period=0", "--force", namespace=space.name)
    time.sleep(1)
    operator.proxy.faults(answers=[{"on": watches, "times": 1, "with": "expired"}])
    if kind == "sandboxes":
        space.await_phase("Ready", "asleep")
    else:
        wait_until(lambda: any(it["metadata"]["uid"] != uid for it in space.of("pods", "running")), what="another pod")
        space.await_phase("Ready", "running")


@pytest.mark.long
def test_forty_that_run(space, operator):
    operator.proxy.faults(watchDelayMs=1000)
    names = [f"box-{n}" for n in range(MANY)]
    create(space, names)
    space.await_phases("Ready", names, seconds=400)
    space.assert_settled("Ready", names)
    assert_one_each(space, operator.proxy, MANY)
    kinds = collections.Counter((it["verb"], it["path"].split("/")[-1].split("-")[0], it["status"]) for it in operator.proxy.writes())
    # Four each; a claim that waits for its volume for more than a moment is said, and that it does no more.
    assert kinds.total() <= 6 * MANY, kinds


def test_watches_that_break_again_and_again_lose_nothing(space, operator):
    names = [f"box-{n}" for n in range(6)]
    create(space, names)
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline:
        operator.proxy.cut()
        time.sleep(0.5)
    space.await_phases("Ready", names)
    for name in names:
        space.scale(0, name)
    operator.proxy.cut()
    space.await_phases("Suspended", names)
    space.assert_settled("Suspended", names)
    assert operator.proxy.made("pods") == len(names)
    assert_quiet(operator.proxy)


def test_a_touch_that_comes_late_still_keeps_it_awake_or_wakes_it(space, operator):
    operator.proxy.faults(watchDelayMs=2000)
    space.sandbox(idle="6s")
    space.await_phase("Ready")
    uids = {space.pod()["metadata"]["uid"]}
    space.await_phase("Suspending", seconds=60)
    token = space.touch()
    wait_until(lambda: space.status().get("observedActivity") == token and space.phase() == "Ready", 120, "it to wake")
    uids.add(space.pod()["metadata"]["uid"])
    assert len(uids) == 2
    assert operator.proxy.made("pods") == 2
