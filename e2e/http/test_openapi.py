"""The description of the API is a valid one, and the server does what it says."""

import pathlib
import subprocess
import sys

import openapi_spec_validator
import pytest
import requests

from conftest import start_server, stop_server

# What an answer is held to: no failure of the server, and nothing that the description does not say.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"


def test_the_description_is_valid_and_needs_no_key(server):
    answer = requests.get(server.url + "/openapi.json", timeout=10)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    description = answer.json()
    openapi_spec_validator.validate(description)
    answers = [answer for path in description["paths"].values() for operation in path.values() for answer in operation["responses"]]
    assert "default" not in answers and "200" in answers


def explored(folder, *arguments):
    server = start_server(folder)
    try:
        command = [pathlib.Path(sys.executable).with_name("schemathesis"), "run", server.url + "/openapi.json", "--seed", "1"]
        key = ["-H", f"x-api-key: {server.keys[0]}"]
        return subprocess.run([*command, *key, "--checks", CHECKS, *arguments], capture_output=True, text=True, timeout=900, cwd=folder)
    finally:
        stop_server(server)


@pytest.mark.local
def test_what_is_sent_by_the_description_is_answered_by_it(tmp_path):
    run = explored(tmp_path, "--phases", "examples,fuzzing", "--max-examples", "10")
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


@pytest.mark.local
@pytest.mark.long
def test_every_value_that_the_description_allows_or_forbids_is_answered_by_it(tmp_path):
    run = explored(tmp_path, "--phases", "examples,coverage,fuzzing", "--max-examples", "60")
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
