"""What is wrong with a template is told in its status, and nothing where nothing is."""

from conftest import kubectl, wait_until
from helpers import await_condition, condition, events, message


def looked_at(space, times):
    """Waits until the operator has looked at templates so often."""
    name = r'codeexec_operator_reconciles_total\{kind="SandboxTemplate",result="done"\}'
    wait_until(lambda: (space.operators[-1].metric(name) or 0) >= times, what="the operator to look at the templates")


def test_a_good_template_has_no_status_and_makes_no_pod(space):
    looked_at(space, 1)
    space.template("good")
    looked_at(space, 2)
    assert "status" not in space.get("sandboxtemplates", "good")
    assert not [it for it in space.list("pods") if it["metadata"]["name"] == "codeexec-template-trial"]


def test_a_missing_runtime_class_is_told_once_and_its_fix_too(space):
    space.template("fast", runtimeClassName="missing")
    await_condition(space, "Accepted", ("False", "RuntimeClassNotFound"), "fast")
    assert "missing" in message(space, "Accepted", "fast")
    wait_until(lambda: len(events(space, "RuntimeClassNotFound")) == 1, what="the Event")
    assert events(space, "RuntimeClassNotFound")[0]["involvedObject"]["name"] == "fast"
    space.patch("sandboxtemplates", "fast", {"spec": {"runtimeClassName": None}})
    await_condition(space, "Accepted", ("True", "PodAccepted"), "fast")
    found = space.get("sandboxtemplates", "fast")
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"] == 2


def test_a_limit_of_the_namespace_is_told(space):
    limits = [{"type": "Container", "max": {"memory": "4Gi"}}]
    space.create("limitranges", {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": {"limits": limits}})
    space.template("big", resources={"limits": {"memory": "8Gi"}})
    await_condition(space, "Accepted", ("False", "LimitRefused"), "big")


def test_a_full_quota_is_no_problem_of_the_template(space):
    looked_at(space, 1)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    space.create("resourcequotas", quota)
    wait_until(lambda: space.get("resourcequotas", "none").get("status", {}).get("hard"), what="the quota to be counted")
    space.template("good")
    looked_at(space, 2)
    assert condition(space, "Accepted", "good") is None


def test_a_claim_that_may_not_be_mounted_is_told_until_it_may(space):
    space.template("data", mounts=[{"claimName": "shared", "mountPath": "/mnt/data"}])
    await_condition(space, "Accepted", ("False", "ClaimNotMountable"), "data")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": spec}
    space.create("persistentvolumeclaims", claim)
    kubectl("label", "persistentvolumeclaim/shared", "codeexec.dev/mountable=true", namespace=space.name)
    await_condition(space, "Accepted", ("True", "PodAccepted"), "data", seconds=150)
