"""The official Python SDK, unmodified."""

import anthropic
import pytest
from anthropic.types import Message

from conftest import CE25, bash


def ask(client, *parts, **fields):
    fields = {"model": "demo", "max_tokens": 1024, "tools": [CE25]} | fields
    return client.messages.create(messages=[{"role": "user", "content": "\n".join(parts)}], **fields)


def stdout(message):
    return next(block.content.stdout for block in message.content if block.type == "bash_code_execution_tool_result")


def test_create_runs_code_and_a_second_request_finds_its_file(server):
    client = server.sdk()
    first = ask(client, bash("echo 12 > /tmp/number.txt; echo written"))
    assert stdout(first) == "written\n" and first.container.id.startswith("container_")
    assert first.container.expires_at.tzinfo is not None
    second = ask(client, bash("n=$(cat /tmp/number.txt); echo $((n * n))"), container=first.container.id)
    assert stdout(second) == "144\n" and second.container.id == first.container.id
    for message in (first, second):
        Message.model_validate(message.to_dict(mode="json"), strict=False)
        assert message.usage.input_tokens > 0 and message.stop_reason == "end_turn"


def test_stream_gives_the_same_message(server):
    client = server.sdk()
    script = ["```text\nI compute.\n```", bash("echo $((6 * 7))")]
    fields = {"model": "demo", "max_tokens": 1024, "tools": [CE25], "messages": [{"role": "user", "content": "\n".join(script)}]}
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    created = client.messages.create(**fields)
    assert stdout(streamed) == "42\n" and streamed.container.id.startswith("container_")
    assert streamed.content[1].input == created.content[1].input == {"command": "echo $((6 * 7))"}
    same = lambda message: [(block.type, getattr(block, "text", None)) for block in message.content]
    assert same(streamed) == same(created) and streamed.usage.output_tokens == created.usage.output_tokens


def test_the_request_id_is_on_answers_and_errors(server):
    client = server.sdk()
    raw = client.messages.with_raw_response.create(model="demo", max_tokens=64, messages=[{"role": "user", "content": "hi"}])
    assert raw.headers["request-id"] == raw.parse()._request_id and raw.headers["request-id"].startswith("req_")
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(client, "hi", container="container_doesnotexist")
    assert caught.value.request_id.startswith("req_") and caught.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="bogus"):
        ask(client, "hi", extra_body={"bogus": 1})
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0).files.retrieve_metadata("file_x")


def test_a_generated_file_is_downloaded_by_its_id(server, tmp_path):
    client = server.sdk()
    message = ask(client, bash('echo result > "$OUTPUT_DIR/out.txt"'))
    (output,) = next(block.content.content for block in message.content if block.type == "bash_code_execution_tool_result")
    client.files.download(output.file_id).write_to_file(tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "result\n"
    uploaded = client.files.upload(file=("a.txt", b"x", "text/plain"))
    with pytest.raises(anthropic.BadRequestError, match="not downloadable"):
        client.files.download(uploaded.id)
    assert client.messages.create(
        model="demo", max_tokens=9, stop_sequences=["never"], messages=[{"role": "user", "content": "say " * 50 + "\n```text\n" + "word " * 99 + "\n```"}]
    ).stop_reason == "max_tokens"


def test_the_tool_runner_works_unmodified(server):
    @anthropic.beta_tool
    def double(number: int) -> str:
        """Doubles a number."""
        return str(number * 2)

    script = '```tool_use\n{"name": "double", "input": {"number": 21}}\n```\n' + bash("echo after")
    runner = server.sdk().beta.messages.tool_runner(
        model="demo", max_tokens=512, tools=[double, CE25], messages=[{"role": "user", "content": script}]
    )
    final = runner.until_done()
    assert final.stop_reason == "end_turn" and "after" in str(final.content)
