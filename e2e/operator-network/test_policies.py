"""The policies as objects: who makes them, and who gets them back."""

import pytest
from conftest import wait_until
from helpers import allow, await_condition, condition, message

DENY_ALL = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def deny_all(space):
    return space.get("networkpolicies", "codeexec-deny-all")


def restored(space, but):
    """Whether everything is denied, by another version than this."""
    found = deny_all(space)
    return found and found["metadata"]["resourceVersion"] != but and found["spec"] == DENY_ALL


def test_the_policy_that_denies_everything_is_made_anew_when_it_is_deleted(space):
    found = deny_all(space)
    assert "ownerReferences" not in found["metadata"]
    assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    space.delete("networkpolicies", "codeexec-deny-all")
    wait_until(lambda: restored(space, found["metadata"]["resourceVersion"]), what="the policy to be back")


@pytest.mark.parametrize("change", [{"egress": [{}]}, {"ingress": [{}]}, {"policyTypes": ["Ingress"]}, {"podSelector": {"matchLabels": {"a": "b"}}}])
def test_the_policy_that_denies_everything_is_restored_when_it_is_changed(space, change):
    uid = deny_all(space)["metadata"]["uid"]
    changed = space.patch("networkpolicies", "codeexec-deny-all", {"metadata": {"labels": {"mine": "yes"}}, "spec": change})
    wait_until(lambda: restored(space, changed["metadata"]["resourceVersion"]), what="the policy to be restored")
    assert (deny_all(space)["metadata"]["uid"], deny_all(space)["metadata"]["labels"]["mine"]) == (uid, "yes")


def test_a_policy_at_rest_costs_no_write(space):
    rule = {"to": [{"podSelector": {}}, {"ipBlock": {"cidr": "203.0.113.0/24", "except": []}}], "ports": [{"port": 443}, {"port": 53, "protocol": "UDP"}]}
    space.template("web", network={"egress": [rule, {}, {"ports": [{"port": 1000, "endPort": 2000}]}]})
    made = wait_until(lambda: space.get("networkpolicies", "codeexec-template-web"), what="the template's policy")
    space.patch("sandboxtemplates", "web", {"spec": {"libraries": ["x"]}})
    space.template("later", network=allow("203.0.113.1", 443))
    wait_until(lambda: space.get("networkpolicies", "codeexec-template-later"), what="the later template's policy")
    assert space.get("networkpolicies", "codeexec-template-web")["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_somebody_elses_policy_of_the_name_is_reported_and_left_alone(space):
    spec = {"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Egress"]}
    thing = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "codeexec-template-web"}, "spec": spec}
    theirs = space.create("networkpolicies", thing)
    space.template("web", network=allow("203.0.113.1", 443))
    await_condition(space, "Accepted", ("False", "ForeignObject"), "web")
    assert "codeexec-template-web" in message(space, "Accepted", "web")
    assert space.get("networkpolicies", "codeexec-template-web")["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
    space.delete("networkpolicies", "codeexec-template-web")
    await_condition(space, "Accepted", ("True", "PodAccepted"), "web")
    assert space.get("networkpolicies", "codeexec-template-web")["metadata"]["labels"]["codeexec.dev/template"] == "web"


def test_rules_that_the_api_server_refuses_are_told_in_its_words(space):
    space.template("wrong", network={"egress": [{"to": [{"ipBlock": {"cidr": "nonsense"}}]}]})
    await_condition(space, "Accepted", ("False", "TemplateInvalid"), "wrong")
    assert "cidr" in message(space, "Accepted", "wrong")


def test_api_access_without_an_api_server_is_told(space):
    space.template("calls", network={"apiAccess": True})
    await_condition(space, "Accepted", ("False", "TemplateInvalid"), "calls")
    assert "--api-access-namespace" in message(space, "Accepted", "calls")
    assert condition(space, "Accepted", "default") is None
