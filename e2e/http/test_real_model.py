"""A real model behind a real server: llama.cpp's with a very small model (`e2e/llama` makes both). What it says does not matter; that the loop
survives it does: calls that break off in the middle of their JSON, a server that streams no numbers, answers without a word."""

import json
import re
import subprocess

import pytest
from anthropic.types import Message

from conftest import CE25, ROOT, events, request, start_server, stop_server, wait_until

pytestmark = [pytest.mark.local, pytest.mark.long]
VENV = ROOT / "target/venv-llama"
FORCED = {"tools": [CE25], "tool_choice": {"type": "tool", "name": "code_execution"}}
KINDS = {"plain": {"tools": []}, "offered": {"tools": [CE25]}, "forced": FORCED}
STOPS = {"end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn"}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    assert (VENV / "model.gguf").exists(), "run e2e/llama first"
    log = folder / "llama.log"
    # One thread: several wait for each other by turning, which is slow on a busy machine.
    command = [VENV / "bin/python", "-m", "llama_cpp.server", "--host", "127.0.0.1", "--port", "0", "--model", VENV / "model.gguf"]
    command += ["--chat_format", "chatml-function-calling", "--n_ctx", "4096", "--n_threads", "1", "--n_threads_batch", "1", "--seed", "7"]
    llama = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log.open("w"))
    try:
        address = lambda: re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text())
        wait_until(lambda: address() or llama.poll() is not None, 120, "llama.cpp to listen")
        assert address(), log.read_text()[-2000:]
        models = folder / "models.yaml"
        models.write_text(f'- {{name: real, upstream: {{type: openai, baseUrl: "{address()[1]}", model: real}}}}\n')
        server = start_server(folder, "--models-file", models)
        yield server
        stop_server(server)
    finally:
        llama.terminate()
        llama.wait(timeout=60)


def checked(message):
    """A whole and valid message, whose calls have their results."""
    Message.model_validate(message, strict=False)
    assert message["stop_reason"] in STOPS and message["usage"]["output_tokens"] >= 0
    calls = [block["id"] for block in message["content"] if block["type"] == "server_tool_use"]
    results = [block["tool_use_id"] for block in message["content"] if block["type"].endswith("_tool_result")]
    assert calls == results, message
    return message


def folded(answer):
    """The message that a stream's events add up to."""
    seen = list(events(answer))
    assert seen[0][0] == "message_start" and seen[-1][0] == "message_stop", seen
    message = seen[0][1]["message"]
    for name, data in seen:
        if name == "content_block_start":
            message["content"].append(data["content_block"])
            written = ""
        elif name == "content_block_delta":
            block, delta = message["content"][data["index"]], data["delta"]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            else:
                written += delta["partial_json"]
                block["input"] = written
        elif name == "content_block_stop":
            block = message["content"][data["index"]]
            if isinstance(block.get("input"), str):
                block["input"] = json.loads(block["input"])
        elif name == "message_delta":
            assert "container" in data["delta"]
            message |= data["delta"] | {"usage": data["usage"]}
    return message


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_loop_survives_a_real_model(real, kind, streamed):
    fields = KINDS[kind] | {"model": "real", "max_tokens": 400, "temperature": 0}
    question = {"role": "user", "content": "Write the number of files in this folder."}
    answer = real.post("/v1/messages", request(messages=[question], stream=streamed, **fields))
    assert answer.status_code == 200, answer.text
    message = checked(folded(answer) if streamed else answer.json())
    # The conversation goes on: what was answered is taken back.
    said = message["content"] or [{"type": "text", "text": "(nothing)"}]
    history = [question, {"role": "assistant", "content": said}, {"role": "user", "content": "Thank you. Say good-bye."}]
    fields = fields | {"tool_choice": {"type": "auto"}} if fields["tools"] else fields
    if message["container"]:
        fields |= {"container": message["container"]["id"]}
    again = real.post("/v1/messages", request(messages=history, **fields))
    assert again.status_code == 200, again.text
    checked(again.json())


def test_calls_that_break_off_in_the_middle_of_their_json_are_never_run(real):
    """So few tokens that no call can be whole."""
    for most in (4, 8, 16):
        fields = FORCED | {"model": "real", "max_tokens": most, "temperature": 0}
        answer = real.post("/v1/messages", request("Write a long poem into a file.", **fields))
        assert answer.status_code == 200, answer.text
        message = checked(answer.json())
        assert not any(block["type"] == "server_tool_use" and not block["input"] for block in message["content"]), message
