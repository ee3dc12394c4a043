"""Networks of sandboxes against a real API server, kubelet and policy controller.

The operator is a process of this machine, as in `e2e/operator`. Beside its namespace there is one without policies: what a pod there
reaches is what a sandbox could reach, so a row that even that pod does not reach is skipped.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import uuid

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "operator"))
import world  # noqa: E402
from world import MARK, Proxy, Space, image, kubectl, wait_until  # noqa: E402

world.KINDS |= {
    "networkpolicies": "apis/networking.k8s.io/v1",
    "limitranges": "api/v1",
    "resourcequotas": "api/v1",
    "events": "api/v1",
}
TCP_PORT, UDP_PORT = 8000, 5353
# A listener on both, for whoever comes.
LISTEN = f"""
import socket, threading
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("", {UDP_PORT}))
tcp = socket.create_server(("", {TCP_PORT}), backlog=64)
def answer():
    while True: udp.sendto(b"pong", udp.recvfrom(64)[1])
threading.Thread(target=answer, daemon=True).start()
while True: tcp.accept()[0].close()
"""
# Prints the names of the targets that are reached, each as NAME/PROTOCOL/HOST/PORT.
REACH = """
import concurrent.futures, json, socket, sys
def reached(target):
    name, protocol, host, port = target
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM) as it:
            it.settimeout(3)
            it.connect((host, port))
            if protocol == "udp":
                it.send(b"ping")
                return it.recv(64) == b"pong"
            return True
    except OSError:
        return False
targets = json.loads(sys.argv[1])
with concurrent.futures.ThreadPoolExecutor(len(targets)) as pool:
    print(json.dumps([target[0] for target, yes in zip(targets, pool.map(reached, targets)) if yes]))
"""


def pytest_configure(config):
    config.addinivalue_line("markers", "disruptive: stops parts of the cluster, and so runs alone")


def reach(namespace, pod, container, targets):
    """Names of the targets that this pod reaches."""
    words = ("exec", pod, "-c", container, "--", "python3", "-c", REACH, json.dumps(targets))
    return set(json.loads(kubectl(*words, namespace=namespace)))


def bare_pod(name, namespace, labels, *command):
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "main", "image": image("sandbox"), "command": list(command), "securityContext": secure}],
            "terminationGracePeriodSeconds": 0,
        },
    }


def service(name, namespace, kind, port, protocol, target):
    ports = [{"port": port, "protocol": protocol, "targetPort": target}]
    spec = {"type": kind, "selector": {"role": "listener"}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


class Open:
    """A namespace without policies: a listener with its Services, and a pod that tries what sandboxes try."""

    def __init__(self, name):
        self.name = name
        things = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {MARK: "operator"}}},
        ]
        self.create(things)
        wait_until(lambda: "default" in kubectl("get", "serviceaccounts", "-o", "name", namespace=name), what="the service account")
        self.create([
            bare_pod("listener", name, {"role": "listener"}, "python3", "-c", LISTEN),
            bare_pod("control", name, {"role": "control"}, "python3", "-c", LISTEN),
            service("node-port", name, "NodePort", TCP_PORT, "TCP", TCP_PORT),
            service("api", name, "ClusterIP", 8080, "TCP", TCP_PORT),
            service("dns", name, "ClusterIP", 53, "UDP", UDP_PORT),
        ])
        kubectl("wait", "--for=condition=Ready", "pod/listener", "pod/control", "--timeout=180s", namespace=name)
        listener = self.get("pod/listener")["status"]
        self.node_ip, self.listener_ip = listener["hostIP"], listener["podIP"]
        self.control_ip = self.get("pod/control")["status"]["podIP"]
        self.node_port = self.get("service/node-port")["spec"]["ports"][0]["nodePort"]
        address = lambda it: self.get(f"service/{it}")["spec"]["clusterIP"]  # noqa: E731
        kubernetes = json.loads(kubectl("get", "service", "kubernetes", "-o", "json", namespace="default"))["spec"]["clusterIP"]
        self.canary = f"{self.node_ip}:{self.node_port}"
        self.targets = {
            "the node's kubelet": ("tcp", self.node_ip, 10250),
            "a node port": ("tcp", self.node_ip, self.node_port),
            "the Kubernetes service": ("tcp", kubernetes, 443),
            "another pod": ("tcp", self.listener_ip, TCP_PORT),
            "another pod over UDP": ("udp", self.listener_ip, UDP_PORT),
            "the main API port": ("tcp", address("api"), 8080),
            "DNS": ("udp", address("dns"), 53),
            "the metadata address": ("tcp", "169.254.169.254", 80),
            "the metadata address over IPv6": ("tcp", "fd00:ec2::254", 80),
        }

    def create(self, things):
        kubectl("create", "-f", "-", namespace=self.name, stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": things}))

    def get(self, what):
        return json.loads(kubectl("get", what, "-o", "json", namespace=self.name))

    def listed(self, names=None):
        return [(name, *self.targets[name]) for name in names or self.targets]

    def reached(self, targets=None):
        return reach(self.name, "control", "main", targets or self.listed())


@pytest.fixture(scope="session")
def metadata_address():
    """Something at the metadata address of this clone's node, where that can be arranged."""
    node = os.environ.get("CLUSTER_NODE_PID")
    if not node or os.geteuid() != 0:
        yield
        return
    inside = ["nsenter", "--target", node, "--net"]
    subprocess.run([*inside, "ip", "address", "add", "169.254.169.254/32", "dev", "lo"], check=False, capture_output=True)
    listen = "import socket\nit = socket.create_server(('169.254.169.254', 80))\nwhile True: it.accept()[0].close()"
    server = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *inside, sys.executable, "-c", listen], stdin=subprocess.DEVNULL)
    yield
    server.kill()
    server.wait()
    subprocess.run([*inside, "ip", "address", "del", "169.254.169.254/32", "dev", "lo"], check=False, capture_output=True)


@pytest.fixture(scope="session")
def outside(metadata_address):
    made = Open(f"open-test-{uuid.uuid4().hex[:8]}")
    yield made
    kubectl("delete", "namespace", made.name, "--wait=false")


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """The cluster itself, by a proxy that is told nothing."""
    proxy = Proxy(tmp_path_factory.mktemp("plain"))
    yield proxy
    proxy.stop()


@contextlib.contextmanager
def new_space(folder, plain):
    name = f"operator-test-{uuid.uuid4().hex[:8]}"
    labels = {MARK: "operator", "pod-security.kubernetes.io/enforce": "restricted"}
    thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    kubectl("create", "-f", "-", stdin=json.dumps(thing))
    made = Space(name, folder, plain)
    try:
        wait_until(lambda: plain.call("GET", f"api/v1/namespaces/{name}/serviceaccounts/default").ok, what="the default service account")
        made.template("default")
        yield made
    finally:
        made.end()
        for operator in made.operators:
            print(operator.log_file.read_text()[-6000:])
        kubectl("delete", "namespace", name, "--wait=false")


def with_operator(space, outside):
    """An operator that knows a canary, once it has made the policy that denies everything."""
    operator = space.operator("--leader-election=false", "--canary", outside.canary)
    wait_until(operator.ready, what="the operator to be ready")
    wait_until(lambda: space.get("networkpolicies", "codeexec-deny-all"), what="the policy that denies everything")
    return space


@pytest.fixture
def bare(tmp_path, plain):
    """A namespace without any policy, which the operator has to make, and with the template `default`."""
    with new_space(tmp_path, plain) as made:
        yield made


@pytest.fixture
def space(bare, outside):
    """The same with an operator that knows a canary."""
    return with_operator(bare, outside)


@pytest.fixture
def component():
    """Stops and starts programs of this clone's node."""
    tool = pathlib.Path(__file__).resolve().parents[1] / "cluster/component"

    def change(action, name):
        subprocess.run([tool, action, name], check=True, capture_output=True, text=True, timeout=60)

    return change
