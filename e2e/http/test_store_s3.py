"""The server with its files in a bucket: a small S3 in this process, which also gives out the credentials of a role."""

import http.server
import re
import socket
import threading
import urllib.parse
from xml.sax.saxutils import escape

import anthropic
import pytest
import requests
from conftest import start_server, stop_server

pytestmark = pytest.mark.local


class Bucket(http.server.ThreadingHTTPServer):
    """Objects by path. `requests` are (method, path, query, headers); `failure` answers every request while it is set."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects, self.uploads, self.requests, self.failure = {}, {}, [], None
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, code):
        self.answer(status, f"<Error><Code>{code}</Code><Message>refused</Message></Error>", content_type="application/xml")

    def handle_request(self):
        bucket = self.server
        path, _, query = self.path.partition("?")
        path, query = urllib.parse.unquote(path), dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        bucket.requests.append((self.command, path, query, dict(self.headers)))
        if path == "/" and b"AssumeRoleWithWebIdentity" in body:
            token = urllib.parse.parse_qs(body.decode())["WebIdentityToken"][0]
            credentials = "<AccessKeyId>ROLEKEY</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
            credentials += f"<SessionToken>session-of-{token}</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>"
            result = f"<AssumeRoleWithWebIdentityResult><Credentials>{credentials}</Credentials></AssumeRoleWithWebIdentityResult>"
            self.answer(200, f"<AssumeRoleWithWebIdentityResponse>{result}</AssumeRoleWithWebIdentityResponse>", content_type="text/xml")
        elif bucket.failure:
            self.refuse(*bucket.failure)
        elif not path.startswith("/files"):
            self.refuse(404, "NoSuchBucket")
        elif query.get("list-type") == "2":
            self.list(query)
        elif "uploads" in query:
            self.answer(200, "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")
        elif "partNumber" in query:
            bucket.uploads[path, int(query["partNumber"])] = body
            self.answer(200, etag=f'"{query["partNumber"]}"')
        elif self.command == "POST":
            parts = sorted(key for key in bucket.uploads if key[0] == path)
            bucket.objects[path] = b"".join(bucket.uploads.pop(key) for key in parts)
            self.answer(200, "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")
        elif self.command == "PUT":
            bucket.objects[path] = body
            self.answer(200, etag='"x"')
        elif self.command == "DELETE":
            bucket.objects.pop(path, None)
            self.answer(204)
        elif path not in bucket.objects:
            self.refuse(404, "NoSuchKey")
        else:
            content, asked = bucket.objects[path], re.match(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
            self.answer(206, content[int(asked[1]):int(asked[2]) + 1]) if asked else self.answer(200, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request

    def list(self, query):
        start, prefix = query.get("start-after", ""), query.get("prefix", "")
        names = sorted(path.removeprefix("/files/") for path in self.server.objects)
        names = [name for name in names if name.startswith(prefix) and name > start]
        most = int(query.get("max-keys", 1000))
        entry = "<Contents><Key>{}</Key><Size>{}</Size><LastModified>2026-11-30T09:00:00Z</LastModified></Contents>"
        shown = "".join(entry.format(escape(name), len(self.server.objects["/files/" + name])) for name in names[:most])
        more = "true" if len(names) > most else "false"
        self.answer(200, f"<ListBucketResult><IsTruncated>{more}</IsTruncated>{shown}</ListBucketResult>", content_type="application/xml")


@pytest.fixture
def bucket():
    with Bucket() as bucket:
        yield bucket
        bucket.shutdown()


def start(folder, bucket, env=None, name="files", **options):
    credentials = env or {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK"}
    flags = ["--store", "s3", "--s3-bucket", name, "--s3-region", "eu-west-1", "--s3-endpoint", bucket.url]
    return start_server(folder, *flags, env=credentials | {"CODEEXEC_S3_PATH_STYLE": "true", "AWS_EC2_METADATA_DISABLED": "true"}, **options)


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
        assert "127.0.0.1" not in raised.value.message and bucket.objects == {}
        bucket.failure = None
        if name == "files":
            server.sdk().files.upload(file=("a.csv", b"x", "text/csv"))
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
