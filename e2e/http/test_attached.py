"""Stored files that a request names: copied into the container once, and shown to the model by image and document blocks."""

import base64

import pytest
import small_s3
from conftest import bash, request, start_server, stop_server
from test_models import Upstream, says

pytestmark = pytest.mark.local
PNG, PDF, TEXT = b"\x89PNG\r\n\x1a\n fake", b"%PDF-1.7 fake", "Grüße\n".encode()


def upload_block(name):
    return {"type": "container_upload", "file_id": name}


def said(role, *content):
    return {"role": role, "content": list(content)}


def script(command):
    return {"type": "text", "text": bash(command)}


def test_a_file_that_is_in_the_container_is_not_copied_again(tmp_path):
    with small_s3.Bucket() as bucket:
        flags, env = small_s3.settings(bucket)
        server = start_server(tmp_path, *flags, env=env)
        made = [server.sdk().files.upload(file=("a.csv", content, "text/csv")).id for content in (b"first", b"other", b"third")]
        copies = lambda: sum(method == "GET" and path.endswith("/c/" + name) for name in made for method, path, _, _ in bucket.requests)
        turn = said("user", script('cat "$INPUT_DIR/a.csv"'), upload_block(made[0]))
        # Of files of one name the last one is there.
        turn["content"].append(upload_block(made[1]))
        answer = server.post("/v1/messages", request(messages=[turn])).json()
        assert answer["content"][1]["content"]["stdout"] == "other" and copies() == 1
        container = answer["container"]["id"]
        history = [turn, said("assistant", *answer["content"]), said("user", script('cat "$INPUT_DIR/a.csv"; ls "$INPUT_DIR"'))]
        for restarted in (False, True):
            if restarted:
                stop_server(server)
                server = start_server(tmp_path, *flags, env=env, keys=server.keys)
            answer = server.post("/v1/messages", request(messages=history, container=container)).json()
            assert answer["content"][1]["content"]["stdout"] == "othera.csv\n" and copies() == 1
        # Another content under the name takes its place.
        history[-1]["content"].append(upload_block(made[2]))
        answer = server.post("/v1/messages", request(messages=history, container=container)).json()
        assert answer["content"][1]["content"]["stdout"] == "thirda.csv\n" and copies() == 2
        stop_server(server)
        bucket.shutdown()


def test_a_history_whose_file_was_deleted_goes_on(server):
    made = server.sdk().files.upload(file=("gone.txt", b"kept here", "text/plain")).id
    turn = said("user", script("true"), upload_block(made))
    answer = server.post("/v1/messages", request(messages=[turn])).json()
    server.sdk().files.delete(made)
    history = [turn, said("assistant", *answer["content"]), said("user", script('cat "$INPUT_DIR/gone.txt"'))]
    again = server.post("/v1/messages", request(messages=history, container=answer["container"]["id"]))
    assert again.json()["content"][1]["content"]["stdout"] == "kept here", again.text
    history[-1]["content"].append(upload_block(made))
    refused = server.post("/v1/messages", request(messages=history, container=answer["container"]["id"]))
    assert refused.status_code == 404 and f"File `{made}` not found." in refused.text


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A server whose model is an upstream of the test."""
    upstream, folder = Upstream(), tmp_path_factory.mktemp("shown")
    (folder / "key").write_text("sk-up")
    server = start_server(folder, "--provider", "anthropic", "--provider-url", upstream.url, "--provider-key-file", folder / "key", "--model", "seeing")
    yield server, upstream
    stop_server(server)


def source(name):
    return {"type": "file", "file_id": name}


def ask(server, *messages, key=0):
    return server.post("/v1/messages", {"model": "seeing", "max_tokens": 99, "messages": list(messages)}, key=key)


def test_images_and_documents_of_the_store_are_shown_to_the_model(shown):
    server, upstream = shown
    files = server.sdk().files
    png = files.upload(file=("a.png", PNG, "image/png")).id
    pdf = files.upload(file=("a.pdf", PDF, "application/pdf")).id
    text = files.upload(file=("a.txt", TEXT, "text/plain")).id
    upstream.script(says("seen"))
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "image", "source": source(png)}]}
    answer = ask(
        server,
        said("user", {"type": "image", "source": source(png)}, {"type": "document", "title": "T", "source": source(pdf)}, {"type": "document", "source": source(text)}),
        said("assistant", call),
        said("user", result),
    )
    assert answer.status_code == 200, answer.text
    first, _, last = upstream.asked[0].body["messages"]
    encoded = lambda kind, content: {"type": "base64", "media_type": kind, "data": base64.b64encode(content).decode()}
    assert [block["source"] for block in first["content"]] == [
        encoded("image/png", PNG),
        encoded("application/pdf", PDF),
        {"type": "text", "media_type": "text/plain", "data": TEXT.decode()},
    ]
    assert first["content"][1]["title"] == "T"
    assert last["content"][0]["content"][0]["source"] == encoded("image/png", PNG)


def test_a_file_that_cannot_be_shown_is_refused_and_the_model_is_not_asked(shown):
    server, upstream = shown
    upstream.script()
    files = server.sdk().files
    csv = files.upload(file=("a.csv", b"x", "text/csv")).id
    png = files.upload(file=("a.png", PNG, "image/png")).id
    large = files.upload(file=("a.pdf", bytes(25_000_000), "application/pdf")).id
    for name, kind, key, status, words in [
        (csv, "image", 0, 400, "container_upload"),
        (csv, "document", 0, 400, "container_upload"),
        (png, "document", 0, 400, "`image/png`"),
        (large, "document", 0, 413, "24 MB"),
        ("file_none", "image", 0, 404, "File `file_none` not found."),
        (png, "image", 2, 404, f"File `{png}` not found."),
        ("", "image", 0, 400, "messages.0.content.0.source.file_id"),
    ]:
        answer = ask(server, said("user", {"type": kind, "source": source(name)}), key=key)
        assert answer.status_code == status and words in answer.json()["error"]["message"], answer.text
    assert not upstream.asked
