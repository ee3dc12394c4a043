"""The server with its files in a bucket of a small S3, which also gives out the credentials of a role."""

import socket

import anthropic
import pytest
import requests
import small_s3
from conftest import start_server, stop_server, wait_until

pytestmark = pytest.mark.local


@pytest.fixture
def bucket():
    with small_s3.Bucket() as bucket:
        yield bucket
        bucket.shutdown()


def start(folder, bucket, env=None, name="files", **options):
    flags, credentials = small_s3.settings(bucket, name)
    # `env` stands for the credentials, and leaves everything else as it is.
    env = {"AWS_EC2_METADATA_DISABLED": "true"} | env if env else credentials
    return start_server(folder, *flags, env=env, **options)


def test_files_in_a_bucket_are_uploaded_listed_used_and_deleted(tmp_path, bucket):
    server = start(tmp_path, bucket)
    try:
        client = server.sdk()
        big = bytes(range(256)) * 25_000
        made = [client.files.upload(file=(name, content, "text/csv")) for name, content in (("a.csv", b"x,y\n1,2\n"), ("b.csv", big), ("c.csv", b""))]
        assert [meta.id for meta in client.files.list(limit=2)] == [meta.id for meta in made[::-1]]
        assert [client.files.retrieve_metadata(meta.id) for meta in made] == made and client.files.list(ids=[made[0].id]).data == made[:1]
        result, _ = server.bash('head -c 100000 /dev/zero > "$OUTPUT_DIR/zeros"')
        output = result["content"][0]["file_id"]
        assert client.files.download(output).read() == bytes(100_000)
        part = server.get(f"/v1/files/{output}/content").headers["etag"]
        headers = {"x-api-key": server.keys[0], "anthropic-version": "2023-06-01", "range": "bytes=5-9", "if-range": part}
        answer = requests.get(f"{server.url}/v1/files/{output}/content", headers=headers, timeout=60)
        assert (answer.status_code, answer.content) == (206, bytes(5))
        for meta in client.files.list():
            client.files.delete(meta.id)
        assert bucket.objects == {}, "neither content nor entry stays"
        assert all("/files/v1/" in path or path == "/files/" for _, path, _, _ in bucket.requests), "the bucket stands in the path"
    finally:
        stop_server(server)


def test_a_server_restarted_finds_its_files_and_another_workspace_does_not(tmp_path, bucket):
    server = start(tmp_path, bucket)
    made = server.sdk().files.upload(file=("a.csv", b"x", "text/csv"))
    stop_server(server)
    server = start(tmp_path / "elsewhere", bucket, keys=server.keys)
    try:
        assert server.sdk().files.list().data == [made] and server.sdk(key=2).files.list().data == []
    finally:
        stop_server(server)


def test_credentials_come_from_the_role_of_a_service_account(tmp_path, bucket):
    token = tmp_path / "token"
    token.write_text("tok")
    role = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ROLE_ARN": "arn:aws:iam::1:role/files", "AWS_ENDPOINT_URL_STS": bucket.url}
    server = start(tmp_path, bucket, env=role)
    try:
        server.sdk().files.upload(file=("a.csv", b"x", "text/csv"))
        signed = [headers for method, path, _, headers in bucket.requests if path != "/" and method == "PUT"]
        assert signed and all("Credential=ROLEKEY/" in headers["authorization"] for headers in signed)
        assert {headers["x-amz-security-token"] for headers in signed} == {"session-of-tok"}
    finally:
        stop_server(server)


@pytest.mark.parametrize(
    ("name", "failure", "words"),
    [("missing", None, "bucket does not exist"), ("files", (403, "SignatureDoesNotMatch"), "credentials are wrong"), ("files", (503, "SlowDown"), "unavailable")],
    ids=["bucket", "credentials", "overload"],
)
def test_a_store_in_trouble_is_named_by_readiness_and_answers_clearly(tmp_path, bucket, name, failure, words):
    bucket.failure = failure
    server = start(tmp_path, bucket, name=name)
    try:
        assert requests.get(server.url + "/readyz", timeout=60).status_code == 503
        problems = requests.get(server.inside + "/readyz", timeout=60).json()["problems"]
        assert any(words in problem for problem in problems), problems
        with pytest.raises(anthropic.APIStatusError) as raised:
            server.sdk().files.upload(file=("a.csv", b"x", "text/csv"))
        assert raised.value.status_code == (529 if failure == (503, "SlowDown") else 500)
        assert "file store" in raised.value.message and "127.0.0.1" not in raised.value.message and bucket.objects == {}
        bucket.failure = None
        if name == "files":
            server.sdk().files.upload(file=("a.csv", b"x", "text/csv"))
    finally:
        stop_server(server)


def test_readiness_names_a_store_that_does_not_answer(tmp_path, bucket):
    server = start(tmp_path, bucket)
    try:
        assert requests.get(server.url + "/readyz", timeout=60).status_code == 200
        bucket.speaks.clear()
        wait_until(lambda: requests.get(server.url + "/readyz", timeout=60).status_code == 503, 60)
        problems = requests.get(server.inside + "/readyz", timeout=60).json()["problems"]
        assert any("file store does not answer" in problem for problem in problems), problems
        bucket.speaks.set()
        wait_until(lambda: requests.get(server.url + "/readyz", timeout=60).status_code == 200, 60)
    finally:
        bucket.speaks.set()
        stop_server(server)


def test_a_part_that_fails_once_is_sent_again_and_one_that_fails_for_good_leaves_nothing(tmp_path, bucket):
    server = start(tmp_path, bucket)
    try:
        content = bytes(range(256)) * 50_000
        failing = lambda status, times: bucket.faults.extend([("partNumber", status)] * times)
        failing(503, 2)
        made = server.sdk().files.upload(file=("a.bin", content))
        assert made.size_bytes == len(content) and not bucket.faults
        failing(403, 1)
        with pytest.raises(anthropic.InternalServerError):
            server.sdk().files.upload(file=("b.bin", content))
        wait_until(lambda: not bucket.uploads, 60)
        assert [meta.id for meta in server.sdk().files.list()] == [made.id] and len(bucket.objects) == 2
    finally:
        stop_server(server)


def test_a_store_that_cannot_be_reached_is_an_error_that_says_so(tmp_path, bucket):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        bucket.url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        server = start(tmp_path, bucket)
        try:
            with pytest.raises(anthropic.OverloadedError):
                server.sdk().files.list()
        finally:
            stop_server(server)
