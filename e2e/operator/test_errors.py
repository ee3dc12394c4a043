"""The API server refuses, fails, or does not answer: the operator gets there, with the same pod, and without a storm."""

import time

import pytest
from world import assert_quiet, wait_until

ERRORS = [409, 429, 500, 503]
# Every kind of write in the life of a sandbox.
STARTING = [
    {"verb": "POST", "path": "/persistentvolumeclaims$"},
    {"verb": "POST", "path": "/pods$"},
    {"verb": "PATCH", "path": "/status", "body": '"phase":"Starting"'},
    {"verb": "PATCH", "path": "/status", "body": '"phase":"Ready"'},
]
SUSPENDING = [
    {"verb": "PATCH", "path": "/status", "body": '"phase":"Suspending"'},
    {"verb": "DELETE", "path": "/pods/"},
    {"verb": "PATCH", "path": "/status", "body": '"phase":"Suspended"'},
]


def spoil(proxy, kinds, answer, times, when="before"):
    proxy.faults(answers=[{"on": kind, "times": times, "with": answer, "when": when} for kind in kinds])


def assert_few(proxy, budget, kinds, times):
    """Each spoiled write is sent again, and perhaps the one before it; nothing more."""
    spoiled = kinds * times
    writes = proxy.writes()
    assert sum(bool(it["fault"]) for it in writes) >= kinds, "not every kind was spoiled"
    assert len(writes) <= budget + 2 * spoiled, [(it["verb"], it["path"], it["status"], it["fault"]) for it in writes]


def failures():
    """The first refusal of each kind with every run of the tests, and one example of each other; the rest with the long ones."""
    examples = [(500, 1, "after"), (429, 3, "before")]
    for error in ERRORS:
        for times, when in [(1, "before"), (1, "after"), (3, "before"), (3, "after")]:
            every_run = (times, when) == (1, "before") or (error, times, when) in examples
            yield pytest.param(error, times, when, marks=[] if every_run else pytest.mark.long)


@pytest.mark.parametrize(("error", "times", "when"), failures())
def test_every_kind_of_write_fails(space, operator, error, times, when):
    proxy = operator.proxy
    spoil(proxy, STARTING, error, times, when)
    proxy.clear()
    space.sandbox()
    space.await_phase("Ready")
    pod, claim = space.pod()["metadata"]["uid"], space.claim()["metadata"]["uid"]
    space.assert_settled("Ready")
    assert_few(proxy, 4, 4, times)
    assert (proxy.made("pods"), proxy.made("persistentvolumeclaims")) == (1, 1)

    spoil(proxy, SUSPENDING, error, times, when)
    proxy.clear()
    space.scale(0)
    space.await_phase("Suspended")
    space.assert_settled("Suspended")
    assert_few(proxy, 3, 3, times)

    spoil(proxy, STARTING[1:], error, times, when)
    proxy.clear()
    space.scale(1)
    space.await_phase("Ready")
    space.assert_settled("Ready")
    assert_few(proxy, 3, 3, times)
    assert proxy.made("pods") == 1
    assert space.claim()["metadata"]["uid"] == claim
    assert space.pod()["metadata"]["uid"] != pod
    assert_quiet(proxy)


@pytest.mark.parametrize("error", [*ERRORS, "drop"])
def test_a_bound_sandbox_keeps_its_pod_when_its_status_cannot_be_written(space, operator, error):
    space.sandbox()
    space.await_phase("Ready")
    before = space.status()["binding"], space.status().get("podIPs")
    operator.proxy.clear()
    operator.proxy.faults(answers=[{"on": {"verb": "PATCH", "path": "/status"}, "times": 1, "with": error}])
    space.patch("sandboxtemplates", "default", {"spec": {"env": [{"name": "NEW", "value": "1"}]}})

    def update_is_pending():
        return any(it["type"] == "UpdatePending" and it["status"] == "True" for it in space.status()["conditions"])

    wait_until(update_is_pending, what="the update to be pending")
    assert (space.status()["binding"], space.status().get("podIPs")) == before
    assert operator.proxy.made("pods") == 0
    space.assert_settled("Ready")


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.long)])
def test_writes_hang_until_the_operator_loses_patience(space, operator, times):
    """Each kind of write of its own sandbox, all at the same time."""
    proxy = operator.proxy
    space.sandbox("held")
    space.await_phase("Ready", "held")
    hangs = [{"on": kind, "times": times, "with": "hang", "when": "after"} for kind in SUSPENDING]
    proxy.faults(answers=[*hangs, *({"on": kind, "times": times, "with": "hang"} for kind in STARTING)])
    proxy.clear()
    # Four starts meet four hanging writes, and the suspension its three.
    names = [f"start-{n}" for n in range(4)]
    for name in names:
        space.sandbox(name)
    space.scale(0, "held")
    space.await_phases("Ready", names, seconds=120 + 150 * times)
    space.await_phase("Suspended", "held", seconds=120 + 150 * times)
    space.assert_settled("Ready", names)
    space.assert_settled("Suspended", ["held"])
    # What was written although its answer was missing is not written again.
    assert sum(bool(it["fault"]) for it in proxy.writes()) >= 4 * times + 3
    assert (proxy.made("pods"), proxy.made("persistentvolumeclaims")) == (4, 4)


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_that_stays_is_not_met_with_a_storm(space, operator, error):
    proxy = operator.proxy
    spoil(proxy, [{"verb": "POST", "path": "/pods$"}], error, times=10**6)
    proxy.clear()
    space.sandbox()
    wait_until(lambda: proxy.writes("POST", "/pods$"), what="the first attempt")
    # What is measured: attempts in twenty seconds, with a wait that doubles from half a second.
    time.sleep(20)
    log = proxy.log()
    attempts = len(proxy.writes("POST", "/pods$"))
    assert 2 <= attempts <= 14, attempts
    assert log["reads"] <= 4 * attempts + 10, log["reads"]
    proxy.faults()
    space.await_phase("Ready")
    assert proxy.made("pods") == 1
    space.assert_settled("Ready")


def test_other_sandboxes_start_while_one_is_refused(space, operator):
    proxy = operator.proxy
    refused = {"verb": "POST", "path": "/pods$", "body": '"name":"bad-'}
    spoil(proxy, [refused], 500, times=10**6)
    space.sandbox("bad")
    wait_until(lambda: any(it["fault"] for it in proxy.writes()), what="the first refusal")
    space.sandbox("good")
    space.await_phase("Ready", "good")
    proxy.faults()
    space.await_phase("Ready", "bad")
    space.assert_settled("Ready", ["good", "bad"])


def test_a_touch_during_a_suspension_lasts_until_the_start_that_it_brings(space, operator):
    """The pod that goes is still Ready when the touch comes; that is no use of the sandbox that could idle out."""
    proxy = operator.proxy
    space.sandbox(idle="5s")
    space.await_phase("Ready")
    # The deletion is late, and then the start takes longer than the idle time-out.
    late = {"verb": "DELETE", "path": "/pods/"}
    proxy.faults(answers=[{"on": late, "times": 2, "with": 500}, {"on": STARTING[1], "times": 5, "with": 500}])
    space.await_phase("Suspending")
    space.touch()
    wait_until(lambda: len(proxy.writes("POST", "/pods$")) > 1, what="the start to be tried")
    seen = []
    wait_until(lambda: seen.append(space.phase()) or seen[-1] in ("Ready", "Suspended"), what="the start to end")
    assert seen[-1] == "Ready", sorted(set(seen))
    space.assert_settled("Ready")
