"""Bad input: the contract's error shape, and a sentence that helps."""

import json
import re
import subprocess

import pytest
import requests

from conftest import BIN, CE25, MESSAGES, bash, request, start_server, stop_server

SURFACES = list(MESSAGES)


def check(answer, status, kind, surface, *words):
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body["type"] == "error" and body["error"]["type"] == kind, body
    assert body["request_id"] == answer.headers["request-id"] and body["request_id"].startswith("req_")
    for word in words:
        assert word in body["error"]["message"], body
    assert not re.search(r"panick|src/|\.rs|serde", answer.text), "internals leak"
    if surface == "zylon":
        assert body["detail"] == body["error"]["message"] and body["error"]["detail"]["explanation"]
    return body


@pytest.mark.parametrize("surface", SURFACES)
def test_malformed_json(server, surface):
    headers = {"x-api-key": server.keys[0], "anthropic-version": "2023-06-01", "content-type": "application/json"}
    answer = requests.post(server.url + MESSAGES[surface], data=b'{"model": "demo",', headers=headers)
    check(answer, 400, "invalid_request_error", surface, "JSON")


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"messages": ...}, ["messages: Field required"]),
        ({"max_tokens": "many"}, ["max_tokens: "]),
        ({"messages": []}, ["messages: "]),
        ({"messages": [{"role": "robot", "content": "x"}]}, ["messages.0.role: "]),
        ({"container": 5}, ["container: "]),
        ({"tools": [{"type": "code_execution_20250825", "name": "other"}]}, ["tools.0"]),
        ({"tools": [{"type": "teleport_20250101", "name": "teleport"}]}, ["tools.0"]),
    ],
)
def test_a_field_at_fault_is_named(server, surface, change, words):
    body = {name: value for name, value in (request("hi") | change).items() if value is not ...}
    check(server.post(MESSAGES[surface], body), 400, "invalid_request_error", surface, *words)


def test_missing_max_tokens_are_refused_on_the_anthropic_surface(server):
    body = request("hi")
    del body["max_tokens"]
    check(server.post(MESSAGES["anthropic"], body), 400, "invalid_request_error", "anthropic", "max_tokens: Field required")
    assert server.post(MESSAGES["zylon"], body).status_code == 200


def test_an_unknown_field_is_refused_on_the_anthropic_surface_and_accepted_on_the_other(server):
    body = request("```text\nhi\n```", bogus=1)
    check(server.post(MESSAGES["anthropic"], body), 400, "invalid_request_error", "anthropic", "bogus: Extra inputs are not permitted")
    assert server.post(MESSAGES["zylon"], body).status_code == 200


def test_a_missing_version_is_named(server):
    answer = requests.post(server.url + "/v1/messages", json=request("hi"), headers={"x-api-key": server.keys[0]})
    check(answer, 400, "invalid_request_error", "anthropic", "anthropic-version")


@pytest.mark.parametrize("surface", SURFACES)
def test_an_unknown_model_is_named(server, surface):
    check(server.post(MESSAGES[surface], request("hi", model="gpt-nope")), 404, "not_found_error", surface, "gpt-nope")


@pytest.mark.parametrize("surface", SURFACES)
def test_a_body_over_the_limit(server, surface):
    answer = server.post(MESSAGES[surface], request("x" * (33 * 1024 * 1024)))
    check(answer, 413, "request_too_large", surface, "32 MB")


@pytest.mark.parametrize("surface", SURFACES)
def test_no_key_and_a_wrong_key(server, surface):
    for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eDp5"}):
        answer = requests.post(server.url + MESSAGES[surface], json=request("hi"), headers={"anthropic-version": "x"} | headers)
        check(answer, 401, "authentication_error", surface, "key")


def test_an_unknown_route_and_a_wrong_method(server):
    check(server.get("/v1/nowhere"), 404, "not_found_error", "anthropic", "/v1/nowhere")
    check(server.get("/v1/messages"), 405, "invalid_request_error", "anthropic", "POST")


def test_history_at_fault_is_quoted(server):
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    rows = [
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": [use]}, {"role": "user", "content": "b"}], "`tool_use` ids were found without `tool_result` blocks"),
        ([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_9", "content": ""}]}], "unexpected `tool_use_id`"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "prefill"),
    ]
    for messages, words in rows:
        check(server.post("/v1/messages", request(messages=messages)), 400, "invalid_request_error", "anthropic", words)


def test_a_model_that_fails_before_its_first_word_is_a_status_and_after_it_an_event(server):
    turn = '```turn\n{"error": {"status": 529, "after": %d}}\n```'
    check(server.post("/v1/messages", request(turn % 0)), 529, "overloaded_error", "anthropic")
    answer = server.post("/v1/messages", request('```turn\n{"text": "hello"}\n{"error": {"status": 529}}\n```', stream=True))
    assert answer.status_code == 200 and "event: error" in answer.text and "overloaded_error" in answer.text, answer.text


@pytest.mark.local
def test_no_auth_is_refused_on_an_address_that_others_reach(tmp_path):
    command = [BIN / "api-server", "--auth", "none", "--listen", "0.0.0.0:0", "--data-dir", tmp_path]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode != 0 and "127.0.0.1" in ended.stderr and "--auth keys" in ended.stderr, ended.stderr


@pytest.mark.local
def test_a_taken_port_is_one_clear_sentence(server, tmp_path):
    address = server.url.removeprefix("http://")
    ended = subprocess.run([BIN / "api-server", "--listen", address, "--data-dir", tmp_path], capture_output=True, text=True, timeout=20)
    lines = ended.stderr.strip().splitlines()
    assert ended.returncode != 0 and len(lines) == 1 and address in lines[0] and "--listen" in lines[0], ended.stderr


@pytest.mark.local
def test_without_keys_no_web_page_gets_in(tmp_path):
    server = start_server(tmp_path, "--auth", "none")
    try:
        port = server.url.rsplit(":", 1)[1]
        rows = [
            ({"host": f"evil.example:{port}"}, 403),
            ({"origin": "http://evil.example"}, 403),
            ({"origin": server.url}, 403),
            ({"sec-fetch-site": "cross-site"}, 403),
            ({"content-type": "text/plain"}, 403),
            ({}, 200),
        ]
        for headers, status in rows:
            base = {"content-type": "application/json"} | headers
            path = "/api/gpt/v1/messages"
            answer = requests.post(server.url + path, data=json.dumps(request("```text\nhi\n```")), headers=base)
            assert answer.status_code == status, (headers, answer.text)
            if status == 403:
                assert answer.json()["error"]["type"] == "permission_error"
    finally:
        stop_server(server)


@pytest.mark.local
def test_a_key_a_prompt_and_a_command_are_in_no_log(tmp_path):
    canary = "canary5f0c"
    server = start_server(tmp_path, keys=[f"{canary}-a", f"{canary}-b", f"{canary}-c"], env={"RUST_LOG": "debug"})
    try:
        server.bash(f"echo {canary}; exit 1")
        server.post("/v1/messages", request(canary, model=canary))
        server.post("/v1/messages", {canary: 1})
        server.get(f"/v1/files/{canary}")
        server.post(f"/v1/messages?{canary}", {}, headers={"x-api-key": canary})
        server.sdk().files.upload(file=(f"{canary}.csv", canary.encode(), "text/csv"))
    finally:
        stop_server(server)
    log = server.log.read_text()
    assert "req_" in log and canary not in log, log
