"""Files once more: odd names and bytes on the Anthropic surface, ids of others in every kind of block, headers that a name could break."""

import concurrent.futures
import hashlib
import itertools
import json
import socket

import pytest
import requests
from conftest import CE_V1, bash, fresh_id, request
from test_files import raw
from test_session_files import FILES, OUTPUTS, UPLOADS, Box, file_id

ODD = ["報告 🤣.csv", "a b.txt", "100%.txt", "report%20name.txt", "report name.txt", "-rf"]


@pytest.fixture
def box(server):
    return Box(server)


def used(name, **fields):
    """A script of one tool call, as the demo model takes it."""
    return "```tool_use\n" + json.dumps({"name": name, "input": fields}) + "\n```\n"


def edited(server, **fields):
    """The result of one edit, and its container."""
    container = fields.pop("container", None) or fresh_id()
    answer = server.ask(used("text_editor_code_execution", **fields), surface="zylon", tools=[CE_V1], container=container)
    return next(block["content"] for block in answer["content"] if block["type"].endswith("_tool_result")), container


def test_each_odd_name_is_listed_downloaded_and_deleted_as_itself(server):
    client = server.sdk()
    writes = "; ".join(f"printf '{name}' > \"$OUTPUT_DIR/{name}\"" for name in ODD[:-1]) + '; printf -- -rf > "$OUTPUT_DIR/-rf"'
    result, _ = server.bash(writes.replace("'100%.txt'", "'100%%.txt'").replace("'report%20name.txt'", "'report%%20name.txt'"))
    made = {client.files.retrieve_metadata(block["file_id"]).filename: block["file_id"] for block in result["content"]}
    assert set(made) == set(ODD)
    for name, identity in made.items():
        answer = server.get(f"/v1/files/{identity}/content")
        assert answer.content == name.encode() and "filename*=UTF-8''" in answer.headers["content-disposition"], name
    client.files.delete(made["report%20name.txt"])
    assert [meta.id for meta in client.files.list(ids=list(made.values())) if meta.filename == "report name.txt"] == [made["report name.txt"]]
    assert len(client.files.list(ids=list(made.values())).data) == len(ODD) - 1


def test_a_name_that_would_break_a_header_or_is_no_text_breaks_no_capture(server):
    result, _ = server.bash("cd $OUTPUT_DIR; touch plain $'line\\nbreak' $'q\"uote' $'\\xff.bin'")
    client = server.sdk()
    names = [client.files.retrieve_metadata(block["file_id"]).filename for block in result["content"]]
    assert "plain" in names, (names, result)
    for block in result["content"]:
        answer = server.get(f"/v1/files/{block['file_id']}/content")
        assert answer.status_code == 200 and answer.content == b"" and not set("\r\n") & set(answer.headers["content-disposition"])
    assert client.files.list(limit=1000).data


def test_a_file_of_every_byte_and_an_empty_one_come_back_from_the_container(server):
    content = bytes(range(256))
    made = [server.sdk().files.upload(file=(name, data, "application/octet-stream")).id for name, data in (("all", content), ("none", b""))]
    blocks = [{"type": "text", "text": bash('cp "$INPUT_DIR"/* "$OUTPUT_DIR"')}] + [{"type": "container_upload", "file_id": identity} for identity in made]
    answer = server.ask(messages=[{"role": "user", "content": blocks}])
    outputs = [block["file_id"] for block in answer["content"][1]["content"]["content"]]
    answers = [server.get(f"/v1/files/{identity}/content") for identity in outputs]
    assert [answer.status_code for answer in answers] == [200] * 2
    assert {(hashlib.sha256(answer.content).hexdigest(), answer.headers["content-length"]) for answer in answers} == {
        (hashlib.sha256(content).hexdigest(), "256"), (hashlib.sha256(b"").hexdigest(), "0"),
    }
    assert sorted(server.sdk().files.retrieve_metadata(identity).size_bytes for identity in outputs) == [0, 256]


def test_an_upload_of_nothing_is_a_file_in_the_sandbox(box):
    assert box.upload("empty", b"")["size_bytes"] == 0
    answer = box.content(UPLOADS + "/empty")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "0")
    assert box.bash(f"stat -c %s {UPLOADS}/empty")["stdout"] == "0\n"


@pytest.mark.parametrize(
    "identity",
    ["..%2f..%2fx", "%2e%2e%2fx", "%2fetc%2fpasswd", file_id("/etc/passwd"), file_id(UPLOADS + "/../../../etc/passwd"), "file_..%2f..%2fkeys.jsonl", "%00"],
)
def test_an_id_that_climbs_is_unknown_to_every_verb(server, identity):
    headers = {"x-api-key": server.keys[0], "anthropic-version": "2023-06-01"}
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", ""), ("HEAD", "/content")):
        answer = requests.request(method, f"{server.url}/v1/files/{identity}{path}", headers=headers, timeout=60)
        assert answer.status_code == 404, (method, path, answer.text)
        assert method == "HEAD" or answer.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("kind", ["container_upload", "image", "document"])
def test_the_file_of_another_workspace_is_as_unknown_in_a_message_as_one_that_never_was(server, kind):
    mine = server.sdk().files.upload(file=("s.txt", b"secret", "text/plain")).id
    missing = mine[:-4] + ("aaaa" if not mine.endswith("aaaa") else "bbbb")

    def asked(identity):
        block = {"file_id": identity} if kind == "container_upload" else {"source": {"type": "file", "file_id": identity}}
        content = [{"type": "text", "text": "hi"}, {"type": kind} | block]
        return server.post("/v1/messages", request(messages=[{"role": "user", "content": content}]), key=2)

    answers = [asked(identity) for identity in (mine, missing)]
    assert [answer.status_code for answer in answers] == [404, 404], [answer.text for answer in answers]
    texts = [answer.json()["error"]["message"].replace(name, "ID") for answer, name in zip(answers, (mine, missing))]
    assert texts[0] == texts[1] and "secret" not in answers[0].text


@pytest.mark.parametrize(
    "part",
    ['filename="a%0d%0aX-Evil: 1.txt"', "filename*=UTF-8''a%0D%0AX-Evil%3A%201.txt", 'filename="a.txt"\r\nContent-Type: text/html%0d%0aX-Evil: 1'],
    ids=["name", "extended-name", "type"],
)
def test_a_line_break_in_a_name_or_a_type_adds_no_header(server, part):
    body = f'--b\r\nContent-Disposition: form-data; name="file"; {part}\r\n\r\nx\r\n--b--\r\n'.encode()
    answer = server.post("/v1/files", data=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code in (200, 400) and "x-evil" not in answer.headers, answer.text
    if answer.status_code == 200:
        made = answer.json()
        assert not set("\r\n") & set(made["filename"] + made["mime_type"])
        assert "x-evil" not in server.get("/v1/files/" + made["id"]).headers


def test_names_with_line_breaks_and_quotes_stay_in_their_header(box):
    for name in ('q"u\\ote.txt', "line\r\nX-Evil: 1.txt"):
        box.put("outputs/" + name, b"x")
        answer = box.content(f"{OUTPUTS}/{name}")
        assert answer.status_code == 200 and "x-evil" not in answer.headers, answer.text
        assert not set("\r\n") & set(answer.headers["content-disposition"]) and "filename*=UTF-8''" in answer.headers["content-disposition"]


def test_an_empty_file_is_created_and_text_deleted_by_an_empty_replacement(server, box):
    result, container = edited(server, command="create", path="/home/agent/workspace/empty", file_text="", container=box.container)
    assert "error" not in result["type"], result
    assert box.bash("stat -c %s empty; printf 'keep drop' > words")["stdout"] == "0\n"
    result, _ = edited(server, command="str_replace", path="/home/agent/workspace/words", old_str=" drop", new_str="", container=container)
    assert "error" not in result["type"] and box.bash("cat words")["stdout"] == "keep", result


def test_a_null_byte_of_output_arrives(server):
    assert server.bash("printf 'a\\0b'")[0]["stdout"] == "a\0b"


def test_fifty_megabytes_on_both_streams_at_once_hold_nothing_up(server):
    result, _ = server.bash("head -c 50000000 /dev/zero | tr '\\0' a & head -c 50000000 /dev/zero | tr '\\0' b >&2; wait; exit 7")
    assert result["return_code"] == 7, result["return_code"]
    for stream, letter in (("stdout", "a"), ("stderr", "b")):
        assert result[stream].startswith(letter * 1000) and result[stream].endswith("...[truncated]") and len(result[stream]) < 1_050_000


def test_four_calls_of_one_turn_each_have_their_own_text(server):
    answer = server.ask(*[bash(f"echo number {n}") for n in range(4)])
    uses = {block["id"]: block["input"]["command"].strip() for block in answer["content"] if block["type"] == "server_tool_use"}
    results = {block["tool_use_id"]: block["content"]["stdout"] for block in answer["content"] if block["type"].endswith("_tool_result")}
    assert results == {identity: command.removeprefix("echo ") + "\n" for identity, command in uses.items()} and len(results) == 4


def test_simultaneous_writes_and_reads_of_one_key_see_whole_files_only(box):
    size = 200_000
    box.put("one", b"0" * size)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        writes = [pool.submit(box.put, "one", str(n).encode() * size) for n in range(1, 4)]
        reads = [pool.submit(box.content, UPLOADS + "/one") for _ in range(9)]
    assert [write.result().status_code for write in writes] == [200] * 3
    for read in (read.result() for read in reads):
        assert read.status_code == 200 and len(read.content) == size and len(set(read.content)) == 1


@pytest.mark.local
def test_an_address_in_a_request_is_not_connected_to(server):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        for kind in ("image", "document"):
            content = [{"type": "text", "text": "hi"}, {"type": kind, "source": {"type": "url", "url": url}}]
            assert server.post("/v1/messages", request(messages=[{"role": "user", "content": content}])).status_code in (200, 400)
        answer = server.post("/v1/messages", request("hi", mcp_servers=[{"type": "url", "name": "m", "url": url}]))
        assert answer.status_code == 400 and "mcp_servers" in answer.text, answer.text
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.local
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
def test_a_put_over_the_limit_is_refused_and_nothing_of_it_stays(box, announced):
    if announced:
        head = f"PUT {FILES}/big?scope_id={box.container} HTTP/1.1\r\nHost: x\r\n"
        head += "authorization: Bearer {key}\r\ncontent-length: 600000000\r\nexpect: 100-continue\r\n\r\n"
        heads = raw(box.server, head)
        assert len(heads) == 1 and heads[0].startswith("HTTP/1.1 413") and "request_too_large" in heads[0], heads
    else:
        answer = box.put("big", itertools.repeat(bytes(1 << 20), 510))
        assert answer.status_code == 413 and answer.json()["error"]["type"] == "request_too_large", answer.text
    assert box.list()["data"] == []


@pytest.mark.local
def test_many_uploads_at_once_are_all_taken_or_told_to_come_again(server):
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda n: server.post("/v1/files", files={"file": (f"{n}.bin", bytes([n]) * 500_000)}, key=2), range(24)))
    taken = [answer.json() for answer in answers if answer.status_code == 200]
    assert taken and {answer.status_code for answer in answers} <= {200, 429, 529}, [answer.text for answer in answers]
    assert {meta.id for meta in server.sdk(key=2).files.list(ids=[made["id"] for made in taken])} == {made["id"] for made in taken}
