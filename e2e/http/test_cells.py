"""Python that remembers: the `code_execution` sub-tool, plain and streaming, on both surfaces."""

import json

import pytest
from anthropic.types import Message

from conftest import bash, events, fresh_id, request, start_server, stop_server

CE22 = {"type": "code_execution_20250522", "name": "code_execution"}
CE20 = {"type": "code_execution_20260120", "name": "code_execution"}
CE21 = {"type": "code_execution_20260521", "name": "code_execution"}
SURFACES = [(surface, tool) for surface in ("anthropic", "zylon") for tool in (CE22, CE20, CE21)]


def python(code):
    fence = "`" * 5
    return f"{fence}python\n{code}\n{fence}\n"


def results(answer):
    return [block["content"] for block in answer["content"] if block["type"].endswith("_tool_result")]


def cells(server, *codes, tools=(CE21,), **fields):
    """Runs cells in one request, and returns their results' contents, and the whole answer."""
    answer = server.ask(*map(python, codes), tools=tools, **fields)
    assert len(results(answer)) == len(codes), answer
    return results(answer), answer


@pytest.mark.parametrize(("surface", "tool"), SURFACES)
def test_a_cell_runs_and_its_result_comes_back(server, surface, tool):
    answer = server.ask(python("import sys\nprint('hi')\nprint('no', file=sys.stderr)\n6 * 7"), surface=surface, tools=[tool])
    use, result, text = answer["content"]
    assert use["type"] == "server_tool_use" and use["name"] == "code_execution" and use["caller"] == {"type": "direct"}
    assert use["id"].startswith("srvtoolu_") and list(use["input"]) == ["code"]
    assert result == {
        "type": "code_execution_tool_result",
        "tool_use_id": use["id"],
        "content": {"type": "code_execution_result", "stdout": "hi\n42\n", "stderr": "no\n", "return_code": 0, "content": []},
    }
    assert text["type"] == "text" and "42" in text["text"]
    assert answer["stop_reason"] == "end_turn" and answer["container"]["id"]
    assert answer["usage"]["server_tool_use"]["code_execution_requests"] == 1
    Message.model_validate(answer)


@pytest.mark.parametrize(("surface", "tool"), SURFACES[1:3] + SURFACES[4:])
def test_variables_stay_between_cells_and_between_requests(server, surface, tool):
    (first, second), answer = cells(server, "import math\nx = 20", "x += 1\nx", surface=surface, tools=[tool])
    assert (first["stdout"], second["stdout"]) == ("", "21\n")
    fields = {"surface": surface, "tools": [tool], "container": answer["container"]["id"]}
    (later,), _ = cells(server, "x * math.floor(2.5)", **fields)
    assert later["stdout"] == "42\n"
    if surface == "anthropic":
        (other,), _ = cells(server, "'x' in globals()", tools=[tool])
        assert other["stdout"] == "False\n", "a new container knows nothing of it"


def test_a_cell_and_a_command_share_the_files(server):
    answer = server.ask(python("open('n', 'w').write('12')\nimport os\nos.chdir('/tmp')"), bash("cat n"), python("os.getcwd()"), tools=[CE21])
    assert [result["stdout"] for result in results(answer)][1:] == ["12", "'/tmp'\n"]


def test_an_exception_is_a_result_with_its_traceback_and_the_turn_goes_on(server):
    (failed, after), answer = cells(server, "x = 1\ndef f():\n    return 1 / 0\nf()", "x")
    assert failed["type"] == "code_execution_result" and failed["return_code"] == 1
    assert failed["stderr"].startswith("Traceback") and failed["stderr"].endswith("ZeroDivisionError: division by zero\n")
    assert "bootstrap" not in failed["stderr"] and after["stdout"] == "1\n"
    assert answer["stop_reason"] == "end_turn"


def test_an_interpreter_that_ended_is_told_and_the_next_cell_gets_a_new_one(server):
    (ended, fresh, after), _ = cells(server, "x = 1\nimport os\nos._exit(3)", "'x' in globals()", "'fine'")
    assert ended["return_code"] == 3 and "variables are lost" in ended["stderr"]
    assert fresh["stdout"] == "False\n" and "began in a new one" in fresh["stderr"]
    assert (after["stdout"], after["stderr"]) == ("'fine'\n", "")


@pytest.mark.parametrize("tool", [CE22, CE21])
def test_what_a_cell_leaves_in_its_output_folder_is_captured(server, tool):
    code = "import os\nfor name in ('a.txt', 'b.csv'):\n    with open(os.environ['OUTPUT_DIR'] + '/' + name, 'w') as f: f.write(name)"
    (result, second), answer = cells(server, code, "os.listdir(os.environ['OUTPUT_DIR'])", tools=[tool])
    assert {entry["type"] for entry in result["content"]} == {"code_execution_output"}
    client = server.sdk()
    names = [client.files.retrieve_metadata(entry["file_id"]).filename for entry in result["content"]]
    assert sorted(names) == ["a.txt", "b.csv"]
    assert [client.files.download(entry["file_id"]).read().decode() for entry in result["content"]] == names
    assert (second["stdout"], second["content"]) == ("[]\n", [])
    Message.model_validate(answer)


def test_an_uploaded_file_is_in_the_input_folder(server):
    uploaded = server.sdk().files.upload(file=("numbers.csv", b"1\n2\n", "text/csv"))
    code = python("import os\nopen(os.environ['INPUT_DIR'] + '/numbers.csv').read()")
    content = [{"type": "text", "text": code}, {"type": "container_upload", "file_id": uploaded.id}]
    answer = server.ask(messages=[{"role": "user", "content": content}], tools=[CE21])
    assert results(answer)[0]["stdout"] == "'1\\n2\\n'\n"


def test_the_stream_and_the_plain_answer_are_the_same_message(server):
    script = ["```text\nFirst.\n```", python("print('é' * 3)\n1 / 0"), python("'next'")]
    plain = server.ask(*script, tools=[CE21])
    seen = [(name, data) for name, data in events(server.post("/v1/messages", request(*script, tools=[CE21], stream=True))) if name != "ping"]
    blocks = [data["content_block"] for name, data in seen if name == "content_block_start"]
    assert [block["type"] for block in blocks] == [block["type"] for block in plain["content"]]
    same = lambda content: [block["content"] for block in content if block["type"] == "code_execution_tool_result"]
    assert same(blocks) == same(plain["content"]) and len(same(blocks)) == 2
    inputs = [data["delta"]["partial_json"] for name, data in seen if data.get("delta", {}).get("type") == "input_json_delta"]
    assert json.loads(inputs[0]) == {"code": "print('é' * 3)\n1 / 0\n"}
    assert seen[-1][0] == "message_stop"


def test_the_sdk_streams_and_creates_the_same_cells(server):
    client = server.sdk()
    fields = {"model": "demo", "max_tokens": 1024, "tools": [CE21], "messages": [{"role": "user", "content": python("x = 6\nx * 7")}]}
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    created = client.messages.create(**fields)
    for message in (streamed, created):
        use, result, _ = message.content
        assert use.input == {"code": "x = 6\nx * 7\n"}
        assert result.type == "code_execution_tool_result" and result.content.stdout == "42\n"
    later = client.messages.create(**fields | {"messages": [{"role": "user", "content": python("x")}]}, container=streamed.container.id)
    assert later.content[1].content.stdout == "6\n"


@pytest.mark.parametrize("surface", ["anthropic", "zylon"])
def test_its_own_answer_can_be_sent_back_whole(server, surface):
    script = python("x = 1\n1 / 0")
    container = {"container": fresh_id()} if surface == "zylon" else {}
    first = server.ask(script, surface=surface, tools=[CE21], **container)
    messages = [
        {"role": "user", "content": script},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": "And now?\n" + python("x + 1")},
    ]
    again = server.ask(messages=messages, surface=surface, tools=[CE21], container=first["container"]["id"])
    assert again["content"][1]["content"]["stdout"] == "2\n"
    # Also to a tool that offers no Python any more.
    older = {"type": "code_execution_20250825", "name": "code_execution"}
    messages[-1]["content"] = bash("echo shell")
    again = server.ask(messages=messages, surface=surface, tools=[older], container=first["container"]["id"])
    assert again["content"][1]["content"]["stdout"] == "shell\n"


def test_a_client_tool_beside_a_cell_defers_the_cell(server):
    weather = {"name": "get_weather", "description": "d", "input_schema": {"type": "object", "properties": {}}}
    script = '```tool_use\n{"name": "code_execution", "input": {"code": "n = 1\\nn"}}\n{"name": "get_weather", "input": {}}\n```'
    first = server.ask(script, tools=[CE21, weather])
    use, client_use = first["content"][-2:]
    assert first["stop_reason"] == "tool_use" and use["name"] == "code_execution"
    messages = [
        {"role": "user", "content": script},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": client_use["id"], "content": "sunny"}]},
    ]
    second = server.ask(messages=messages, tools=[CE21, weather], container=first["container"]["id"])
    result = second["content"][0]
    assert (result["type"], result["tool_use_id"], result["content"]["stdout"]) == ("code_execution_tool_result", use["id"], "1\n")


def test_input_that_is_no_code_is_told_in_the_end(server):
    script = '```tool_use\n{"name": "code_execution", "input": {"command": "ls"}}\n```\n' * 4
    answer = server.ask(script, tools=[CE22])
    assert results(answer) == [{"type": "code_execution_tool_result_error", "error_code": "invalid_tool_input"}]
    detailed = server.ask(script, tools=[CE21], surface="zylon", system=[{"type": "text", "text": "x", "extensions": ["zylon"]}])
    (error,) = results(detailed)
    assert error["error_code"] == "unavailable" and "code" in error["detail"]["explanation"]


@pytest.mark.local
def test_a_cell_over_its_time_is_interrupted_and_keeps_its_variables(tmp_path):
    server = start_server(tmp_path, "--command-timeout", "2")
    try:
        slow = "x = 7\nprint('part', flush=True)\nimport time\ntime.sleep(60)"
        (result, after), answer = cells(server, slow, "x")
        assert (result["type"], result["return_code"], result["stdout"]) == ("code_execution_result", 124, "part\n")
        assert "KeyboardInterrupt" in result["stderr"]
        assert result["stderr"].endswith("detection_timeout: the cell was interrupted after 2s.")
        assert after["stdout"] == "7\n" and answer["stop_reason"] == "end_turn"
        (legacy, _), _ = cells(server, slow, "x", tools=[CE22])
        assert legacy == {"type": "code_execution_tool_result_error", "error_code": "execution_time_exceeded"}
    finally:
        stop_server(server)


@pytest.mark.local
def test_sandboxes_without_python_offer_the_shell_in_its_place(tmp_path):
    server = start_server(tmp_path, "--repl", "false")
    try:
        answer = server.ask(python("print('by the shell')"), tools=[CE21])
        assert answer["content"][0]["name"] == "bash_code_execution"
        assert results(answer)[0]["stdout"] == "by the shell\n"
    finally:
        stop_server(server)
