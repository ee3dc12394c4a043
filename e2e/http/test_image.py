"""What the sandbox image holds, seen through the API; and images of other kinds that a user may bring."""

import json
import os
import pathlib
import struct
import subprocess
import zlib

import pytest
import requests

from conftest import CE25, CE_V1, ROOT, fresh_id, kubectl, request, start_server, stop_server
from image_jobs import LIBRARIES, TOOLS
from test_cells import CE22, cells
from test_cluster import SANDBOXES, items, put
from test_editor import edit, replace
from test_models import Upstream, says

CHART_FILE = ROOT / "charts/codeexec/files/sandbox-image.json"
ROOTFS = pathlib.Path(os.environ.get("CODEEXEC_SANDBOX_ROOTFS") or ROOT / "target/sandbox-rootfs")
# Much smaller requests than limits, which are the usual ones: others share the node.
SMALL = {"resources": {"requests": {"cpu": "5m", "memory": "16Mi"}}, "lifecycle": {"idleTimeout": "2m"}}


def expected(kind):
    rows = [line.split() for line in (ROOT / "images/sandbox/contents.txt").read_text().splitlines() if not line.startswith("#")]
    return {name for this, name, _ in rows if this == kind}


def image(name):
    lines = pathlib.Path(os.environ.get("IMAGES_ENV") or ROOT / "target/images.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)[name]


def server_with(folder, template, *flags):
    """A server whose sandboxes come from a template of its own, in the tests' namespace."""
    name = fresh_id()
    put("SandboxTemplate", name, SMALL | template)
    # The image is there before anybody waits for an answer.
    put("Sandbox", name, {"templateRef": {"name": name}})
    kubectl("wait", "--for=condition=Ready", f"sandbox/{name}", "--timeout=170s")
    kubectl("delete", "sandbox", name)
    return start_server(folder, "--runtime", "kubernetes", "--sandbox-namespace", SANDBOXES, "--template", name, *flags), name


@pytest.fixture
def brought(request, tmp_path):
    """Starts servers with templates, and takes both away."""
    started = []

    def start(template, *flags):
        started.append(server_with(tmp_path, template, *flags))
        return started[-1][0]

    yield start
    for server, name in started:
        stop_server(server)
        kubectl("delete", "sandboxtemplate", name, ok=False)


@pytest.fixture(scope="module")
def upstream():
    return Upstream()


@pytest.fixture(scope="module")
def full(request, tmp_path_factory, upstream):
    """A server whose sandboxes have the full image: of a cluster, or unpacked on this machine."""
    folder = tmp_path_factory.mktemp("image")
    models = folder / "models.yaml"
    models.write_text(f'[{{name: demo, upstream: {{type: demo}}}}, {{name: real, upstream: {{type: anthropic, baseUrl: "{upstream.url}"}}}}]')
    template = None
    if request.config.getoption("--runtime") == "cluster":
        # As the chart has it.
        libraries = json.loads(CHART_FILE.read_text())["libraries"]
        server, template = server_with(folder, {"image": image("sandbox"), "libraries": libraries}, "--models-file", models)
    elif (ROOTFS / "usr").is_dir():
        server = start_server(folder, "--sandbox-rootfs", ROOTFS, "--models-file", models)
    else:
        pytest.skip("the image is not unpacked here: `make sandbox-rootfs` does that")
    yield server
    stop_server(server)
    if template:
        kubectl("delete", "sandboxtemplate", template, ok=False)


def run(server, container, command):
    result, _ = server.bash(command, surface="zylon", container=container)
    return result


def heredoc(code):
    return f"python3 - <<'END_OF_JOB'\n{code}\nEND_OF_JOB"


def test_each_library_and_tool_does_a_small_real_job(full):
    assert (set(LIBRARIES), set(TOOLS)) == (expected("library"), expected("tool")), "each has a job"
    container, failed = fresh_id(), {}
    for name, code in LIBRARIES.items():
        result = run(full, container, heredoc(code))
        if result["return_code"] != 0:
            failed[name] = result["stdout"] + result["stderr"]
    for name, (command, prints) in TOOLS.items():
        result = run(full, container, command)
        if (result["return_code"], result["stdout"].strip()) != (0, prints):
            failed[name] = result["stdout"] + result["stderr"]
    assert not failed, "\n".join(f"--- {name}\n{said}" for name, said in failed.items())


def test_they_run_as_nobody_on_a_read_only_root_without_network_and_pip_says_so(full):
    container = fresh_id()
    result = run(full, container, "id -u; touch /usr/x /etc/x 2>&1 | grep -c Read-only; find / -xdev -perm /6000 -type f 2>/dev/null | wc -l")
    assert result["stdout"].split() == ["1000", "2", "0"], result
    for pip in ("pip", "python3 -m pip"):
        result = run(full, container, f"{pip} install requests")
        assert result["return_code"] == 1 and "this sandbox has no network" in result["stderr"], result
    # From a file it works, into the user's own folder.
    wheel = """
import zipfile
info = "mine-1.dist-info/"
with zipfile.ZipFile("mine-1-py3-none-any.whl", "w") as wheel:
    wheel.writestr("mine.py", "answer = 42")
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: mine\\nVersion: 1\\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(info + "RECORD", "")
"""
    result = run(full, container, heredoc(wheel) + "\npip install -q ./mine-1-py3-none-any.whl && python3 -c 'import mine; print(mine.__file__, mine.answer)'")
    assert result["stdout"].startswith("/home/agent/.local/lib/") and result["stdout"].endswith(" 42\n"), result


def test_locales_and_time_zones_are_there(full):
    code = "import locale; locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8'); print(locale.format_string('%.2f', 1234.5, grouping=True))"
    result = run(full, fresh_id(), f'python3 -c "{code}"; TZ=Asia/Tokyo date -d @0 +%H; fc-match -f "%{{family}}\n" :lang=ja; fc-list | grep -c -i emoji')
    hours, japanese, emoji = result["stdout"].splitlines()[1:]
    assert result["stdout"].splitlines()[0] == "1.234,50" and hours == "09", result
    assert "CJK" in japanese and int(emoji) >= 1, result


def test_a_chart_is_drawn_and_downloaded(full):
    draw = "import os, matplotlib.pyplot as plt; plt.plot([1, 4, 9], label='東京'); plt.legend(); plt.savefig(os.environ['OUTPUT_DIR'] + '/chart.png', dpi=80)"
    result, _ = full.bash(heredoc(draw))
    assert (result["return_code"], result["stderr"]) == (0, ""), result
    picture = full.get(f"/v1/files/{result['content'][0]['file_id']}/content").content
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", picture[16:24]) == (512, 384)
    chunks, at = b"", 8
    while at < len(picture):
        (length,) = struct.unpack(">I", picture[at : at + 4])
        if picture[at + 4 : at + 8] == b"IDAT":
            chunks += picture[at + 8 : at + 8 + length]
        at += 12 + length
    pixels = zlib.decompress(chunks)
    assert len(pixels) == 384 * (1 + 512 * 4) and len(set(pixels)) > 50, "an empty picture"


def test_the_model_is_told_of_what_is_there_and_of_nothing_else(full, upstream):
    there = json.loads(run(full, fresh_id(), "cat /usr/share/codeexec/image.json")["stdout"])
    assert there["absent"] == [], there
    assert there == json.loads(CHART_FILE.read_text()), f"copy the image's own file to {CHART_FILE}"
    for tool in (CE25, CE22, CE_V1):
        upstream.script(says("Fine."))
        surface = "/api/gpt/v1/messages" if tool is CE_V1 else "/v1/messages"
        answer = full.post(surface, request("hi", tools=[tool], model="real"))
        assert answer.status_code == 200, answer.text
        told = [definition["description"] for definition in upstream.asked[0].body["tools"]]
        assert sum(f"Installed: {', '.join(there['libraries'])}." in text for text in told) == 1, told


@pytest.mark.local
def test_a_machine_without_the_image_says_what_it_lacks(tmp_path, upstream):
    server = start_server(tmp_path, "--provider", "anthropic", "--provider-url", upstream.url, "--model", "real")
    try:
        upstream.script(says("Fine."))
        assert server.post("/v1/messages", request("hi", model="real")).status_code == 200
        told = upstream.asked[0].body["tools"][0]["description"]
        lacks = [line for line in requests.get(server.inside + "/readyz", timeout=10).json()["limitations"] if "sandbox-rootfs" in line]
        # Whatever this machine has: each is told as installed or as not, and the latter with what to do.
        absent = told.partition("Not installed: ")[2].partition(". ")[0].split(", ") if "Not installed: " in told else []
        assert all(f"{name}" in told for name in expected("library") | expected("tool"))
        assert bool(absent) == bool(lacks) and all(name in lacks[0] for name in absent), (told, lacks)
    finally:
        stop_server(server)


@pytest.mark.local
def test_a_root_file_system_that_is_none_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(AssertionError, match="make sandbox-rootfs"):
        start_server(tmp_path, "--sandbox-rootfs", tmp_path / "nothing")


@pytest.mark.cluster
def test_an_image_with_only_a_shell_runs_commands_and_the_editor_and_refuses_python(brought):
    built = subprocess.run([ROOT / "e2e/deploy/user-image"], capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    server = brought({"image": built.stdout.strip(), "repl": False}, "--repl", "false")
    container = fresh_id()
    result = run(server, container, "echo $((6 * 7)) >f; cat f; ls -la /bin/bash 2>&1; id -u")
    assert result["stdout"].splitlines()[0] == "42" and result["stdout"].splitlines()[-1] == "1000", result
    answer = server.ask(edit(replace("f", "42", "43")), surface="zylon", container=container)
    assert run(server, container, "cat f")["stdout"] == "43\n", answer
    zylon = [{"type": "text", "text": "x", "extensions": ["zylon"]}]
    (refused,), _ = cells(server, "1", tools=[CE22], surface="zylon", container=container, system=zylon)
    assert refused["error_code"] == "unavailable" and "no Python" in refused["detail"]["explanation"], refused


@pytest.mark.cluster
def test_an_image_without_a_shell_says_so_and_does_not_crash(brought):
    server = brought({"image": image("sandboxd"), "repl": False}, "--repl", "false")
    container = fresh_id()
    for _ in range(3):
        result, _ = server.bash("echo 1", surface="zylon", tools=[CE_V1], container=container)
        assert result["error_code"] == "unavailable" and "no shell" in result["detail"]["explanation"], result
    (pod,) = [pod for pod in items("pods") if container in pod["metadata"]["name"]]
    assert all(status["ready"] and status["restartCount"] == 0 for status in pod["status"]["containerStatuses"]), pod["status"]
