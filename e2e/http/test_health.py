"""What a server says of itself: a word to everybody, the rest on a port for those who run it."""

import pytest
import requests

from conftest import bash, request, start_server, stop_server, wait_until


def test_readiness_is_one_word_in_public(server):
    for replica in server.urls:
        answer = requests.get(replica + "/readyz", timeout=10)
        assert (answer.status_code, answer.text) == (200, "ready\n")
        assert requests.get(replica + "/metrics", timeout=10).status_code in (401, 404)


@pytest.mark.local
def test_the_inside_port_has_detail_and_metrics_and_nothing_of_the_api(server):
    detail = requests.get(server.inside + "/readyz", timeout=10)
    assert detail.status_code == 200 and detail.json()["ready"] is True and detail.json()["problems"] == []
    assert requests.post(server.inside + "/v1/messages", json={}, timeout=10).status_code == 404


@pytest.mark.local
def test_requests_are_counted_by_route_and_status(server):
    labels = {"route": "/v1/messages", "method": "POST"}
    before = [server.metric("codeexec_api_requests_total", **labels, status=status) for status in (200, 400)]
    server.bash("true")
    server.post("/v1/messages", request(bash("true"), max_tokens=-1))
    after = [server.metric("codeexec_api_requests_total", **labels, status=status) for status in (200, 400)]
    assert [now - then for now, then in zip(after, before)] == [1, 1]
    assert server.metric("codeexec_api_sandboxes_acquired_total", outcome="created") >= 1
    assert server.metric("codeexec_api_streams_open") >= 1
    page = requests.get(server.inside + "/metrics", timeout=10).text
    for secret in (*server.keys, "container_", "req_"):
        assert secret not in page


@pytest.mark.local
def test_answers_of_models_are_counted_by_their_ends(tmp_path):
    server = start_server(tmp_path)
    server.bash("true")
    server.post("/v1/messages", request('```turn\n{"error": {"status": 400}}\n```', tools=[]))
    with server.post("/v1/messages", request('```turn\n{"sleep_ms": 60000}\n```', tools=[], stream=True), stream=True):
        pass
    counted = lambda outcome: server.metric("codeexec_api_samplings_total", model="demo", outcome=outcome)  # noqa: E731
    wait_until(lambda: counted("cancelled") == 1, what="the end of the abandoned answer")
    assert (counted("ended"), counted("invalid_request_error")) == (2, 1)
    assert server.metric("codeexec_api_first_event_seconds_count", model="demo") >= 3
    stop_server(server)
