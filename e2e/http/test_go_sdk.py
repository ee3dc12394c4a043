"""The official Go SDK, unmodified: the shapes of the code execution page, made by the program in go_shapes."""

import datetime
import json
import os
import shutil
import subprocess

import pytest

from conftest import HTTP

pytestmark = pytest.mark.local
RUN = ["server_tool_use", "bash_code_execution_tool_result", "text"]


@pytest.fixture(scope="module")
def shapes(server, tmp_path_factory):
    if not shutil.which("go"):
        pytest.skip("Go is not installed")
    program = tmp_path_factory.mktemp("go") / "shapes"
    subprocess.run(["go", "build", "-o", program, "."], cwd=HTTP / "go_shapes", check=True, timeout=600)
    # The other workspace, so that few files of other tests are walked through.
    env = os.environ | {"CODEEXEC_URL": server.url, "CODEEXEC_KEY": server.keys[2]}
    run = subprocess.run([program], env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_go_runs_code_and_reads_each_block_in_its_type(shapes):
    first = shapes["first"]
    assert first["kinds"] == RUN and first["stop"] == "end_turn"
    assert first["inputs"] == [{"command": "echo 12 > /tmp/number.txt; echo written"}] and first["stdout"] == ["written\n"]
    assert datetime.datetime.fromisoformat(first["expires"]) > datetime.datetime.now(datetime.UTC)


def test_go_uses_a_container_again(shapes):
    assert shapes["second"]["stdout"] == ["144\n"]
    assert shapes["second"]["container"] == shapes["first"]["container"]


def test_a_stream_that_go_accumulates_is_the_created_message(shapes):
    streamed, created = shapes["streamed"], shapes["second"]
    for name in ("kinds", "inputs", "stdout", "stop", "container"):
        assert streamed[name] == created[name], name
    shape = lambda message: [(block["type"], block.get("input"), block.get("text")) for block in message["raw"]["content"]]
    assert shape(streamed) == shape(created) and set(streamed["raw"]) == set(created["raw"])
    assert streamed["raw"]["usage"]["output_tokens"] == created["raw"]["usage"]["output_tokens"]


def test_an_answer_that_go_sends_back_is_accepted(shapes):
    assert shapes["history"]["stdout"] == ["1\n"]


def test_go_uploads_a_file_and_downloads_what_code_made_of_it(shapes):
    assert (shapes["uploaded"]["filename"], shapes["uploaded"]["size_bytes"], shapes["uploaded"]["downloadable"]) == ("data.csv", 8, False)
    assert shapes["downloads"] == {"output.csv": "1,2\na,b\n"}


def test_go_walks_the_pages_of_the_files_and_deletes_one(shapes):
    assert [name for name in shapes["listed"] if name in ("data.csv", "output.csv")][:2] == ["output.csv", "data.csv"]
    assert shapes["deleted"] == "file_deleted"


def test_go_sees_the_status_of_a_file_that_is_gone_and_of_a_wrong_key(shapes):
    assert shapes["statuses"] == [404, 401]
