"""What a stream is like for those at both ends of it: alive while a command runs, no burden when it is read slowly, and over when the client is."""

import contextlib
import json
import socket
import threading
import time

import pytest

from conftest import CE25, CE_V1, MESSAGES, bash, events, fresh_id, request, start_server, stop_server, wait_until
from test_models import Upstream, end, says, start, stream, text
from test_shutdown import processes_with

pytestmark = pytest.mark.local
# Proof of no speed, but of one second, three times over.
SOON = 3
PIECE = "x" * 16384


@pytest.fixture(scope="module")
def upstream():
    return Upstream()


@pytest.fixture(scope="module")
def streaming(upstream, tmp_path_factory):
    folder = tmp_path_factory.mktemp("streaming")
    models = folder / "models.yaml"
    models.write_text(f'- {{name: far, upstream: {{type: anthropic, baseUrl: "{upstream.url}"}}}}\n- {{name: demo, upstream: {{type: demo}}}}\n')
    server = start_server(folder, "--models-file", models)
    yield server
    stop_server(server)


@pytest.mark.parametrize("surface", MESSAGES)
def test_a_stream_is_alive_while_a_command_runs_and_its_end_tells_the_container(streaming, surface):
    tool = {"anthropic": CE25, "zylon": CE_V1}[surface]
    body = request(bash("sleep 11; echo over"), "```text\nDone.\n```", tools=[tool], stream=True)
    seen = list(events(streaming.post(MESSAGES[surface], body)))
    names = [name for name, _ in seen]
    result = next(place for place, (name, data) in enumerate(seen) if name == "content_block_start" and data["content_block"]["type"].endswith("_tool_result"))
    assert "ping" in names[:result] and all(data == {"type": "ping"} for name, data in seen if name == "ping")
    assert seen[result][1]["content_block"]["content"]["stdout"] == "over\n"
    deltas = [data["delta"] for name, data in seen if name == "message_delta"]
    assert deltas and all(delta["container"]["id"] and delta["container"]["expires_at"] for delta in deltas)
    (last,) = (data["delta"] for name, data in events(streaming.post(MESSAGES[surface], request("```text\nHi.\n```", tools=[tool], stream=True))) if name == "message_delta")
    assert last["container"] is None, "none was used"


def connection(server, body):
    """A request on a socket that takes in little by itself."""
    sent = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    slow.settimeout(60)
    slow.connect((host, int(port)))
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {server.keys[0]}\r\nanthropic-version: 2023-06-01\r\nconnection: close\r\n"
    slow.sendall(f"{head}content-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n".encode() + sent)
    return slow


def resident(server):
    status = open(f"/proc/{server.process.pid}/status").read()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def test_a_slow_reader_holds_itself_alone(streaming, upstream):
    pieces, sent = 4000, 0

    def much(handler):
        nonlocal sent
        stream(start(), then="more")(handler)
        for event in [*text(0, *[PIECE] * pieces), *end()]:
            frame = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))
            sent += 1
        handler.wfile.write(b"0\r\n\r\n")

    upstream.script(much)
    before = resident(streaming)
    with contextlib.closing(connection(streaming, request("hi", model="far", stream=True))) as slow:
        # The upstream is held up as soon as what lies between is full.
        def held():
            seen = sent
            time.sleep(1)
            return sent == seen > 0

        wait_until(held, 60, "the upstream to be held up")
        assert sent < pieces / 2, "65 MB, of which most waits at the upstream"
        assert resident(streaming) - before < 32 << 20, "what was not read is not kept"
        # Others do not notice.
        upstream.script(says("Hello."))
        began = time.monotonic()
        answer = streaming.post("/v1/messages", request("hi", model="far"))
        assert answer.json()["content"][0]["text"] == "Hello." and time.monotonic() - began < 20
        # And once it reads, all of it comes.
        name, count, said, over = b"event: content_block_delta", 0, b"", False
        while more := slow.recv(1 << 20):
            # What is kept is too short for a name.
            said = said[1 - len(name) :] + more
            count += said.count(name)
            over |= b"event: message_stop" in said
        assert count == pieces and over


@pytest.mark.parametrize("streamed", [True, False])
def test_with_the_client_its_model_call_and_its_command_are_gone(streaming, upstream, streamed):
    ended, asked = threading.Event(), threading.Event()

    def endless(handler):
        stream(start(), *text(0, "Well"), then="more")(handler)
        asked.set()
        try:
            while not ended.wait(0.05):
                handler.wfile.write(b"8\r\n: more\n\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            ended.set()
            raise

    upstream.script(endless)
    client = connection(streaming, request("hi", model="far", stream=streamed))
    assert asked.wait(30)
    said = b""
    while streamed and b"message_start" not in said:
        said += client.recv(65536)
    client.close()
    assert ended.wait(SOON), "the upstream is still read"
    number = str(int(fresh_id().removeprefix("test-"), 16) % 10**9 + 10**9)
    client = connection(streaming, request(bash(f"setsid sleep {number} & sleep {number}"), stream=streamed))
    wait_until(lambda: len(processes_with(f"sleep\0{number}")) >= 2, 30, "the command to run")
    client.close()
    wait_until(lambda: not processes_with(f"sleep\0{number}"), SOON, "the command to be ended")
