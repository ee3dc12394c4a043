"""Models behind HTTP: an upstream that the test plays itself, asked through the server by plain requests and by the official SDK."""

import collections
import http.server
import json
import os
import queue
import ssl
import subprocess
import threading
import uuid

import anthropic
import pytest
import requests
from anthropic.types import Message, ModelInfo

from conftest import CE25, CE_V1, MESSAGES, events, fresh_id, request, start_server, stop_server, wait_until

pytestmark = pytest.mark.local
PREFIX = {"anthropic": "/v1", "zylon": "/api/gpt/v1"}

Asked = collections.namedtuple("Asked", "path headers body")


class Upstream:
    """A server that records what it is asked, and gives the answers of its queue, one for each request."""

    def __init__(self):
        upstream = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                upstream.asked.append(Asked(self.path, dict(self.headers.items()), body))
                try:
                    upstream.next_answer()(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *_):
                pass

        self.asked, self.answers = [], queue.Queue()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def next_answer(self):
        try:
            return self.answers.get_nowait()
        except queue.Empty:
            return error(418, "asked_too_often")

    def script(self, *answers):
        """What it answers from now on; nothing of what was asked before is kept."""
        assert self.answers.empty(), "answers were left over"
        self.asked.clear()
        for answer in answers:
            self.answers.put(answer)


def status(code, body, **headers):
    def answer(handler):
        text = json.dumps(body).encode()
        handler.send_response(code)
        for name, value in ({"content-type": "application/json", "content-length": len(text)} | headers).items():
            handler.send_header(name.replace("_", "-"), str(value))
        handler.end_headers()
        handler.wfile.write(text)

    return answer


def error(code, kind, message="upstream's words", **headers):
    return status(code, {"type": "error", "error": {"type": kind, "message": message}}, **headers)


def stream(*sent, then=None):
    """An event stream; `then` says what follows it: None for a proper end, "cut" for a broken connection, "more" for what the caller sends."""

    def answer(handler):
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for event in sent:
            name = f"event: {event['type']}\n" if "type" in event else ""
            data = event if isinstance(event, str) else json.dumps(event)
            frame = f"{name}data: {data}\n\n".encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))
        handler.wfile.flush()
        if then is None:
            handler.wfile.write(b"0\r\n\r\n")
        elif then == "cut":
            handler.close_connection = True

    return answer


def start(**usage):
    return {"type": "message_start", "message": {"id": "msg_up", "role": "assistant", "content": [], "usage": {"input_tokens": 7, "output_tokens": 1} | usage}}


def block(index, begin, *deltas):
    yield {"type": "content_block_start", "index": index, "content_block": begin}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def text(index, *pieces):
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def call(index, name, value, id="toolu_up1"):
    written = json.dumps(value)
    pieces = [written[:5], written[5:]]
    return block(index, {"type": "tool_use", "id": id, "name": name, "input": {}}, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def end(reason="end_turn", **usage):
    yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 5} | usage}
    yield {"type": "message_stop"}


def says(*pieces):
    return stream(start(), *text(0, *pieces), *end())


@pytest.fixture(scope="module")
def upstream():
    return Upstream()


@pytest.fixture(scope="module")
def key():
    return f"sk-upstream-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def models(upstream, key, tmp_path_factory):
    """A server with models behind the upstream; the first is the default."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "key").write_text(key + "\n")
    path = folder / "models.yaml"
    path.write_text(
        f"""
- name: big-model
  displayName: Big model
  aliases: [big]
  createdAt: 2026-10-01T00:00:00Z
  upstream: {{type: anthropic, baseUrl: "{upstream.url}", model: real-big, apiKeyFile: {folder / "key"}}}
  capabilities: {{maxInputTokens: 200000, maxTokens: 5000, imageInput: true, thinking: true}}
- name: org/small
  upstream: {{type: anthropic, baseUrl: "{upstream.url}/v1", apiKeyEnv: UPSTREAM_KEY, keyHeader: bearer}}
  capabilities: {{codeExecution: false}}
- name: chat
  upstream: {{type: openai, baseUrl: "{upstream.url}/v1", model: real-chat, apiKeyEnv: UPSTREAM_KEY}}
- name: demo
  upstream: {{type: demo}}
"""
    )
    server = start_server(folder, "--models-file", path, env={"UPSTREAM_KEY": key})
    yield server
    stop_server(server)
    assert key not in server.log.read_text(), "the key is in the log"
    assert upstream.url not in server.log.read_text(), "the address is in the log"


def ask(server, surface="anthropic", **fields):
    fields = {"model": "big-model", "max_tokens": 1000} | fields
    return server.post(MESSAGES[surface], request("hi", **fields))


def test_a_tool_call_runs_and_the_upstream_gets_its_result(models, upstream):
    loop = [
        stream(start(), *text(0, "I ", "look."), *call(1, "bash_code_execution", {"command": "echo $((6 * 7))"}), *end("tool_use")),
        says("It is ", "42."),
    ]
    for streamed in (False, True):
        upstream.script(*loop)
        if streamed:
            with models.sdk().messages.stream(model="big-model", max_tokens=1000, tools=[CE25], messages=[{"role": "user", "content": "6 * 7?"}]) as it:
                message = it.get_final_message()
        else:
            message = models.sdk().messages.create(model="big-model", max_tokens=1000, tools=[CE25], messages=[{"role": "user", "content": "6 * 7?"}])
        Message.model_validate(message.to_dict(mode="json"), strict=False)
        assert [block.type for block in message.content] == ["text", "server_tool_use", "bash_code_execution_tool_result", "text"]
        assert message.content[1].input == {"command": "echo $((6 * 7))"} and message.content[1].id.startswith("srvtoolu_")
        assert message.content[2].content.stdout == "42\n" and message.content[3].text == "It is 42."
        assert (message.usage.input_tokens, message.usage.output_tokens) == (14, 10) and message.stop_reason == "end_turn"
        assert message.container.id.startswith("container_") and message.model == "big-model"
        first, second = (asked.body for asked in upstream.asked)
        assert first["model"] == "real-big" and first["stream"] is True
        assert [tool["name"] for tool in first["tools"]] == ["bash_code_execution", "text_editor_code_execution"]
        assert second["messages"][:1] == first["messages"]
        used, result = second["messages"][1]["content"][1], second["messages"][2]["content"][0]
        assert used["type"] == "tool_use" and used["id"] == result["tool_use_id"] == message.content[1].id
        assert "42" in json.dumps(result["content"])


def test_the_key_and_the_headers_go_to_the_upstream(models, upstream, key):
    upstream.script(says("a"), says("b"))
    betas = {"anthropic-beta": "interleaved-thinking-2025-05-14,code-execution-2025-08-25"}
    assert models.post("/v1/messages", request("hi", model="big", max_tokens=9), headers=betas).status_code == 200
    assert ask(models, model="org/small", tools=[]).status_code == 200
    big, small = ({name.lower(): value for name, value in asked.headers.items()} for asked in upstream.asked)
    assert big["x-api-key"] == key and big["anthropic-version"] == "2023-06-01"
    assert big["anthropic-beta"] == "interleaved-thinking-2025-05-14"
    assert small["authorization"] == f"Bearer {key}" and "x-api-key" not in small
    assert [asked.path for asked in upstream.asked] == ["/v1/messages"] * 2
    for headers in (big, small):
        assert not any(own in json.dumps(headers) for own in models.keys), "the client's key stays here"


def test_what_the_upstream_alone_understands_goes_through_as_it_came(models, upstream):
    thinking = block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "Hm"}, {"type": "signature_delta", "signature": "c2ln"})
    redacted, fresh = {"type": "redacted_thinking", "data": "eA=="}, {"type": "new_block", "z": 1, "content": ""}
    forged = {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_x", "content": {}}
    sent = [
        start(), *thinking, *block(1, redacted), {"type": "ping"}, *block(2, fresh, {"type": "new_delta", "content": "a"}, {"type": "new_delta", "content": "b"}),
        *block(3, forged), *text(4), *text(5, "Done."), *end(),
    ]
    upstream.script(stream(*sent), stream(*sent), says("again"))
    message = ask(models).json()
    expected = [{"type": "thinking", "thinking": "Hm", "signature": "c2ln"}, redacted, fresh | {"content": "ab"}, {"type": "text", "text": "Done."}]
    assert message["content"] == expected
    streamed = [data for name, data in events(ask(models, stream=True)) if name == "content_block_delta"]
    assert {"type": "new_delta", "content": "a"} in [data["delta"] for data in streamed]
    known = expected[:2] + expected[3:]
    again = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": known}, {"role": "user", "content": "and?"}]
    assert ask(models, messages=again).status_code == 200
    assert upstream.asked[-1].body["messages"][1]["content"] == known


@pytest.mark.parametrize("surface", MESSAGES)
@pytest.mark.parametrize(
    ("answer", "tries", "code", "kind", "words"),
    [
        (error(400, "invalid_request_error", "max_tokens: too many"), 1, 400, "invalid_request_error", "max_tokens: too many"),
        (error(401, "authentication_error", "invalid x-api-key"), 1, 500, "api_error", "operator"),
        (error(403, "permission_error"), 1, 500, "api_error", "operator"),
        (error(404, "not_found_error", "model: real-big"), 1, 500, "api_error", "operator"),
        (error(429, "rate_limit_error", retry_after=77), 1, 429, "rate_limit_error", "rate limit"),
        (error(529, "overloaded_error", retry_after=0), 3, 529, "overloaded_error", "overloaded"),
        (error(500, "api_error"), 3, 500, "api_error", "failed"),
        (stream({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}), 3, 529, "overloaded_error", "overloaded"),
    ],
)
def test_an_error_before_the_first_event_is_a_status(models, upstream, surface, answer, tries, code, kind, words):
    upstream.script(*[answer] * tries)
    failed = ask(models, surface)
    assert (failed.status_code, failed.json()["error"]["type"]) == (code, kind), failed.text
    assert words in failed.json()["error"]["message"] and len(upstream.asked) == tries
    if code == 429:
        assert failed.headers["retry-after"] == "77"


def test_a_failure_that_passes_is_not_seen(models, upstream):
    upstream.script(error(529, "overloaded_error"), stream(start(), then="cut"), says("Hello."))
    assert ask(models).json()["content"] == [{"type": "text", "text": "Hello."}] and len(upstream.asked) == 3


@pytest.mark.parametrize(
    "broken",
    [
        stream(start(), *text(0, "Well"), then="cut"),
        stream(start(), *text(0, "Well")),
        stream(start(), *text(0, "Well"), {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}),
    ],
)
def test_an_error_after_the_first_word_is_an_event(models, upstream, broken):
    upstream.script(broken)
    answer = ask(models, stream=True)
    names = [name for name, _ in events(answer)]
    assert answer.status_code == 200 and names[0] == "message_start" and names[-1] == "error" and "message_stop" not in names
    assert len(upstream.asked) == 1, "what was said is not said twice"
    upstream.script(broken)
    assert ask(models).status_code in (500, 529)
    upstream.script(broken)
    zylon = ask(models, "zylon").json()
    assert zylon["interaction_stop_reason"] == "error" and zylon["errors"] and zylon["content"] == [{"type": "text", "text": "Well"}]


def test_the_upstreams_secrets_are_in_no_answer(models, upstream, key):
    leaky = f"key {key} for {upstream.url}/v1/messages is bad"
    for surface in MESSAGES:
        for code, kind in ((400, "invalid_request_error"), (401, "authentication_error"), (413, "request_too_large")):
            upstream.script(error(code, kind, leaky))
            told = ask(models, surface).text
            assert not any(secret in told for secret in (key, upstream.url, upstream.url[7:])), told
        upstream.script(stream(start(), *text(0, "Well"), {"type": "error", "error": {"type": "invalid_request_error", "message": leaky}}))
        told = ask(models, surface, stream=True).text
        assert "event: error" in told and key not in told and upstream.url[7:] not in told


def chunk(finish=None, **delta):
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def chat_call(index, arguments, **first):
    return chunk(tool_calls=[{"index": index, "function": {"arguments": arguments} | ({"name": first["name"]} if first else {})} | ({"id": first["id"], "type": "function"} if first else {})])


def chat(*chunks):
    return stream(*chunks, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}, "[DONE]")


def test_a_chat_runs_tools_too(models, upstream):
    weather = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    loop = [
        chat(
            chunk(role="assistant", reasoning_content="Let me "), chunk(reasoning_content="see."), chunk(content="I look."),
            chat_call(0, "", id="call_a", name="bash_code_execution"), chat_call(1, '{"command": "ech', id="call_b", name="bash_code_execution"),
            chat_call(0, '{"command": "echo $((6 * 7))"}'), chat_call(1, 'o two"}'), chunk("tool_calls"),
        ),
        chat(chunk(content="It is "), chunk(content="42."), chunk("stop")),
    ]
    for streamed in (False, True):
        upstream.script(*loop)
        fields = {"model": "chat", "max_tokens": 1000, "tools": [CE25, weather], "system": "Be brief.", "messages": [{"role": "user", "content": "6 * 7?"}]}
        if streamed:
            with models.sdk().messages.stream(**fields) as it:
                message = it.get_final_message()
        else:
            message = models.sdk().messages.create(**fields)
        results = ["bash_code_execution_tool_result"] * 2
        assert [block.type for block in message.content] == ["thinking", "text", "server_tool_use", "server_tool_use", *results, "text"]
        assert message.content[0].thinking == "Let me see." and message.content[6].text == "It is 42."
        assert [block.content.stdout for block in message.content if block.type in results] == ["42\n", "two\n"]
        assert (message.usage.input_tokens, message.usage.output_tokens, message.stop_reason) == (14, 10, "end_turn")
        first, second = (asked.body for asked in upstream.asked)
        assert upstream.asked[0].path == "/v1/chat/completions" and first["model"] == "real-chat" and first["max_tokens"] == 1000
        assert first["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 * 7?"}]
        assert [tool["function"]["name"] for tool in first["tools"]] == ["bash_code_execution", "text_editor_code_execution", "get_weather"]
        said, *answers = second["messages"][2:]
        assert said["content"] == "I look." and [call["id"] for call in said["tool_calls"]] == [answer["tool_call_id"] for answer in answers]
        assert "42" in answers[0]["content"] and "two" in answers[1]["content"] and {answer["role"] for answer in answers} == {"tool"}


def test_a_chats_broken_call_is_corrected_unseen_and_its_client_tool_handed_over(models, upstream):
    upstream.script(
        chat(chat_call(0, '{"command": ', id="call_a", name="bash_code_execution"), chunk("tool_calls")),
        chat(chat_call(0, '{"city": "Rome"}', id="call_b", name="get_weather"), chunk("tool_calls")),
        chat(chunk(content="Sunny."), chunk("stop")),
    )
    weather = {"name": "get_weather", "input_schema": {"type": "object"}}
    answer = ask(models, model="chat", tools=[CE25, weather]).json()
    (call,) = answer["content"]
    assert (answer["stop_reason"], call["type"], call["id"], call["input"]) == ("tool_use", "tool_use", "call_b", {"city": "Rome"})
    assert "not valid JSON" in upstream.asked[1].body["messages"][-1]["content"]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_b", "content": "sun"}]}
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer["content"]}, result]
    assert ask(models, model="chat", tools=[CE25, weather], messages=history).json()["content"][0]["text"] == "Sunny."
    assert upstream.asked[2].body["messages"][-1] == {"role": "tool", "tool_call_id": "call_b", "content": "sun"}


def test_what_a_chat_cannot_say_is_refused_and_its_errors_are_told(models, upstream, key):
    upstream.script()
    typed = {"type": "bash_20250124", "name": "bash"}
    refused = ask(models, model="chat", tools=[typed])
    assert refused.status_code == 400 and refused.json()["error"]["message"].startswith("tools.0.type: ")
    assert models.post("/v1/messages/count_tokens", {"model": "chat", "messages": [{"role": "user", "content": "hi " * 400}]}).json()["input_tokens"] > 250
    assert not upstream.asked
    upstream.script(status(400, {"error": {"message": f"too long; key {key}", "type": "invalid_request_error", "code": "context_length_exceeded"}}))
    told = ask(models, model="chat")
    assert told.status_code == 400 and "too long" in told.text and key not in told.text
    upstream.script(stream(chunk(content="Well")), stream(chunk(content="Well"), {"error": {"message": "x", "code": 503}}))
    assert [ask(models, model="chat").json()["error"]["type"] for _ in range(2)] == ["api_error", "overloaded_error"]


@pytest.mark.parametrize("surface", PREFIX)
def test_models_are_listed_and_shown(models, surface):
    path = PREFIX[surface] + "/models"
    page = models.get(path).json()
    assert [model["id"] for model in page["data"]] == ["big-model", "org/small", "chat", "demo"]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "big-model", "demo")
    one = models.get(path, params={"limit": 1, "after_id": "big-model"}).json()
    assert ([model["id"] for model in one["data"]], one["has_more"]) == (["org/small"], True)
    for name in ("big-model", "big", "default"):
        assert models.get(f"{path}/{name}").json() == page["data"][0]
    assert models.get(f"{path}/org/small").json() == models.get(f"{path}/org%2Fsmall").json() == page["data"][1]
    missing = models.get(f"{path}/nope")
    assert missing.status_code == 404 and missing.json()["error"]["type"] == "not_found_error"
    for query in ({"limit": 0}, {"limit": "x"}, {"after_id": "nope"}):
        wrong = models.get(path, params=query)
        assert wrong.status_code == 400 and wrong.json()["error"]["message"].startswith(tuple(query))
    assert requests.get(models.url + path).status_code == 401


def test_the_sdk_walks_the_models(models):
    client = models.sdk()
    assert [model.id for model in client.models.list(limit=1)] == ["big-model", "org/small", "chat", "demo"]
    model = client.models.retrieve("big")
    ModelInfo.model_validate(model.to_dict(mode="json"), strict=False)
    assert model.capabilities.server_tools.code_execution.supported and model.capabilities.thinking.types.enabled.supported
    assert (model.display_name, model.max_tokens, model.max_input_tokens, model.lifecycle) == ("Big model", 5000, 200000, "active")
    assert not client.models.retrieve("org/small").capabilities.server_tools.code_execution.supported
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nope")


def test_a_request_beyond_its_model_is_refused(models, upstream):
    upstream.script()
    for surface in MESSAGES:
        refused = ask(models, surface, model="org/small", tools=[CE_V1])
        assert refused.status_code == 400 and "org/small" in refused.json()["error"]["message"]
    assert ask(models, max_tokens=5001).json()["error"]["message"].startswith("max_tokens: 5001 > 5000")
    upstream.script(says("fine"))
    assert ask(models, "zylon", max_tokens=5001).status_code == 200 and upstream.asked[0].body["max_tokens"] == 5000
    assert models.ask("```text\nhello\n```")["content"][0]["text"] == "hello", "the demo model is one of them"


@pytest.mark.parametrize("surface", PREFIX)
def test_tokens_are_counted(models, upstream, surface):
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "srvtoolu_01A", "name": "bash_code_execution", "input": {"command": "ls"}},
            {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_01A", "content": {"type": "bash_code_execution_result", "stdout": "a", "stderr": "", "return_code": 0, "content": []}},
        ]},
        {"role": "user", "content": "and?"},
    ]
    uploaded = models.post("/v1/files", files={"file": ("a.csv", b"x")}).json()["id"]
    history[0]["content"] = [{"type": "text", "text": "go"}, {"type": "container_upload", "file_id": uploaded}]
    count = lambda **fields: models.post(PREFIX[surface] + "/messages/count_tokens", {"model": "big", "messages": history, "tools": [CE25]} | fields)
    upstream.script(status(200, {"input_tokens": 2095}))
    assert count().json() == {"input_tokens": 2095}
    (asked,) = upstream.asked
    assert asked.path == "/v1/messages/count_tokens" and asked.body["model"] == "real-big"
    assert {"max_tokens", "stream"}.isdisjoint(asked.body) and len(asked.body["tools"]) == 2 and len(asked.body["messages"]) == 3
    upstream.script(error(404, "not_found_error"))
    assert count().json()["input_tokens"] > 10, "an estimate"
    assert count(model="demo").json()["input_tokens"] > 10
    upstream.script(error(401, "authentication_error"))
    assert count().status_code == 500
    assert count(model="nope").status_code == 404
    assert count(messages=[]).status_code == 400


def test_the_sdk_counts(models, upstream):
    upstream.script(status(200, {"input_tokens": 12}))
    assert models.sdk().messages.count_tokens(model="big", messages=[{"role": "user", "content": "hi"}]).input_tokens == 12


def test_a_request_is_validated_without_being_run(models, upstream):
    upstream.script()
    validate = lambda **fields: models.post("/api/gpt/v1/messages/validate", request("hi", tools=[CE_V1]) | fields)
    answer = validate()
    assert (answer.status_code, answer.json()) == (200, {"valid": True, "errors": None})
    orphan = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_9", "content": ""}]}]
    for fields, words in (({"model": "nope"}, "nope"), ({"messages": orphan}, "tool_use_id"), ({"model": "org/small"}, "code execution")):
        answer = validate(**fields)
        assert answer.status_code == 400 and answer.json()["valid"] is False and words in answer.json()["errors"][0]
    answer = validate(messages=[])
    assert answer.status_code == 400 and answer.json()["type"] == "error"


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text("- {name: one, upstream: {type: demo}}\n")
    server = start_server(tmp_path, "--models-file", path)
    try:
        names = lambda: [model["id"] for model in server.get("/v1/models").json()["data"]]
        assert names() == ["one"]
        fresh = tmp_path / "fresh"
        fresh.write_text("- {name: two, upstream: {type: demo}}\n")
        os.replace(fresh, path)
        wait_until(lambda: names() == ["two"], 30, "the file to be read again")
        path.write_text("- {name: three}\n")
        wait_until(lambda: "not read again" in server.log.read_text(), 30, "the file to be found broken")
        assert names() == ["two"]
    finally:
        stop_server(server)


def test_one_model_needs_no_file(upstream, key, tmp_path):
    (tmp_path / "key").write_text(key)
    server = start_server(tmp_path, "--provider", "anthropic", "--provider-url", upstream.url, "--provider-key-file", tmp_path / "key", "--model", "real")
    try:
        upstream.script(says("Hello."))
        assert ask(server, model="default").json()["content"] == [{"type": "text", "text": "Hello."}]
        assert upstream.asked[0].body["model"] == "real" and upstream.asked[0].headers["x-api-key"] == key
    finally:
        stop_server(server)


def test_an_upstream_is_asked_over_tls_and_has_to_prove_who_it_is(tmp_path):
    (tmp_path / "openssl.conf").write_text(
        "[req]\ndistinguished_name = name\nx509_extensions = extensions\nprompt = no\n[name]\nCN = upstream\n"
        "[extensions]\nbasicConstraints = critical, CA:FALSE\nsubjectAltName = IP:127.0.0.1\n"
    )
    made = ["openssl", "req", "-x509", "-config", "openssl.conf", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    upstream, tls = Upstream(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    upstream.server.socket = tls.wrap_socket(upstream.server.socket, server_side=True)
    flags = ["--provider", "anthropic", "--provider-url", upstream.url.replace("http:", "https:"), "--model", "real"]
    for trusted in (True, False):
        server = start_server(tmp_path / str(trusted), *flags, env={"SSL_CERT_FILE": str(tmp_path / "cert.pem")} if trusted else {})
        try:
            upstream.script(*[says("Hello.")] * trusted)
            answer = ask(server, model="real")
            assert answer.status_code == (200 if trusted else 500), answer.text
            if not trusted:
                assert "cannot be reached" in answer.text and "certificate" in server.log.read_text(), "the log says why"
                assert not upstream.asked, "nothing goes to one that is not known"
        finally:
            stop_server(server)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--models-file", "nowhere.yaml"], ["nowhere.yaml"]),
        (["--models-file", "models.yaml"], ["models.yaml", "contextLength"]),
        (["--models-file", "models.yaml", "--model", "x"], ["--model", "--provider"]),
        (["--provider", "anthropic", "--provider-url", "http://x"], ["--model"]),
        (["--provider", "anthropic", "--model", "x"], ["baseUrl"]),
    ],
)
def test_settings_that_do_not_fit_are_one_clear_sentence(tmp_path, flags, words):
    (tmp_path / "models.yaml").write_text("- {name: a, contextLength: 9, upstream: {type: demo}}")
    with pytest.raises(AssertionError) as caught:
        start_server(tmp_path / fresh_id(), *[tmp_path / flag if flag.endswith(".yaml") else flag for flag in flags])
    said = str(caught.value)
    assert all(word in said for word in words) and "error:" in said, said
