"""What a sandbox reaches: nothing but what its template names."""

import pytest
from conftest import TCP_PORT, UDP_PORT, new_space, wait_until, with_operator
from helpers import allow, from_sandbox

ROWS = [
    "the node's kubelet",
    "a node port",
    "the Kubernetes service",
    "another pod",
    "another pod over UDP",
    "the main API port",
    "DNS",
    "the metadata address",
    "the metadata address over IPv6",
]
# Rows that lead to one and the same port of the listener: by its own address, by its Service, and by the node.
LISTENER = {"another pod", "the main API port", "a node port"}
LISTENER_UDP = {"another pod over UDP", "DNS"}


@pytest.fixture
def box(space):
    space.sandbox()
    space.await_phase("Ready")
    return space


def assert_nothing_reached(space, outside, name="box"):
    """Rules may take a moment; what counts is what stays."""
    could = outside.listed(sorted(outside.reached()))
    assert {it[0] for it in could} >= {"another pod", "a node port", "the Kubernetes service"}, could
    wait_until(lambda: not from_sandbox(space, could, name), 30, "the sandbox to reach nothing", every=1)
    assert from_sandbox(space, could, name) == set()


@pytest.fixture(scope="module")
def reached(tmp_path_factory, plain, outside):
    """What a pod without a policy reaches, and what a sandbox does."""
    with new_space(tmp_path_factory.mktemp("reached"), plain) as space:
        with_operator(space, outside)
        space.sandbox()
        space.await_phase("Ready")
        assert_nothing_reached(space, outside)
        yield outside.reached(), from_sandbox(space, outside.listed())


@pytest.mark.parametrize("row", ROWS)
def test_a_sandbox_does_not_reach(reached, row):
    could, did = reached
    if row not in could:
        pytest.skip("not even a pod without a policy reaches it here")
    assert row not in did


def test_nobody_reaches_a_sandbox(box, outside):
    box.sandbox("neighbour")
    box.await_phase("Ready", "neighbour")
    listen = f"nohup python3 -c 'import socket; it = socket.create_server((\"\", {TCP_PORT})); [it.accept()[0].close() for _ in iter(int, 1)]' >/dev/null 2>&1 &"
    box.run(listen)
    address = box.pod()["status"]["podIP"]
    inside = [("it", "tcp", "127.0.0.1", TCP_PORT)]
    wait_until(lambda: from_sandbox(box, inside), what="the listener in the sandbox")
    target = [("it", "tcp", address, TCP_PORT)]
    assert from_sandbox(box, target, "neighbour") == set()
    assert outside.reached(target) == set()


@pytest.mark.parametrize("change", ["edited", "deleted"])
def test_the_same_when_the_template_is(box, outside, change):
    if change == "edited":
        box.patch("sandboxtemplates", "default", {"spec": {"libraries": ["x"], "network": {"managed": False}}})
    else:
        box.delete("sandboxtemplates", "default")
        wait_until(lambda: box.get("sandboxtemplates", "default") is None)
    assert_nothing_reached(box, outside)


def test_a_template_allows_what_it_names_until_it_does_not(space, outside):
    space.template("web", network=allow(outside.listener_ip, TCP_PORT))
    space.sandbox(templateRef={"name": "web"})
    space.sandbox("other")
    space.await_phase("Ready")
    space.await_phase("Ready", "other")
    could = outside.listed(sorted(outside.reached()))
    wait_until(lambda: "another pod" in from_sandbox(space, could), 60, "what is allowed to be reached", every=1)
    wait_until(lambda: from_sandbox(space, could) <= LISTENER, 30, "no more than that to be reached", every=1)
    wait_until(lambda: not from_sandbox(space, could, "other"), 30, "the other template's sandbox to reach nothing", every=1)
    udp = {"egress": [{"to": [{"ipBlock": {"cidr": f"{outside.listener_ip}/32"}}], "ports": [{"port": UDP_PORT, "protocol": "UDP"}]}]}
    space.patch("sandboxtemplates", "web", {"spec": {"network": udp}})
    wait_until(lambda: "another pod over UDP" in from_sandbox(space, could) <= LISTENER_UDP, 60, "the edit to hold for the running pod", every=1)
    space.patch("sandboxtemplates", "web", {"spec": {"network": None}})
    wait_until(lambda: not from_sandbox(space, could), 60, "nothing to be allowed any more", every=1)
    wait_until(lambda: space.get("networkpolicies", "codeexec-template-web") is None, what="the policy to go")


def test_what_is_allowed_outlives_the_template_until_its_last_pod_is_gone(space, outside):
    space.template("web", network=allow(outside.listener_ip, TCP_PORT))
    space.sandbox(templateRef={"name": "web"})
    space.await_phase("Ready")
    policy = space.get("networkpolicies", "codeexec-template-web")
    assert "ownerReferences" not in policy["metadata"]
    space.delete("sandboxtemplates", "web")
    target = [("it", "tcp", outside.listener_ip, TCP_PORT)]
    wait_until(lambda: from_sandbox(space, target), 60, "the sandbox to still reach it", every=1)
    assert space.get("networkpolicies", "codeexec-template-web")["metadata"]["uid"] == policy["metadata"]["uid"]
    space.delete("sandboxes", "box")
    wait_until(lambda: space.get("networkpolicies", "codeexec-template-web") is None, 120, "the policy to go")
    assert [it for it in space.list("pods") if it["metadata"]["labels"].get("codeexec.dev/template") == "web"] == []


def test_api_access_is_the_api_servers_port_and_no_other(bare, outside):
    flags = ("--api-access-namespace", outside.name, "--api-access-selector", "role=listener", "--api-access-port", str(TCP_PORT))
    bare.operator("--leader-election=false", *flags)
    bare.template("calls", network={"apiAccess": True})
    bare.sandbox(templateRef={"name": "calls"})
    bare.await_phase("Ready")
    could = outside.listed(sorted(outside.reached()))
    wait_until(lambda: "the main API port" in from_sandbox(bare, could), 60, "the API server to be reached", every=1)
    assert from_sandbox(bare, could) <= LISTENER
    other = [("it", "tcp", outside.control_ip, TCP_PORT)]
    assert outside.reached([("it", "udp", outside.control_ip, UDP_PORT)]) and not from_sandbox(bare, other)
