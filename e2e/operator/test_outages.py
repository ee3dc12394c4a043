"""Parts of the cluster end and come back: sandboxes are there again, with their files."""

import os
import pathlib
import subprocess
import time

import pytest
from world import ROOT, assert_quiet, wait_until

CLUSTER = ROOT / "e2e/cluster"


def clones_cluster():
    """The kubeconfig of the node that this clone may stop; none while it does not run."""
    said = subprocess.run([CLUSTER / "env"], capture_output=True, text=True)
    found = [line.removeprefix("KUBECONFIG=") for line in said.stdout.splitlines() if line.startswith("KUBECONFIG=")]
    return pathlib.Path(found[0]).resolve() if found else None


pytestmark = [
    pytest.mark.disruptive,
    pytest.mark.skipif(
        clones_cluster() != pathlib.Path(os.environ.get("KUBECONFIG", "/nowhere")).resolve(),
        reason="only the cluster of this clone may be stopped",
    ),
]


@pytest.fixture
def lived_in(space, operator):
    """Two sandboxes with a file each; one runs, one is suspended."""
    for name in ("running", "asleep"):
        space.sandbox(name)
    space.await_phases("Ready", ["running", "asleep"])
    for name in ("running", "asleep"):
        space.write_file(f"of {name}", name)
    space.scale(0, "asleep")
    space.await_phase("Suspended", "asleep")
    return space


def api_answers(space):
    try:
        return space.plain.call("GET", "readyz").ok
    except OSError:
        return False


def assert_all_there(space, operator):
    """Both come to run, each with its file and one pod, and then nothing more happens."""
    space.await_phase("Ready", "running", seconds=240)
    space.scale(1, "asleep")
    space.await_phase("Ready", "asleep", seconds=240)
    wait_until(lambda: all(pod_is_ready(space.pod(name)) for name in ("running", "asleep")), 240, "both pods to be ready")
    for name in ("running", "asleep"):
        assert space.read_file(name) == f"of {name}"
    space.assert_settled("Ready", ["running", "asleep"])
    assert operator.runs()
    assert_quiet(operator.proxy)


def pod_is_ready(pod):
    return any(it["type"] == "Ready" and it["status"] == "True" for it in pod["status"].get("conditions", []))


def test_etcd_is_restarted(lived_in, operator, component):
    pod = lived_in.pod("running")["metadata"]["uid"]
    component("stop", "etcd")
    wait_until(lambda: not api_answers(lived_in), what="the API server to notice")
    time.sleep(5)
    component("start", "etcd")
    wait_until(lambda: api_answers(lived_in), 120, "the API server to be ready")
    assert_all_there(lived_in, operator)
    assert lived_in.pod("running")["metadata"]["uid"] == pod


def test_the_api_server_is_restarted(lived_in, operator, component):
    pod = lived_in.pod("running")["metadata"]["uid"]
    component("restart", "kube-apiserver")
    wait_until(lambda: api_answers(lived_in), 120, "the API server to be ready")
    assert_all_there(lived_in, operator)
    assert lived_in.pod("running")["metadata"]["uid"] == pod


def test_the_kubelet_is_restarted_in_the_middle_of_a_start(lived_in, operator, component):
    pod = lived_in.pod("running")["metadata"]["uid"]
    component("stop", "kubelet")
    lived_in.sandbox("new")
    wait_until(lambda: lived_in.of("pods", "new"), what="the new pod")
    component("start", "kubelet")
    lived_in.await_phase("Ready", "new", seconds=240)
    assert_all_there(lived_in, operator)
    assert lived_in.pod("running")["metadata"]["uid"] == pod


def test_the_node_is_stopped_and_started_on_the_same_data(lived_in, operator):
    for command, settings in [("stop", {"KEEP": "1"}), ("up", {})]:
        subprocess.run([CLUSTER / command], check=True, capture_output=True, text=True, timeout=300, env=os.environ | settings)
    wait_until(lambda: api_answers(lived_in), 120, "the API server to be ready")
    # The old node vanished without a word, and the proxy holds connections to it.
    operator.proxy.cut()
    assert_all_there(lived_in, operator)
