"""The stop reasons page, in its order: every end of an answer and every error, plain and streamed, and what the page says to do about each."""

import concurrent.futures
import contextlib
import json

import anthropic
import pytest
from conftest import CE25, CE_V1, MESSAGES, bash, events, fresh_id, request, start_server, stop_server, wait_until
from test_errors import check
from test_shutdown import processes_with

WEATHER = {"name": "get_weather", "description": "The weather.", "input_schema": {"type": "object", "properties": {}}}
CALL = '```tool_use\n{"name": "get_weather", "input": {}}\n```'
REASONS = ["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal"]
TOOL = {"anthropic": CE25, "zylon": CE_V1}
TOO_MANY = [bash(f"echo {number}") for number in range(32)]
surfaces = pytest.mark.parametrize("surface", MESSAGES)
ways = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


def turn(*lines):
    return "```turn\n" + "\n".join(map(json.dumps, lines)) + "\n```\n"


def say(text):
    return f"```text\n{text}\n```\n"


def user(*content):
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def send(server, surface, *parts, **fields):
    own = {"container": fresh_id()} if surface == "zylon" else {}
    return server.post(MESSAGES[surface], request(*parts, **({"tools": [TOOL[surface]]} | own | fields)))


def sdk_of(server, surface, **options):
    base_url = server.url + MESSAGES[surface].removesuffix("/v1/messages")
    return anthropic.Anthropic(**({"base_url": base_url, "api_key": server.keys[0], "max_retries": 0} | options))


def ending(server, surface, *parts, stream=False, **fields):
    """What an answer says of its end: the fields of the message, or of the one `message_delta` of a stream."""
    answer = send(server, surface, *parts, stream=stream, **fields)
    assert answer.status_code == 200, answer.text
    if not stream:
        return answer.json()
    seen = [(name, data) for name, data in events(answer) if name != "ping"]
    assert seen[0][1]["message"]["stop_reason"] is None and seen[-1][0] == "message_stop"
    assert surface == "anthropic" or seen[0][1]["message"]["interaction_stop_reason"] is None
    (delta,) = (data["delta"] for name, data in seen if name == "message_delta")
    return delta


def test_an_answer_has_the_fields_of_the_pages_example(server):
    answer = server.ask(say("In short."), surface="zylon", tools=[])
    assert answer.pop("id").startswith("msg_")
    shown = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "In short."}]}
    assert answer == answer | shown | {"stop_reason": "end_turn", "interaction_stop_reason": "stop"}


ENDS = {
    "end_turn": ([say("Done.")], {}),
    "max_tokens": ([say("word " * 99)], {"max_tokens": 3}),
    "stop_sequence": ([say("One END two")], {"stop_sequences": ["NEVER", "END"]}),
    "tool_use": ([CALL], {"tools": [WEATHER]}),
    "pause_turn": (TOO_MANY, {}),
    "refusal": ([turn({"text": "No."}, {"stop": "refusal"})], {}),
}


@ways
@surfaces
@pytest.mark.parametrize("reason", REASONS)
def test_every_value_of_the_table_ends_an_answer(server, reason, surface, stream):
    parts, fields = ENDS[reason]
    end = ending(server, surface, *parts, stream=stream, **fields)
    assert (end["stop_reason"], end["stop_sequence"]) == (reason, "END" if reason == "stop_sequence" else None)
    assert (end["stop_details"] is None) == (reason != "refusal")
    if surface == "zylon":
        assert end["interaction_stop_reason"] == ("refusal" if reason == "refusal" else "stop") and "errors" not in end
    else:
        assert {"interaction_stop_reason", "errors"}.isdisjoint(end)


@surfaces
@pytest.mark.parametrize("reason", REASONS)
def test_every_value_of_the_table_is_what_the_sdk_has_of_a_stream(server, reason, surface):
    parts, fields = ENDS[reason]
    own = {"tools": [TOOL[surface]]} | ({"container": fresh_id()} if surface == "zylon" else {})
    with sdk_of(server, surface).messages.stream(**request(*parts, **(own | fields))) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == (reason, "END" if reason == "stop_sequence" else None)
    assert getattr(final.stop_details, "type", None) == ("refusal" if reason == "refusal" else None)


@ways
@pytest.mark.parametrize(("surface", "reason"), [("anthropic", "model_context_window_exceeded"), ("zylon", "max_tokens")])
def test_a_full_context_window_has_a_value_of_its_own_on_the_surface_that_knows_it(server, surface, reason, stream):
    end = ending(server, surface, turn({"text": "So far."}, {"stop": "model_context_window_exceeded"}), stream=stream)
    assert (end["stop_reason"], end["stop_details"]) == (reason, None)


@surfaces
def test_an_end_turn_that_came_empty_for_the_text_beside_a_result_is_mended_as_the_page_says(server, surface):
    ask = lambda *messages: server.ask(messages=list(messages), surface=surface, tools=[WEATHER])
    first = ask(user(CALL))
    history = [user(CALL), {"role": "assistant", "content": first["content"]}]
    result = {"type": "tool_result", "tool_use_id": first["content"][0]["id"], "content": "sunny"}
    empty = ask(*history, user(result, {"type": "text", "text": turn()}))
    assert (empty["content"], empty["stop_reason"]) == ([], "end_turn")
    alone = ask(*history, user(result))
    assert "sunny" in alone["content"][0]["text"] and alone["stop_reason"] == "end_turn"
    going_on = ask(*history, user(result), {"role": "assistant", "content": empty["content"]}, user(say("Continued.")))
    assert (going_on["content"], going_on["stop_reason"]) == ([{"type": "text", "text": "Continued."}], "end_turn")


@surfaces
def test_an_answer_cut_at_max_tokens_is_had_with_more_of_them_or_by_asking_on(server, surface):
    words = "word " * 20
    cut = server.ask(say(words), surface=surface, tools=[], max_tokens=3)
    assert cut["stop_reason"] == "max_tokens" and cut["content"] == [{"type": "text", "text": words[:12]}] and cut["usage"]["output_tokens"] == 3
    whole = server.ask(say(words), surface=surface, tools=[], max_tokens=300)
    assert (whole["stop_reason"], whole["content"][0]["text"]) == ("end_turn", words.strip())
    messages = [user(say(words)), {"role": "assistant", "content": cut["content"]}, user("Go on.\n" + say("The rest."))]
    rest = server.ask(messages=messages, surface=surface, tools=[])
    assert (rest["stop_reason"], rest["content"][0]["text"]) == ("end_turn", "The rest.")


@surfaces
def test_what_stands_before_a_stop_sequence_is_whole(server, surface):
    stopped = server.ask(say("One END two"), surface=surface, tools=[], stop_sequences=["END"])
    assert (stopped["stop_reason"], stopped["content"]) == ("stop_sequence", [{"type": "text", "text": "One "}])
    changed = server.ask(say("One END two"), surface=surface, tools=[], stop_sequences=["FIN"])
    assert (changed["stop_reason"], changed["stop_sequence"], changed["content"][0]["text"]) == ("end_turn", None, "One END two")


@surfaces
def test_a_tool_of_ones_own_stops_with_tool_use_and_a_built_in_one_never(server, surface):
    script, tools = bash("echo first") + CALL + "\n" + bash("echo last"), [TOOL[surface], WEATHER]
    own = {"container": fresh_id()} if surface == "zylon" else {}
    first = server.ask(script, surface=surface, tools=tools, **own)
    assert [block["type"] for block in first["content"]] == ["server_tool_use", "bash_code_execution_tool_result", "tool_use"]
    assert first["stop_reason"] == "tool_use" and first["content"][1]["content"]["stdout"] == "first\n"
    result = {"type": "tool_result", "tool_use_id": first["content"][2]["id"], "content": "sunny"}
    messages = [user(script), {"role": "assistant", "content": first["content"]}, user(result)]
    second = server.ask(messages=messages, surface=surface, tools=tools, container=first["container"]["id"])
    assert [block["type"] for block in second["content"]] == ["server_tool_use", "bash_code_execution_tool_result", "text"]
    assert second["stop_reason"] == "end_turn" and second["content"][1]["content"]["stdout"] == "last\n"


@surfaces
def test_pause_turn_is_continued_when_the_client_is_ready(server, surface):
    own = {"container": fresh_id()} if surface == "zylon" else {}
    messages = [user("\n".join(TOO_MANY))]
    first = server.ask(messages=messages, surface=surface, tools=[TOOL[surface]], **own)
    assert first["stop_reason"] == "pause_turn"
    messages.append({"role": "assistant", "content": first["content"]})
    second = server.ask(messages=messages, surface=surface, tools=[TOOL[surface]], container=first["container"]["id"])
    assert second["stop_reason"] == "end_turn" and second["container"]["id"] == first["container"]["id"]
    printed = [block["content"]["stdout"] for answer in (first, second) for block in answer["content"] if "tool_use_id" in block]
    assert printed == [f"{number}\n" for number in range(32)]


@ways
@surfaces
def test_a_refusal_tells_its_details(server, surface, stream):
    details = ending(server, surface, turn({"text": "No."}, {"stop": "refusal"}), stream=stream)["stop_details"]
    assert details["type"] == "refusal" and details["explanation"] and set(details) <= {"type", "category", "explanation"}


@surfaces
def test_a_refusal_is_shown_and_the_request_can_be_put_in_other_words(server, surface):
    script = turn({"text": "No."}, {"stop": "refusal"})
    refused = server.ask(script, surface=surface, tools=[])
    assert refused["content"] == [{"type": "text", "text": "No."}]
    messages = [user(script), {"role": "assistant", "content": refused["content"]}, user("In other words:\n" + say("Yes."))]
    again = server.ask(messages=messages, surface=surface, tools=[])
    assert (again["content"][0]["text"], again["stop_reason"], again["stop_details"]) == ("Yes.", "end_turn", None)


@pytest.mark.local
@ways
def test_an_interaction_that_the_server_stopped_is_cancelled(tmp_path, stream):
    server = start_server(tmp_path)
    number = str(int(fresh_id().removeprefix("test-"), 16) % 10**9 + 10**9)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ending, server, "zylon", bash(f"sleep {number}"), stream=stream)
        try:
            wait_until(lambda: processes_with(f"sleep\0{number}"), 30, "the command to run")
        finally:
            stop_server(server)
        end = asked.result()
    assert (end["stop_reason"], end["interaction_stop_reason"]) == (None, "cancelled") and "errors" not in end


ERRORS = {"invalid_request_error": 400, "permission_error": 403, "request_too_large": 413, "api_error": 500, "overloaded_error": 529}
errors = pytest.mark.parametrize("kind", ERRORS)


@ways
@surfaces
@errors
def test_a_failure_before_generation_is_an_http_error(server, kind, surface, stream):
    answer = send(server, surface, turn({"error": {"status": ERRORS[kind], "after": 0}}), stream=stream)
    assert "stop_reason" not in check(answer, ERRORS[kind], kind, surface)
    assert answer.headers["content-type"] == "application/json"


@surfaces
@errors
def test_a_failure_during_streaming_is_an_error_event(server, kind, surface):
    answer = send(server, surface, turn({"text": "So far."}, {"error": {"status": ERRORS[kind]}}), stream=True)
    assert answer.status_code == 200
    seen = [(name, data) for name, data in events(answer) if name != "ping"]
    names = [name for name, _ in seen]
    assert names[:4] == ["message_start", "content_block_start", "content_block_delta", "content_block_stop"]
    assert names[4:] == {"anthropic": ["error"], "zylon": ["message_delta", "error", "message_stop"]}[surface]
    error = dict(seen)["error"]
    assert (error["type"], error["error"]["type"], error["request_id"]) == ("error", kind, answer.headers["request-id"])
    if surface == "zylon":
        delta = dict(seen)["message_delta"]["delta"]
        assert (delta["stop_reason"], delta["interaction_stop_reason"], delta["errors"]) == (None, "error", [error["error"]])
        begun = dict(seen)["message_start"]["message"]["usage"]["input_tokens"]
        assert dict(seen)["message_delta"]["usage"]["input_tokens"] == begun > 0
        assert error["detail"] == error["error"]["message"] == error["error"]["detail"]["explanation"]


@errors
def test_a_completed_message_may_hold_errors(server, kind):
    container, script = fresh_id(), [bash("echo kept"), turn({"text": "So far."}, {"error": {"status": ERRORS[kind]}})]
    answer = server.ask(*script, surface="zylon", tools=[CE_V1], container=container)
    assert [block["type"] for block in answer["content"]] == ["server_tool_use", "bash_code_execution_tool_result", "text"]
    assert answer["content"][1]["content"]["stdout"] == "kept\n" and answer["content"][2]["text"] == "So far."
    assert (answer["stop_reason"], answer["interaction_stop_reason"]) == (None, "error")
    assert answer["container"]["id"] == container
    (error,) = answer["errors"]
    assert error["type"] == kind and error["detail"] == {"code": kind, "explanation": error["message"]}


@surfaces
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "get_tides"}}, "get_tides"),
        ({"tools": [{"type": "get_weather_v1x", "name": "get_weather"}]}, "tools.0"),
        ({"messages": [user({"type": "tool_result", "tool_use_id": "toolu_nowhere", "content": "sunny"})]}, "toolu_nowhere"),
        ({"container": "no id"}, "container: "),
    ],
    ids=["choice", "tool", "result", "container"],
)
def test_wrong_tools_and_ids_are_invalid_requests(server, surface, fields, words):
    check(send(server, surface, "hi", **fields), 400, "invalid_request_error", surface, words)


@surfaces
@pytest.mark.parametrize(
    ("last", "raised"),
    [
        ({"stop": "refusal"}, None),
        ({"error": {"status": 400, "after": 0}}, anthropic.BadRequestError),
        ({"error": {"status": 403, "after": 0}}, anthropic.PermissionDeniedError),
        ({"error": {"status": 413, "after": 0}}, anthropic.ContentTooLargeError),
    ],
    ids=["refusal", "invalid", "forbidden", "large"],
)
def test_what_trying_again_does_not_help_is_asked_once(server, surface, last, raised):
    tries = []
    hooks = anthropic.DefaultHttpxClient(event_hooks={"request": [tries.append]})
    client = sdk_of(server, surface, max_retries=2, http_client=hooks)
    with pytest.raises(raised) if raised else contextlib.nullcontext():
        assert client.messages.create(**request(turn(last), tools=[])).stop_reason == "refusal"
    assert len(tries) == 1
