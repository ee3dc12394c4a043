"""Nobody but the operator makes pods in the sandbox namespace, or marks a pod or a claim as a sandbox's; and whoever keeps the cluster
going is not in the way of that."""

import json

import pytest
from conftest import (
    API_SERVER, BUILDER, claim, create, fresh_id, get, kubectl, meta, patch, post, ready, refused, sandbox, say, wait_until,
)

pytestmark = pytest.mark.usefixtures("rights")

UID = "0f1e2d3c-0000-4000-8000-00000000cafe"
PODS, LABELS, ANNOTATIONS, OWNER = "may create pods", "labels under", "annotations under", "belong to a Sandbox"


def pod(name, **more):
    restricted = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    containers = [{"name": "main", "image": "none", "securityContext": restricted}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta(name, **more), "spec": {"containers": containers}}


def owned(uid=UID, name="victim"):
    return [{"apiVersion": "codeexec.dev/v1alpha1", "kind": "Sandbox", "name": name, "uid": uid, "controller": True}]


FORGED = [
    ({"labels": {"codeexec.dev/sandbox-uid": UID}}, LABELS),
    ({"labels": {"codeexec.dev/pool": "python"}}, LABELS),
    ({"labels": {"codeexec.dev/sandbox-uid": ""}}, LABELS),
    ({"annotations": {"codeexec.dev/sandbox": "victim"}}, ANNOTATIONS),
    ({"ownerReferences": owned()}, OWNER),
]


@pytest.mark.parametrize("account", [BUILDER, API_SERVER])
def test_a_users_pod_is_refused(account):
    assert refused(create(account, pod(fresh_id())), PODS)


def test_an_exempt_group_may_create_a_plain_pod():
    name = fresh_id()
    assert create("admin", pod(name)) == f"pod/{name}\n"


@pytest.mark.parametrize("make", [pod, claim])
@pytest.mark.parametrize(("forged", "words"), FORGED)
@pytest.mark.parametrize("account", [BUILDER, "admin"])
def test_a_forged_pod_or_claim_is_refused(account, make, forged, words):
    # What is wrong first is what is said first.
    first = PODS if make is pod and account == BUILDER else words
    assert refused(create(account, make(fresh_id(), **forged)), first)


@pytest.mark.parametrize("labels", [{}, {"codeexec.dev/mountable": "true"}])
def test_a_users_own_claim_is_allowed(labels):
    name = fresh_id()
    assert create(BUILDER, claim(name, labels=labels)) == f"persistentvolumeclaim/{name}\n"


def test_a_controllers_pod_is_refused(made):
    name = fresh_id()
    template = {"spec": pod("x")["spec"] | {"restartPolicy": "Never"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta(name), "spec": {"template": template}}
    made.append(f"job/{name}")
    create(BUILDER, job, dry_run=False)
    said = ["get", "events", f"--field-selector=involvedObject.name={name},reason=FailedCreate", "-o", "jsonpath={.items[*].message}"]
    assert refused(wait_until(lambda: kubectl(*said)), PODS)
    assert kubectl("get", "pods", "-l", f"job-name={name}", "-o", "name") == ""


@pytest.mark.parametrize("account", [BUILDER, API_SERVER, "admin"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": {"codeexec.dev/sandbox-uid": None}}, LABELS),
        ({"labels": {"codeexec.dev/sandbox-uid": UID}}, LABELS),
        ({"labels": {"codeexec.dev/pool": "python"}}, LABELS),
        ({"annotations": {"codeexec.dev/sandbox": None}}, ANNOTATIONS),
        ({"annotations": {"codeexec.dev/sandbox": "another"}}, ANNOTATIONS),
    ],
)
def test_the_marks_of_a_living_pod_and_claim_cannot_be_changed(running, account, change, words):
    _, pod_name, claim_name = running
    for what in (f"pod/{pod_name}", f"pvc/{claim_name}"):
        assert refused(patch(account, what, {"metadata": change}), words)
        assert refused(patch(account, what, {"metadata": change}, "--subresource=status"), words)


def test_a_binding_cannot_carry_marks(running):
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": running[1], "annotations": {"codeexec.dev/sandbox": "another"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node"},
    }
    assert refused(post(BUILDER, f"{running[1]}/binding", body=binding), ANNOTATIONS)


def test_a_claim_cannot_be_given_to_another_sandbox(running, made):
    name = fresh_id()
    made.append(f"pvc/{name}")
    create(BUILDER, claim(name), dry_run=False)
    uid = get(f"sandbox/{running[0]}")["metadata"]["uid"]
    assert refused(patch(BUILDER, f"pvc/{name}", {"metadata": {"ownerReferences": owned(uid, running[0])}}), OWNER)


def test_other_labels_and_annotations_are_free(running):
    _, pod_name, claim_name = running
    for what in (f"pod/{pod_name}", f"pvc/{claim_name}"):
        change = {"metadata": {"labels": {"team": "a"}, "annotations": {"team/note": "b"}}}
        assert "patched" in patch(BUILDER, what, change)


def test_the_clusters_own_controllers_are_not_hindered():
    """Scheduler, kubelet, volume controller, provisioner and garbage collector all write these objects."""
    name = fresh_id()
    kubectl("create", "-f", "-", stdin=json.dumps(sandbox(name)))
    binding = ready(name)["binding"]
    what = [f"pod/{binding['podName']}", f"pvc/{binding['workspaceClaim']}"]
    bound = get(what[1])
    assert bound["status"]["phase"] == "Bound" and "kubernetes.io/pvc-protection" in bound["metadata"]["finalizers"]
    assert "volume.kubernetes.io/selected-node" in bound["metadata"]["annotations"]
    assert get(what[0])["status"]["phase"] == "Running"
    kubectl("delete", "sandbox", name)
    wait_until(lambda: kubectl("get", *what, "--ignore-not-found", "-o", "name") == "")


def test_the_garbage_collector_can_orphan_a_claim(made):
    name = fresh_id()
    kubectl("create", "-f", "-", stdin=json.dumps(sandbox(name)))
    binding = ready(name)["binding"]
    what = [f"pod/{binding['podName']}", f"pvc/{binding['workspaceClaim']}"]
    made.extend(what)
    kubectl("delete", "sandbox", name, "--cascade=orphan")
    for orphan in what:
        assert not get(orphan)["metadata"].get("ownerReferences")
    # Even one who owns the namespace takes no mark from it.
    assert refused(say("admin", "label", *what[1].split("/"), "codeexec.dev/sandbox-uid-"), LABELS)
