"""Messages, by the numbers of the conformance list: containers, streams, calls from code, and turns of several requests. With the official
SDKs, on both runtimes; in a cluster, each request of an SDK goes to another server than the one before."""

import asyncio
import json

import anthropic
import pytest
import requests

from conftest import CE25, bash, events, request, start_server, stop_server
from test_code_calls import CE20, CE21, GATHER, STOCK, UNITS, calls_of, go_on, python, results_for
from test_conformance_messages import CALL, HI, WEATHER, created, refused, results

FILE_GONE = "cat kept 2>&1; true"


def streamed(sdk, *parts, **fields):
    return sdk.call("beta.messages.stream" if sdk.old else "messages.stream", **request(*parts, **fields))


def raw(server, *parts, replica=0, **fields):
    """The events of a stream, pings left out."""
    answer = server.post("/v1/messages", request(*parts, stream=True, **fields), replica=replica)
    assert answer.status_code == 200, answer.text
    return [(name, data) for name, data in events(answer) if name != "ping"]


def test_20_a_command_gives_its_output(sdk):
    message = created(sdk, bash("echo hi"))
    use, result, _ = message["content"]
    assert (use["type"], use["name"], use["input"]) == ("server_tool_use", "bash_code_execution", {"command": "echo hi"})
    assert use["id"].startswith("srvtoolu_") and result["tool_use_id"] == use["id"]
    content = result["content"]
    assert (content["stdout"], content["return_code"], content["content"]) == ("hi\n", 0, [])


def test_35_a_container_keeps_its_files(sdk):
    first = created(sdk, bash("echo kept > kept"))["container"]
    second = created(sdk, bash("cat kept"), container=first["id"])
    assert results(second)[0]["stdout"] == "kept\n"
    assert second["container"]["id"] == first["id"] and second["container"]["expires_at"] >= first["expires_at"]


def test_36_without_one_there_is_a_new_one(sdk):
    first, second = created(sdk, bash("echo kept > kept")), created(sdk, bash(FILE_GONE))
    assert first["container"]["id"] != second["container"]["id"] and "No such file" in results(second)[0]["stdout"]


def test_37_a_container_comes_in_every_legal_form(server, sdk):
    name = created(sdk, bash("true"))["container"]["id"]
    assert created(sdk, bash("true"), container={"id": name})["container"]["id"] == name
    assert created(sdk, HI, container={"skills": []})["stop_reason"] == "end_turn"
    assert server.ask(HI, container=None)["stop_reason"] == "end_turn"
    answer = server.post("/v1/messages", request(HI, container=5))
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith("container:")


def test_38_an_unknown_container_is_refused_once(server):
    tries = []
    client = anthropic.Anthropic(
        base_url=server.url, api_key=server.keys[0], max_retries=2, http_client=anthropic.DefaultHttpxClient(event_hooks={"request": [tries.append]})
    )
    error = refused(client.messages.create, **request(bash("true"), container="container_01ARZ3NDEKTSV4RRFFQ69G5FAV"))
    assert 400 <= error.status_code < 500 and len(tries) == 1


def test_39_another_workspace_has_no_part_in_a_container(server):
    name = server.ask(bash("true"))["container"]["id"]
    assert refused(server.sdk(key=2).messages.create, **request(bash("true"), container=name)).status_code == 404


def test_40_the_text_of_a_history_is_enough(sdk):
    first = created(sdk, bash("echo kept > kept"))
    texts = [block for block in first["content"] if block["type"] == "text"]
    messages = [{"role": "user", "content": "before"}, {"role": "assistant", "content": texts}, {"role": "user", "content": bash("cat kept")}]
    assert results(created(sdk, messages=messages, container=first["container"]["id"]))[0]["stdout"] == "kept\n"


def test_53_a_stream_ends_with_the_same_message(sdk):
    plain, last = created(sdk, "```text\nFirst.\n```", bash("echo 42")), streamed(sdk, "```text\nFirst.\n```", bash("echo 42"))
    shape = lambda message: [(block["type"], block.get("text"), block.get("input"), block.get("content")) for block in message["content"]]
    assert shape(plain) == shape(last) and plain["usage"]["output_tokens"] == last["usage"]["output_tokens"]
    # The older generation does not take it from a stream.
    assert sdk.old or last["container"]["id"].startswith("container_")


def test_54_a_stream_opens_one_block_at_a_time(server):
    seen = raw(server, "```text\nFirst.\n```", bash("echo 42"))
    assert seen[0][0] == "message_start" and seen[-1][0] == "message_stop"
    open_block, opened = None, []
    for name, data in seen:
        if name == "content_block_start":
            assert open_block is None
            open_block = data["index"]
            opened.append(open_block)
        elif name == "content_block_delta":
            assert data["index"] == open_block
        elif name == "content_block_stop":
            assert data["index"] == open_block
            open_block = None
    assert open_block is None and opened == list(range(len(opened)))


def test_55_a_calls_input_comes_in_pieces_and_a_result_whole(server):
    seen = raw(server, bash("echo 42"))
    (use,) = (data for name, data in seen if name == "content_block_start" and data["content_block"]["type"] == "server_tool_use")
    pieces = [data["delta"]["partial_json"] for name, data in seen if name == "content_block_delta" and data["index"] == use["index"]]
    assert use["content_block"]["input"] == {} and json.loads("".join(pieces)) == {"command": "echo 42"}
    (result,) = (data["content_block"] for name, data in seen if name == "content_block_start" and "tool_use_id" in data["content_block"])
    assert result["content"]["stdout"] == "42\n"


@pytest.mark.parametrize(
    ("stop", "parts", "tools"),
    [
        ("end_turn", [bash("true")], [CE25]),
        ("tool_use", [python(GATHER)], [CE21, STOCK]),
        ("pause_turn", [bash("true")] * 31, [CE25]),
    ],
    ids=["end_turn", "tool_use", "pause_turn"],
)
def test_56_every_end_of_a_stream_names_the_container(server, stop, parts, tools):
    (end,) = (data["delta"] for name, data in raw(server, *parts, tools=tools) if name == "message_delta")
    assert end["stop_reason"] == stop and end["container"]["id"].startswith("container_")


@pytest.mark.long
def test_57_a_long_command_is_no_silence(server):
    client = server.sdk().with_options(timeout=anthropic.Timeout(600, read=30))
    with client.messages.stream(**request(bash("sleep 60; echo over"))) as stream:
        assert results(stream.get_final_message().to_dict(mode="json"))[0]["stdout"] == "over\n"


def test_58_a_model_that_fails_is_a_status_before_its_first_word_and_an_event_after_it(server):
    turn = '```turn\n{"text": "hello"}\n{"error": {"status": 529}}\n```'
    error = refused(lambda: list(server.sdk().messages.create(**request(turn), stream=True)))
    assert isinstance(error, anthropic.APIStatusError) and error.body["error"]["type"] == "overloaded_error"
    early = refused(lambda: list(server.sdk().messages.create(**request('```turn\n{"error": {"status": 529, "after": 0}}\n```'), stream=True)))
    assert early.status_code == 529


def test_59_every_event_has_its_name(server):
    headers = {"x-api-key": server.keys[0], "anthropic-version": "2023-06-01"}
    answer = requests.post(server.url + "/v1/messages", json=request(bash("true"), stream=True), headers=headers, timeout=150)
    for chunk in filter(None, answer.text.split("\n\n")):
        name, data = chunk.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


@pytest.mark.parametrize("tool", [CE20, CE21], ids=["20260120", "20260521"])
def test_60_and_61_calls_from_code_pause_the_turn_and_their_results_go_on(sdk, tool):
    messages = [{"role": "user", "content": python(GATHER)}]
    first = created(sdk, messages=messages, tools=[tool, STOCK])
    use, *calls = first["content"]
    assert first["stop_reason"] == "tool_use" and first["container"]["id"]
    assert [call["caller"] for call in calls] == [{"type": "code_execution_20260120", "tool_id": use["id"]}] * 2
    second = created(sdk, messages=go_on(messages, first), tools=[tool, STOCK], container=first["container"]["id"])
    assert (second["content"][0]["type"], second["content"][0]["tool_use_id"]) == ("code_execution_tool_result", use["id"])
    assert not any(block["type"] == "server_tool_use" for block in second["content"])
    assert results(second)[0]["stdout"] == "10\n"


def test_62_gathered_calls_come_together_and_others_in_rounds(sdk):
    gathered = python("import asyncio\nlen(await asyncio.gather(*[get_stock({'place': p}) for p in ('east', 'west', 'north')]))")
    assert len(calls_of(created(sdk, gathered, tools=[CE21, STOCK]))) == 3
    messages = [{"role": "user", "content": python("[await get_stock({'place': p}) for p in ('east', 'west', 'north')]")}]
    answer = created(sdk, messages=messages, tools=[CE21, STOCK])
    for place in ("east", "west", "north"):
        assert [call["input"]["place"] for call in calls_of(answer)] == [place]
        messages = go_on(messages, answer)
        answer = created(sdk, messages=messages, tools=[CE21, STOCK], container=answer["container"]["id"])
        assert place == "north" or {block["type"] for block in answer["content"]} == {"tool_use"}
    assert answer["stop_reason"] == "end_turn"


def test_63_and_64_a_continuation_is_whole_and_nothing_more(sdk):
    messages = [{"role": "user", "content": python("import asyncio\nlen(await asyncio.gather(*[get_stock({'place': p}) for p in ('east', 'west', 'north')]))")}]
    first = created(sdk, messages=messages, tools=[CE21, STOCK])
    good = results_for(first)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}

    def words(results, **fields):
        error = refused(created, sdk, messages=go_on(messages, first, results), tools=[CE21, STOCK], **fields)
        assert error.status == 400, error
        return error.message

    here = {"container": first["container"]["id"]}
    assert "container_id is required when there are pending tool uses" in words(good)
    for results_given in (good + [{"type": "text", "text": "more"}], [good[0], good[1], good[2] | {"content": [image]}], good[:2]):
        assert words(results_given, **here)


def test_65_code_gets_text_and_keeps_its_variables(sdk):
    code = "kept = [type(await get_stock({'place': 'east'})).__name__, await get_stock({'place': 'west'})]\nkept"
    messages, tools = [{"role": "user", "content": python(code)}], [CE21, STOCK]
    answer = created(sdk, messages=messages, tools=tools)
    here = {"container": answer["container"]["id"]}
    for content in ("seven", [{"type": "text", "text": "three"}]):
        (call,) = calls_of(answer)
        messages = go_on(messages, answer, [{"type": "tool_result", "tool_use_id": call["id"], "content": content}])
        answer = created(sdk, messages=messages, tools=tools, **here)
    assert results(answer)[0]["stdout"] == "['str', 'three']\n"
    later = created(sdk, python("kept[1]"), tools=tools, **here)
    assert results(later)[0]["stdout"] == "'three'\n"


@pytest.mark.long
def test_66_a_call_that_nobody_answers_is_a_timeout_in_the_code(server):
    messages, tools = [{"role": "user", "content": python("await get_stock({'place': 'east'})")}], [CE21, STOCK]
    first = server.ask(messages=messages, tools=tools)
    asyncio.run(asyncio.sleep(280))
    late = server.ask(messages=go_on(messages, first), tools=tools, container=first["container"]["id"])
    assert "TimeoutError" in results(late)[0]["stderr"]


@pytest.mark.parametrize(
    ("stock", "fields"),
    [
        (STOCK | {"strict": True}, {}),
        (STOCK | {"input_schema": {"type": "object", "properties": {"a": {"$ref": "#"}}}}, {}),
        (STOCK, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
        (STOCK, {"tool_choice": {"type": "tool", "name": "get_stock"}}),
    ],
    ids=["strict", "recursive", "not parallel", "chosen"],
)
def test_67_what_does_not_go_with_calls_from_code_is_refused(sdk, stock, fields):
    assert refused(created, sdk, "hi", tools=[CE21, stock], **fields).status == 400


@pytest.mark.parametrize("options", [{}, {"thread": False}, {"stream": True}], ids=["68", "68 without a thread", "69 streamed"])
def test_68_and_69_the_tool_runner_needs_no_change(server, options):
    asked = []

    @anthropic.beta_tool
    def get_stock(place: str) -> str:
        """Stock of an item in a place."""
        asked.append(place)
        return json.dumps({"units": UNITS[place]})

    tool = get_stock.to_dict() | {"allowed_callers": ["code_execution_20260521"]}
    get_stock.to_dict = lambda: tool
    messages = [{"role": "user", "content": python(GATHER)}]
    runner = server.sdk().beta.messages.tool_runner(model="demo", max_tokens=1024, tools=[get_stock, CE21], messages=messages, **options)
    final = runner.until_done()
    assert asked == ["east", "west"] and final.stop_reason == "end_turn"
    assert results(final.to_dict(mode="json"))[0]["stdout"] == "10\n"


def test_70_a_command_beside_a_client_tool_is_deferred(sdk):
    script = '```tool_use\n{"name": "bash_code_execution", "input": {"command": "echo x"}}\n{"name": "get_weather", "input": {}}\n```'
    messages, tools = [{"role": "user", "content": script}], [CE25, WEATHER]
    first = created(sdk, messages=messages, tools=tools)
    use, client_use = first["content"][-2:]
    assert first["stop_reason"] == "tool_use" and use["type"] == "server_tool_use" and not results(first)
    result = {"type": "tool_result", "tool_use_id": client_use["id"], "content": "sunny"}
    fields = {"container": first["container"]["id"]} if first["container"] else {}
    continued = created(sdk, messages=go_on(messages, first, [result]), tools=tools, **fields)
    assert (continued["content"][0]["tool_use_id"], results(continued)[0]["stdout"]) == (use["id"], "x\n")
    more = refused(created, sdk, messages=go_on(messages, first, [result, {"type": "text", "text": "more"}]), tools=tools, **fields)
    assert more.status == 400 and "without a corresponding" in more.message
    dropped = refused(created, sdk, messages=go_on(messages, first, [result]), tools=[WEATHER], **fields)
    assert dropped.status == 400 and "tool was provided" in dropped.message


def test_71_a_paused_turn_goes_on_without_repeating_itself(server, sdk):
    script = "\n".join(bash(f"echo {number}") for number in range(32))
    messages = [{"role": "user", "content": script}]
    first = created(sdk, messages=messages)
    assert first["stop_reason"] == "pause_turn"
    second = created(sdk, messages=[*messages, {"role": "assistant", "content": first["content"]}], container=first["container"]["id"])
    assert second["stop_reason"] == "end_turn"
    assert [result["stdout"] for message in (first, second) for result in results(message)] == [f"{number}\n" for number in range(32)]
    runner = server.sdk().beta.messages.tool_runner(model="demo", max_tokens=4096, tools=[CE25], messages=messages)
    assert runner.until_done().stop_reason == "end_turn"
