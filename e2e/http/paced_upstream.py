"""A model upstream of the Messages API at a model's pace, for many streams at once; a process of its own, which prints its address.

A message with the word `run` in its last text is answered with a command, and the command's result with words; any other with words alone.
"""

import asyncio
import json

WORDS = ["So ", "many ", "words, ", "and ", "none ", "is ", "worth ", "a ", "second ", "look. "]
PACE = 0.05
# Seconds after which a connection without a request is closed.
IDLE = 5


def frame(kind, **fields):
    data = f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def block(begin, deltas):
    yield frame("content_block_start", index=0, content_block=begin)
    for delta in deltas:
        yield frame("content_block_delta", index=0, delta=delta)
    yield frame("content_block_stop", index=0)


def answer(body):
    usage = {"input_tokens": 10, "output_tokens": 1}
    yield frame("message_start", message={"id": "msg_up", "role": "assistant", "content": [], "usage": usage})
    last = body["messages"][-1]["content"][-1]
    runs = last["type"] == "text" and "run" in last["text"]
    if runs:
        written = json.dumps({"command": "echo $((6 * 7)); sleep 0.2"})
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in (written[:9], written[9:])]
        yield from block({"type": "tool_use", "id": "toolu_1", "name": "bash_code_execution", "input": {}}, pieces)
    else:
        yield from block({"type": "text", "text": ""}, [{"type": "text_delta", "text": word} for word in WORDS])
    reason = "tool_use" if runs else "end_turn"
    yield frame("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 20})
    yield frame("message_stop")


async def serve(reader, writer):
    """Requests of one connection, one after the other."""
    try:
        while True:
            head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE)).decode().lower()
            length = int(head.split("content-length:")[1].split("\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for part in answer(body):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(PACE)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
