"""Attacks on the sandbox namespace, against the chart that `e2e/with-cluster` installed.

Accounts are tried by impersonation. Three of them get more rights here than the chart gives, so that what stops them is the
chart's policies and not only the lack of a right: the API server's, the operator's, and a user who may do everything with pods,
claims and sandboxes.
"""

import importlib.util
import json
import os
import pathlib
import time
import urllib.parse
import uuid

import pytest

HTTP = pathlib.Path(__file__).resolve().parents[1] / "http/conftest.py"
_spec = importlib.util.spec_from_file_location("http_conftest", HTTP)
http = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(http)
kubectl, fresh_id = http.kubectl, http.fresh_id

SANDBOXES = os.environ["CODEEXEC_TEST_SANDBOXES"]
SYSTEM = os.environ["CODEEXEC_TEST_SYSTEM"]
RELEASE = os.environ["RELEASE"]
API_SERVER = f"system:serviceaccount:{SYSTEM}:{RELEASE}-api-server"
OPERATOR = f"system:serviceaccount:{SYSTEM}:{RELEASE}-operator"
BUILDER = "builder-of-sandboxes"
# A member of system:masters, whatever the kubeconfig's own user is.
ADMIN = ("--as=admin-of-the-cluster", "--as-group=system:masters")
DEADLINE = 120
# A role cannot say "every subresource of pods".
SUBRESOURCES = ["attach", "binding", "ephemeralcontainers", "exec", "portforward", "proxy", "resize", "status"]
CORE = ["pods", *(f"pods/{name}" for name in SUBRESOURCES), "bindings", "persistentvolumeclaims", "persistentvolumeclaims/status"]


def say(account, *arguments, ok=False, namespace=SANDBOXES, stdin=None):
    """What kubectl says when this account asks."""
    who = ADMIN if account == "admin" else (f"--as={account}",)
    return kubectl(*who, *arguments, ok=ok, namespace=namespace, stdin=stdin)


def create(account, thing, dry_run=True):
    """Sends one object; what the API server answers."""
    flags = ["--dry-run=server"] if dry_run else []
    return say(account, "create", "-o", "name", *flags, "-f", "-", stdin=json.dumps(thing))


def patch(account, what, change, *flags):
    """A merge patch that changes something only if it is allowed."""
    return say(account, "patch", *what.split("/"), "--type=merge", "--dry-run=server", "-p", json.dumps(change), *flags)


def post(account, path, query=(), body=None, namespace=SANDBOXES):
    """A POST to a subresource of a pod."""
    url = f"/api/v1/namespaces/{namespace}/pods/{path}?{urllib.parse.urlencode(list(query))}"
    return say(account, "create", "--raw", url, "-f", "-", stdin=json.dumps(body) if body else "{}")


def get(what, namespace=SANDBOXES):
    return json.loads(kubectl("get", *what.split("/"), "-o", "json", namespace=namespace))


def wait_until(condition, seconds=DEADLINE):
    """The first value of `condition` that is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)
    return value


def refused(answer, words):
    """Whether a policy of the chart refused it, with these words."""
    assert "ValidatingAdmissionPolicy" in answer and RELEASE in answer and words in answer, answer
    return True


def meta(name, **more):
    return {"name": name, "namespace": SANDBOXES} | more


def sandbox(name, spec=None, **more):
    return {"apiVersion": "codeexec.dev/v1alpha1", "kind": "Sandbox", "metadata": meta(name, **more), "spec": spec or {}}


def template(name, **spec):
    image = get("sandboxtemplate/default")["spec"]["image"]
    small = {"requests": {"cpu": "5m", "memory": "16Mi"}}
    return {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "SandboxTemplate",
        "metadata": meta(name),
        "spec": {"image": image, "resources": small} | spec,
    }


def claim(name, **more):
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta(name, **more), "spec": spec}


def ready(name):
    """Waits until the sandbox is ready; its status."""
    kubectl("wait", "--for=condition=Ready", f"sandbox/{name}", f"--timeout={DEADLINE}s", namespace=SANDBOXES)
    return get(f"sandbox/{name}")["status"]


def condition(name, kind="Ready"):
    status = get(f"sandbox/{name}").get("status", {})
    return next((found for found in status.get("conditions", []) if found["type"] == kind), {})


@pytest.fixture(scope="session")
def server(rights):
    return http.Server("cluster", os.environ["CODEEXEC_TEST_URLS"].split(","), os.environ["CODEEXEC_TEST_KEYS"].split(","))


@pytest.fixture(scope="session")
def rights():
    """Rights beyond the chart's, for the time of the tests. Each process that runs tests has its own."""
    name = f"attacks-{uuid.uuid4().hex[:8]}"
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": meta(name),
        "rules": [
            {"apiGroups": [""], "resources": CORE, "verbs": ["*"]},
            {"apiGroups": ["codeexec.dev"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["*"]},
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": meta(name),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user} for user in (API_SERVER, OPERATOR, BUILDER)],
    }
    kubectl("create", "-f", "-", namespace=SANDBOXES, stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, binding]}))
    yield
    kubectl("delete", f"rolebinding/{name}", f"role/{name}", namespace=SANDBOXES)


@pytest.fixture
def made(rights):
    """Objects to delete in the end, as kind/name."""
    names = []
    yield names
    for name in names:
        kubectl("delete", name, "--ignore-not-found", "--wait=false", namespace=SANDBOXES)


@pytest.fixture(scope="session")
def running(rights):
    """A sandbox that is ready, by name and pod. Nothing may be changed in it."""
    name = fresh_id()
    kubectl("create", "-f", "-", namespace=SANDBOXES, stdin=json.dumps(sandbox(name, {"lifecycle": {"idleTimeout": "0s"}})))
    status = ready(name)
    yield name, status["binding"]["podName"], status["binding"]["workspaceClaim"]
    kubectl("delete", "sandbox", name, "--wait=false", namespace=SANDBOXES)
