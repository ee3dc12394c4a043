"""What only a cluster can show."""

import concurrent.futures
import json
import os
import pathlib

import pytest

from conftest import ROOT, bash, fresh_id, kubectl, request, start_server, wait_until

pytestmark = pytest.mark.cluster
SANDBOXES = os.environ.get("CODEEXEC_TEST_SANDBOXES", "")
SYSTEM = os.environ.get("CODEEXEC_TEST_SYSTEM", "")
# A start on a machine that runs other tests too.
START = 120


def items(kinds, namespace=SANDBOXES):
    return json.loads(kubectl("get", kinds, "-o", "json", namespace=namespace))["items"]


def named(kinds, part):
    return [item["metadata"]["name"] for item in items(kinds) if part in item["metadata"]["name"]]


def example(name):
    text = (ROOT / "docs/examples" / name).read_text().replace("codeexec-sandboxes", SANDBOXES)
    return text, [line.split(": ")[1] for line in text.splitlines() if line.startswith("  name: ")][0]


def test_the_example_becomes_ready_is_listed_and_leaves_nothing():
    text, name = example("sandbox.yaml")
    for _ in range(2):  # The name can be used again at once.
        kubectl("apply", "-f", "-", stdin=text)
        kubectl("wait", "--for=condition=Ready", f"sandbox/{name}", f"--timeout={START}s")
        header, row = kubectl("get", "sbx", name).strip().splitlines()
        assert {"NAME", "PHASE", "READY", "REASON", "AGE"} <= set(header.split()) and "Ready" in row.split()
        pods, claims = named("pods", name), named("pvc", name)
        assert len(pods) == len(claims) == 1
        kubectl("delete", "sandbox", name)
    wait_until(lambda: not named("pods", name) and not named("pvc", name))


def test_explain_reads_well():
    text = kubectl("explain", "sandbox.spec")
    assert "templateRef" in text and "workspace" in text and "<no description>" not in text, text


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"replicas": 2}, "replicas"),
        ({"workspace": {"size": "-1Gi"}}, "size"),
        ({"lifecycle": {"idleTimeout": "soon"}}, "idleTimeout"),
        ({"templateRef": {"name": "Not A Name"}}, "templateRef.name"),
    ],
)
def test_what_can_never_work_is_refused_with_a_sentence(spec, words):
    sandbox = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "Sandbox", "metadata": {"name": "bad"}, "spec": spec}
    said = kubectl("apply", "-f", "-", stdin=json.dumps(sandbox), ok=False)
    assert "invalid" in said.lower() and words in said, said
    assert "NotFound" in kubectl("get", "sandbox", "bad", ok=False)


def test_the_pod_is_restricted_and_its_uploads_are_read_only(server):
    container = fresh_id()
    server.bash("true", surface="zylon", container=container)
    (pod,) = named("pods", container)
    run = lambda *command: kubectl("exec", pod, "-c", "main", "--", *command, ok=False).strip()
    assert run("id", "-u") == "1000"
    assert "Read-only" in run("touch", "/mnt/user-data/uploads/x")
    assert "Read-only" in run("touch", "/x") and "Read-only" in run("touch", "/opt/sandboxd/x")
    assert "No such file" in run("ls", "/var/run/secrets/kubernetes.io/serviceaccount")
    capabilities = run("grep", "-E", "Cap(Prm|Eff|Bnd|Amb)", "/proc/self/status").split()[1::2]
    assert capabilities == ["0000000000000000"] * 4


def test_a_deleted_sandbox_takes_no_stored_file_with_it(server):
    uploaded = server.sdk().files.upload(file=("given.txt", b"given", "text/plain")).id
    content = [{"type": "text", "text": bash('cp "$INPUT_DIR/given.txt" "$OUTPUT_DIR/made.txt"')}, {"type": "container_upload", "file_id": uploaded}]
    answer = server.ask(messages=[{"role": "user", "content": content}])
    (made,) = answer["content"][1]["content"]["content"]
    (sandbox,) = named("sandboxes", answer["container"]["id"].lower().replace("_", "-")[:32])
    kubectl("delete", "sandbox", sandbox)
    wait_until(lambda: not named("pods,pvc", sandbox), what="pod and claim to go")
    assert server.sdk().files.download(made["file_id"]).read() == b"given"
    assert server.sdk().files.retrieve_metadata(uploaded).filename == "given.txt"


def test_twenty_commands_cost_one_exec(server):
    log = os.environ.get("CLUSTER_AUDIT_LOG")
    if not log:
        pytest.skip("needs the audit log of the cluster that the tests build")
    container = fresh_id()
    for n in range(20):
        server.bash(f"echo {n}", surface="zylon", container=container)
    (pod,) = named("pods", container)

    def execs():
        found = []
        for line in pathlib.Path(log).read_text().splitlines():
            event = json.loads(line)
            target = event.get("objectRef", {})
            if target.get("subresource") == "exec" and target.get("name") == pod and event["stage"] == "ResponseStarted":
                found.append(event["requestURI"])
        return found

    main = wait_until(lambda: [uri for uri in execs() if "container=main" in uri])
    assert len(main) == 1, main


def test_a_killed_server_leaves_no_command_and_the_sandbox_serves_on(server, tmp_path):
    container = fresh_id()
    server.bash("true", surface="zylon", container=container)
    (pod,) = named("pods", container)
    # A server of its own, outside the cluster, so that it can be killed without a word.
    victim = start_server(tmp_path, "--runtime", "kubernetes", "--sandbox-namespace", SANDBOXES, keys=server.keys)
    body = request(bash("setsid sleep 7777 & sleep 7778; echo never"), container=container)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sent = pool.submit(victim.post, "/api/gpt/v1/messages", body)
        count = "grep -l sleep /proc/[0-9]*/comm | wc -l"
        sleeping = lambda: kubectl("exec", pod, "-c", "main", "--", "bash", "-c", count).strip()
        wait_until(lambda: sleeping() == "2")
        victim.process.kill()
        assert sent.exception(timeout=60)
    wait_until(lambda: sleeping() == "0", 3 * 45)
    result, _ = server.bash("echo on", surface="zylon", container=container)
    assert result["stdout"] == "on\n"


def test_nothing_in_the_sandbox_reaches_the_network(server):
    node, service = kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.addresses[0].address}"), "10.96.0.1"
    for target, port in ((node, 10250), (node, 6443), (service, 443), (node, 5000)):
        result, _ = server.bash(f"timeout 3 bash -c 'exec 3<>/dev/tcp/{target}/{port}' 2>/dev/null && echo open || echo closed")
        assert result["stdout"] == "closed\n", (target, port)


def test_the_servers_log_no_key_and_no_command(server):
    canary = fresh_id()
    server.bash(f"echo {canary}")
    server.post("/v1/messages", {}, headers={"x-api-key": canary})
    for item in items("pods", SYSTEM):
        log = kubectl("logs", item["metadata"]["name"], "--all-containers", namespace=SYSTEM)
        assert canary not in log and all(key not in log for key in server.keys)


def test_a_pod_that_is_deleted_comes_back_with_its_files(server):
    container = fresh_id()
    server.bash("echo kept > f", surface="zylon", container=container)
    (pod,) = named("pods", container)
    kubectl("delete", "pod", pod)
    result, _ = server.bash("cat f", surface="zylon", container=container)
    assert result["stdout"] == "kept\n"


def put(kind, name, spec):
    thing = {"apiVersion": "codeexec.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    kubectl("apply", "-f", "-", stdin=json.dumps(thing))


def change(name, **spec):
    kubectl("patch", "sandbox", name, "--type=merge", "-p", json.dumps({"spec": spec}))


def reason(name, condition):
    return kubectl("get", "sandbox", name, "-o", f"jsonpath={{.status.conditions[?(@.type=='{condition}')].reason}}")


def test_the_installed_operator_does_what_its_rights_are_for():
    name, waits = fresh_id(), fresh_id()
    image = json.loads(kubectl("get", "sandboxtemplate", "default", "-o", "json"))["spec"]["image"]
    small = {"image": image, "resources": {"requests": {"cpu": "5m", "memory": "16Mi"}}}
    reach = lambda cidr: {"egress": [{"to": [{"ipBlock": {"cidr": cidr}}]}]}
    policies = lambda: [item["spec"].get("egress") for item in items("networkpolicies") if name in json.dumps(item["spec"])]
    try:
        # A policy for what the template names, edited with it, and gone with it.
        put("SandboxTemplate", name, small | {"network": reach("192.0.2.0/24")})
        wait_until(lambda: "192.0.2.0/24" in json.dumps(policies()))
        put("SandboxTemplate", name, small | {"network": reach("198.51.100.0/24")})
        wait_until(lambda: "198.51.100.0/24" in json.dumps(policies()))
        # A claim that is kept, taken back, and enlarged or refused to be.
        retain = {"size": "32Mi", "whenDeleted": "Retain"}
        put("Sandbox", name, {"templateRef": {"name": name}, "workspace": retain})
        kubectl("wait", "--for=condition=Ready", f"sandbox/{name}", f"--timeout={START}s")
        (claim,) = named("pvc", name)
        change(name, workspace={"size": "48Mi"})
        wait_until(lambda: reason(name, "WorkspaceBound").startswith("Resize"), START)
        # The end of its life, which the claim survives.
        change(name, lifecycle={"maxLifetime": "1s"})
        wait_until(lambda: not named("sandboxes", name) and not named("pods", name))
        assert named("pvc", name) == [claim]
        put("Sandbox", name, {"templateRef": {"name": name}, "workspace": retain})
        kubectl("wait", "--for=condition=Ready", f"sandbox/{name}", f"--timeout={START}s")
        assert named("pvc", name) == [claim]
        # What a workspace waits for: whether its class exists, and what is said of its claim.
        nobody = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": waits}, "provisioner": "example.com/nobody"}
        kubectl("apply", "-f", "-", stdin=json.dumps(nobody))
        put("Sandbox", waits, {"templateRef": {"name": name}, "workspace": {"storageClassName": waits}})
        wait_until(lambda: reason(waits, "Ready") == "WorkspacePending", START)
        kubectl("delete", "sandbox", name, waits)
        kubectl("delete", "sandboxtemplate", name)
        wait_until(lambda: not policies())
        # Nobody may take away what denies everything.
        kubectl("delete", "networkpolicy", "codeexec-deny-all")
        wait_until(lambda: "codeexec-deny-all" in named("networkpolicies", "deny-all"), 30)
    finally:
        kubectl("delete", "sandbox,sandboxtemplate,pvc", "--ignore-not-found", name, ok=False)
        kubectl("delete", "sandbox,storageclass", "--ignore-not-found", waits, ok=False)
        for claim in named("pvc", name):
            kubectl("delete", "pvc", claim)
