"""Which container a request runs in, and whose it is."""

import concurrent.futures
import datetime
import json

import pytest

from conftest import CE25, CE_V1, bash, fresh_id, kubectl, request


def test_a_container_keeps_its_files_across_requests_tmp_included(server):
    _, first = server.bash("echo 7 > /tmp/number; echo 8 > here")
    container = first["container"]
    assert container["id"].startswith("container_")
    result, second = server.bash("cat /tmp/number here", container=container["id"])
    assert result["stdout"] == "7\n8\n"
    assert second["container"]["id"] == container["id"]
    assert second["container"]["expires_at"] >= container["expires_at"]


def test_without_a_container_each_request_has_a_new_one(server):
    _, first = server.bash("touch /tmp/mark")
    result, second = server.bash("ls /tmp/mark 2>&1; true")
    assert "No such file" in result["stdout"] and first["container"]["id"] != second["container"]["id"]


def test_an_answer_without_code_names_no_container(server):
    answer = server.ask("```text\nhello\n```")
    assert answer["container"] is None and answer["content"] == [{"type": "text", "text": "hello"}]


@pytest.mark.parametrize("form", ["string", "object"])
def test_every_legal_form_of_container_is_accepted(server, form):
    _, first = server.bash("true")
    name = first["container"]["id"]
    _, again = server.bash("true", container=name if form == "string" else {"id": name})
    assert again["container"]["id"] == name
    for none in (None, {}, {"id": None}):
        server.ask("```text\nhi\n```", container=none)


def test_an_unknown_container_is_a_404_before_anything_runs(server):
    for name in ("container_doesnotexist", "nonsense"):
        answer = server.post("/v1/messages", request(bash("true"), container=name))
        assert answer.status_code == 404, answer.text
        error = answer.json()["error"]
        assert error["type"] == "not_found_error" and error["details"]["error_code"] == "container_not_found"
        assert name in error["message"]


def test_a_container_whose_time_is_over_says_so(server):
    # The id of a call made in 2001: older than any container lives.
    _, answer = server.bash("true")
    real = answer["container"]["id"]
    shape = real.removeprefix("container_")
    old = "container_" + "0" * 9 + shape[9:]
    answer = server.post("/v1/messages", request(bash("true"), container=old))
    assert answer.status_code == 404, answer.text
    assert answer.json()["error"]["details"]["error_code"] in ("container_expired", "container_not_found")


def test_another_workspace_sees_no_container_and_no_trace_of_it(server):
    _, mine = server.bash("echo secret > f")
    name = mine["container"]["id"]
    theirs = server.post("/v1/messages", request(bash("cat f"), container=name), key=2)
    missing = server.post("/v1/messages", request(bash("cat f"), container=name[:-1] + ("a" if name[-1] != "a" else "b")), key=2)
    assert theirs.status_code == missing.status_code == 404
    assert theirs.json()["error"]["details"] == missing.json()["error"]["details"]
    same_workspace, _ = server.bash("cat f", container=name, key=1)
    assert same_workspace["stdout"] == "secret\n"


def test_on_the_zylon_surface_a_named_container_is_made_and_belongs_to_its_user(server):
    name = fresh_id()
    _, answer = server.bash("echo ann > f", surface="zylon", tools=[CE_V1], container=name)
    assert answer["container"]["id"] == name
    expires = datetime.datetime.fromisoformat(answer["container"]["expires_at"])
    assert expires > datetime.datetime.now(datetime.timezone.utc)
    theirs, _ = server.bash("cat f 2>&1; true", surface="zylon", container=name, key=1)
    assert "No such file" in theirs["stdout"]
    mine, _ = server.bash("cat f", surface="zylon", container=name)
    assert mine["stdout"] == "ann\n"


def test_on_the_zylon_surface_no_container_means_the_users_own(server):
    _, first = server.bash("echo one >> own", surface="zylon", key=1)
    result, second = server.bash("cat own", surface="zylon", key=1, container="")
    assert result["stdout"].startswith("one\n") and first["container"]["id"] == second["container"]["id"]
    _, other = server.bash("true", surface="zylon", key=2)
    assert other["container"]["id"] != first["container"]["id"]
    stolen = server.post("/api/gpt/v1/messages", request(bash("cat own"), container=first["container"]["id"]), key=2)
    assert stolen.status_code in (400, 404), stolen.text


def test_names_that_differ_in_case_are_different_containers(server):
    name = fresh_id()
    server.bash("echo low > f", surface="zylon", container=name)
    result, _ = server.bash("ls f 2>&1; true", surface="zylon", container=name.upper())
    assert "No such file" in result["stdout"]


@pytest.mark.parametrize("name", ["../..", "日本", "x" * 300, "a b/c", "x" * 10_000], ids=range(5))
def test_an_impossible_name_is_a_400_that_names_the_rule(server, name):
    answer = server.post("/api/gpt/v1/messages", request(bash("true"), container=name))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith("container: ") and "128" in answer.json()["detail"]


def test_twenty_first_uses_at_once_make_one_sandbox(server):
    name = fresh_id()

    def one(n):
        fields = {"surface": "zylon", "tools": [CE_V1], "container": name, "replica": n % 2}
        return server.bash(f"echo {n} >> all; echo {n}", **fields)[0]["stdout"]

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(one, range(20)))
    assert answers == [f"{n}\n" for n in range(20)]
    result, _ = server.bash("sort -n all | tr '\\n' ' '", surface="zylon", container=name)
    assert result["stdout"] == " ".join(map(str, range(20))) + " "
    if server.runtime == "cluster":
        found = json.loads(kubectl("get", "sandboxes,pods,pvc", "-o", "json"))["items"]
        kinds = sorted(item["kind"] for item in found if name in item["metadata"]["name"])
        assert kinds == ["PersistentVolumeClaim", "Pod", "Sandbox"], [item["metadata"]["name"] for item in found]


@pytest.mark.parametrize("surface", ["anthropic", "zylon"])
def test_history_that_mentions_a_dead_container_blocks_no_request(server, surface):
    first = server.ask(bash("echo old"), surface=surface, key=0)
    turns = [
        {"role": "user", "content": bash("echo old")},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": bash("echo new")},
    ]
    # In another workspace that container never was.
    answer = server.ask(surface=surface, key=2, messages=turns)
    results = [block["content"] for block in answer["content"] if block["type"].endswith("_tool_result")]
    assert [result["stdout"] for result in results] == ["new\n"]
    assert answer["container"]["id"] != first["container"]["id"]
    if surface == "zylon":
        # Named there, it is made anew.
        name = fresh_id()
        assert server.ask(surface=surface, key=2, container=name, messages=turns)["container"]["id"] == name
