"""What a test of the operator consists of: a namespace, an operator that runs as a process of this machine, and between it and the
API server a proxy that can spoil what passes.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import uuid

import requests

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "e2e/shared"))
from kube import kubectl, wait_until  # noqa: E402

BIN = ROOT / "target" / os.environ.get("PROFILE", "ci")
OPERATOR = pathlib.Path(os.environ.get("CODEEXEC_TEST_OPERATOR", BIN / "operator"))
PROXY = pathlib.Path(os.environ.get("CODEEXEC_TEST_FAULT_PROXY", BIN / "fault_proxy"))
IMAGES = pathlib.Path(os.environ.get("IMAGES_ENV", ROOT / "target/images.env"))
# Carried by every namespace of these tests.
MARK = "codeexec.dev/test"
GROUP = "apis/codeexec.dev/v1alpha1"
KINDS = {
    "sandboxes": GROUP,
    "sandboxtemplates": GROUP,
    "pods": "api/v1",
    "persistentvolumeclaims": "api/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
    "leases": "apis/coordination.k8s.io/v1",
}
# One command for anything that a start, a suspension or a wake needs, on a machine that is busy with other tests.
DEADLINE = 120
WORKSPACE = "/home/agent/workspace"


def image(name):
    """Reference of a built image."""
    return re.search(rf"^{name}=(\S+)$", IMAGES.read_text(), re.MULTILINE).group(1)


def spawn(command, log, **options):
    """A process that ends with this one, whatever ends this one."""
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stderr=log, stdin=subprocess.DEVNULL, **options)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Proxy:
    """The fault proxy. Writes are counted since the last `clear`."""

    def __init__(self, folder, name="proxy"):
        self.log_file = folder / f"{name}.log"
        self.process = spawn([PROXY], self.log_file.open("w"), stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.log_file.read_text()
        # Nothing of the environment, such as a proxy for the web, is asked about loopback.
        self.http = requests.Session()
        self.http.trust_env = False

    def call(self, verb, path, **options):
        return self.http.request(verb, f"{self.url}/{path}", timeout=30, **options)

    def faults(self, **faults):
        """What goes wrong from now on, and nothing else."""
        answer = self.call("PUT", "_faults", json=faults)
        assert answer.status_code == 204, answer.text

    def clear(self):
        self.call("DELETE", "_log").raise_for_status()

    def cut(self):
        self.call("POST", "_cut").raise_for_status()

    def log(self):
        return self.call("GET", "_log").json()

    def writes(self, verb=".*", path=".*"):
        """The counted writes, in order."""
        fits = lambda it: re.search(verb, it["verb"]) and re.search(path, it["path"])  # noqa: E731
        return [it for it in self.log()["writes"] if it["n"] and fits(it)]

    def made(self, kind):
        """How many objects of a kind were really created."""
        return sum(it["status"] == 201 for it in self.writes("^POST$", f"/{kind}$"))

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Operator:
    """An operator that sees the cluster through a proxy. A started one that was ended can be started again."""

    def __init__(self, space, proxy, name, *flags):
        self.space, self.proxy, self.name = space, proxy, name
        self.log_file = space.folder / f"{name}.log"
        self.kubeconfig = space.folder / f"{name}.kubeconfig"
        context = {"cluster": "c", "user": "u", "namespace": space.name}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": proxy.url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": context}],
        }
        self.kubeconfig.write_text(json.dumps(config))
        self.listen = f"127.0.0.1:{free_port()}"
        flags = flags if "--sandboxd-image" in flags else (*flags, "--sandboxd-image", image("sandboxd"))
        self.command = [
            *(OPERATOR, "--sandbox-namespace", space.name, "--listen", self.listen),
            *("--log-format", "text", "--log", "info", *flags),
        ]
        self.process = None

    def start(self):
        assert self.process is None or self.process.poll() is not None, f"{self.name} runs already"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CODEEXEC_")}
        environment = clean | {"KUBECONFIG": str(self.kubeconfig), "NO_COLOR": "1"}
        self.process = spawn(self.command, self.log_file.open("a"), stdout=subprocess.DEVNULL, env=environment)
        return self

    @property
    def pid(self):
        return self.process.pid

    def send(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.send(signal.SIGKILL)
        self.process.wait(timeout=20)

    def pause(self):
        self.send(signal.SIGSTOP)

    def go_on(self):
        self.send(signal.SIGCONT)

    def ended(self, seconds=DEADLINE):
        """Its exit code, negative for a signal."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {seconds} s") from None

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def get(self, path):
        """An answer of its health port; none while it does not listen."""
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            return self.proxy.http.get(f"http://{self.listen}/{path}", timeout=5)

    def ready(self):
        assert self.runs(), f"{self.name} ended:\n{self.log_file.read_text()[-2000:]}"
        answer = self.get("readyz")
        return answer is not None and answer.ok

    def metric(self, name):
        """A metric without labels."""
        answer = self.get("metrics")
        found = answer is not None and re.search(rf"^{name} (\S+)$", answer.text, re.MULTILINE)
        return float(found.group(1)) if found else None

    def leads(self):
        return self.metric("codeexec_operator_leader") == 1


@dataclasses.dataclass
class Space:
    """A namespace of one test, seen by an administrator through a proxy that spoils nothing."""

    name: str
    folder: pathlib.Path
    plain: Proxy
    operators: list = dataclasses.field(default_factory=list)
    proxies: list = dataclasses.field(default_factory=list)

    # --- the operator ---

    def proxy(self, name="proxy"):
        self.proxies.append(Proxy(self.folder, name))
        return self.proxies[-1]

    def operator(self, *flags, name="operator", proxy=None):
        """An operator, without a Lease if no flags are given: it is alone."""
        flags = flags or ("--leader-election=false",)
        self.operators.append(Operator(self, proxy or self.proxy(f"{name}-proxy"), name, *flags))
        return self.operators[-1].start()

    def end(self):
        for operator in self.operators:
            if operator.runs():
                operator.kill()
        for proxy in self.proxies:
            proxy.stop()

    # --- objects ---

    def path(self, kind, name="", sub=""):
        return "/".join(part for part in (KINDS[kind], "namespaces", self.name, kind, name, sub) if part)

    def get(self, kind, name):
        answer = self.plain.call("GET", self.path(kind, name))
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return answer.json()

    def list(self, kind):
        answer = self.plain.call("GET", self.path(kind))
        answer.raise_for_status()
        return answer.json()["items"]

    def create(self, kind, thing):
        answer = self.plain.call("POST", self.path(kind), json=thing)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def patch(self, kind, name, change):
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = self.plain.call("PATCH", self.path(kind, name), data=json.dumps(change), headers=headers)
        assert answer.ok, answer.text
        return answer.json()

    def delete(self, kind, name):
        self.plain.call("DELETE", self.path(kind, name)).raise_for_status()

    # --- sandboxes ---

    def template(self, name, **spec):
        """A template of the slim image with small requests."""
        small = {"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
        spec = {"image": image("sandbox"), "resources": small, "workspace": {"size": "64Mi"}} | spec
        thing = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "SandboxTemplate", "metadata": {"name": name}, "spec": spec}
        return self.create("sandboxtemplates", thing)

    def idle_pod(self, name):
        """A pod that Pod Security lets in and that does nothing; not the operator's."""
        nobody = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
        container = {
            "name": "main",
            "image": image("sandbox"),
            "command": ["sleep", "3600"],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "resources": {"requests": {"cpu": "5m", "memory": "8Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}},
        }
        spec = {"securityContext": nobody, "containers": [container], "terminationGracePeriodSeconds": 0}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    def sandbox(self, name="box", idle="0s", lifecycle=None, **spec):
        """Creates a Sandbox; it is never idle unless told otherwise."""
        spec = {"lifecycle": {"idleTimeout": idle} | (lifecycle or {})} | spec
        thing = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "Sandbox", "metadata": {"name": name}, "spec": spec}
        return self.create("sandboxes", thing)

    def touch(self, name="box"):
        token = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())}.{uuid.uuid4().int % 10**9:09d}Z"
        kubectl("annotate", "sandbox", name, f"codeexec.dev/activity={token}", "--overwrite", namespace=self.name)
        return token

    def scale(self, replicas, name="box"):
        kubectl("scale", f"sandbox/{name}", f"--replicas={replicas}", namespace=self.name)

    def status(self, name="box"):
        found = self.get("sandboxes", name)
        return (found or {}).get("status", {})

    def phase(self, name="box"):
        return self.status(name).get("phase")

    def await_phase(self, phase, name="box", seconds=DEADLINE):
        wait_until(lambda: self.phase(name) == phase, seconds, f"{name} to be {phase}")
        return self.get("sandboxes", name)

    def await_phases(self, phase, names, seconds=DEADLINE):
        """Looks at all at once."""
        names = set(names)

        def all_there():
            found = {it["metadata"]["name"]: it.get("status", {}).get("phase") for it in self.list("sandboxes")}
            return all(found.get(name) == phase for name in names)

        wait_until(all_there, seconds, f"{len(names)} sandboxes to be {phase}", every=0.3)

    def of(self, kind, name="box"):
        """Children of a living Sandbox."""
        uid = self.get("sandboxes", name)["metadata"]["uid"]
        return [it for it in self.list(kind) if it["metadata"].get("labels", {}).get("codeexec.dev/sandbox-uid") == uid]

    def pod(self, name="box"):
        """Its only pod."""
        pods = self.of("pods", name)
        assert len(pods) == 1, [pod["metadata"]["name"] for pod in pods]
        return pods[0]

    def claim(self, name="box"):
        """Its only claim."""
        claims = self.of("persistentvolumeclaims", name)
        assert len(claims) == 1, [claim["metadata"]["name"] for claim in claims]
        return claims[0]

    def run(self, command, name="box"):
        """A command in its main container."""
        return kubectl("exec", self.pod(name)["metadata"]["name"], "-c", "main", "--", "bash", "-c", command, namespace=self.name)

    def write_file(self, text, name="box"):
        self.run(f"printf %s '{text}' >{WORKSPACE}/kept && sync", name)

    def read_file(self, name="box"):
        return self.run(f"cat {WORKSPACE}/kept", name)

    # --- what must always hold ---

    def assert_settled(self, phase, names=("box",)):
        """Each has exactly the children of its phase, says so, and nobody else has any."""
        pods, claims = self.list("pods"), self.list("persistentvolumeclaims")
        uid_of = lambda it: it["metadata"].get("labels", {}).get("codeexec.dev/sandbox-uid")  # noqa: E731
        living = {it["metadata"]["uid"] for it in self.list("sandboxes")}
        orphans = [it["metadata"]["name"] for it in pods + claims if uid_of(it) not in living]
        assert not orphans, f"nobody's: {orphans}"
        for name in names:
            sandbox = self.get("sandboxes", name)
            uid, status = sandbox["metadata"]["uid"], sandbox["status"]
            mine = [pod for pod in pods if uid_of(pod) == uid]
            assert status["phase"] == phase, status
            assert sum(uid_of(claim) == uid for claim in claims) == 1, f"claims of {name}"
            assert len(mine) == (phase == "Ready"), f"pods of {name}: {[pod['metadata']['name'] for pod in mine]}"
            ready = [it["status"] for it in status["conditions"] if it["type"] == "Ready"]
            assert ready == ["True" if phase == "Ready" else "False"], status["conditions"]
            for pod in mine:
                assert "deletionTimestamp" not in pod["metadata"], pod["metadata"]["name"]
                assert status["binding"]["podUID"] == pod["metadata"]["uid"]

    def assert_empty(self, kept_claims=0, seconds=DEADLINE):
        """No child is left, but for so many claims."""
        wait_until(lambda: not self.list("pods"), seconds, "the pods to go")
        left = lambda: len(self.list("persistentvolumeclaims")) == kept_claims  # noqa: E731
        wait_until(left, seconds, f"{kept_claims} claims to be left")


def assert_quiet(proxy, seconds=3):
    """Nothing is written for a while: whatever was to be done is done."""
    before = len(proxy.writes())
    time.sleep(seconds)
    more = proxy.writes()[before:]
    assert not more, more
