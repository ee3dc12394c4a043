"""Messages, by the numbers of the conformance list: what travels, plain messages, code execution, and models. With the official SDKs."""

import datetime
import json

import anthropic
import pytest
import requests
from anthropic.types import Message, ModelInfo

from conftest import CE25, SdkError, bash, request, start_server, stop_server
from test_code_calls import CE20, CE21
from test_editor import EDITOR, create, edit, edited, replace, view
from test_models import Upstream, error, says

pytestmark = pytest.mark.local
HI = "```text\nhi there\n```"


def created(sdk, *parts, **fields):
    """A message, by the call that each generation has for it."""
    return sdk.call("beta.messages.create" if sdk.old else "messages.create", **request(*parts, **fields))


def refused(call, *arguments, **fields):
    with pytest.raises((SdkError, anthropic.APIError)) as raised:
        call(*arguments, **fields)
    return raised.value


def results(message):
    return [block["content"] for block in message["content"] if block["type"].endswith("_tool_result")]


def test_1_either_header_carries_the_key(server, sdk):
    assert sdk.call("models.list")[0]["id"] == "demo"
    for header in ({"authorization": f"Bearer {server.keys[0]}"}, {"x-api-key": server.keys[0]}):
        answer = requests.get(server.url + "/v1/models", headers=header | {"anthropic-version": "2023-06-01"}, timeout=30)
        assert answer.status_code == 200, answer.text


def test_2_a_wrong_key_is_an_authentication_error(server):
    wrong = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    error = refused(wrong.models.list)
    assert isinstance(error, anthropic.AuthenticationError) and error.body["error"]["type"] == "authentication_error"


def test_3_every_answer_has_the_id_of_its_request(server):
    raw = server.sdk().messages.with_raw_response.create(**request(HI, tools=[]))
    assert raw.headers["request-id"].startswith("req_") and raw.headers["request-id"] == raw.parse()._request_id


def test_4_an_unknown_model_is_not_found(server, sdk):
    error = refused(sdk.call, "models.retrieve", "nope")
    assert (error.name, error.status, error.body["type"], error.body["error"]["type"]) == ("NotFoundError", 404, "error", "not_found_error")
    error = refused(server.sdk().models.retrieve, "nope")
    assert error.body["request_id"] == error.response.headers["request-id"]


def test_5_an_unknown_field_is_named(server):
    error = refused(server.sdk().messages.create, **request("hi"), extra_body={"bogus": 1})
    assert isinstance(error, anthropic.BadRequestError) and "bogus" in str(error)


def test_6_a_missing_field_is_named(server):
    body = request("hi")
    del body["max_tokens"]
    error = refused(server.sdk().post, "/v1/messages", body=body, cast_to=object)
    assert error.status_code == 400 and error.body["error"]["message"] == "max_tokens: Field required"


def test_7_sampling_parameters_are_taken_by_the_version_that_knew_them(server):
    ask = lambda **options: server.sdk().messages.create(**request(HI, tools=[]), extra_body={"temperature": 0.5}, **options)
    assert ask(extra_headers={"anthropic-version": "2023-06-01"}).content[0].text == "hi there"
    assert "temperature: Extra inputs are not permitted" in str(refused(ask))


def test_8_the_older_generations_files_have_a_mark_in_their_address(sdks):
    assert isinstance(sdks("python-0.97").call("beta.files.list"), list)


def test_9_a_request_over_32_megabytes_is_too_large(server):
    error = refused(server.sdk().messages.create, **request("x" * 33_000_000))
    assert (error.status_code, type(error).__name__) == (413, "ContentTooLargeError") and error.body["error"]["type"] == "request_too_large"


def test_10_a_rate_limit_says_when_to_try_again_and_the_sdk_does(tmp_path):
    upstream = Upstream()
    server = start_server(tmp_path, "--provider", "anthropic", "--provider-url", upstream.url, "--model", "real")
    try:
        # More often than the server tries by itself.
        limits = [error(429, "rate_limit_error", retry_after=0)] * 3
        upstream.script(*limits)
        answer = server.post("/v1/messages", request("hi", model="real", tools=[]))
        assert answer.status_code == 429 and float(answer.headers["retry-after"]) >= 0, answer.text
        upstream.script(*limits, says("Fine."))
        tries = []
        hooks = {"request": [lambda sent: tries.append(sent.headers.get("x-stainless-retry-count"))]}
        client = anthropic.Anthropic(
            base_url=server.url, api_key=server.keys[0], max_retries=2, http_client=anthropic.DefaultHttpxClient(event_hooks=hooks)
        )
        assert client.messages.create(**request("hi", model="real", tools=[])).content[0].text == "Fine."
        assert tries == ["0", "1"]
    finally:
        stop_server(server)


def test_12_a_plain_message_has_every_field(sdk):
    message = created(sdk, HI)
    assert message["id"].startswith("msg_") and (message["role"], message["stop_reason"]) == ("assistant", "end_turn")
    assert message["usage"]["input_tokens"] > 0 and message["container"] is None


def test_13_a_message_ends_at_a_stop_sequence_or_for_want_of_tokens(sdk):
    stopped = created(sdk, "```text\nabc X def\n```", stop_sequences=["X"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "X")
    assert created(sdk, "```text\n" + "word " * 99 + "\n```", max_tokens=3)["stop_reason"] == "max_tokens"


def test_14_content_and_system_come_in_every_legal_form(sdk):
    cached = {"cache_control": {"type": "ephemeral"}}
    block = {"type": "text", "text": HI}
    for content, fields in [(HI, {}), ([block], {}), ([block | cached], {"system": [{"type": "text", "text": "s"} | cached]}), (HI, {"system": "s"})]:
        message = created(sdk, messages=[{"role": "user", "content": content}], **fields)
        assert message["content"][0]["text"] == "hi there"
    nulls = {"system": None, "stop_sequences": None, "container": None, "tool_choice": None}
    assert created(sdk, messages=[{"role": "user", "content": HI}], **({} if sdk.old else nulls))["stop_reason"] == "end_turn"


WEATHER = {"name": "get_weather", "description": "d", "input_schema": {"type": "object", "properties": {}}}
CALL = '```tool_use\n{"name": "get_weather", "input": {}}\n```'


def test_15_a_tool_of_the_client_is_called_and_its_result_ends_the_turn(sdk):
    first = created(sdk, CALL, tools=[WEATHER])
    (use,) = (block for block in first["content"] if block["type"] == "tool_use")
    assert first["stop_reason"] == "tool_use" and (use.get("caller") or {"type": "direct"}) == {"type": "direct"}
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "sunny"}
    messages = [{"role": "user", "content": CALL}, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    second = created(sdk, messages=messages, tools=[WEATHER])
    assert second["stop_reason"] == "end_turn" and "sunny" in second["content"][0]["text"]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        pytest.param([("user", "a"), ("assistant", [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]), ("user", "b")], "were found without `tool_result` blocks", id="16"),
        pytest.param([("user", [{"type": "tool_result", "tool_use_id": "toolu_9", "content": ""}])], "unexpected `tool_use_id`", id="17"),
        pytest.param([("user", "a"), ("assistant", "b")], "prefill", id="18"),
    ],
)
def test_16_to_18_a_history_at_fault_is_quoted(sdk, messages, words):
    error = refused(created, sdk, messages=[{"role": role, "content": content} for role, content in messages])
    assert (error.name, error.status) == ("BadRequestError", 400) and words in error.message


def test_19_tokens_are_counted_with_code_and_uploads(server, sdk):
    uploaded = server.sdk().files.upload(file=("a.txt", b"x", "text/plain"))
    content = [{"type": "text", "text": bash("echo 1")}, {"type": "container_upload", "file_id": uploaded.id}]
    first = created(sdk, messages=[{"role": "user", "content": content}])
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "and?"}]
    count = sdk.call("beta.messages.count_tokens" if sdk.old else "messages.count_tokens", model="demo", messages=messages, tools=[CE25])
    assert isinstance(count["input_tokens"], int) and count["input_tokens"] > 0


def test_21_an_answer_is_valid_to_the_letter(server):
    message = server.sdk().messages.create(**request(bash("echo hi")))
    Message.model_validate(message.to_dict(mode="json"), strict=False)


def test_22_a_failed_command_is_a_result(sdk):
    (result,) = results(created(sdk, bash("exit 3")))
    assert (result["type"], result["return_code"]) == ("bash_code_execution_result", 3)


def test_23_a_beta_header_is_neither_needed_nor_harmful(server):
    for headers in ({}, {"anthropic-beta": "code-execution-2025-08-25"}):
        message = server.sdk().messages.create(**request(bash("echo hi")), extra_headers=headers)
        assert message.content[1].content.stdout == "hi\n"


@pytest.mark.parametrize("tool", [CE25 | {"name": "other"}, {"type": "code_execution_19990101", "name": "code_execution"}], ids=["name", "type"])
def test_24_a_tool_that_is_none_is_refused(sdk, tool):
    error = refused(created, sdk, "hi", tools=[tool])
    assert error.status == 400 and "tools.0" in error.message


def test_25_the_first_version_is_python_alone(sdk):
    message = created(sdk, "```python\nprint(6 * 7)\n```", tools=[{"type": "code_execution_20250522", "name": "code_execution"}])
    use, result, _ = message["content"]
    assert (use["type"], use["name"], use["input"]) == ("server_tool_use", "code_execution", {"code": "print(6 * 7)\n"})
    assert (result["type"], result["content"]["type"], result["content"]["stdout"]) == ("code_execution_tool_result", "code_execution_result", "42\n")


def test_26_to_29_edits_have_their_shapes(server):
    two, text = edited(server, create("a.txt", "one\ntwo\nthree\n"), create("a.txt", "1\n2\n3\n")), "1\n2\n3"
    assert [content["is_file_update"] for content in two] == [False, True], "26"
    whole, part, changed, missing, folder = edited(
        server, create("a.txt", text + "\n"), view("a.txt"), view("a.txt", 2, 3), replace("a.txt", "2", "two\n2b"), view("nothing"), view(".")
    )[1:]
    assert (whole["file_type"], whole["content"], whole["num_lines"], whole["start_line"], whole["total_lines"]) == ("text", text, 3, 1, 3), "27"
    assert (part["content"], part["num_lines"], part["start_line"], part["total_lines"]) == ("2\n3", 2, 2, 3), "27"
    kinds = [line[0] for line in changed["lines"]]
    assert set(kinds) <= set(" -+"), "28"
    assert changed["old_lines"] == kinds.count(" ") + kinds.count("-") and changed["new_lines"] == kinds.count(" ") + kinds.count("+"), "28"
    assert (missing["type"], missing["error_code"]) == (f"{EDITOR}_tool_result_error", "file_not_found"), "29"
    assert folder["type"] == f"{EDITOR}_tool_result_error", "29"


def test_30_every_kind_of_result_can_be_sent_back(sdk):
    script = bash("echo 1") + bash("exit 3") + edit(create("a", "x\n"), view("a"), replace("a", "x", "y"), view("none")) + "```python\n1 + 1\n```\n```python\n1 / 0\n```"
    first = created(sdk, script, tools=[CE20])
    kinds = {block["content"]["type"] for block in first["content"] if "tool_use_id" in block}
    assert len(kinds) >= 5 and len(results(first)) == 8
    messages = [{"role": "user", "content": script}, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": HI}]
    again = created(sdk, messages=messages, tools=[CE20], container=first["container"]["id"])
    assert again["content"] == [{"type": "text", "text": "hi there"}]


def test_31_a_command_over_its_time_says_so_and_the_turn_goes_on(tmp_path):
    server = start_server(tmp_path, "--command-timeout", "1")
    try:
        message = server.sdk().messages.create(**request(bash("sleep 60"), bash("echo next")))
        first, second = (block.content for block in message.content if block.type == "bash_code_execution_tool_result")
        assert (first.type, first.error_code) == ("bash_code_execution_tool_result_error", "execution_time_exceeded")
        assert second.stdout == "next\n" and message.stop_reason == "end_turn"
    finally:
        stop_server(server)


def test_32_the_counters_of_server_tools_are_whole_or_absent(sdk):
    for counters in (created(sdk, HI)["usage"].get("server_tool_use"), created(sdk, bash("true"))["usage"]["server_tool_use"]):
        assert counters is None or all(isinstance(counters[name], int) for name in ("web_search_requests", "web_fetch_requests"))


def test_33_calls_of_one_step_keep_their_order(sdk):
    calls = [json.dumps({"name": "bash_code_execution", "input": {"command": f"echo {number}"}}) for number in range(4)]
    message = created(sdk, "```tool_use\n" + "\n".join(calls) + "\n```")
    uses = [block["id"] for block in message["content"] if block["type"] == "server_tool_use"]
    answered = [block["tool_use_id"] for block in message["content"] if "tool_use_id" in block]
    assert uses == answered and [result["stdout"] for result in results(message)] == [f"{number}\n" for number in range(4)]


def test_34_a_container_has_an_id_and_a_time(server):
    container = server.sdk().messages.create(**request(bash("true"))).container
    assert container.id.startswith("container_") and container.expires_at > datetime.datetime.now(datetime.timezone.utc)


def test_76_a_model_tells_what_it_can(server):
    client = server.sdk()
    model = client.models.retrieve("demo")
    assert model.capabilities.server_tools.code_execution.supported is True
    ModelInfo.model_validate(model.to_dict(mode="json"), strict=False)
    assert [entry.id for entry in client.models.list(limit=1)] == ["demo"]
    assert list(client.models.list(after_id="demo")) == []


def test_77_a_model_without_code_execution_refuses_the_tool(tmp_path):
    models = tmp_path / "models.yaml"
    models.write_text("- {name: demo, upstream: {type: demo}, capabilities: {codeExecution: false}}\n")
    server = start_server(tmp_path, "--models-file", models)
    try:
        error = refused(server.sdk().messages.create, **request("hi", tools=[CE21]))
        assert error.status_code == 400, error
    finally:
        stop_server(server)
