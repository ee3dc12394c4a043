"""The examples of the code execution pages that are about neither the quick start nor files: only addresses, keys and names differ, and the code is fenced."""

import datetime
import json

import pytest
from conftest import CE25, CE_V1, MESSAGES, bash, events, fresh_id, request
from test_page_files import curl, shell  # noqa: F401

JSON = '-H "Content-Type: application/json" -d "$BODY"'
WORKSPACE = "/home/agent/workspace/"


def body(*parts, **fields):
    return json.dumps({"model": "default", "max_tokens": 4096, "messages": [{"role": "user", "content": "\n".join(parts)}], "tools": [CE_V1]} | fields)


def printed(answer):
    return [block["content"]["stdout"] for block in answer["content"] if "tool_use_id" in block]


def test_zylon_quick_start_its_body_is_checked_without_being_run(shell):  # noqa: F811
    sent = body(bash("touch ran"), container=shell.container)
    checked = json.loads(shell(curl("POST", "gpt/v1/messages/validate", JSON), BODY=sent))
    assert checked == {"valid": True, "errors": None}
    looked = json.loads(shell(curl("POST", "gpt/v1/messages", JSON), BODY=body(bash("ls"), container=shell.container)))
    assert printed(looked) == [""]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_zylon_containers_one_is_selected_by_its_id_and_read_from_the_answer(server, stream):
    container = f"figures-{fresh_id()}"
    answer = server.post(MESSAGES["zylon"], request(bash("true"), tools=[CE_V1], container=container, stream=stream))
    assert answer.status_code == 200, answer.text
    if stream:
        *_, (name, last), (end, _) = [event for event in events(answer) if event[0] != "ping"]
        assert (name, end) == ("message_delta", "message_stop")
        found = last["delta"]
    else:
        found = answer.json()
        assert found["id"].startswith("msg_") and (found["type"], found["role"]) == ("message", "assistant")
    assert found["stop_reason"] == "end_turn" and set(found["container"]) == {"id", "expires_at"} and found["container"]["id"] == container
    assert datetime.datetime.fromisoformat(found["container"]["expires_at"]) > datetime.datetime.now(datetime.timezone.utc)


def test_zylon_containers_a_number_that_the_first_request_wrote_is_squared_by_the_second(shell):  # noqa: F811
    ask = lambda command: json.loads(shell(curl("POST", "gpt/v1/messages", JSON), BODY=body(bash(command), container=shell.container)))
    first = ask(f"echo $((RANDOM % 90 + 10)) > {WORKSPACE}number.txt; cat {WORKSPACE}number.txt")
    second = ask(f"n=$(cat {WORKSPACE}number.txt); echo $((n * n))")
    assert int(printed(second)[0]) == int(printed(first)[0]) ** 2
    assert first["container"]["id"] == second["container"]["id"] == shell.container
    expires = [datetime.datetime.fromisoformat(answer["container"]["expires_at"]) for answer in (first, second)]
    assert expires == sorted(expires)
    another = json.loads(shell(curl("POST", "gpt/v1/messages", JSON), BODY=body(bash(f"ls {WORKSPACE}"), container=fresh_id())))
    assert printed(another) == [""]


def test_anthropic_generated_files_a_report_that_is_copied_and_listed_is_captured(server):
    write = "open('/tmp/made.pdf', 'wb').write(b'%PDF-1.4 made')"
    answer = server.ask(bash(f'echo "{write}" > make.py'), bash('python3 make.py && cp /tmp/made.pdf "$OUTPUT_DIR" && ls "$OUTPUT_DIR"'))
    made, copied = (block["content"] for block in answer["content"] if "tool_use_id" in block)
    assert made["content"] == [] and (copied["stdout"], copied["stderr"], copied["return_code"]) == ("made.pdf\n", "", 0)
    (output,) = copied["content"]
    assert output["type"] == "bash_code_execution_output"
    assert server.sdk().files.retrieve_metadata(output["file_id"]).filename == "made.pdf"
    assert server.sdk().files.download(output["file_id"]).read() == b"%PDF-1.4 made"


def test_anthropic_response_format_a_commands_block_and_its_result(server):
    answer = server.ask(bash("touch one two"), bash("ls -l | head -n 3"))
    *_, use, result, text = answer["content"]
    assert (use["type"], use["name"], use["input"], text["type"]) == ("server_tool_use", "bash_code_execution", {"command": "ls -l | head -n 3"}, "text")
    content = result["content"]
    assert (result["type"], result["tool_use_id"]) == ("bash_code_execution_tool_result", use["id"])
    assert content == {"type": "bash_code_execution_result", "stdout": content["stdout"], "stderr": "", "return_code": 0, "content": []}
    assert content["stdout"].startswith("total ") and {"one", "two"} < set(content["stdout"].split())


def test_anthropic_other_execution_tools_a_shell_of_the_client_is_not_the_sandboxs(server):
    calls = [{"name": "bash", "input": {"command": "hostname"}}, {"name": "bash_code_execution", "input": {"command": "hostname"}}]
    script, tools = "```tool_use\n" + "\n".join(map(json.dumps, calls)) + "\n```", [{"type": "bash_20250124", "name": "bash"}, CE25]
    first = server.ask(script, tools=tools)
    uses = {block["type"]: block for block in first["content"]}
    assert set(uses) == {"tool_use", "server_tool_use"} and first["stop_reason"] == "tool_use"
    assert (uses["tool_use"]["name"], uses["tool_use"]["input"]) == ("bash", {"command": "hostname"})
    result = {"type": "tool_result", "tool_use_id": uses["tool_use"]["id"], "content": "laptop"}
    messages = [{"role": "user", "content": script}, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    second = server.ask(messages=messages, tools=tools)
    assert second["content"][0]["tool_use_id"] == uses["server_tool_use"]["id"] and printed(second) == ["sandbox\n"]
    assert "laptop" in second["content"][-1]["text"] and second["stop_reason"] == "end_turn"


@pytest.mark.parametrize("date", ["20250825", "20260120", "20260521"])
def test_anthropic_upgrade_from_one_version_to_the_next_only_the_type_changes(server, date):
    answer = server.ask(bash("echo hi"), tools=[CE25 | {"type": f"code_execution_{date}"}])
    assert [block["type"] for block in answer["content"]] == ["server_tool_use", "bash_code_execution_tool_result", "text"]
    assert answer["content"][1]["content"] == {"type": "bash_code_execution_result", "stdout": "hi\n", "stderr": "", "return_code": 0, "content": []}
    assert answer["usage"]["server_tool_use"]["code_execution_requests"] == 1
