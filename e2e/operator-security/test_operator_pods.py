"""What the operator's account may create: pods like those it makes, and no others."""

import copy
import re

import pytest
from conftest import BUILDER, OPERATOR, create, fresh_id, get, meta, patch, refused, say

pytestmark = pytest.mark.usefixtures("rights")


@pytest.fixture(scope="module")
def good(running):
    """A pod as the operator sends it, made from one that runs."""
    live = get(f"pod/{running[1]}")
    spec = {key: value for key, value in live["spec"].items() if key not in ("nodeName", "tolerations", "preemptionPolicy", "priority")}
    kept = {key: live["metadata"][key] for key in ("labels", "annotations", "ownerReferences")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta("like-the-operators", **kept), "spec": spec}


def at(thing, path):
    for key in path:
        thing = thing[key]
    return thing


def with_change(pod, path, value):
    """A copy with one field set; a path that ends with `+` appends to a list."""
    pod = copy.deepcopy(pod)
    *start, last = path
    parent = at(pod["spec"], start)
    if last == "+":
        parent.append(value)
    else:
        parent[last] = value
    return pod


def test_the_operators_own_pod_passes(good):
    assert create(OPERATOR, good) == "pod/like-the-operators\n"


def test_the_network_probe_passes_and_no_other_pod_like_it(good):
    spec = {key: value for key, value in good["spec"].items() if key not in ("initContainers", "volumes", "containers")}
    field = {"name": "NODE_IPS", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIPs"}}}
    probe = extra("probe") | {"env": [field]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta("codeexec-network-probe-x"), "spec": spec | {"containers": [probe]}}
    assert create(OPERATOR, pod) == "pod/codeexec-network-probe-x\n"
    secret = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    assert refused(create(OPERATOR, with_change(pod, ("containers", 0, "env"), [secret])), VARIABLES)
    assert refused(create(OPERATOR, with_change(pod, ("volumes",), [{"name": "a", "emptyDir": {}}])), CONTAINERS)


def extra(name):
    return {
        "name": name,
        "image": "none",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


MAIN = ("containers", 0)
CONTAINERS, VOLUMES, NAMESPACES = "the containers main and files", "only claims and emptyDirs", "no namespace with its node"
ACCOUNT, PRIVILEGES, VARIABLES = "no service account but default", "neither as root", "only literal variables"
TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("containers", "+"), extra("more"), CONTAINERS),
        (("initContainers", "+"), extra("more"), CONTAINERS),
        (("initContainers", "+"), extra("more") | {"restartPolicy": "Always"}, CONTAINERS),
        (("initContainers",), [], CONTAINERS),
        ((*MAIN, "name"), "other", CONTAINERS),
        (("volumes", "+"), TOKEN, VOLUMES),
        (("volumes", "+"), {"name": "t", "secret": {"secretName": "another"}}, VOLUMES),
        (("volumes", "+"), {"name": "t", "configMap": {"name": "another"}}, VOLUMES),
        (("volumes", "+"), {"name": "t", "csi": {"driver": "example.com"}}, VOLUMES),
        (("volumes", "+"), {"name": "t", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}}}, VOLUMES),
        (("shareProcessNamespace",), True, NAMESPACES),
        (("automountServiceAccountToken",), True, ACCOUNT),
        ((*MAIN, "securityContext", "procMount"), "Unmasked", PRIVILEGES),
        ((*MAIN, "env"), [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "another", "key": "k"}}}], VARIABLES),
        ((*MAIN, "envFrom"), [{"secretRef": {"name": "another"}}], VARIABLES),
    ],
)
def test_anything_beyond_it_is_refused(good, path, value, words):
    answer = create(OPERATOR, with_change(good, path, value))
    # An unmasked /proc, and it alone, is stopped by Pod Security or by validation before.
    if words == PRIVILEGES and "ValidatingAdmissionPolicy" not in answer:
        assert "PodSecurity" in answer or "procMount" in answer, answer
    else:
        assert refused(answer, words)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("hostNetwork",), True),
        (("hostPID",), True),
        (("hostIPC",), True),
        (("volumes", "+"), {"name": "t", "hostPath": {"path": "/"}}),
        ((*MAIN, "securityContext", "privileged"), True),
        ((*MAIN, "securityContext", "capabilities"), {"add": ["SYS_ADMIN"], "drop": ["ALL"]}),
        ((*MAIN, "securityContext", "runAsUser"), 0),
        ((*MAIN, "securityContext", "allowPrivilegeEscalation"), True),
    ],
)
def test_what_pod_security_refuses_is_refused(good, path, value):
    answer = create(OPERATOR, with_change(good, path, value))
    assert re.search("PodSecurity|ValidatingAdmissionPolicy|cannot set|may not be set", answer) and "pod/like" not in answer, answer


@pytest.mark.parametrize(
    "change",
    [{"runAsUser": 0, "runAsNonRoot": False}, {"procMount": "Unmasked"}, {"capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]}}],
)
def test_a_user_namespace_buys_no_privilege(good, change):
    """Pod Security is looser about pods with `hostUsers: false`."""
    pod = with_change(good, ("hostUsers",), False)
    assert create(OPERATOR, pod) == "pod/like-the-operators\n"
    pod["spec"]["containers"][0]["securityContext"] |= change
    answer = create(OPERATOR, pod)
    assert "PodSecurity" in answer or refused(answer, PRIVILEGES)


def test_another_service_account_is_refused(good, made):
    name = fresh_id()
    made.append(f"serviceaccount/{name}")
    say("admin", "create", "serviceaccount", name, ok=True)
    pod = with_change(with_change(good, ("serviceAccountName",), name), ("serviceAccount",), name)
    assert refused(create(OPERATOR, pod), ACCOUNT)


def test_an_ephemeral_container_is_refused(running):
    change = {"spec": {"ephemeralContainers": [extra("debug")]}}
    assert refused(patch(OPERATOR, f"pod/{running[1]}", change, "--subresource=ephemeralcontainers"), "ephemeral")


def test_these_limits_are_the_operators_only(running):
    """Who has pod rights in the namespace owns its sandboxes."""
    change = {"metadata": {"labels": {"team": "a"}}}
    assert "patched" in patch(BUILDER, f"pod/{running[1]}", change)
