"""Calls of the client's tools from Python code: pauses, continuations, and what is refused."""

import json

import anthropic
import pytest
from anthropic.types import Message

from conftest import bash, events, fresh_id, request

CE20 = {"type": "code_execution_20260120", "name": "code_execution"}
CE21 = {"type": "code_execution_20260521", "name": "code_execution"}
STOCK = {
    "name": "get_stock",
    "description": "Stock of an item in a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    "allowed_callers": ["code_execution_20260120"],
}
UNITS = {"east": 7, "west": 3, "north": 5}
GATHER = "import asyncio, json\nrows = await asyncio.gather(*[get_stock({'place': p}) for p in ('east', 'west')])\nsum(json.loads(r)['units'] for r in rows)"


def python(code):
    fence = "`" * 5
    return f"{fence}python\n{code}\n{fence}\n"


def calls_of(answer):
    return [block for block in answer["content"] if block["type"] == "tool_use"]


def results_for(answer):
    return [
        {"type": "tool_result", "tool_use_id": call["id"], "content": json.dumps({"units": UNITS[call["input"]["place"]]})}
        for call in calls_of(answer)
    ]


def go_on(messages, answer, results=None):
    return messages + [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": results_for(answer) if results is None else results},
    ]


@pytest.mark.parametrize(("surface", "tool"), [("anthropic", CE20), ("anthropic", CE21), ("zylon", CE21)])
def test_gathered_calls_pause_the_turn_and_their_results_resume_it(server, surface, tool):
    own = {"container": fresh_id()} if surface == "zylon" else {}
    messages = [{"role": "user", "content": python(GATHER)}]
    fields = {"surface": surface, "tools": [tool, STOCK]}
    first = server.ask(messages=messages, **fields, **own)
    Message.model_validate(first)
    use, *calls = first["content"]
    assert (use["type"], use["name"], first["stop_reason"]) == ("server_tool_use", "code_execution", "tool_use")
    assert [call["input"] for call in calls] == [{"place": "east"}, {"place": "west"}]
    for call in calls:
        assert call["type"] == "tool_use" and call["name"] == "get_stock"
        assert call["caller"] == {"type": "code_execution_20260120", "tool_id": use["id"]}
    messages = go_on(messages, first)
    second = server.ask(messages=messages, container=first["container"]["id"], **fields)
    result, text = second["content"]
    assert (result["type"], result["tool_use_id"]) == ("code_execution_tool_result", use["id"])
    assert result["content"] == {
        "type": "code_execution_result", "stdout": "10\n", "stderr": "", "return_code": 0, "content": [],
    }
    assert text["type"] == "text" and second["stop_reason"] == "end_turn" and second["container"]["id"] == first["container"]["id"]
    messages = messages + [
        {"role": "assistant", "content": second["content"]},
        {"role": "user", "content": python("len(rows)")},
    ]
    third = server.ask(messages=messages, container=first["container"]["id"], **fields)
    assert third["content"][1]["content"]["stdout"] == "2\n", "its variables stay too"


def test_models_say_that_code_may_call(server):
    capabilities = server.sdk().models.retrieve("demo").capabilities
    assert capabilities.code_execution.supported and capabilities.server_tools.code_execution.supported


def test_calls_one_after_another_come_in_rounds_to_any_replica_and_a_retry_changes_nothing(server):
    code = "total = 0\nimport json\nfor place in ('east', 'west', 'north'):\n    total += json.loads(await get_stock(place=place))['units']\ntotal"
    messages, fields = [{"role": "user", "content": python(code)}], {"tools": [CE21, STOCK]}
    answer = server.ask(messages=messages, **fields)
    cell, fields["container"] = answer["content"][0]["id"], answer["container"]["id"]
    for place in ("east", "west", "north"):
        assert [call["input"]["place"] for call in calls_of(answer)] == [place]
        assert all(call["caller"]["tool_id"] == cell for call in calls_of(answer))
        messages = go_on(messages, answer)
        answer = server.ask(messages=messages, replica=1, **fields)
        again = server.ask(messages=messages, replica=0, **fields)
        assert again["content"] == answer["content"]
    assert answer["content"][0]["content"]["stdout"] == "15\n" and answer["stop_reason"] == "end_turn"


def test_a_paused_stream_has_whole_calls_and_its_container(server):
    messages, fields = [{"role": "user", "content": python(GATHER)}], {"tools": [CE21, STOCK], "stream": True}
    seen = [(name, data) for name, data in events(server.post("/v1/messages", request(messages=messages, **fields))) if name != "ping"]
    blocks = [data["content_block"] for name, data in seen if name == "content_block_start"]
    assert [block["type"] for block in blocks] == ["server_tool_use", "tool_use", "tool_use"]
    assert [block["input"] for block in blocks] == [{}, {"place": "east"}, {"place": "west"}]
    assert {data["index"] for name, data in seen if name == "content_block_delta"} == {0}
    end = next(data for name, data in seen if name == "message_delta")
    assert end["delta"]["stop_reason"] == "tool_use" and end["delta"]["container"]["id"].startswith("container_")


def test_what_the_client_says_failed_is_what_the_code_gets(server):
    messages, fields = [{"role": "user", "content": python("await get_stock({'place': 'east'})")}], {"tools": [CE21, STOCK]}
    first = server.ask(messages=messages, **fields)
    (call,) = calls_of(first)
    text = lambda text: {"type": "text", "text": text}
    failed = {"type": "tool_result", "tool_use_id": call["id"], "is_error": True, "content": [text("Error: closed"), text("until May")]}
    second = server.ask(messages=go_on(messages, first, [failed]), container=first["container"]["id"], **fields)
    assert second["content"][0]["content"]["stdout"] == "'Error: closed\\nuntil May'\n"


def test_continuations_that_are_none_are_refused(server):
    messages, tools = [{"role": "user", "content": python(GATHER)}], [CE21, STOCK]
    first = server.ask(messages=messages, tools=tools)
    container, results = first["container"]["id"], results_for(first)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}

    def refusal(results, tools=tools, **fields):
        answer = server.post("/v1/messages", request(messages=go_on(messages, first, results), tools=tools, **fields))
        assert answer.status_code in (400, 404), answer.text
        return answer.json()["error"]["message"]

    named = {"container": container}
    assert refusal(results) == "container_id is required when there are pending tool uses generated by code execution with tools."
    assert "were found without `tool_result` blocks" in refusal(results[:1], **named)
    assert "was found without a corresponding `code_execution_tool_result`" in refusal([*results, {"type": "text", "text": "x"}], **named)
    assert "only text" in refusal([results[0], results[1] | {"content": [image]}], **named)
    assert "allowed_callers" in refusal(results, tools=[STOCK], **named)
    assert "no `code_execution` tool was provided" in refusal(results, tools=[{**CE21, "type": "code_execution_20250825"}, STOCK | {"allowed_callers": ["direct"]}], **named)
    assert "container_01ARZ3NDEKTSV4RRFFQ69G5FAV" in refusal(results, container="container_01ARZ3NDEKTSV4RRFFQ69G5FAV")
    # None of them has reached the code.
    second = server.ask(messages=go_on(messages, first, results), tools=tools, container=container)
    assert second["content"][0]["content"]["stdout"] == "10\n"


def test_a_newer_cell_ends_one_that_waits_and_its_continuation_says_so(server):
    messages, tools = [{"role": "user", "content": python(GATHER)}], [CE21, STOCK]
    first = server.ask(messages=messages, tools=tools)
    container = {"container": first["container"]["id"]}
    other = server.ask(python("'other'"), tools=tools, **container)
    assert other["content"][1]["content"]["stdout"] == "'other'\n"
    late = server.ask(messages=go_on(messages, first), tools=tools, **container)
    result = late["content"][0]["content"]
    assert result["return_code"] == 130 and "newer cell" in result["stderr"] and late["stop_reason"] == "end_turn"


def test_a_command_behind_a_waiting_cell_runs_after_it(server):
    calls = [{"name": "code_execution", "input": {"code": GATHER}}, {"name": "bash_code_execution", "input": {"command": "echo after"}}]
    script = "```tool_use\n" + "\n".join(map(json.dumps, calls)) + "\n```"
    messages, tools = [{"role": "user", "content": script}], [CE21, STOCK]
    first = server.ask(messages=messages, tools=tools)
    assert [block["type"] for block in first["content"]] == ["server_tool_use"] * 2 + ["tool_use"] * 2
    second = server.ask(messages=go_on(messages, first), tools=tools, container=first["container"]["id"])
    assert [block["content"]["stdout"] for block in second["content"][:2]] == ["10\n", "after\n"]


def test_the_sdks_tool_runner_drives_the_loop(server):
    asked = []

    @anthropic.beta_tool
    def get_stock(place: str) -> str:
        """Stock of an item in a place."""
        asked.append(place)
        return json.dumps({"units": UNITS[place]})

    tool = get_stock.to_dict() | {"allowed_callers": ["code_execution_20260120"]}
    get_stock.to_dict = lambda: tool
    runner = server.sdk().beta.messages.tool_runner(
        model="demo", max_tokens=1024, tools=[get_stock, CE21], messages=[{"role": "user", "content": python(GATHER) + bash("echo end")}]
    )
    final = runner.until_done()
    assert asked == ["east", "west"] and final.stop_reason == "end_turn"
    assert [block.content.stdout for block in final.content if block.type.endswith("_tool_result")] == ["10\n", "end\n"]
