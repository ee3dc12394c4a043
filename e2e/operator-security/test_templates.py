"""What somebody who may write templates and sandboxes gains by them."""

import json

import pytest
from conftest import BUILDER, claim, condition, create, fresh_id, get, kubectl, sandbox, template, wait_until

pytestmark = pytest.mark.usefixtures("rights")


def make(*things):
    """Creates them as a user without further rights; the first refusal, if any."""
    for thing in things:
        answer = create(BUILDER, thing, dry_run=False)
        if f"/{thing['metadata']['name']}" not in answer.splitlines()[0]:
            return answer
    return None


def stuck(name, reason):
    """Waits for this reason, and sees that there is no pod."""
    found = wait_until(lambda: condition(name) if condition(name).get("reason") == reason else None, 60)
    uid = get(f"sandbox/{name}")["metadata"]["uid"]
    assert kubectl("get", "pods", "-l", f"codeexec.dev/sandbox-uid={uid}", "-o", "name") == ""
    return found["message"]


def from_template(made, overrides=None, **spec):
    name = fresh_id()
    made.extend([f"sandbox/{name}", f"sandboxtemplate/{name}"])
    more = {"overrides": overrides} if overrides else {}
    said = make(template(name, **spec), sandbox(name, {"templateRef": {"name": name}} | more))
    assert said is None, said
    return name


@pytest.mark.parametrize("marked", ["nobody's", "another sandbox's"])
def test_a_foreign_claim_is_not_mounted(running, made, marked):
    foreign = running[2]
    if marked == "nobody's":
        foreign = fresh_id()
        made.append(f"pvc/{foreign}")
        assert make(claim(foreign)) is None
    name = from_template(made, mounts=[{"claimName": foreign, "mountPath": "/mnt/data"}])
    assert foreign in stuck(name, "ClaimNotMountable")


def test_a_foreign_claim_is_not_taken_for_a_workspace(running, made):
    name = fresh_id()
    made.append(f"sandbox/{name}")
    assert make(sandbox(name, {"workspace": {"existingClaim": {"name": running[2]}}})) is None
    assert running[2] in stuck(name, "ClaimNotMountable")


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"codeexec.dev/sandbox-uid": "x"}},
        {"labels": {"app.kubernetes.io/managed-by": "x"}},
        {"annotations": {"codeexec.dev/sandbox": "x"}},
    ],
)
def test_our_labels_cannot_be_set_by_a_template(metadata):
    answer = make(template(fresh_id(), podMetadata=metadata))
    assert "are the operator's" in answer, answer


@pytest.mark.parametrize(
    ("allowed", "overrides", "field"),
    [
        ({}, {"image": "registry.invalid/x:y"}, "image"),
        ({}, {"runtimeClassName": "other"}, "runtimeClassName"),
        ({"allowedOverrides": ["image"], "allowedImages": ["registry.invalid/good/*"]}, {"image": "registry.invalid/bad/x:y"}, "image"),
        ({"allowedOverrides": ["image"], "allowedImages": ["registry.invalid/x:y"]}, {"image": "registry.invalid/x:y@sha256:0"}, "image"),
        ({"allowedOverrides": ["image"]}, {"image": "registry.invalid/x:y"}, "image"),
        ({"allowedOverrides": []}, {"env": [{"name": "X", "value": "y"}]}, "env"),
    ],
)
def test_an_override_that_the_template_does_not_allow_is_refused(made, allowed, overrides, field):
    name = from_template(made, overrides, **allowed)
    assert field in stuck(name, "OverrideNotAllowed")


@pytest.mark.parametrize("field", ["volumes", "serviceAccountName", "hostNetwork", "securityContext", "containers"])
def test_a_template_has_no_field_for_more(field):
    thing = template(fresh_id())
    thing["spec"][field] = json.loads('{"hostNetwork": true}').get(field, "x")
    answer = kubectl("create", "--validate=strict", "--dry-run=server", "-f", "-", ok=False, stdin=json.dumps(thing))
    assert f'unknown field "spec.{field}"' in answer, answer


def test_a_user_namespace_is_all_that_host_users_gives(made):
    """The pod is the same but for that field: no root, nothing unmasked. It need not run on this cluster."""
    name = from_template(made, hostUsers=False)
    uid = lambda: get(f"sandbox/{name}")["metadata"]["uid"]
    pods = lambda: json.loads(kubectl("get", "pods", "-l", f"codeexec.dev/sandbox-uid={uid()}", "-o", "json"))["items"]
    (pod,) = wait_until(pods, 60)
    assert pod["spec"]["hostUsers"] is False and pod["spec"]["securityContext"]["runAsUser"] == 1000
    for container in pod["spec"]["containers"] + pod["spec"]["initContainers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
        assert "procMount" not in context and not context.get("runAsUser")
