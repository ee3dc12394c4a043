"""The quick-start calls of the code execution pages, by curl: only address, key and model differ, and the code is fenced."""

import json
import subprocess

import pytest

from conftest import BIN, SANDBOXD

SCRIPT = "Use the code execution tool to calculate the mean and standard deviation of [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\\n```bash\\nseq 10 | awk '{s+=$1; q+=$1*$1} END {m=s/NR; print m, sqrt(q/NR-m*m)}'\\n```"


def curl(*arguments):
    ended = subprocess.run(["curl", "--fail-with-body", "-sS", *arguments], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def check(answer):
    assert answer["type"] == "message" and answer["role"] == "assistant" and answer["stop_reason"] == "end_turn"
    use, result, text = answer["content"]
    assert use["type"] == "server_tool_use" and use["name"] == "bash_code_execution" and "seq 10" in use["input"]["command"]
    assert result["type"] == "bash_code_execution_tool_result" and result["tool_use_id"] == use["id"]
    assert result["content"] == {
        "type": "bash_code_execution_result", "stdout": "5.5 2.87228\n", "stderr": "", "return_code": 0, "content": [],
    }
    assert text["type"] == "text"
    assert answer["container"]["id"] and answer["container"]["expires_at"]


def test_the_anthropic_page(server):
    body = """{
      "model": "demo",
      "max_tokens": 4096,
      "messages": [{"role": "user", "content": "%s"}],
      "tools": [{"type": "code_execution_20250825", "name": "code_execution"}]
    }""" % SCRIPT
    check(curl(f"{server.url}/v1/messages", "-H", f"x-api-key: {server.keys[0]}", "-H", "anthropic-version: 2023-06-01", "-H", "content-type: application/json", "-d", body))


def test_the_zylon_page(server):
    body = """{
      "model": "default",
      "max_tokens": 4096,
      "messages": [{ "role": "user", "content": "%s" }],
      "tools": [{ "name": "code_execution", "type": "code_execution_v1" }]
    }""" % SCRIPT
    check(curl("-X", "POST", f"{server.url}/api/gpt/v1/messages", "-H", f"Authorization: Bearer {server.keys[0]}", "-H", "Content-Type: application/json", "-d", body))


def test_the_container_of_the_first_request_is_used_again(server):
    def ask(command, **fields):
        body = {"model": "demo", "max_tokens": 4096, "tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}
        body |= {"messages": [{"role": "user", "content": f"```bash\n{command}\n```"}]} | fields
        return curl(f"{server.url}/v1/messages", "-H", f"x-api-key: {server.keys[0]}", "-H", "anthropic-version: 2023-06-01", "-H", "content-type: application/json", "-d", json.dumps(body))

    first = ask("echo $((RANDOM % 90 + 10)) > /tmp/number.txt; cat /tmp/number.txt")
    number = int(first["content"][1]["content"]["stdout"])
    second = ask("n=$(cat /tmp/number.txt); echo $((n * n))", container=first["container"]["id"])
    assert int(second["content"][1]["content"]["stdout"]) == number**2


@pytest.mark.local
def test_the_line_that_a_new_server_prints_can_be_pasted(tmp_path):
    command = [BIN / "api-server", "--listen", "127.0.0.1:0", "--data-dir", tmp_path, "--sandboxd", SANDBOXD]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = next(line for line in server.stdout if line.startswith("curl "))
        pasted = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
        result = json.loads(pasted.stdout)["content"][1]["content"]
        assert result["stdout"].endswith("\n42\n") and result["return_code"] == 0
        assert (tmp_path / "api-key").stat().st_mode & 0o777 == 0o600
    finally:
        server.terminate()
        assert server.wait(timeout=20) == 0
