"""Running commands through the Messages API, plain and streaming, on both surfaces."""

import json
import re

import pytest

from conftest import CE25, CE_V1, bash, events, fresh_id, request, start_server, stop_server

SURFACES = [("anthropic", CE25), ("anthropic", CE_V1), ("zylon", CE25), ("zylon", CE_V1)]


@pytest.mark.parametrize(("surface", "tool"), SURFACES)
def test_a_command_runs_and_its_result_comes_back(server, surface, tool):
    answer = server.ask("Say it.", bash("echo hi; echo no >&2; exit 3"), surface=surface, tools=[tool])
    use, result, text = answer["content"]
    assert use["type"] == "server_tool_use" and use["name"] == "bash_code_execution"
    assert re.fullmatch(r"srvtoolu_[A-Za-z0-9_]+", use["id"])
    assert use["input"] == {"command": "echo hi; echo no >&2; exit 3"}
    assert result["type"] == "bash_code_execution_tool_result" and result["tool_use_id"] == use["id"]
    assert result["content"] == {
        "type": "bash_code_execution_result", "stdout": "hi\n", "stderr": "no\n", "return_code": 3, "content": [],
    }
    assert text["type"] == "text" and text["text"]
    assert answer["stop_reason"] == "end_turn" and answer["container"]["id"]
    assert answer["container"]["expires_at"].endswith("Z")
    assert answer.get("interaction_stop_reason") == ("stop" if surface == "zylon" else None)


def test_several_calls_of_one_turn_keep_their_order_and_ids(server):
    lines = "\n".join('{"name": "bash_code_execution", "input": {"command": "echo %d"}}' % n for n in range(4))
    answer = server.ask(f"```tool_use\n{lines}\n```")
    uses = [block for block in answer["content"] if block["type"] == "server_tool_use"]
    results = {block["tool_use_id"]: block["content"]["stdout"] for block in answer["content"] if "tool_use_id" in block}
    assert [results[use["id"]] for use in uses] == ["0\n", "1\n", "2\n", "3\n"]


def test_the_stream_and_the_plain_answer_are_the_same_message(server):
    script = ["```text\nFirst.\n```", bash("printf 'a\\0b'; head -c 3 /dev/zero | tr '\\0' x"), "```text\nDone, with an é.\n```"]
    plain = server.ask(*script)
    seen = list(events(server.post("/v1/messages", request(*script, stream=True))))
    names = [name for name, _ in seen if name != "ping"]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    assert all(name == data["type"] for name, data in seen)
    blocks, open_block, texts = [], None, {}
    for name, data in seen:
        if name == "content_block_start":
            assert open_block is None and data["index"] == len(blocks)
            open_block = data["index"]
            blocks.append(data["content_block"])
            if data["content_block"]["type"] == "server_tool_use":
                assert data["content_block"]["input"] == {}
        elif name == "content_block_delta":
            assert data["index"] == open_block
            delta = data["delta"]
            texts[open_block] = texts.get(open_block, "") + delta.get("text", delta.get("partial_json", ""))
        elif name == "content_block_stop":
            assert data["index"] == open_block
            open_block = None
    assert [block["type"] for block in blocks] == [block["type"] for block in plain["content"]]
    assert [texts[i] for i, block in enumerate(blocks) if block["type"] == "text"] == [
        block["text"] for block in plain["content"] if block["type"] == "text"
    ]
    result = next(block for block in blocks if block["type"].endswith("tool_result"))
    assert result["content"]["stdout"] == "a\0bxxx"
    final = next(data for name, data in seen if name == "message_delta")
    assert final["delta"]["stop_reason"] == plain["stop_reason"] == "end_turn"
    assert final["delta"]["container"]["id"].startswith("container_")
    assert final["usage"]["output_tokens"] == plain["usage"]["output_tokens"]


def test_a_command_over_its_time_ends_with_everything_it_started(server):
    tool, surface = CE_V1, "zylon"
    marker = fresh_id()
    script = '```tool_use\n{"name": "bash_code_execution", "input": {"command": "trap \'\' TERM; setsid sleep 999 & sleep 998 & echo part; wait", "timeout": 2}}\n```'
    answer = server.ask(script, tools=[tool], surface=surface, container=marker)
    result = answer["content"][1]["content"]
    assert (result["return_code"], result["stdout"], result["stderr"]) == (124, "part\n", "Command timed out after 2s.")
    left, _ = server.bash("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", tools=[tool], surface=surface, container=marker)
    assert "sleep 99" not in left["stdout"].replace("cat /proc", "")


def test_a_restart_empties_the_workspace_and_keeps_what_was_uploaded_and_offered(server):
    fields = {"surface": "zylon", "tools": [CE_V1], "container": fresh_id()}
    server.bash("mkdir -p a/.git && touch .env a/.git/x; echo kept > /mnt/user-data/outputs/report; sleep 997 & true", **fields)
    command = "ls -A; cat /mnt/user-data/outputs/report; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 997'"
    answer = server.ask("```tool_use\n" + json.dumps({"name": "bash_code_execution", "input": {"command": command, "restart": True}}) + "\n```", **fields)
    result = next((block["content"] for block in answer["content"] if "tool_use_id" in block), answer)
    assert result["stdout"] == "kept\n0\n", result
    server.bash("touch later", **fields)
    assert server.bash("ls -A", **fields)[0]["stdout"] == "later\n", "only the call that says so restarts"


def test_output_that_is_no_utf8_or_too_long_arrives_marked(server):
    result, _ = server.bash("printf '\\xff\\xfeok'")
    assert result["stdout"] == "\ufffd\ufffdok"
    result, _ = server.bash("head -c 1023 /dev/zero | tr '\\0' a; for i in $(seq 5000); do printf €; done")
    assert "\ufffd" not in result["stdout"] and result["stdout"].count("€") == 5000
    result, _ = server.bash("seq 1 2000000; touch done; ls done >&2; exit 7")
    assert result["return_code"] == 7 and result["stderr"] == "done\n"
    assert result["stdout"].endswith("...[truncated]") and len(result["stdout"]) < 1_050_000


def test_a_command_of_200_kilobytes_runs(server):
    text = "x" * 200_000
    result, _ = server.bash(f"cat > big <<'EOF'\n{text}\nEOF\nwc -c < big", max_tokens=200_000)
    assert result["stdout"].strip() == "200001", result


def test_a_background_process_neither_holds_the_answer_nor_dies(server):
    container = fresh_id()
    first, _ = server.bash("sleep 300 & echo started", surface="zylon", container=container)
    assert (first["stdout"], first["return_code"]) == ("started\n", 0)
    second, _ = server.bash("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", surface="zylon", container=container)
    assert "sleep 300" in second["stdout"]


def test_stdin_is_at_its_end(server):
    result, _ = server.bash("read x; echo rc=$?; cat; echo end")
    assert result["stdout"] == "rc=1\nend\n"


def test_a_client_tool_beside_a_command_defers_the_command(server):
    weather = {"name": "get_weather", "description": "d", "input_schema": {"type": "object", "properties": {}}}
    for keep_container in (True, False):
        script = (
            '```tool_use\n{"name": "bash_code_execution", "input": {"command": "echo x >> n; cat n"}}\n'
            '{"name": "get_weather", "input": {}}\n```'
        )
        first = server.ask(script, tools=[CE25, weather])
        assert first["stop_reason"] == "tool_use"
        use, client_use = first["content"][-2:]
        assert (use["type"], client_use["type"]) == ("server_tool_use", "tool_use")
        messages = [
            {"role": "user", "content": script},
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": client_use["id"], "content": "sunny"}]},
        ]
        fields = {"container": first["container"]["id"]} if keep_container else {}
        second = server.post("/v1/messages", request(tools=[CE25, weather], messages=messages, **fields))
        assert second.status_code == 200, second.text
        result = second.json()["content"][0]
        assert result["tool_use_id"] == use["id"] and result["content"]["stdout"] == "x\n", second.json()


def test_its_own_answer_can_be_sent_back_whole(server):
    script = bash("echo once")
    first = server.ask(script)
    messages = [
        {"role": "user", "content": script},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": "And now?\n" + bash("echo twice")},
    ]
    again = server.post("/v1/messages", request(messages=messages, container=first["container"]["id"]))
    assert again.status_code == 200, again.text
    assert again.json()["content"][1]["content"]["stdout"] == "twice\n"


def test_many_samplings_pause_the_turn_and_the_tail_resumes_it(server):
    script = "\n".join(bash(f"echo {n}") for n in range(32))
    first = server.ask(script)
    assert first["stop_reason"] == "pause_turn" and first["container"]["id"]
    messages = [{"role": "user", "content": script}, {"role": "assistant", "content": first["content"]}]
    second = server.post("/v1/messages", request(messages=messages, container=first["container"]["id"])).json()
    assert second["stop_reason"] == "end_turn", second
    outputs = [
        block["content"]["stdout"] for answer in (first, second) for block in answer["content"] if "tool_use_id" in block
    ]
    assert outputs == [f"{n}\n" for n in range(32)]


def test_every_sandbox_is_closed_to_the_outside(server):
    checks = {
        "id -u": "1000\n",
        "touch /mnt/user-data/uploads/x 2>/dev/null; echo $?": "1\n",
        "touch /x /usr/x 2>/dev/null; echo $?": "1\n",
        "ls /var/run/secrets/kubernetes.io 2>/dev/null | wc -l": "0\n",
        "grep -E 'Cap(Prm|Eff|Bnd|Amb)' /proc/self/status | grep -cv 0000000000000000": "0\n",
        "grep NoNewPrivs /proc/self/status | cut -f 2": "1\n",
        "timeout 3 bash -c 'exec 3<>/dev/tcp/192.0.2.1/80' 2>/dev/null; [ $? != 0 ] && echo closed": "closed\n",
        "env | cut -d= -f1 | grep -ci -e key -e secret -e kubernetes": "0\n",
        "hostname": "sandbox\n",
        "pwd": "/home/agent/workspace\n",
    }
    lines = "\n".join(
        '{"name": "bash_code_execution", "input": %s}' % json.dumps({"command": command}) for command in checks
    )
    answer = server.ask(f"```tool_use\n{lines}\n```")
    results = [block["content"]["stdout"] for block in answer["content"] if "tool_use_id" in block]
    assert dict(zip(checks, results)) == checks


@pytest.mark.local
def test_a_dated_tools_command_over_its_time_is_an_error_block_and_the_turn_goes_on(tmp_path):
    server = start_server(tmp_path, "--command-timeout", "1")
    try:
        answer = server.ask(bash("echo part; sleep 60"), bash("echo next"))
        results = [block["content"] for block in answer["content"] if "tool_use_id" in block]
        assert results[0] == {"type": "bash_code_execution_tool_result_error", "error_code": "execution_time_exceeded"}
        assert results[1]["stdout"] == "next\n" and answer["stop_reason"] == "end_turn"
    finally:
        stop_server(server)
