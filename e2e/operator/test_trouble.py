"""Every trouble has its reason, in the words of who knows, soon after the cluster knows; and it goes when its cause goes."""

import base64
import datetime
import hashlib
import json
import re
import time

import pytest
from world import image, kubectl, wait_until

# The bound is 5 s from when the cluster knows; tests allow three times as much.
SOON = 15


def ready(space, name):
    conditions = space.status(name).get("conditions", [])
    return next((it for it in conditions if it["type"] == "Ready"), {"reason": "", "message": ""})


def await_reason(space, name, *reasons, seconds=60):
    wait_until(lambda: ready(space, name)["reason"] in reasons, seconds, f"{name} to say {reasons}, not {ready(space, name)}")
    return ready(space, name)["message"]


def child(space, name):
    """The name that the operator uses for the pod and the claim of a Sandbox."""
    digest = hashlib.sha256(space.get("sandboxes", name)["metadata"]["uid"].encode()).digest()
    return f"{name}-{base64.b32encode(digest)[:10].decode().lower()}"


def metric(operator, name):
    found = re.search(rf"^{re.escape(name)} (\S+)$", operator.get("metrics").text, re.MULTILINE)
    return float(found.group(1)) if found else 0


def warnings(space, name):
    events = json.loads(kubectl("get", "events", "-o", "json", "--field-selector", f"involvedObject.kind=Sandbox,involvedObject.name={name}", namespace=space.name))
    return [event["reason"] for event in events["items"] if event["type"] == "Warning"]


def missing_image():
    return re.sub(r"(@sha256:\w+|:[^:/]+)$", "", image("sandbox")) + ":no-such-tag"


# What a template says, its reason, words of the message, and the change that heals it.
TEMPLATES = {
    "image": ({"image": missing_image()}, "ImagePullFailed", "no-such-tag", lambda: {"image": image("sandbox")}),
    "runtime": ({"runtimeClassName": "nope"}, "RuntimeClassNotFound", "nope", lambda: {"runtimeClassName": None}),
    "node": ({"nodeSelector": {"disk": "none"}}, "Unschedulable", "node", lambda: {"nodeSelector": None}),
    "priority": ({"priorityClassName": "nope"}, "Refused", "nope", lambda: {"priorityClassName": None}),
    "mount": ({"mounts": [{"claimName": "models", "mountPath": "/mnt/models"}]}, "ClaimNotMountable", "models", lambda: {"mounts": None}),
    "limit": ({"allowedOverrides": []}, "OverrideNotAllowed", "overrides.env", lambda: {"allowedOverrides": None}),
}


def test_a_broken_template_is_told_apart_and_healed_by_its_correction(space, operator):
    for name, (spec, *_) in TEMPLATES.items():
        space.template(name, **spec)
        space.sandbox(name, templateRef={"name": name}, overrides={"env": [{"name": "A", "value": "1"}]})
    space.sandbox("none", templateRef={"name": "none"})
    assert "none" in await_reason(space, "none", "TemplateNotFound", seconds=SOON)
    for name, (_, reason, words, _) in TEMPLATES.items():
        assert words in await_reason(space, name, reason), name
    # One Event for each, although most of them were looked at more than once.
    for name, (_, reason, *_) in TEMPLATES.items():
        assert warnings(space, name).count(reason) == 1, name
        assert metric(operator, f'codeexec_operator_troubles_total{{reason="{reason}"}}') == 1
    space.template("none")
    for name, (*_, heal) in TEMPLATES.items():
        space.patch("sandboxtemplates", name, {"spec": heal()})
        space.touch(name)
    space.await_phases("Ready", ["none", *TEMPLATES], seconds=180)
    space.assert_settled("Ready", ["none", *TEMPLATES])


def test_a_container_that_the_runtime_cannot_make_is_explained(space, operator):
    kubectl("apply", "-f", "-", namespace=space.name, stdin=json.dumps(mountable("data")))
    # The mount point is a file.
    space.template("odd", mounts=[{"claimName": "data", "mountPath": "/bin/bash"}])
    space.sandbox(templateRef={"name": "odd"})
    words = await_reason(space, "box", "ContainerRefused", "CrashLooping", seconds=90)
    assert "main" in words, words


def mountable(name, **labels):
    labels = labels or {"codeexec.dev/mountable": "true"}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "labels": labels}, "spec": spec}


def test_a_quota_and_a_limit_range_are_named_and_their_end_is_noticed(space, operator):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    kubectl("apply", "-f", "-", namespace=space.name, stdin=json.dumps(quota))
    full = lambda: json.loads(kubectl("get", "resourcequota", "none", "-o", "json", namespace=space.name)).get("status", {}).get("hard")  # noqa: E731
    wait_until(full, what="the quota to count")
    space.sandbox()
    assert "exceeded quota" in await_reason(space, "box", "QuotaExceeded", seconds=SOON)
    operator.proxy.clear()
    time.sleep(10)
    assert len(operator.proxy.writes("POST", "/pods")) <= 3, "it is tried again ever more rarely"
    kubectl("delete", "resourcequota", "none", namespace=space.name)
    space.touch()
    space.await_phase("Ready")
    limit = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": {"limits": [{"type": "Container", "max": {"memory": "32Mi"}}]}}
    kubectl("apply", "-f", "-", namespace=space.name, stdin=json.dumps(limit))
    space.sandbox("second")
    assert "32Mi" in await_reason(space, "second", "LimitRefused", seconds=SOON)
    kubectl("delete", "limitrange", "small", namespace=space.name)
    space.touch("second")
    space.await_phase("Ready", "second")


def test_what_is_not_ours_is_reported_and_left_alone(space, operator):
    for name in ("pod", "claim"):
        space.sandbox(name, replicas=0)
    space.await_phases("Suspended", ["pod", "claim"])
    foreign_pod = space.idle_pod(child(space, "pod"))
    foreign_claim = mountable(child(space, "claim"), note="foreign")
    kubectl("apply", "-f", "-", namespace=space.name, stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [foreign_pod, foreign_claim]}))
    kept = {it["metadata"]["uid"] for kind in ("pods", "persistentvolumeclaims") for it in space.list(kind)}
    for name in ("pod", "claim"):
        space.scale(1, name)
        assert child(space, name) in await_reason(space, name, "ForeignObject", seconds=SOON)
    for name in ("pod", "claim"):
        space.scale(0, name)
        space.await_phase("Suspended", name)
    found = {it["metadata"]["uid"]: it["metadata"] for kind in ("pods", "persistentvolumeclaims") for it in space.list(kind)}
    assert kept <= set(found) and not any(found[uid].get("ownerReferences") or found[uid].get("deletionTimestamp") for uid in kept)
    kubectl("delete", "pod", foreign_pod["metadata"]["name"], "--grace-period=0", "--force", namespace=space.name)
    kubectl("delete", "pvc", foreign_claim["metadata"]["name"], namespace=space.name)
    for name in ("pod", "claim"):
        space.scale(1, name)
    space.await_phases("Ready", ["pod", "claim"])


def test_two_pods_of_one_sandbox_are_reported_and_neither_is_touched(space, operator):
    space.sandbox()
    space.await_phase("Ready")
    first = space.pod()
    second = space.idle_pod("the-second")
    second["metadata"] |= {"labels": first["metadata"]["labels"], "ownerReferences": first["metadata"]["ownerReferences"]}
    kubectl("create", "-f", "-", namespace=space.name, stdin=json.dumps(second))
    words = await_reason(space, "box", "MultiplePods", seconds=SOON)
    assert "the-second" in words
    operator.proxy.clear()
    time.sleep(3)
    assert not operator.proxy.writes(), "nothing is made or deleted"
    kubectl("delete", "pod", "the-second", "--grace-period=0", "--force", namespace=space.name)
    space.await_phase("Ready")
    assert space.pod()["metadata"]["uid"] == first["metadata"]["uid"]


def test_a_pod_deleted_from_outside_is_made_again_on_the_same_files(space, operator):
    space.sandbox()
    space.await_phase("Ready")
    space.write_file("mine")
    old, claim = space.pod()["metadata"], space.claim()["metadata"]["uid"]
    kubectl("delete", "pod", old["name"], "--wait=false", namespace=space.name)
    wait_until(lambda: space.phase() != "Ready", SOON, "the loss to be noticed")
    wait_until(lambda: space.phase() == "Ready" and space.pod()["metadata"]["uid"] != old["uid"], 60)
    assert (space.claim()["metadata"]["uid"], space.read_file()) == (claim, "mine")


def test_an_evicted_pod_is_replaced_on_the_same_files(space, operator):
    space.sandbox()
    space.await_phase("Ready")
    space.write_file("mine")
    old = space.pod()["metadata"]["uid"]
    # More than this folder of the pod may hold.
    space.run("head -c 150M /dev/zero >/run/sandboxd/full")
    wait_until(lambda: "Evicted" in warnings(space, "box"), 120, "the eviction")
    wait_until(lambda: space.phase() == "Ready" and space.pod()["metadata"]["uid"] != old, 60)
    assert space.read_file() == "mine"


def test_a_workspace_that_cannot_be_written_is_told_from_other_failures(space, operator):
    space.sandbox()
    space.await_phase("Ready")
    space.run("chmod 000 ~/workspace")
    space.scale(0)
    space.await_phase("Suspended")
    space.scale(1)
    words = await_reason(space, "box", "WorkspaceUnwritable")
    assert "workspace" in words and "1000" in words, words


def test_an_image_of_ours_that_does_not_start_is_a_failed_init(space):
    operator = space.operator("--leader-election=false", "--sandboxd-image", image("sandbox"))
    wait_until(operator.ready)
    space.sandbox()
    assert "init" in await_reason(space, "box", "InitFailed")


def test_a_changed_template_waits_for_the_next_start(space, operator):
    space.sandbox()
    space.await_phase("Ready")
    pending = lambda: {it["type"]: it["status"] for it in space.status()["conditions"]}["UpdatePending"]  # noqa: E731
    uid = space.pod()["metadata"]["uid"]
    assert pending() == "False"
    space.patch("sandboxtemplates", "default", {"spec": {"env": [{"name": "VERSION", "value": "2"}]}})
    wait_until(lambda: pending() == "True", SOON)
    assert space.pod()["metadata"]["uid"] == uid
    space.scale(0)
    space.await_phase("Suspended")
    space.scale(1)
    space.await_phase("Ready")
    assert pending() == "False" and space.run("echo $VERSION").strip() == "2"


def test_suspended_and_ready_are_never_both_true_and_their_times_are_right(space, operator):
    space.sandbox()
    seen = []
    for replicas, phase in [(1, "Ready"), (0, "Suspended"), (1, "Ready"), (0, "Suspended"), (1, "Ready")]:
        before = time.time()
        space.scale(replicas)
        status = space.await_phase(phase)["status"]
        known = {it["type"]: it for it in status["conditions"]}
        assert known["Suspended"]["status"] == ("True" if replicas == 0 else "False")
        assert known["Ready"]["status"] != known["Suspended"]["status"]
        assert bool(status.get("podIPs")) == bool(status.get("nodeName")) == (replicas == 1)
        assert ("suspendedAt" in status) == (replicas == 0)
        # Whole seconds, by the clock of this machine, on which the operator runs. The first turn is that of the creation.
        if seen:
            turned = datetime.datetime.fromisoformat(known["Suspended"]["lastTransitionTime"]).timestamp()
            assert int(before) <= turned <= time.time(), (before, turned)
        seen.append(phase)


@pytest.mark.parametrize("name", ["9lives", "a.b.c", "x" * 64, "long." * 50 + "end"])
def test_every_legal_name_works(space, operator, name):
    space.sandbox(name)
    space.await_phase("Ready", name)
    space.assert_settled("Ready", [name])


def test_a_start_that_takes_too_long_is_given_up_and_tried_again_when_used(space, operator):
    space.template("slow", image=missing_image())
    space.sandbox(templateRef={"name": "slow"}, lifecycle={"startTimeout": "40s"})
    space.await_phase("Suspended")
    words = await_reason(space, "box", "ImagePullFailed")
    assert "given up" in words, words
    assert not space.of("pods")
    space.patch("sandboxtemplates", "slow", {"spec": {"image": image("sandbox")}})
    space.touch()
    space.await_phase("Ready")


def test_an_annotation_that_names_a_foreign_pod_harms_nothing(space, operator):
    for name in ("mine", "yours"):
        space.sandbox(name)
    space.await_phases("Ready", ["mine", "yours"])
    yours = space.pod("yours")["metadata"]["uid"]
    space.patch("sandboxes", "mine", {"metadata": {"annotations": {"codeexec.dev/replace-pod": yours}}})
    space.scale(0, "mine")
    space.await_phase("Suspended", "mine")
    assert space.pod("yours")["metadata"]["uid"] == yours and space.phase("yours") == "Ready"


@pytest.mark.disruptive
def test_a_silent_node_is_reported_and_its_sandbox_comes_back(space, operator, component):
    space.sandbox()
    space.await_phase("Ready")
    space.write_file("mine")
    uid = space.pod()["metadata"]["uid"]
    component("stop", "kubelet")
    try:
        words = await_reason(space, "box", "NodeLost", seconds=120)
        assert "node" in words
        assert space.pod()["metadata"]["uid"] == uid, "nothing is replaced"
    finally:
        component("start", "kubelet")
    space.await_phase("Ready")
    assert space.read_file() == "mine"
