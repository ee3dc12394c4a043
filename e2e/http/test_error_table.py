"""The table of errors: each status with its type, its class of the SDK and its codes, in the envelopes of both surfaces."""

import anthropic
import pytest
import requests
from anthropic.types import ThreadUnsupportedRequestError, ToolNameConflictError
from conftest import CE25, MESSAGES, bash, fresh_id, request
from test_errors import check

TWICE = {"name": "get_weather", "input_schema": {"type": "object"}}
AGAIN = {429, 529}
surfaces = pytest.mark.parametrize("surface", MESSAGES)
rows = pytest.mark.parametrize(
    ("status", "kind", "raised"),
    [
        (402, "billing_error", anthropic.PaymentRequiredError),
        (403, "permission_error", anthropic.PermissionDeniedError),
        (409, "conflict_error", anthropic.ConflictError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (504, "timeout_error", anthropic.GatewayTimeoutError),
        (529, "overloaded_error", anthropic.OverloadedError),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)


def error_of(server, surface, body):
    """What the SDK raises for a request, whose envelope and headers are right."""
    client = anthropic.Anthropic(base_url=server.url + MESSAGES[surface].removesuffix("/v1/messages"), api_key=server.keys[0], max_retries=0)
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.post("/v1/messages", body=body, cast_to=object)
    error = caught.value
    assert error.request_id == error.body["request_id"] == error.response.headers["request-id"]
    zylon = {"detail"} if surface == "zylon" else set()
    assert set(error.body) == {"type", "error", "request_id"} | zylon and set(error.body["error"]) == {"type", "message", "details"} | zylon
    if zylon:
        code = (error.body["error"]["details"] or {"error_code": error.body["error"]["type"]})["error_code"]
        assert error.body["error"]["detail"] == {"code": code, "explanation": error.body["error"]["message"]}
        assert error.body["detail"] == error.body["error"]["message"]
    return error


@surfaces
@rows
def test_a_status_has_its_type_and_its_class(server, status, kind, raised, surface):
    error = error_of(server, surface, request('```turn\n{"error": {"status": %d, "after": 0}}\n```' % status, tools=[]))
    assert (type(error), error.status_code, error.type) == (raised, status, kind)
    assert error.body["error"]["details"] is None and str(status) in error.body["error"]["message"]
    assert ("retry-after" in error.response.headers) == (status in AGAIN)


@surfaces
@pytest.mark.parametrize(
    ("fields", "status", "code", "raised"),
    [
        ({"tools": [TWICE, TWICE]}, 400, "tool_name_conflict", ToolNameConflictError),
        ({"tools": [CE25, TWICE | {"name": "bash_code_execution"}]}, 400, "tool_name_conflict", ToolNameConflictError),
        ({"thread": {"type": "create"}}, 400, "thread_unsupported_request", ThreadUnsupportedRequestError),
        ({"thread": {"type": "continue", "previous_message_id": "msg_01"}, "messages": []}, 400, "thread_unsupported_request", ThreadUnsupportedRequestError),
    ],
    ids=["tools of one name", "a tool of a sub-tool's name", "a thread", "a thread going on"],
)
def test_a_code_has_its_class(server, fields, status, code, raised, surface):
    error = error_of(server, surface, request("hi", **fields))
    assert (type(error), error.status_code, error.type, error.error_code) == (raised, status, "invalid_request_error", code)


@surfaces
@pytest.mark.parametrize("encoding", ["gzip", "br", "foo"])
def test_an_encoded_body_is_refused_and_named(server, encoding, surface):
    answer = server.post(MESSAGES[surface], request("hi", tools=[]), headers={"content-encoding": encoding})
    body = check(answer, 400, "invalid_request_error", surface, f"`{encoding}`")
    assert body["error"]["details"]["error_code"] == "request_body_encoding_unsupported"
    assert server.post(MESSAGES[surface], request("hi", tools=[]), headers={"content-encoding": "identity"}).status_code == 200


@pytest.mark.parametrize(
    ("container", "status", "message", "code"),
    [
        ("no id", 400, "container: ", None),
        ("x" * 129, 400, "container: ", None),
        ("container_nowhere", 404, "Container `container_nowhere` not found.", "container_not_found"),
        ("container_" + "0" * 26, 404, "has expired. Send the request without `container` to get a new one.", "container_expired"),
    ],
    ids=["malformed", "too long", "unknown", "expired"],
)
def test_a_container_that_is_not_to_be_had_says_why(server, container, status, message, code):
    error = error_of(server, "anthropic", request(bash("true"), container=container))
    assert (error.status_code, error.error_code) == (status, code) and message in error.body["error"]["message"]
    assert code is None or container in error.body["error"]["message"]


def test_an_expired_container_is_made_anew_where_names_are_the_clients_own(server):
    name = f"container_{'0' * 12}{fresh_id()[5:].upper()}00"
    result, answer = server.bash("echo new", surface="zylon", container=name)
    assert result["stdout"] == "new\n" and answer["container"]["id"] == name


@surfaces
def test_without_a_key_the_way_to_send_one_is_told(server, surface):
    answer = requests.post(server.url + MESSAGES[surface], json=request("hi"), headers={"anthropic-version": "2023-06-01"}, timeout=60)
    check(answer, 401, "authentication_error", surface, "x-api-key")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/api/gpt/v1/nowhere", 404, "not_found_error"),
        ("/api/v1/app/nowhere", 404, "not_found_error"),
        ("/api/gpt/v1/models/nope", 404, "not_found_error"),
        ("/api/gpt/v1/files", 400, "invalid_request_error"),
        ("/api/gpt/v1/messages", 405, "invalid_request_error"),
        ("/api/gpt/v1/messages/count_tokens", 405, "invalid_request_error"),
        ("/api/v1/app/thread/t1/upload-file", 405, "invalid_request_error"),
        ("/api/v1/app/thread/t1/download-file", 400, "invalid_request_error"),
        ("/v1/files/file_none", 404, "not_found_error"),
        ("/v1/files/file_none/content", 404, "not_found_error"),
        ("/v1/files?limit=0", 400, "invalid_request_error"),
        ("/v1/messages/count_tokens", 405, "invalid_request_error"),
    ],
)
def test_every_route_answers_in_its_surfaces_envelope(server, path, status, kind):
    body = check(server.get(path), status, kind, "zylon" if path.startswith("/api/") else "anthropic")
    assert ("detail" in body) == ("detail" in body["error"]) == path.startswith("/api/")
