"""Files: upload, use in a container, capture, download."""

import hashlib

import pytest
from conftest import CE25, bash, request


def test_an_upload_is_described_and_cannot_be_downloaded(server):
    client = server.sdk()
    made = client.files.upload(file=("a.csv", b"x,y\n1,2\n", "text/csv"))
    assert made.id.startswith("file_") and made.size_bytes == 8 and made.mime_type == "text/csv"
    assert made.filename == "a.csv" and made.downloadable is False and made.type == "file"
    assert client.files.retrieve_metadata(made.id) == made
    answer = server.get(f"/v1/files/{made.id}/content")
    assert answer.status_code == 400 and answer.json()["error"]["details"]["error_code"] == "file_not_downloadable"


def test_an_uploaded_file_is_in_the_input_folder_and_stays_there(server):
    content = bytes(range(256)) * 5
    made = server.sdk().files.upload(file=("all.bin", content, "application/octet-stream"))
    empty = server.sdk().files.upload(file=("empty.txt", b"", "text/plain"))
    message = {"role": "user", "content": [
        {"type": "text", "text": bash('cd "$INPUT_DIR" && sha256sum all.bin | cut -c 1-64 && wc -c < empty.txt')},
        {"type": "container_upload", "file_id": made.id},
        {"type": "container_upload", "file_id": empty.id},
    ]}
    answer = server.post("/v1/messages", request(messages=[message])).json()
    assert answer["content"][1]["content"]["stdout"] == hashlib.sha256(content).hexdigest() + "\n0\n"
    history = [message, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": bash("ls $INPUT_DIR")}]
    again = server.post("/v1/messages", request(messages=history, container=answer["container"]["id"])).json()
    assert again["content"][1]["content"]["stdout"] == "all.bin\nempty.txt\n"


def test_files_left_in_the_output_folder_can_be_downloaded(server):
    result, _ = server.bash(
        'head -c 70000 /dev/urandom > "$OUTPUT_DIR/r.bin"; sha256sum < "$OUTPUT_DIR/r.bin" | cut -c 1-64; '
        'echo b > "$OUTPUT_DIR/b é.txt"; mkdir "$OUTPUT_DIR/sub"; touch "$OUTPUT_DIR/sub/no" elsewhere; ln -s /etc/passwd "$OUTPUT_DIR/link"'
    )
    assert [block["type"] for block in result["content"]] == ["bash_code_execution_output"] * 2
    client = server.sdk()
    found = {meta.filename: meta for meta in (client.files.retrieve_metadata(block["file_id"]) for block in result["content"])}
    assert set(found) == {"r.bin", "b é.txt"}
    assert all(meta.downloadable for meta in found.values()) and found["r.bin"].size_bytes == 70000
    content = client.files.download(found["r.bin"].id).read()
    assert hashlib.sha256(content).hexdigest() + "\n" == result["stdout"]
    answer = server.get(f"/v1/files/{found['b é.txt'].id}/content")
    assert answer.content == b"b\n" and answer.headers["x-content-type-options"] == "nosniff"
    assert "filename*=UTF-8''b%20%C3%A9.txt" in answer.headers["content-disposition"]


def test_each_command_has_an_empty_output_folder(server):
    _, first = server.bash('touch "$OUTPUT_DIR/x"')
    result, _ = server.bash('ls "$OUTPUT_DIR" | wc -l', container=first["container"]["id"])
    assert (result["stdout"], result["content"]) == ("0\n", [])


def test_an_unknown_file_and_another_workspaces_file_answer_alike(server):
    mine = server.sdk().files.upload(file=("secret.txt", b"s", "text/plain")).id
    missing = mine[:-4] + ("aaaa" if not mine.endswith("aaaa") else "bbbb")
    for path in ("", "/content"):
        answers = [server.get(f"/v1/files/{name}{path}", key=2) for name in (mine, missing)]
        assert [answer.status_code for answer in answers] == [404, 404]
        texts = [answer.json()["error"]["message"].replace(name, "ID") for answer, name in zip(answers, (mine, missing))]
        assert texts[0] == texts[1] == "File `ID` not found."
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "container_upload", "file_id": mine}]}
    answer = server.post("/v1/messages", request(messages=[message]), key=2)
    assert answer.status_code == 404 and answer.json()["error"]["message"] == f"File `{mine}` not found."


def test_an_upload_block_needs_the_tool(server):
    made = server.sdk().files.upload(file=("a.txt", b"s", "text/plain"))
    message = {"role": "user", "content": [{"type": "container_upload", "file_id": made.id}]}
    answer = server.post("/v1/messages", request(messages=[message], tools=[]))
    assert answer.status_code == 400 and "container_upload" in answer.text


@pytest.mark.parametrize(("name", "stored"), [("dir/../b.txt", "b.txt"), ("a/b/c.txt", "c.txt"), ("報告 🤣.csv", "報告 🤣.csv")])
def test_a_file_name_keeps_only_its_last_part(server, name, stored):
    assert server.sdk().files.upload(file=(name, b"x", "text/plain")).filename == stored


@pytest.mark.parametrize("name", ["a<b", "x" * 300, "a|b", "../../etc/cron.d/x"], ids=range(4))
def test_an_impossible_file_name_is_a_400(server, name):
    answer = server.post("/v1/files", files={"file": (name, b"x", "text/plain")})
    assert answer.status_code == 400 and "filename" in answer.json()["error"]["message"], answer.text


def test_an_upload_without_a_file_or_with_a_wrong_expiry_is_a_400(server):
    for parts, words in (({"other": ("a", b"x")}, "other: Extra inputs"), ({"expires_in_seconds": (None, "3600")}, "file: Field required")):
        answer = server.post("/v1/files", files=parts)
        assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text
    for seconds in ("10", "x", "99999999"):
        answer = server.post("/v1/files", files={"file": ("a.txt", b"x")}, data={"expires_in_seconds": seconds})
        assert answer.status_code == 400 and "expires_in_seconds" in answer.json()["error"]["message"], answer.text
    made = server.sdk().files.upload(file=("a.txt", b"x", "text/plain"), expires_in_seconds=3600)
    assert (made.expires_at - made.created_at).total_seconds() == 3600
