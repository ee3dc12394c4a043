"""Files in containers: every call of the Zylon surface, and those of its threads."""

import base64
import concurrent.futures
import hashlib
import os

import pytest
import requests
from conftest import bash, fresh_id, start_server, stop_server

FILES = "/api/gpt/v1/files"
UPLOADS, OUTPUTS, WORKSPACE = "/mnt/user-data/uploads", "/mnt/user-data/outputs", "/home/agent/workspace"


def file_id(path):
    return base64.urlsafe_b64encode(path.encode() if isinstance(path, str) else path).decode().rstrip("=")


class Box:
    """The files of one container."""

    def __init__(self, server, container=None, key=0):
        self.server, self.container, self.key = server, container or fresh_id(), key

    def call(self, method, path="", headers=None, **options):
        params = {"scope_id": self.container} | options.pop("params", {})
        headers = {"authorization": "Bearer " + self.server.keys[self.key]} | (headers or {})
        return requests.request(method, self.server.url + FILES + path, params=params, headers=headers, timeout=150, **options)

    def upload(self, name, content, **params):
        answer = self.call("POST", files={"file": (name, content)}, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def put(self, key, content, headers=None):
        return self.call("PUT", "/" + requests.utils.quote(key), data=content, headers=headers)

    def list(self, **params):
        answer = self.call("GET", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def content(self, path, **options):
        return self.call("GET", f"/{file_id(path)}/content", **options)

    def bash(self, command):
        return self.server.bash(command, surface="zylon", container=self.container, key=self.key)[0]


@pytest.fixture
def box(server):
    return Box(server)


def test_an_upload_answers_with_the_metadata_of_the_contract(box):
    made = box.upload("sales.csv", b"x,y\n1,2\n")
    created = made.pop("created_at")
    assert created.endswith("Z") and made == {
        "id": file_id(UPLOADS + "/sales.csv"), "filename": "sales.csv", "mime_type": "text/csv", "size_bytes": 8, "type": "file",
        "downloadable": False, "etag": hashlib.md5(b"x,y\n1,2\n").hexdigest(), "namespace": "session",
        "scope": {"id": box.container, "type": "session"},
    }
    assert box.bash(f"cat {UPLOADS}/sales.csv")["stdout"] == "x,y\n1,2\n"
    assert box.call("GET", "/" + made["id"]).json() == made | {"created_at": created}


def test_a_key_chooses_the_place_and_outputs_is_a_folder_of_its_own(box):
    for path, place in (("data/2026/q3.xlsx", UPLOADS + "/data/2026/q3.xlsx"), ("outputs/chart.png", OUTPUTS + "/chart.png"), ("uploads/a", UPLOADS + "/a")):
        made = box.upload("other", b"1", path=f" {path} ")
        assert made["id"] == file_id(place) and made["downloadable"] is ("outputs" in place), made
        assert box.bash(f"cat {place}")["stdout"] == "1"
    assert box.upload("other", b"22", path="uploads/a")["size_bytes"] == 2, "the same key again overwrites"
    assert box.content(UPLOADS + "/a").content == b"22"


def test_a_put_takes_any_body_as_the_content(box):
    settings = b'{"debug": true}'
    answer = box.put("config/settings.json", settings, {"content-type": "application/json"})
    assert answer.status_code == 200 and answer.json()["mime_type"] == "application/json", answer.text
    assert box.content(UPLOADS + "/config/settings.json").content == settings
    empty = box.put("empty", b"").json()
    assert (empty["size_bytes"], empty["etag"]) == (0, hashlib.md5(b"").hexdigest())
    assert box.content(UPLOADS + "/empty").content == b"" and box.bash(f"stat -c %s {UPLOADS}/empty")["stdout"] == "0\n"
    everything = bytes(range(256)) * 1000
    assert box.put("outputs/all.bin", everything).json()["etag"] == hashlib.md5(everything).hexdigest()
    assert box.content(OUTPUTS + "/all.bin").content == everything
    box.put("chunked.txt", iter([b"one ", b"two"]))
    assert box.content(UPLOADS + "/chunked.txt").content == b"one two"


@pytest.mark.parametrize(
    ("path", "words"),
    [("/abs", "path must be relative (no leading '/')."), ("x/", "path must point to a file, not a directory (no trailing '/')."),
     ("a/../../b", "path must not contain '..' components."), ("outputs/../uploads/x", "path must not contain '..' components."),
     (" ", "path must not be empty."), ("a//b", "path must not contain empty or '.' components.")],
)
def test_a_key_that_leads_elsewhere_is_refused_by_every_verb(box, path, words):
    answers = [box.call("POST", params={"path": path}, files={"file": ("x", b"x")})]
    if path.strip() and not path.startswith("/"):
        answers.append(box.call("PUT", "/" + path.replace("/", "%2f").replace(".", "%2e"), data=b"x"))
    for answer in answers:
        body = answer.json()
        assert answer.status_code == 400 and body["error"]["type"] == "invalid_request_error", answer.text
        assert body["detail"] == body["error"]["message"] == body["error"]["detail"]["explanation"] == words
    assert box.list()["data"] == []


def test_a_form_whose_name_climbs_writes_nothing(box):
    answer = box.call("POST", files={"file": ("../../etc/cron.d/x", b"x")})
    assert answer.status_code == 400 and "'..'" in answer.text and box.list()["data"] == []


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [("!", 400, "Invalid file ID encoding."), (file_id("relative"), 400, "Invalid file ID."), (file_id("/etc/passwd"), 404, None),
     (file_id(UPLOADS + "/../../../etc/passwd"), 404, None), (file_id(UPLOADS + "/missing"), 404, None), (file_id("/proc/self/environ"), 404, None)],
    ids=["no-base64", "relative", "outside", "climbing", "missing", "proc"],
)
def test_an_id_that_names_no_file_is_refused_by_every_verb(box, name, status, words):
    box.put("there", b"x")
    for method, path in (("GET", name), ("GET", name + "/content"), ("DELETE", name)):
        answer = box.call(method, "/" + path)
        assert answer.status_code == status and answer.json()["detail"] == (words or f"File '{name}' not found."), answer.text
    assert box.call("HEAD", "/" + name).status_code == status


def test_a_request_without_a_scope_or_with_an_impossible_one_is_a_400(server):
    headers = {"authorization": "Bearer " + server.keys[0]}
    for scope, words in ((None, "scope_id: Field required"), ("", "scope_id: Field required"), ("../..", "scope_id: an id has"), ("x" * 129, "scope_id: an id has")):
        params = {} if scope is None else {"scope_id": scope}
        for method, path in (("GET", ""), ("PUT", "/a"), ("GET", "/" + file_id(UPLOADS + "/a")), ("DELETE", "")):
            answer = requests.request(method, server.url + FILES + path, params=params, headers=headers, timeout=60)
            assert answer.status_code == 400 and answer.json()["detail"].startswith(words), answer.text


def test_a_list_shows_uploads_and_outputs_oldest_first(box):
    empty = {"data": [], "first_id": None, "last_id": None, "has_more": False}
    assert box.list() == empty
    names = ["a", "outputs/b", "c", "data/d", "outputs/e"]
    made = [box.put(name, b"1").json()["id"] for name in names]
    box.bash("touch in-the-workspace")
    page = box.list()
    assert [file["id"] for file in page["data"]] == made
    assert (page["first_id"], page["last_id"], page["has_more"]) == (made[0], made[-1], False)
    assert all(file["etag"] is None and file["created_at"] and file["scope"]["id"] == box.container for file in page["data"])
    walked, after = [], {}
    while True:
        page = box.list(limit=2, **after)
        walked += [file["id"] for file in page["data"]]
        if not page["has_more"]:
            break
        after = {"after_id": page["last_id"]}
    assert walked == made
    back = box.list(limit=2, before_id=made[4])
    assert [file["id"] for file in back["data"]] == made[2:4] and back["has_more"], "the nearest, in order"
    assert [file["id"] for file in box.list(before_id=made[1])["data"]] == made[:1]
    for prefix, shown in (("data/", made[3:4]), ("outputs/", [made[1], made[4]]), ("outputs/b", made[1:2]), ("uploads/c", made[2:3]), ("zzz", [])):
        assert [file["id"] for file in box.list(prefix=prefix)["data"]] == shown, prefix
    for cursor in ("after_id", "before_id"):
        for unknown in (file_id(UPLOADS + "/never"), "x"):
            answer = box.call("GET", params={cursor: unknown})
            assert answer.status_code == 400 and answer.json()["detail"].startswith(cursor + ": "), answer.text
    for limit in ("0", "1001", "x"):
        assert box.call("GET", params={"limit": limit}).status_code == 400


def test_files_of_one_moment_have_an_order_too(box):
    box.bash(f"cd {OUTPUTS}; for n in 3 1 2 5 4; do touch -d @1700000000 $n; done")
    walked, after = [], {}
    while True:
        page = box.list(limit=1, **after)
        walked += [file["filename"] for file in page["data"]]
        if not page["has_more"]:
            break
        after = {"after_id": page["last_id"]}
    assert walked == ["1", "2", "3", "4", "5"]


def test_head_tells_the_metadata_in_headers(box):
    made = box.upload("報告 100%.csv", b"x")
    answer = box.call("HEAD", "/" + made["id"])
    assert answer.status_code == 200 and answer.content == b"" and answer.headers["content-length"] == "0"
    told = {name.lower()[7:]: value for name, value in answer.headers.items() if name.lower().startswith("x-file-")}
    assert requests.utils.unquote(told.pop("filename")) == "報告 100%.csv"
    assert told.pop("created-at") == made["created_at"].replace("Z", "+00:00")
    assert told == {"id": made["id"], "mime-type": "text/csv", "size": "1", "namespace": "session", "etag": made["etag"]}
    assert answer.headers["etag"] == f'"{made["etag"]}"'


def test_a_content_is_served_in_ranges_and_under_conditions(box):
    box.bash(f"printf 0123456789 > {OUTPUTS}/r.txt; printf 0123456789 > {OUTPUTS}/p.html")
    path = f"/{file_id(OUTPUTS + '/r.txt')}/content"
    whole = box.call("GET", path)
    assert whole.content == b"0123456789" and whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.headers["content-disposition"].startswith('attachment; filename="r.txt"')
    assert whole.headers["etag"] == f'"{hashlib.md5(whole.content).hexdigest()}"'
    answer = box.call("GET", path, headers={"range": "bytes=2-4"})
    assert (answer.status_code, answer.content, answer.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
    for asked in ("bytes=10-", "bytes=0-1,3-4"):
        answer = box.call("GET", path, headers={"range": asked})
        assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10"), answer.text
    assert box.call("GET", path, headers={"if-none-match": whole.headers["etag"]}).status_code == 304
    assert box.call("GET", path, headers={"if-match": '"other"'}).status_code == 412
    head, different = box.call("HEAD", path), {"date", "request-id"}
    strip = lambda answer: {name: value for name, value in answer.headers.items() if name not in different}
    assert head.content == b"" and strip(head) == strip(whole)
    assert box.call("GET", path, params={"disposition": "Inline"}).headers["content-disposition"].startswith("inline;")
    page = box.content(OUTPUTS + "/p.html", params={"disposition": "inline"})
    assert page.headers["content-disposition"].startswith("attachment;") and page.headers["x-content-type-options"] == "nosniff"
    box.bash(f"printf 9876543210 > {OUTPUTS}/r.txt; touch -d @1700000000 {OUTPUTS}/r.txt")
    assert box.call("GET", path, headers={"if-none-match": whole.headers["etag"]}).content == b"9876543210"


def test_a_put_holds_to_its_conditions(box):
    absent = {"if-none-match": "*"}
    first = box.put("a", b"1", absent)
    assert first.status_code == 200 and box.put("a", b"2", absent).status_code == 412
    tag = {"if-match": first.headers["etag"]}
    assert tag["if-match"] == f'"{first.json()["etag"]}"'
    assert box.put("a", b"3", tag).status_code == 200 and box.put("a", b"4", tag).status_code == 412
    assert box.put("b", b"5", {"if-match": "*"}).status_code == 412
    answer = box.put("a", b"6", tag)
    assert answer.json()["error"]["type"] == "invalid_request_error" and "If-Match" in answer.json()["detail"]
    box.bash(f"printf made > {OUTPUTS}/made")
    assert box.put("outputs/made", b"7", {"if-match": f'"{hashlib.md5(b"made").hexdigest()}"'}).status_code == 200
    assert (box.content(UPLOADS + "/a").content, box.content(OUTPUTS + "/made").content) == (b"3", b"7")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda n: box.put("one", str(n).encode() * 50_000, absent), range(6)))
    made = [n for n, answer in enumerate(answers) if answer.status_code == 200]
    assert len(made) == 1 and {answer.status_code for answer in answers} == {200, 412}
    assert box.content(UPLOADS + "/one").content == str(made[0]).encode() * 50_000


def test_odd_names_are_listed_read_and_deleted_as_themselves(box):
    names = ["報告 🤣.csv", "a b.txt", "100%.txt", "report%20name.txt", "report name.txt", "-rf", 'q"uote.txt', "line\nbreak.txt"]
    for name in names:
        made = box.put(name, name.encode())
        assert made.status_code == 200 and made.json()["filename"] == name, made.text
    box.bash(f"printf raw > $'{OUTPUTS}/\\xff.bin'")
    listed = {file["id"]: file["filename"] for file in box.list()["data"]}
    assert listed == {file_id(f"{UPLOADS}/{name}"): name for name in names} | {file_id(OUTPUTS.encode() + b"/\xff.bin"): "\ufffd.bin"}
    assert box.content(OUTPUTS.encode() + b"/\xff.bin").content == b"raw"
    for name in names:
        answer = box.content(f"{UPLOADS}/{name}")
        assert answer.content == name.encode() and "filename*=UTF-8''" in answer.headers["content-disposition"]
    assert box.call("DELETE", "/" + file_id(UPLOADS + "/report%20name.txt")).json()["type"] == "file_deleted"
    assert box.content(UPLOADS + "/report name.txt").status_code == 200
    assert box.call("DELETE", "/" + file_id(OUTPUTS.encode() + b"/\xff.bin")).status_code == 200
    assert len(box.list()["data"]) == len(names) - 1


def test_a_file_is_deleted_wherever_it_lies(box):
    box.put("a", b"1")
    box.bash(f"echo 2 > {OUTPUTS}/b; echo 3 > c")
    for path in (UPLOADS + "/a", OUTPUTS + "/b", WORKSPACE + "/c"):
        assert box.call("GET", "/" + file_id(path)).json()["downloadable"] is not path.startswith(UPLOADS)
        assert box.call("DELETE", "/" + file_id(path)).json() == {"id": file_id(path), "type": "file_deleted"}
        assert box.call("DELETE", "/" + file_id(path)).status_code == 404
    assert box.bash(f"ls {UPLOADS} {OUTPUTS}; ls | wc -l")["stdout"].split()[-1] == "0"


def test_a_prefix_deletes_uploads_that_begin_so(box):
    for key in ("data/2026/a", "data/2026/b/c", "data/2027", "outputs/kept", "out"):
        box.put(key, b"1")
    assert box.call("DELETE", params={"prefix": "data/2026/"}).json() == {"prefix": "data/2026/", "deleted_count": 2, "type": "prefix_deleted"}
    assert box.call("DELETE", params={"prefix": "/nothing"}).json() == {"prefix": "/nothing", "deleted_count": 0, "type": "prefix_deleted"}
    assert box.call("DELETE", params={"prefix": "out"}).json()["deleted_count"] == 1
    assert {file["filename"] for file in box.list()["data"]} == {"2027", "kept"}
    assert box.call("DELETE", params={"prefix": "outputs/"}).json()["deleted_count"] == 1
    for empty in (" ", "/"):
        answer = box.call("DELETE", params={"prefix": empty})
        assert answer.status_code == 400 and answer.json()["detail"] == "prefix must be non-empty for bulk delete."
    assert box.call("DELETE").json()["detail"] == "prefix: Field required"
    assert [file["filename"] for file in box.list()["data"]] == ["2027"]


def test_what_is_no_regular_file_is_none(box):
    box.bash(f"cd {OUTPUTS}; ln -s /etc/passwd link; mkfifo pipe; mkdir folder; ln -s {UPLOADS} up; echo x > real")
    assert [file["filename"] for file in box.list()["data"]] == ["real"]
    for name in ("link", "pipe", "folder", "up/real"):
        assert box.content(f"{OUTPUTS}/{name}").status_code == 404, name
        assert box.put(f"outputs/{name}", b"x").status_code == 400, name
    assert box.put("outputs/real/below", b"x").status_code == 400


def test_another_user_has_no_part_in_a_containers_files(server):
    mine = Box(server)
    made = mine.upload("secret.txt", b"s")
    for key in (1, 2):
        other = Box(server, mine.container, key)
        assert other.list()["data"] == []
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", ""), ("HEAD", "")):
            assert other.call(method, "/" + made["id"] + path).status_code == 404
        assert other.upload("secret.txt", b"theirs")["size_bytes"] == 6, "a container of their own"
    assert mine.content(UPLOADS + "/secret.txt").content == b"s"
    foreign = server.ask(bash("true"), surface="zylon", key=1)["container"]["id"]
    assert foreign.startswith("user_") and Box(server, foreign, 1).list()["data"] == []
    answer = Box(server, foreign).call("GET")
    assert answer.status_code == 404 and answer.json()["error"]["details"]["error_code"] == "container_not_found"


@pytest.mark.local
def test_reading_makes_no_container_and_writing_does(tmp_path):
    server = start_server(tmp_path)
    boxes = lambda: len(os.listdir(tmp_path / "data/sandboxes/sandboxes"))
    try:
        box, before = Box(server), boxes()
        assert box.list()["data"] == []
        assert box.call("DELETE", params={"prefix": "a"}).json()["deleted_count"] == 0
        for method, path in (("GET", ""), ("GET", "/content"), ("HEAD", ""), ("DELETE", "")):
            assert box.call(method, "/" + file_id(UPLOADS + "/a") + path).status_code == 404
        assert box.call("GET", params={"after_id": file_id(UPLOADS + "/a")}).status_code == 400
        assert boxes() == before
        box.put("a", b"1")
        assert boxes() > before and box.content(UPLOADS + "/a").content == b"1"
    finally:
        stop_server(server)


@pytest.mark.local
def test_reading_wakes_a_container_that_has_been_stopped(tmp_path):
    server = start_server(tmp_path)
    box = Box(server)
    box.put("outputs/a", b"1")
    box.bash("echo 2 > in-the-workspace")
    stop_server(server)
    server = start_server(tmp_path, keys=server.keys)
    try:
        box.server = server
        assert [file["filename"] for file in box.list()["data"]] == ["a"]
        assert box.content(WORKSPACE + "/in-the-workspace").content == b"2\n"
    finally:
        stop_server(server)


@pytest.mark.local
def test_a_form_that_is_refused_writes_nothing(box):
    files = [("file", ("a", b"x" * 300_000)), ("path", (None, "b"))]
    answer = box.call("POST", files=files)
    assert answer.status_code == 400 and answer.json()["detail"] == "path: must come before the file", answer.text
    files = [("file", ("a", b"x")), ("file", ("b", b"x"))]
    assert box.call("POST", files=files).status_code == 400
    cut = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 300_000
    assert box.call("POST", data=cut, headers={"content-type": "multipart/form-data; boundary=b"}).status_code == 400
    assert box.call("POST", files={"other": ("a", b"x")}).json()["detail"] == "file: Field required"
    assert box.call("POST", data=b"x", headers={"content-type": "text/plain"}).status_code == 400
    assert box.list()["data"] == []


def test_whoever_is_refused_in_the_middle_of_a_large_body_reads_why(box):
    large = b"x" * 30_000_000
    answers = [box.put("a//b", large), box.call("POST", files={"file": ("a", large)}, params={"path": "/abs"})]
    answers.append(box.call("PUT", "/a", data=large, params={"scope_id": "../.."}))
    answers.append(box.call("PUT", "/a", data=iter([large] * 2), headers={"if-match": "*"}))
    assert [answer.status_code for answer in answers] == [400, 400, 400, 412]
    assert box.list()["data"] == []


def test_the_files_of_a_list_are_those_that_code_made(box):
    """The whole example of the documentation: upload, analyse, download all that can be, clean up."""
    box.upload("sales.csv", b"month,revenue\n1,10\n2,32\n")
    total = f"awk -F, 'NR > 1 {{ sum += $2 }} END {{ print sum }}' {UPLOADS}/sales.csv > {OUTPUTS}/revenue.txt"
    assert box.bash(total)["return_code"] == 0
    files = box.list()["data"]
    got = {file["filename"]: box.call("GET", f"/{file['id']}/content").content for file in files if file["downloadable"]}
    assert got == {"revenue.txt": b"42\n"}
    for file in files:
        assert box.call("DELETE", "/" + file["id"]).status_code == 200
    assert box.list()["data"] == []


def test_uploads_cannot_be_written_by_code(box):
    box.upload("a", b"1")
    assert box.bash(f"echo 2 > {UPLOADS}/a")["return_code"] != 0 and box.content(UPLOADS + "/a").content == b"1"


def thread(server, method, thread_id, path, key=0, **options):
    headers = {"authorization": "Bearer " + server.keys[key]}
    return requests.request(method, f"{server.url}/api/v1/app/thread/{thread_id}/{path}", headers=headers, timeout=150, **options)


def test_a_threads_files_are_those_of_the_container_of_its_name(server):
    box = Box(server)
    made = thread(server, "POST", box.container, "upload-file", files=[("path", (None, "data/sales.csv")), ("file", ("x.csv", b"1,2\n"))])
    assert made.status_code == 200 and made.json()["id"] == file_id(UPLOADS + "/data/sales.csv"), made.text
    assert thread(server, "POST", box.container, "upload-file", files={"file": ("y.csv", b"1")}).json()["filename"] == "y.csv"
    assert thread(server, "PUT", box.container, "put-file/outputs/raw.bin", data=b"raw").json()["downloadable"] is True
    for path, content in ((UPLOADS + "/data/sales.csv", b"1,2\n"), (OUTPUTS + "/raw.bin", b"raw")):
        answer = thread(server, "GET", box.container, "download-file", params={"path": path})
        assert answer.status_code == 200 and answer.content == content
        assert thread(server, "GET", box.container, "download-file", params={"path": path}, key=1).status_code == 404
    assert box.bash(f"cat {UPLOADS}/data/sales.csv")["stdout"] == "1,2\n"
    for path, status in (("/etc/passwd", 404), (OUTPUTS + "/none", 404), (OUTPUTS + "/../uploads/y.csv", 404), (None, 400)):
        assert thread(server, "GET", box.container, "download-file", params={"path": path}).status_code == status
    assert thread(server, "PUT", box.container, "put-file/a%2f..%2fb", data=b"x").status_code == 400


@pytest.mark.local
def test_downloads_of_threads_can_be_switched_off_by_where_files_come_from(tmp_path):
    server = start_server(tmp_path, "--download-uploaded", "false", env={"CODEEXEC_DOWNLOAD_GENERATED": "false"})
    try:
        box = Box(server)
        box.put("a", b"1")
        for path, what in ((UPLOADS + "/a", "uploaded"), (OUTPUTS + "/b", "generated")):
            answer = thread(server, "GET", box.container, "download-file", params={"path": path})
            assert answer.status_code == 403 and what in answer.json()["detail"]
            assert answer.json()["error"]["type"] == "permission_error"
        assert box.content(UPLOADS + "/a").content == b"1", "the other API is not an organisation's"
    finally:
        stop_server(server)


@pytest.mark.local
def test_simultaneous_first_writes_meet_in_one_container(server):
    box = Box(server)
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda n: box.put(f"{n}", str(n).encode()), range(10)))
    assert [answer.status_code for answer in answers] == [200] * 10, [answer.text for answer in answers]
    assert {file["filename"] for file in box.list()["data"]} == {str(n) for n in range(10)}
