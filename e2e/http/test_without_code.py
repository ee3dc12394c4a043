"""A server that runs no code, and one that does not offer the tool."""

import pytest
from conftest import CE25, CE_V1, MESSAGES, bash, request, start_server, stop_server

NOT_CONFIGURED = "code_execution provider is not configured."
CE26 = {"type": "code_execution_20260120", "name": "code_execution"}
OWN = {"name": "weather", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def without_runtime(tmp_path_factory):
    started = start_server(tmp_path_factory.mktemp("none"), "--runtime", "none")
    yield started
    stop_server(started)


@pytest.fixture(scope="module")
def without_tool(tmp_path_factory):
    started = start_server(tmp_path_factory.mktemp("stripped"), "--code-execution", "false")
    yield started
    stop_server(started)


@pytest.mark.parametrize("tool", [CE25, CE26])
def test_without_a_runtime_each_call_ends_with_an_error_that_says_so(without_runtime, tool):
    content, answer = without_runtime.bash("true", tools=[tool])
    assert content["type"].endswith("_tool_result_error") and content["error_code"] == "unavailable", content
    assert answer["stop_reason"] == "end_turn"


def test_the_zylon_surface_says_it_in_the_published_words(without_runtime):
    content, answer = without_runtime.bash("true", tools=[CE_V1], surface="zylon")
    assert content["detail"]["explanation"] == NOT_CONFIGURED, content
    assert answer["stop_reason"] == "end_turn"
    upload = without_runtime.post("/api/gpt/v1/files?scope_id=c1", files={"file": ("a.txt", b"a")})
    assert upload.status_code == 400 and NOT_CONFIGURED in upload.json()["error"]["message"], upload.text


def test_without_a_runtime_everything_else_works(without_runtime):
    assert without_runtime.ask("hello", tools=[])["stop_reason"] == "end_turn"
    stored = without_runtime.sdk().files.upload(file=("a.txt", b"a", "text/plain"))
    assert without_runtime.sdk().files.retrieve_metadata(stored.id).size_bytes == 1
    assert without_runtime.get("/readyz").status_code == 200


@pytest.mark.parametrize("surface", MESSAGES)
def test_a_tool_that_is_not_offered_is_as_good_as_not_named(without_tool, surface):
    plain = without_tool.ask(bash("true"), tools=[], surface=surface)
    named = without_tool.ask(bash("true"), tools=[CE25], surface=surface)
    assert [it["type"] for it in named["content"]] == ["text"] and not named.get("container")
    assert (named["content"], named["stop_reason"], named["usage"]) == (plain["content"], plain["stop_reason"], plain["usage"])


def test_the_clients_own_tools_stay(without_tool):
    answer = without_tool.ask('```tool_use\n{"name": "weather", "input": {}}\n```', tools=[CE25, OWN])
    assert answer["stop_reason"] == "tool_use" and answer["content"][-1]["name"] == "weather"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "code_execution"}])
def test_a_choice_of_it_goes_with_it(without_tool, choice):
    answer = without_tool.ask("hello", tools=[CE25], tool_choice=choice)
    assert answer["stop_reason"] == "end_turn"
    counted = without_tool.post("/v1/messages/count_tokens", request("hello", tools=[CE25], tool_choice=choice))
    assert counted.status_code == 200, counted.text
