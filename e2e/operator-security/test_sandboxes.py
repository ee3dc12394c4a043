"""The API server's account touches a Sandbox and changes nothing else of it; nobody else makes a Sandbox that passes for a tenant's."""

import json

import pytest
from conftest import API_SERVER, BUILDER, create, fresh_id, get, http, kubectl, patch, refused, sandbox, say, wait_until

pytestmark = pytest.mark.usefixtures("rights")

PREFIX = "codeexec.dev"
ANNOTATION, SPEC = "no annotation of a Sandbox but", "the spec of a Sandbox"


def annotations(**values):
    return {"metadata": {"annotations": {f"{PREFIX}/{key.replace('_', '-')}": value for key, value in values.items()}}}


@pytest.mark.parametrize("change", [annotations(activity="x"), annotations(activity="x", hold="5m"), annotations(replace_pod="uid"), annotations(activity=None)])
def test_the_server_may_touch_a_sandbox(running, change):
    assert "patched" in patch(API_SERVER, f"sandbox/{running[0]}", change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (annotations(owner="another"), ANNOTATION),
        (annotations(activity="x", other="y"), ANNOTATION),
        ({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}}, ANNOTATION),
        ({"metadata": {"labels": {"team": "a"}}}, "the labels, finalizers or owners"),
        ({"metadata": {"finalizers": ["example.com/stay"]}}, "the labels, finalizers or owners"),
        ({"spec": {"replicas": 0}}, SPEC),
        ({"spec": {"lifecycle": {"idleTimeout": "1h"}}}, SPEC),
        ({"spec": {"lifecycle": None}} | annotations(activity="x"), SPEC),
    ],
)
def test_the_server_may_change_nothing_else(running, change, words):
    assert refused(patch(API_SERVER, f"sandbox/{running[0]}", change), words)


@pytest.mark.parametrize(("subresource", "change"), [("status", {"status": {"phase": "Ready"}}), ("scale", {"spec": {"replicas": 0}})])
def test_the_server_may_write_neither_status_nor_scale(running, subresource, change):
    assert refused(patch(API_SERVER, f"sandbox/{running[0]}", change, f"--subresource={subresource}"), "neither the status nor the scale")


def test_the_server_may_create_what_it_creates():
    name, marks = fresh_id(), {f"{PREFIX}/activity": "x", f"{PREFIX}/owner": "tenant"}
    spec = {"templateRef": {"name": "default"}, "replicas": 1, "lifecycle": {"maxLifetime": "720h"}}
    assert create(API_SERVER, sandbox(name, spec, annotations=marks)) == f"sandbox.codeexec.dev/{name}\n"


@pytest.mark.parametrize(
    ("spec", "metadata", "words"),
    [
        ({"workspace": {"size": "1Gi"}}, {}, "that its template gives"),
        ({"overrides": {"image": "registry.invalid/x:y"}}, {}, "that its template gives"),
        ({}, {"labels": {"team": "a"}}, "only without labels"),
        ({}, {"finalizers": ["example.com/stay"]}, "only without labels"),
        ({}, {"annotations": {f"{PREFIX}/replace-pod": "x"}}, "no annotations but"),
        ({}, {"annotations": {"example.com/x": "x"}}, "no annotations but"),
    ],
)
def test_the_server_may_create_nothing_more(spec, metadata, words):
    assert refused(create(API_SERVER, sandbox(fresh_id(), spec, **metadata)), words)


def test_a_user_may_not_name_a_tenant(running):
    owner = {"annotations": {f"{PREFIX}/owner": "tenant"}}
    assert refused(create(BUILDER, sandbox(fresh_id(), **owner)), "only the codeexec API server")
    assert refused(patch(BUILDER, f"sandbox/{running[0]}", {"metadata": owner}), "only the codeexec API server")
    assert "patched" in patch(BUILDER, f"sandbox/{running[0]}", {"spec": {"lifecycle": {"idleTimeout": "1h"}}})


def test_the_owner_of_a_tenants_sandbox_can_be_neither_changed_nor_taken_away(server, made):
    name = sandbox_of(server, fresh_id(), made)
    for value in ("another", None):
        assert refused(patch(BUILDER, f"sandbox/{name}", annotations(owner=value)), "only the codeexec API server")
    assert "patched" in patch(BUILDER, f"sandbox/{name}", annotations(activity="x"))


def sandbox_of(server, container, made):
    """Has a container made; the name of its Sandbox."""
    server.bash("echo tenant > f", surface="zylon", container=container)
    (name,) = [name for name in kubectl("get", "sandboxes", "-o", "jsonpath={.items[*].metadata.name}").split() if container in name]
    made.append(f"sandbox/{name}")
    return name


def test_a_sandbox_that_was_made_in_advance_is_not_used(server, made):
    container = fresh_id()
    name = sandbox_of(server, container, made)
    real = get(f"sandbox/{name}")
    kubectl("delete", "sandbox", name)
    spec = {"lifecycle": {"idleTimeout": "0s"}}
    # With the tenant's mark it would be taken for theirs.
    forged = sandbox(name, spec, annotations={f"{PREFIX}/owner": real["metadata"]["annotations"][f"{PREFIX}/owner"]})
    assert refused(create(BUILDER, forged, dry_run=False), "only the codeexec API server")
    assert create(BUILDER, sandbox(name, spec), dry_run=False)
    kubectl("wait", "--for=condition=Ready", f"sandbox/{name}", "--timeout=120s")
    before = get(f"sandbox/{name}")["metadata"]["uid"]
    answer = server.post("/api/gpt/v1/messages", request("echo stolen > f; echo ran", container))
    assert "ran" not in results(answer), answer.text
    pod = get(f"sandbox/{name}")["status"]["binding"]["podName"]
    assert get(f"sandbox/{name}")["metadata"]["uid"] == before
    assert "stolen" not in say(BUILDER, "exec", pod, "-c", "main", "--", "sh", "-c", "cat f || true", ok=True)


def request(command, container):
    return http.request(http.bash(command), tools=(http.CE_V1,), container=container)


def results(answer):
    """What the tools of an answer say; the model's own words do not count."""
    body = answer.json()
    return json.dumps([block for block in body.get("content", []) if "tool_result" in block["type"]])


@pytest.mark.parametrize("wait", ["true", "false"])
def test_a_re_created_id_has_no_old_data(server, made, wait):
    """Also while the old pod and claim are still going."""
    container = fresh_id()
    name = sandbox_of(server, container, made)
    old = get(f"sandbox/{name}")
    kubectl("delete", "sandbox", name, f"--wait={wait}")
    ask = lambda command: server.bash(command, surface="zylon", container=container)[0]
    uid = lambda: kubectl("get", "sandbox", name, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")
    # Until its pod is told to end, a command may still run there.
    wait_until(lambda: ask("true") and uid() not in ("", old["metadata"]["uid"]))
    result = wait_until(lambda: next((answer for answer in [ask("ls -A; cat f")] if "stdout" in answer), None))
    assert "tenant" not in result["stdout"] and "No such file" in result["stderr"], result
    new = get(f"sandbox/{name}")
    for child in ("podName", "workspaceClaim"):
        assert new["status"]["binding"][child] != old["status"]["binding"][child]
    wait_until(lambda: kubectl("get", "pvc", old["status"]["binding"]["workspaceClaim"], "--ignore-not-found", "-o", "name") == "")
