"""The API server's account execs one command, in two containers, and gets at nothing else."""

import pytest
from conftest import API_SERVER, BUILDER, SYSTEM, kubectl, post, refused, say

pytestmark = pytest.mark.usefixtures("rights")

ATTACH = [("command", "/opt/sandboxd/sandboxd"), ("command", "attach")]
MAIN, STDIN = ("container", "main"), ("stdin", "true")
# The API server's answer to an exec that is allowed and is no WebSocket.
ALLOWED = "pgrade request required"


@pytest.mark.parametrize("container", ["main", "files"])
def test_the_one_command_passes_in_both_containers(running, container):
    answer = post(API_SERVER, f"{running[1]}/exec", [*ATTACH, ("container", container), STDIN, ("stdout", "true"), ("stderr", "true")])
    assert ALLOWED in answer, answer


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ([("command", "sh"), MAIN, STDIN], "no command"),
        ([("command", "sh"), ("command", "-c"), ("command", "/opt/sandboxd/sandboxd attach"), MAIN, STDIN], "no command"),
        ([*ATTACH, ("command", "--more"), MAIN, STDIN], "no command"),
        ([("command", "/opt/sandboxd/sandboxd"), MAIN, STDIN], "no command"),
        ([("command", "/tmp/sandboxd"), ("command", "attach"), MAIN, STDIN], "no command"),
        ([MAIN, STDIN], "no command"),
        ([*ATTACH, STDIN], "no container"),
        ([*ATTACH, ("container", "init"), STDIN], "no container"),
        ([*ATTACH, MAIN], "with stdin"),
        ([*ATTACH, MAIN, STDIN, ("tty", "true")], "without a terminal"),
    ],
)
def test_any_other_exec_is_refused(running, query, words):
    assert refused(post(API_SERVER, f"{running[1]}/exec", query), words)


def test_a_shell_by_websocket_is_refused(running):
    assert refused(say(API_SERVER, "exec", "-i", running[1], "-c", "main", "--", "sh", "-c", "echo got it"), "no command")


@pytest.mark.parametrize("what", ["attach", "portforward", "proxy"])
def test_attach_and_port_forwarding_are_refused(running, what):
    query = [("ports", "8080")] if what == "portforward" else [MAIN, STDIN] if what == "attach" else []
    assert refused(post(API_SERVER, f"{running[1]}/{what}", query), "neither attach")


def test_nobody_else_is_limited(running):
    assert say(BUILDER, "exec", running[1], "-c", "main", "--", "echo", "hello", ok=True) == "hello\n"


def test_the_servers_own_streams_work(server):
    assert server.bash("echo $((6 * 7))")[0]["stdout"] == "42\n"


def test_other_namespaces_and_secrets_are_out_of_reach(running):
    pods = kubectl("get", "pods", "-o", "name", namespace=SYSTEM).split()
    assert pods
    answers = [
        post(API_SERVER, f"{pods[0].removeprefix('pod/')}/exec", [*ATTACH, MAIN, STDIN], namespace=SYSTEM),
        say(API_SERVER, "get", "pods", namespace=SYSTEM),
        say(API_SERVER, "get", "secrets", namespace=SYSTEM),
        say(API_SERVER, "get", "secrets"),
        say(API_SERVER, "get", "sandboxes", namespace="default"),
        say(API_SERVER, "get", "nodes"),
    ]
    assert all("Forbidden" in answer and "cannot" in answer for answer in answers), answers
