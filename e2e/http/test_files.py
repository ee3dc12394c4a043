"""Files: upload, use in a container, capture, download."""

import concurrent.futures
import datetime
import hashlib
import itertools
import pathlib
import re
import socket
import time
import urllib.parse

import anthropic
import pytest
import requests
from conftest import bash, request, start_server, stop_server


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


def captured(server, name="r.bin", content="printf 0123456789"):
    """A file that a command made: its id."""
    result, _ = server.bash(f'{content} > "$OUTPUT_DIR/{name}"')
    return result["content"][0]["file_id"]


@pytest.fixture(scope="module")
def tenant(request, tmp_path_factory):
    """A server whose first workspace holds nothing yet."""
    if request.config.getoption("--runtime") == "cluster":
        pytest.skip("a deployed server holds what other tests store")
    started = start_server(tmp_path_factory.mktemp("files"))
    yield started
    stop_server(started)


@pytest.mark.local
def test_the_list_is_walked_newest_first_by_either_generation_of_cursors(tenant):
    client = tenant.sdk()
    assert client.files.list().data == [] and client.files.list().next_page is None
    made = [client.files.upload(file=(f"{n}.txt", b"x", "text/plain")).id for n in range(5)]
    newest_first = made[::-1]
    assert [meta.id for meta in client.files.list()] == newest_first
    for limit in (1, 2, 5):
        assert [meta.id for meta in client.files.list(limit=limit)] == newest_first, limit
    # Clients of before: has_more with last_id, or first_id backwards, and a mark in the query.
    old = {"anthropic-beta": "files-api-2025-04-14", "anthropic-version": "2023-06-01", "x-api-key": tenant.keys[0]}
    ask = lambda **query: requests.get(tenant.url + "/v1/files", params={"beta": "true"} | query, headers=old, timeout=60).json()
    walked, page = [], ask(limit=2)
    while True:
        walked += [meta["id"] for meta in page["data"]]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        if not page["has_more"]:
            break
        page = ask(limit=2, after_id=page["last_id"])
    assert walked == newest_first
    back = ask(limit=2, before_id=newest_first[4])
    assert [meta["id"] for meta in back["data"]] == newest_first[2:4] and back["has_more"] and back["next_page"] is None
    assert [meta["id"] for meta in ask(limit=3, before_id=newest_first[2])["data"]] == newest_first[:2]
    # A page that ends with the last file has no cursor: iteration would stop at an empty page.
    assert client.files.list(limit=5).next_page is None and not ask(limit=5)["has_more"]
    # A cursor outlives its file.
    page = client.files.list(limit=2)
    client.files.delete(newest_first[1])
    assert [meta.id for meta in page.get_next_page().data] == newest_first[2:4]


@pytest.mark.local
def test_files_are_listed_by_their_ids_and_unknown_ones_left_out(tenant):
    client = tenant.sdk()
    a, b = (client.files.upload(file=(name, b"x", "text/plain")).id for name in "ab")
    page = client.files.list(ids=[a, b, "file_none"])
    assert {meta.id for meta in page.data} == {a, b} and page.next_page is None
    assert client.files.list(ids=["file_none"]).data == []
    assert client.beta.files.list(scope_id="session_01").data == []


@pytest.mark.parametrize(
    ("query", "words"),
    [("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"), ("page=x", "page"), ("after_id=x", "after_id"),
     ("ids[]=file_a&limit=3", "limit"), ("&".join(["ids[]=file_a"] * 101), "ids")],
    ids=["0", "1001", "x", "page", "after", "ids-and-limit", "101-ids"],
)
def test_a_list_that_cannot_be_is_a_400_that_names_the_parameter(server, query, words):
    answer = server.get("/v1/files?" + query)
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(words + ": "), answer.text


def test_a_deleted_file_is_gone_and_its_copy_in_the_container_stays(server):
    client = server.sdk()
    made = client.files.upload(file=("gone.txt", b"kept here", "text/plain"))
    message = {"role": "user", "content": [{"type": "text", "text": bash("true")}, {"type": "container_upload", "file_id": made.id}]}
    container = server.post("/v1/messages", request(messages=[message])).json()["container"]["id"]
    deleted = client.files.delete(made.id)
    assert (deleted.id, deleted.type) == (made.id, "file_deleted")
    for gone in (client.files.retrieve_metadata, client.files.download, client.files.delete):
        with pytest.raises(anthropic.NotFoundError):
            gone(made.id)
    assert server.bash('cat "$INPUT_DIR/gone.txt"', container=container)[0]["stdout"] == "kept here"
    output = captured(server)
    client.files.delete(output)
    with pytest.raises(anthropic.NotFoundError):
        client.files.download(output)


def test_another_workspace_has_no_part_in_a_file(server):
    mine = server.sdk().files.upload(file=("secret.txt", b"s", "text/plain")).id
    stranger = server.sdk(key=2)
    for call in (stranger.files.retrieve_metadata, stranger.files.download, stranger.files.delete):
        with pytest.raises(anthropic.NotFoundError):
            call(mine)
    assert stranger.files.list(ids=[mine]).data == []
    assert mine not in [meta.id for meta in stranger.files.list(limit=1000)]
    assert server.sdk(key=1).files.retrieve_metadata(mine).id == mine, "a colleague of the same workspace"


def test_an_upload_raises_the_error_of_its_kind_when_it_is_downloaded(server):
    client = server.sdk()
    made = client.files.upload(file=("a.csv", b"x", "text/csv"))
    with pytest.raises(anthropic.types.FileNotDownloadableError) as raised:
        client.files.download(made.id)
    assert raised.value.error_code == "file_not_downloadable"


def test_an_expiry_counts_on_either_side_of_the_file(server):
    for parts in ([("expires_in_seconds", (None, "3600")), ("file", ("a.txt", b"x"))], [("file", ("a.txt", b"x")), ("expires_in_seconds", (None, "3600"))]):
        made = server.post("/v1/files", files=parts).json()
        created, expires = (datetime.datetime.fromisoformat(made[key]) for key in ("created_at", "expires_at"))
        assert (expires - created).total_seconds() == 3600


def test_a_nameless_file_is_named_by_its_type(server):
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename=""\r\nContent-Type: text/csv\r\n\r\nx\r\n--b--\r\n'
    made = server.post("/v1/files", data=body, headers={"content-type": "multipart/form-data; boundary=b"}).json()
    assert made["filename"] == "unnamed.csv", made


def test_any_bytes_and_none_at_all_come_back_as_they_were(server):
    result, _ = server.bash(
        "python3 -c 'import os; open(os.environ[\"OUTPUT_DIR\"] + \"/all.bin\", \"wb\").write(bytes(range(256)))'; touch \"$OUTPUT_DIR/empty\""
    )
    client = server.sdk()
    contents = {}
    for block in result["content"]:
        meta = client.files.retrieve_metadata(block["file_id"])
        contents[meta.filename] = client.files.download(meta.id).read()
        assert meta.size_bytes == len(contents[meta.filename])
    assert contents == {"all.bin": bytes(range(256)), "empty": b""}


def test_odd_names_are_saved_under_themselves(server):
    names = ["報告 🤣.csv", "a b.txt", "100%.txt", "report%20name.txt", "report name.txt", "-rf"]
    script = " ".join(f"echo '{name}' > \"$OUTPUT_DIR/{name}\";" for name in names)
    result, _ = server.bash(script)
    found = {}
    for block in result["content"]:
        answer = server.get(f"/v1/files/{block['file_id']}/content")
        encoded = answer.headers["content-disposition"].split("filename*=UTF-8''")[1]
        found[urllib.parse.unquote(encoded)] = answer.content.decode()
    assert found == {name: name + "\n" for name in names}


def test_a_content_is_served_in_ranges_and_under_conditions(server):
    path = f"/v1/files/{captured(server)}/content"
    get = lambda method="GET", **headers: requests.request(
        method, server.url + path, headers={"x-api-key": server.keys[0], "anthropic-version": "2023-06-01"} | headers, timeout=60
    )
    whole = get()
    assert whole.content == b"0123456789" and whole.headers["accept-ranges"] == "bytes"
    tag = whole.headers["etag"]
    assert tag == '"' + hashlib.sha256(whole.content).hexdigest() + '"'
    for asked, content, sent in (("bytes=2-4", b"234", "2-4"), ("bytes=-3", b"789", "7-9"), ("bytes=5-", b"56789", "5-9"), ("bytes=8-99", b"89", "8-9")):
        answer = get(Range=asked)
        assert (answer.status_code, answer.content, answer.headers["content-range"]) == (206, content, f"bytes {sent}/10")
    for asked in ("bytes=10-", "bytes=0-1,3-4"):
        answer = get(Range=asked)
        assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10") and answer.json()["error"]["message"]
    assert get(Range="lines=1-2").content == b"0123456789"
    same = get(**{"If-None-Match": tag})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert get(**{"If-None-Match": '"other"'}).status_code == 200
    assert get(**{"If-Match": '"other"'}).status_code == 412 and get(**{"If-Match": tag}).status_code == 200
    assert get(Range="bytes=0-1", **{"If-Range": '"other"'}).content == b"0123456789"
    head = get("HEAD")
    different = {"date", "request-id"}
    assert head.content == b"" and {k: v for k, v in head.headers.items() if k not in different} == {k: v for k, v in whole.headers.items() if k not in different}
    assert get("HEAD", Range="bytes=0-1").headers["content-length"] == "10"


@pytest.mark.parametrize(("name", "shown"), [("p.png", True), ("t.txt", True), ("p.html", False), ("p.svg", False), ("p.xhtml", False)])
def test_only_what_cannot_run_is_shown_in_a_browser(server, name, shown):
    answer = server.get(f"/v1/files/{captured(server, name)}/content?disposition=inline")
    assert answer.headers["content-disposition"].startswith("inline;" if shown else "attachment;")
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"


def raw(server, head, *pieces):
    """Sends bytes over a connection of its own and returns what comes until an answer's head is whole, after each piece."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        heads = []
        for piece in (head.format(key=server.keys[0]).encode(), *pieces):
            connection.sendall(piece)
        while True:
            data = b""
            while b"\r\n\r\n" not in data:
                received = connection.recv(65536)
                if not received:
                    return heads
                data += received
            heads.append(data.decode(errors="replace"))
            if not data.startswith(b"HTTP/1.1 100"):
                return heads


UPLOAD = "POST /v1/files HTTP/1.1\r\nHost: x\r\nx-api-key: {key}\r\nanthropic-version: 2023-06-01\r\ncontent-type: multipart/form-data; boundary=b\r\n"
PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhello\r\n--b--\r\n'


@pytest.mark.local
def test_an_upload_that_announces_too_much_is_refused_before_it_is_sent(server):
    heads = raw(server, UPLOAD + "content-length: 600000000\r\nexpect: 100-continue\r\n\r\n")
    assert len(heads) == 1 and heads[0].startswith("HTTP/1.1 413") and "request_too_large" in heads[0], heads


@pytest.mark.local
def test_a_client_that_waits_for_a_word_is_told_to_go_on(server):
    heads = raw(server, UPLOAD + f"content-length: {len(PART)}\r\nexpect: 100-continue\r\n\r\n", PART)
    assert heads[0].startswith("HTTP/1.1 100") and any(head.startswith("HTTP/1.1 200") for head in "".join(heads).split("\r\n\r\n")), heads


@pytest.mark.local
def test_an_upload_in_chunks_is_taken_and_one_that_ends_early_leaves_nothing(tenant):
    before = [meta.id for meta in tenant.sdk().files.list(limit=1000)]
    chunked = UPLOAD + "transfer-encoding: chunked\r\n\r\n"
    pieces = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (PART[:7], PART[7:60], PART[60:])]
    assert raw(tenant, chunked, *pieces, b"0\r\n\r\n")[0].startswith("HTTP/1.1 200")
    heads = raw(tenant, chunked, pieces[0], b"0\r\n\r\n")
    assert heads[0].startswith("HTTP/1.1 400") and "ended early" in heads[0], heads
    after = [meta.id for meta in tenant.sdk().files.list(limit=1000)]
    assert len(after) == len(before) + 1


@pytest.mark.local
def test_a_full_disk_is_told_and_leaves_nothing_half_stored(tmp_path):
    stored = tmp_path / "data/files"
    stored.mkdir(parents=True)
    small_disk = ["bwrap", "--dev-bind", "/", "/", "--size", str(3 << 20), "--tmpfs", stored, "--die-with-parent", "--"]
    server = start_server(tmp_path, "--store", "folder", before=small_disk)
    try:
        client = server.sdk()
        made = client.files.upload(file=("a.bin", bytes(1 << 20)))
        with pytest.raises(anthropic.types.StorageQuotaExceededError) as refused:
            client.files.upload(file=("b.bin", bytes(4 << 20)))
        assert "full" in str(refused.value)
        # What did not fit left its room to others.
        client.files.upload(file=("c.bin", bytes(1 << 20)))
        assert [meta.filename for meta in client.files.list()] == ["c.bin", "a.bin"]
        client.files.delete(made.id)
    finally:
        # The signal ends what stands before the server, and with it the server.
        server.process.terminate()
        server.process.wait(timeout=20)


@pytest.mark.local
@pytest.mark.long
def test_uploads_take_little_memory_and_one_over_the_limit_is_refused_though_it_does_not_say_its_length(tmp_path):
    server = start_server(tmp_path)
    try:
        memory = lambda: int(re.search(r"VmRSS:\s+(\d+)", (pathlib.Path("/proc") / str(server.process.pid) / "status").read_text())[1])
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        megabytes = lambda count: itertools.chain([head], itertools.repeat(bytes(1 << 20), count), [b"\r\n--b--\r\n"])
        headers = {"content-type": "multipart/form-data; boundary=b"}
        server.post("/v1/files", data=megabytes(1), headers=headers)
        before = memory()
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            running = [pool.submit(server.post, "/v1/files", data=megabytes(300), headers=headers) for _ in range(5)]
            most = before
            while not all(upload.done() for upload in running):
                most = max(most, memory())
                time.sleep(0.05)
        assert [upload.result().json()["size_bytes"] for upload in running] == [300 << 20] * 5
        assert most - before < 64 << 10, (before, most)
        answer = server.post("/v1/files", data=megabytes(500), headers=headers)
        assert answer.status_code == 413 and answer.json()["error"]["type"] == "request_too_large", answer.text
        assert len(server.sdk().files.list().data) == 6
    finally:
        stop_server(server)


@pytest.mark.local
@pytest.mark.parametrize(
    ("whose", "told", "another"),
    [("workspace", "The files of your workspace may take 1 MB", 2), ("user", "Your files may take 1 MB", 1)],
    ids=["workspace", "user"],
)
def test_whoever_is_over_the_storage_is_told_so_and_another_is_not(tmp_path, whose, told, another):
    server = start_server(tmp_path, f"--{whose}-storage", "1000000")
    try:
        client = server.sdk()
        first = client.files.upload(file=("a.bin", bytes(600_000)))
        with pytest.raises(anthropic.types.StorageQuotaExceededError) as refused:
            client.files.upload(file=("b.bin", bytes(600_000)))
        assert told in str(refused.value)
        assert [meta.id for meta in client.files.list()] == [first.id]
        server.sdk(key=another).files.upload(file=("b.bin", bytes(600_000)))
        result, _ = server.bash('head -c 600000 /dev/zero > "$OUTPUT_DIR/big"; echo small > "$OUTPUT_DIR/small"')
        assert len(result["content"]) == 1 and f"the {whose}'s files" in result["stderr"], result
        client.files.delete(first.id)
        client.files.upload(file=("b.bin", bytes(600_000)))
    finally:
        stop_server(server)
