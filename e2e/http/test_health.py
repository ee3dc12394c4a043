"""What a server says of itself: a word to everybody, the rest on a port for those who run it."""

import pytest
import requests

from conftest import bash, request


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
