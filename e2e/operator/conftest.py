"""Tests of the operator against a real API server, kubelet and volumes, with what can go wrong between them.

`e2e/operator-tests` builds what is needed and runs them. Tests marked `disruptive` stop parts of the cluster, so they run alone.
"""

import pathlib
import subprocess
import sys
import uuid

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from world import MARK, Proxy, Space, kubectl, wait_until  # noqa: E402

POLICY = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: codeexec-deny-all}, spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}"
NAMESPACE = """
apiVersion: v1
kind: Namespace
metadata:
  name: NAME
  labels: {MARK: operator, pod-security.kubernetes.io/enforce: restricted}
"""


def pytest_configure(config):
    config.addinivalue_line("markers", "disruptive: stops parts of the cluster, and so runs alone")
    config.addinivalue_line("markers", "long: takes minutes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """A test that fails shows the end of what its operators said, and its writes."""
    report = yield
    space = item.funcargs.get("space")
    if report.failed and space:
        for operator in space.operators:
            report.sections.append((f"log of {operator.name}", operator.log_file.read_text()[-6000:]))
            lines = [f"{it['n'] or '-':>3} {it['status'] or '---'} {it['fault'] or '':14} {it['verb']:6} {it['path']}" for it in operator.proxy.log()["writes"]]
            report.sections.append((f"writes of {operator.name}", "\n".join(lines[-60:])))
        report.sections.append(("objects", kubectl("get", "sandboxes,pods,pvc,events", "-o", "wide", namespace=space.name, ok=False)))
    return report


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """The cluster itself, by a proxy that is told nothing."""
    proxy = Proxy(tmp_path_factory.mktemp("plain"))
    yield proxy
    proxy.stop()


@pytest.fixture
def space(tmp_path, plain):
    """A namespace as the chart makes it, with the template `default`."""
    name = f"operator-test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "-f", "-", stdin=f"{NAMESPACE.replace('NAME', name).replace('MARK', MARK)}---\n{POLICY.replace('metadata: {', f'metadata: {{namespace: {name}, ')}")
    made = Space(name, tmp_path, plain)
    # Pods are refused until their namespace has its service account.
    wait_until(lambda: plain.call("GET", f"api/v1/namespaces/{name}/serviceaccounts/default").ok, what="the default service account")
    made.template("default")
    yield made
    made.end()
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def operator(space):
    """One operator, alone, that is ready."""
    started = space.operator()
    wait_until(started.ready, what="the operator to be ready")
    return started


@pytest.fixture
def component():
    """Stops and starts programs of this clone's node."""
    tool = pathlib.Path(__file__).resolve().parents[1] / "cluster/component"

    def change(action, name):
        subprocess.run([tool, action, name], check=True, capture_output=True, text=True, timeout=60)

    return change
