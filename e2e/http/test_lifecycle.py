"""What becomes of a sandbox between requests, and what its users are told when it cannot be had.

Each test has a template of its own and a server that makes sandboxes from it; the operator is the installed one.
"""

import concurrent.futures
import contextlib
import datetime
import json
import os
import pathlib
import threading
import time

import pytest
import requests

from conftest import CE_V1, bash, fresh_id, kubectl, start_server, stop_server, wait_until

pytestmark = pytest.mark.cluster
SANDBOXES = os.environ.get("CODEEXEC_TEST_SANDBOXES", "")
# A start on a machine that runs other tests too.
START = 90


def get(kind, name):
    """An object, or nothing."""
    said = kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
    return json.loads(said) if said.strip() else None


def apply(kind, name, spec, api="codeexec.dev/v1alpha1"):
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}))


class Place:
    """A template, a server that makes sandboxes from it, and the sandboxes."""

    def __init__(self, server, template):
        self.server, self.template = server, template

    def run(self, command, container, **fields):
        """One command on the Zylon surface: its result."""
        return self.server.bash(command, surface="zylon", tools=[CE_V1], container=container, **fields)[0]

    def both(self, command, container):
        """The same command on both surfaces: the results, and how long each took. The Anthropic one makes its own container."""
        for surface in ("zylon", "anthropic"):
            began = time.monotonic()
            fields = {"tools": [CE_V1], "container": container} if surface == "zylon" else {}
            yield surface, self.server.bash(command, surface=surface, **fields)[0], time.monotonic() - began

    def sandbox(self, container):
        """The Sandbox of a container."""
        found = json.loads(kubectl("get", "sandboxes", "-o", "json"))["items"]
        (one,) = [item for item in found if item["metadata"]["name"].startswith(container)]
        return one

    def phase(self, container):
        return self.sandbox(container).get("status", {}).get("phase")

    def reason(self, container):
        """Reason and message of the Ready condition."""
        conditions = self.sandbox(container).get("status", {}).get("conditions", [])
        return next(((it["reason"], it["message"]) for it in conditions if it["type"] == "Ready"), (None, None))

    def pods(self, container):
        found = json.loads(kubectl("get", "pods", "-o", "json"))["items"]
        return [item for item in found if item["metadata"]["name"].startswith(container)]

    def change(self, **spec):
        kubectl("patch", "sandboxtemplate", self.template, "--type=merge", "-p", json.dumps({"spec": spec}))


@contextlib.contextmanager
def place(folder, flags=(), env=None, **spec):
    """A template as the installed one, but for these fields."""
    name = fresh_id()
    spec = get("sandboxtemplate", "default")["spec"] | spec
    apply("SandboxTemplate", name, spec)
    flags = ("--runtime", "kubernetes", "--sandbox-namespace", SANDBOXES, "--template", name, *flags)
    server = start_server(folder, *flags, env=env)
    try:
        yield Place(server, name)
    finally:
        stop_server(server)
        found = json.loads(kubectl("get", "sandboxes", "-o", "json"))["items"]
        ours = [it["metadata"]["name"] for it in found if it["spec"].get("templateRef", {}).get("name") == name]
        kubectl("delete", "--wait=false", f"sandboxtemplate/{name}", *(f"sandbox/{it}" for it in ours))


def idle_after(seconds):
    return {"idleTimeout": f"{seconds}s"}


def limits(memory):
    return {"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"memory": memory}}


def check_unavailable(surface, result, *words):
    """The result block of a command that met no sandbox; only the Zylon profile says why, and nothing of the cluster."""
    assert result["type"] == "bash_code_execution_tool_result_error", result
    assert result["error_code"] == "unavailable", result
    if surface == "anthropic":
        assert result.get("detail") is None, result
        return
    said = result["detail"]["explanation"]
    assert all(word in said for word in words), said
    for inside in (SANDBOXES, "registry", "pods", "claim", "node"):
        assert inside not in said, said


# Idle


def test_a_quiet_command_four_times_longer_than_the_idle_timeout_ends_well(tmp_path):
    quiet_use(tmp_path, idle=10, command=40)


@pytest.mark.long
def test_a_quiet_command_of_three_minutes_ends_well(tmp_path):
    quiet_use(tmp_path, idle=60, command=180)


def quiet_use(folder, idle, command):
    with place(folder, flags=("--command-timeout", "300"), lifecycle=idle_after(idle)) as at:
        container = fresh_id()
        at.run("true", container)
        (pod,) = at.pods(container)
        result = at.run(f"sleep {command}; echo done", container)
        ended = time.monotonic()
        assert (result["return_code"], result["stdout"]) == (0, "done\n"), result
        (same,) = at.pods(container)
        assert same["metadata"]["uid"] == pod["metadata"]["uid"] and "deletionTimestamp" not in same["metadata"]
        wait_until(lambda: at.phase(container) in ("Suspending", "Suspended"), idle + 30, "the suspension")
        # Counted from the end of the command: not at once, and by our clock, which began a little later than the operator's.
        assert time.monotonic() - ended > idle - 3
        wait_until(lambda: not at.pods(container), 30, "the end of the pod")


def test_looking_at_a_server_keeps_no_sandbox_awake(tmp_path):
    with place(tmp_path, lifecycle=idle_after(10)) as at:
        container = fresh_id()
        file = at.server.sdk().files.upload(file=("a.txt", b"1", "text/plain"))
        at.run("true", container)
        looks = [at.server.url + "/healthz", at.server.url + "/readyz", at.server.inside + "/metrics", at.server.inside + "/readyz"]

        def is_suspended():
            for url in looks:
                assert requests.get(url, timeout=10).status_code == 200
            assert at.server.get(f"/v1/files/{file.id}").status_code == 200
            return at.phase(container) in ("Suspending", "Suspended")

        wait_until(is_suspended, 10 + 30, "the suspension", every=0.5)


def test_fifty_requests_around_the_idle_deadline_all_succeed(tmp_path):
    """Ten sandboxes, five rounds each; the offsets cover what passes between a token and the operator's sight of it."""
    idle, rounds, boxes = 5, 5, 10
    offsets = [-0.2 + 0.9 * n / (rounds * boxes - 1) for n in range(rounds * boxes)]
    with place(tmp_path, lifecycle=idle_after(idle)) as at:
        containers = [fresh_id() for _ in range(boxes)]

        def use(container, command):
            """The result, and when the idle time begins: with the token of the request, or the sandbox's start."""
            began = time.monotonic()
            result = at.run(command, container)
            ended = time.monotonic()
            return ended if ended - began > idle / 4 else began, result

        def live(box):
            container, failures = containers[box], []
            counted_from = use(container, "true")[0]
            for number in range(rounds):
                time.sleep(max(0.0, counted_from + idle + offsets[number * boxes + box] - time.monotonic()))
                counted_from, result = use(container, f"echo {number} >> rounds; cat rounds")
                if result.get("stdout") != "".join(f"{n}\n" for n in range(number + 1)):
                    failures.append((container, number, result))
            return failures

        with concurrent.futures.ThreadPoolExecutor(boxes) as pool:
            failures = [failure for box in pool.map(live, range(boxes)) for failure in box]
        assert not failures, failures
        woken = at.server.metric("codeexec_api_sandboxes_acquired_total", outcome="woken")
        ready = at.server.metric("codeexec_api_sandboxes_acquired_total", outcome="ready")
        assert woken > 0 and ready > 0, f"{ready} requests met a ready sandbox, {woken} woke one"
        for container in containers:
            assert len([pod for pod in at.pods(container) if "deletionTimestamp" not in pod["metadata"]]) <= 1
            check_no_exec_into_a_pod_that_goes(container)


def check_no_exec_into_a_pod_that_goes(container):
    """By the audit log of the cluster that the tests build."""
    log = os.environ.get("CLUSTER_AUDIT_LOG")
    if not log:
        return
    going, spans, execs = None, [], []
    for line in pathlib.Path(log).read_text().splitlines():
        event = json.loads(line)
        target = event.get("objectRef", {})
        if target.get("resource") != "pods" or not target.get("name", "").startswith(container) or target.get("namespace") != SANDBOXES:
            continue
        if event["verb"] == "delete" and event["stage"] == "ResponseComplete" and target.get("subresource") is None:
            going = going or event["stageTimestamp"]
        elif target.get("subresource") == "exec" and event["stage"] == "ResponseStarted":
            execs.append(event["requestReceivedTimestamp"])
        elif event["verb"] == "create" and target.get("subresource") == "binding" and going:
            spans.append((going, event["requestReceivedTimestamp"]))
            going = None
    moments = [tuple(map(datetime.datetime.fromisoformat, span)) for span in spans]
    for at in map(datetime.datetime.fromisoformat, execs):
        assert not any(begin < at < end for begin, end in moments), (container, at, moments)


# Memory


def test_a_process_that_takes_too_much_memory_is_refused_it_and_the_sandbox_serves_on(tmp_path):
    with place(tmp_path, resources=limits("96Mi")) as at:
        container = fresh_id()
        at.run("echo kept > f", container)
        (pod,) = at.pods(container)
        result = at.run("head -c 500m /dev/zero | tail", container)
        assert result.get("return_code") == 1 and "memory exhausted" in result["stderr"], result
        assert at.run("cat f", container)["stdout"] == "kept\n"
        (same,) = at.pods(container)
        assert same["metadata"]["uid"] == pod["metadata"]["uid"]


def test_a_sandbox_that_is_killed_for_want_of_memory_says_so_and_the_next_command_finds_its_files(tmp_path):
    with place(tmp_path, resources=limits("64Mi")) as at:
        container = fresh_id()
        at.run("echo kept > f", container)
        # Memory that is nobody's to be killed for: in the end only the sandbox's first process is left to kill.
        for attempt in range(20):
            result = at.run(f"echo {attempt} >> ran; head -c 70m /dev/zero > /dev/shm/x; head -c 20m /dev/zero | tail -c 1 | wc -c", container)
            if "error_code" in result:
                break
        check_unavailable("zylon", result, "memory", "64Mi", "not run again")
        assert at.server.metric("codeexec_api_runs_without_result_total", reason="out_of_memory") == 1
        result = at.run("cat f; cat ran", container)
        # Each attempt ran once; the last may have been killed before its first word.
        ran = ["kept\n" + "".join(f"{n}\n" for n in range(count)) for count in (attempt, attempt + 1)]
        assert result.get("stdout") in ran, result


# Trouble


def test_a_quota_is_told_at_once_and_lifting_it_is_enough(tmp_path):
    # The quota is on a priority class, so that it holds for these pods only.
    name = fresh_id()
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 0}
    kubectl("apply", "-f", "-", stdin=json.dumps(priority))
    scope = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": [name]}]}
    try:
        apply("ResourceQuota", name, {"hard": {"pods": "0"}, "scopeSelector": scope}, api="v1")
        wait_until(lambda: get("resourcequota", name).get("status", {}).get("hard"), what="the quota to be in force")
        with place(tmp_path, priorityClassName=name) as at:
            container = fresh_id()
            for surface, result, took in at.both("true", container):
                check_unavailable(surface, result, "quota")
                assert took < 3 * 5, took
            reason, message = at.reason(container)
            assert reason == "QuotaExceeded" and "exceeded quota" in message, (reason, message)
            assert at.server.metric("codeexec_api_sandboxes_acquired_total", outcome="failed", reason="quota") == 2
            apply("ResourceQuota", name, {"hard": {"pods": "10"}, "scopeSelector": scope}, api="v1")
            wait_until(lambda: at.phase(container) == "Ready", START, "the sandbox to be ready by itself")
            assert at.run("echo on", container).get("stdout") == "on\n"
    finally:
        kubectl("delete", "resourcequota", name, "--ignore-not-found")
        kubectl("delete", "priorityclass", name, "--ignore-not-found")


def test_an_image_that_cannot_be_pulled_is_told_in_time_and_a_right_one_heals_it(tmp_path):
    with place(tmp_path, image="registry.invalid/x:y") as at:
        container = fresh_id()
        for surface, result, took in at.both("true", container):
            check_unavailable(surface, result, "image", "pull")
            assert took < 3 * 30, took
        reason, message = at.reason(container)
        assert reason == "ImagePullFailed" and "registry.invalid" in message, (reason, message)
        at.change(image=get("sandboxtemplate", "default")["spec"]["image"])

        def heals():
            result = at.run("echo healed", container)
            return result.get("stdout") == "healed\n"

        wait_until(heals, START, "the new image")


def test_a_sandbox_that_is_held_stopped_says_so_and_goes_on_when_let_go(tmp_path):
    with place(tmp_path) as at:
        container = fresh_id()
        at.run("echo kept > f", container)
        name = at.sandbox(container)["metadata"]["name"]
        kubectl("scale", "sandbox", name, "--replicas=0")
        wait_until(lambda: at.phase(container) == "Suspended", START, "the end of the pod")
        check_unavailable("zylon", at.run("true", container), "held")
        kubectl("scale", "sandbox", name, "--replicas=1")
        assert at.run("cat f", container).get("stdout") == "kept\n"


# Rights


def kubeconfig_without_exec(folder, name):
    """A kubeconfig of an account that may do all that the server does but opening streams."""
    rules = [
        {"apiGroups": ["codeexec.dev"], "resources": ["sandboxes"], "verbs": ["get", "list", "watch", "create", "patch"]},
        {"apiGroups": ["codeexec.dev"], "resources": ["sandboxtemplates"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    meta = {"metadata": {"name": name}}
    objects = [
        {"apiVersion": "v1", "kind": "ServiceAccount"} | meta,
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "rules": rules} | meta,
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": SANDBOXES}],
        }
        | meta,
    ]
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    config["users"][0]["user"] = {"token": kubectl("create", "token", name).strip()}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def test_a_missing_right_is_named_by_readiness_and_calls_fail_fast(tmp_path):
    name = fresh_id()
    try:
        limited = kubeconfig_without_exec(tmp_path, name)
        with place(tmp_path, env={"KUBECONFIG": str(limited)}) as at:
            public = requests.get(at.server.url + "/readyz", timeout=10)
            assert (public.status_code, public.text) == (503, "not ready\n")
            detail = requests.get(at.server.inside + "/readyz", timeout=10)
            assert detail.status_code == 503 and any("create pods/exec" in line for line in detail.json()["problems"]), detail.text
            container = fresh_id()
            at.run("true", container)  # Makes the sandbox, whatever comes of the command.
            began = time.monotonic()
            check_unavailable("zylon", at.run("true", container), "may not")
            assert time.monotonic() - began < 3 * 5
    finally:
        for kind in ("rolebinding", "role", "serviceaccount"):
            kubectl("delete", kind, name, "--ignore-not-found")


# Streams that break


def test_commands_sent_while_their_pod_is_deleted_run_once_or_are_honestly_unknown(tmp_path):
    with place(tmp_path) as at:
        container = fresh_id()
        at.run("true", container)
        outcomes, stop = [], threading.Event()

        def send(worker):
            number = 0
            while not stop.is_set():
                mark = f"{worker}-{number}"
                outcomes.append((mark, at.run(f"echo {mark} >> ran", container)))
                number += 1

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            workers = [pool.submit(send, worker) for worker in range(4)]
            wait_until(lambda: len(outcomes) >= 20, START, "the first commands")
            (pod,) = at.pods(container)
            kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
            before = len(outcomes)
            new = lambda: [it for it in at.pods(container) if it["metadata"]["uid"] != pod["metadata"]["uid"]]  # noqa: E731
            wait_until(new, START, "the next pod")
            wait_until(lambda: len(outcomes) >= before + 20, START, "commands in the next pod")
            stop.set()
            for worker in workers:
                worker.result(timeout=START)
        ran = at.run("cat ran", container)["stdout"].split()
        assert len(ran) == len(set(ran)), "a command ran twice"
        for mark, result in outcomes:
            if "error_code" in result:
                check_unavailable("zylon", result, "may have run in part")
            elif result["return_code"] == 0:
                assert mark in ran, mark
            else:
                assert result["return_code"] in (137, 143), result
