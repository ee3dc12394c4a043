"""The tool that finds unused rights."""

import importlib.machinery
import importlib.util
import json
import pathlib

PATH = str(pathlib.Path(__file__).resolve().parents[1] / "rbac-used")
_loader = importlib.machinery.SourceFileLoader("rbac_used", PATH)
tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("rbac_used", _loader))
_loader.exec_module(tool)
SYSTEM, PREFIX = "sys", "rel-codeexec-"


def granted(*rules, kind="Role", where="boxes"):
    role = {"kind": kind, "metadata": {"name": "r", "namespace": where}, "rules": list(rules)}
    binding = {
        "metadata": {"namespace": where},
        "roleRef": {"kind": kind, "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": f"{PREFIX}operator", "namespace": SYSTEM}],
    }
    return tool.granted([binding], {(kind, where if kind == "Role" else None, "r"): role}, SYSTEM, PREFIX)


def rule(verbs, resource="pods", group="", **more):
    return {"apiGroups": [group], "resources": [resource], "verbs": verbs} | more


def event(verb, resource="pods", namespace="boxes", user="operator", decision="allow", time="2026-01-02", **more):
    reference = {"resource": resource, "namespace": namespace} | more
    user = {"username": f"system:serviceaccount:{SYSTEM}:{PREFIX}{user}"}
    mark = {"authorization.k8s.io/decision": decision}
    return json.dumps({"user": user, "verb": verb, "objectRef": reference, "annotations": mark, "requestReceivedTimestamp": time})


def wrong(rights, *events, rare=(), since=""):
    return tool.compare(rights, tool.used(events, SYSTEM, PREFIX, since), dict.fromkeys(rare, "why"))["operator"]


def test_a_right_that_was_used_is_fine():
    assert wrong(granted(rule(["get", "list"])), event("get"), event("list")) == []
    assert wrong(granted(rule(["create"], "pods/exec")), event("create", subresource="exec")) == []
    assert wrong(granted(rule(["get"], "nodes"), kind="ClusterRole", where=None), event("get", "nodes", None)) == []
    assert wrong(granted(rule(["get"], resourceNames=["a"])), event("get", name="a")) == []


def test_a_right_that_was_not_used_is_named():
    for other in (
        event("list"),
        event("get", "secrets"),
        event("get", subresource="log"),
        event("get", namespace="elsewhere"),
        event("get", user="api-server"),
        event("get", decision="forbid"),
        event("get", apiGroup="example.com"),
        event("get", time="2025-12-31"),
        event("get")[:-9],
    ):
        assert wrong(granted(rule(["get"])), other, since="2026-01-01") == ["get pods: granted, and never used"], other
    assert wrong(granted(rule(["get"], resourceNames=["a"])), event("get", name="b")) == ["get pods: granted, and never used"]


def test_the_list_of_rare_rights_stays_true():
    key = ("operator", "", "pods", "patch")
    assert wrong(granted(rule(["patch"])), rare=[key]) == []
    assert "not granted" in wrong(granted(rule(["get"])), event("get"), rare=[key])[0]


def test_a_wildcard_is_too_much():
    assert "wildcard" in wrong(granted(rule(["*"])), event("get"))[0]
