"""One test body for both runtimes: `--runtime local` starts a server of its own, `--runtime cluster` uses a deployed one.

A deployed server is described by the environment: CODEEXEC_TEST_URLS (two addresses, one for each replica), and
CODEEXEC_TEST_KEYS (three keys: two users of one workspace, then a user of another).
"""

import base64
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import uuid

import anthropic
import pytest
import requests

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "shared"))
from kube import kubectl, wait_until  # noqa: E402, F401  # tests take them from here

ROOT = pathlib.Path(__file__).resolve().parents[2]
HTTP = ROOT / "e2e/http"
BIN = ROOT / "target" / os.environ.get("PROFILE", "ci")
SANDBOXD = ROOT / "target/sandboxd/x86_64-unknown-linux-gnu/sandboxd/sandboxd"
CE25 = {"type": "code_execution_20250825", "name": "code_execution"}
CE_V1 = {"type": "code_execution_v1", "name": "code_execution"}
MESSAGES = {"anthropic": "/v1/messages", "zylon": "/api/gpt/v1/messages"}


@dataclasses.dataclass
class Server:
    """A server under test. `urls` are all its replicas; `keys` are of (w1, ann), (w1, bob), (w2, eve)."""

    runtime: str
    urls: list
    keys: list
    process: subprocess.Popen | None = None
    log: pathlib.Path | None = None
    # The port for those who run the server: metrics, readiness in detail. Only of servers that the tests start.
    inside: str | None = None

    @property
    def url(self):
        return self.urls[0]

    def sdk(self, key=0, **options):
        return anthropic.Anthropic(base_url=self.url, api_key=self.keys[key], max_retries=0, timeout=120, **options)

    def post(self, path, body=None, key=0, replica=0, headers=None, **options):
        base = {"x-api-key": self.keys[key], "anthropic-version": "2023-06-01"}
        return requests.post(self.urls[replica] + path, json=body, headers=base | (headers or {}), timeout=150, **options)

    def get(self, path, key=0, **options):
        headers = {"x-api-key": self.keys[key], "anthropic-version": "2023-06-01"}
        return requests.get(self.url + path, headers=headers, timeout=60, **options)

    def ask(self, *parts, surface="anthropic", tools=(CE25,), key=0, replica=0, **fields):
        """Sends one message whose text is the demo model's script, and returns the answer, which must be a success."""
        answer = self.post(MESSAGES[surface], request(*parts, tools=tools, **fields), key, replica)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def bash(self, command, **fields):
        """Runs one command and returns its result block's content, and the whole answer."""
        answer = self.ask(bash(command), **fields)
        results = [block["content"] for block in answer["content"] if block["type"].endswith("_tool_result")]
        assert len(results) == 1, answer
        return results[0], answer

    def metric(self, name, **labels):
        """The sum of a metric's samples that have these labels."""
        page = requests.get(self.inside + "/metrics", timeout=10).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in page.splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted))


def bash(command):
    fence = "`" * 5
    return f"{fence}bash\n{command}\n{fence}\n"


def request(*parts, tools=(CE25,), **fields):
    return {
        "model": "demo",
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": "\n".join(parts)}],
        "tools": list(tools),
    } | fields


def fresh_id():
    return f"test-{uuid.uuid4().hex[:12]}"


def events(response):
    """The events of a stream, as (name, data)."""
    for chunk in response.content.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in chunk.splitlines() if not line.startswith(":"))
        if lines:
            yield lines["event"], json.loads(lines["data"])


def pytest_addoption(parser):
    parser.addoption("--runtime", choices=["local", "cluster"], default="local")
    parser.addoption("--long", action="store_true", help="also the tests that take minutes")


def pytest_configure(config):
    config.addinivalue_line("markers", "local: only where the server runs on this machine")
    config.addinivalue_line("markers", "cluster: only where the server runs in a cluster")
    config.addinivalue_line("markers", "long: takes minutes; only with --long")


def pytest_collection_modifyitems(config, items):
    other = {"local": "cluster", "cluster": "local"}[config.getoption("--runtime")]
    wanted = lambda item: config.getoption("--long") or not item.get_closest_marker("long")
    dropped = [item for item in items if item.get_closest_marker(other) or not wanted(item)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in dropped]


def key_line(key, workspace, user):
    return json.dumps({"sha256": hashlib.sha256(key.encode()).hexdigest(), "workspace": workspace, "user": user}) + "\n"


def real_store(folder):
    """The settings of a server whose files are in the object store of `e2e/with-object-store`, when the tests run beside it. A folder's
    servers have their own part of it."""
    if "CODEEXEC_TEST_S3" not in os.environ:
        return []
    place = ["--s3-endpoint", os.environ["CODEEXEC_TEST_S3"], "--s3-bucket", os.environ["CODEEXEC_TEST_S3_BUCKET"]]
    return ["--store", "s3", "--s3-path-style", *place, "--s3-prefix", "http" + str(folder)]


def start_server(folder, *flags, env=None, keys=None, before=()):
    """Starts a server on a free port, by what stands `before` its command, and waits until it says where it listens."""
    if "--store" not in flags:
        flags = [*real_store(folder), *flags]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    keys = keys or [f"key-{uuid.uuid4().hex}" for _ in range(3)]
    keys_file = folder / "keys.jsonl"
    owners = [("w1", "ann"), ("w1", "bob"), ("w2", "eve")]
    keys_file.write_text("".join(key_line(key, *owner) for key, owner in zip(keys, owners)))
    command = [*before, BIN / "api-server", "--listen", "127.0.0.1:0", "--data-dir", folder / "data", "--keys-file", keys_file]
    command += ["--metrics-listen", "127.0.0.1:0", *flags]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CODEEXEC_")}
    clean["CODEEXEC_SANDBOXD"] = str(SANDBOXD)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log.open("w"), env=clean | (env or {}))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = re.search(r"listening on (http://\S+)[\s\S]*metrics on (http://\S+)/metrics", log.read_text())
        if found:
            return Server("local", [found[1]] * 2, keys, process, log, found[2])
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    process.kill()
    raise AssertionError("the server does not say where it listens: " + log.read_text())


def stop_server(server):
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=20) == 0, server.log.read_text()


class Sdk:
    """An official SDK in a process of its own: `call("files.delete", "file_x")` makes that call of its client. Arguments by name are
    those of Python's SDK; for TypeScript they become the last argument, an object. Bytes go in as `Sdk.file(...)`.

    `old` says that it is of the generation that has much among its betas. Each call goes to another replica than the one before.

    Answers are JSON: an object as the SDK has it, a list with all pages walked, a stream as its last message, a download as bytes."""

    def __init__(self, server, command, cwd=None, old=False):
        self.server, self.old, self.urls = server, old, itertools.cycle(server.urls)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, cwd=cwd, text=True, **pipes)

    @staticmethod
    def file(name, content, kind):
        return {"$file": [name, base64.b64encode(content).decode(), kind]}

    def call(self, path, *arguments, key=0, **named):
        place = {"url": next(self.urls), "key": self.server.keys[key]}
        self.process.stdin.write(json.dumps(place | {"path": path, "arguments": arguments, "named": named}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if error := answer.get("error"):
            raise SdkError(**error)
        return base64.b64decode(answer["bytes"]) if "bytes" in answer else answer["value"]


class SdkError(Exception):
    """What a call of an SDK raised: the name of its class, the status and the body of the answer, if there was one."""

    def __init__(self, name, message, status, body):
        super().__init__(f"{name}: {message}")
        self.name, self.message, self.status, self.body = name, message, status, body

    @property
    def error_code(self):
        return ((self.body or {}).get("error") or {}).get("details", {}).get("error_code")


SDKS = {
    "python": ([ROOT / "target/venv/bin/python", HTTP / "sdk_worker.py"], None),
    "python-0.97": ([ROOT / "target/venv-old/bin/python", HTTP / "sdk_worker.py"], None),
    # It looks for its packages from where it runs.
    "typescript": (["node", "--input-type=module", "--eval", (HTTP / "sdk_worker.mjs").read_text()], ROOT / "target/node"),
}


@pytest.fixture(scope="session")
def sdks(server):
    """The official SDKs by name, each started when it is first asked for: `sdks("python-0.97").call(...)`."""
    started = {}

    def named(name):
        if name not in started:
            started[name] = Sdk(server, *SDKS[name], old=name == "python-0.97")
        return started[name]

    yield named
    for sdk in started.values():
        sdk.process.stdin.close()
        sdk.process.wait(timeout=20)


@pytest.fixture(params=SDKS)
def sdk(request, sdks):
    """Each official SDK in turn."""
    return sdks(request.param)


@pytest.fixture(scope="session")
def server(request, tmp_path_factory):
    if request.config.getoption("--runtime") == "cluster":
        yield Server("cluster", os.environ["CODEEXEC_TEST_URLS"].split(","), os.environ["CODEEXEC_TEST_KEYS"].split(","))
        return
    started = start_server(tmp_path_factory.mktemp("server"))
    yield started
    stop_server(started)
