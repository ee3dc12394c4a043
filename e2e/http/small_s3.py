"""A small S3 in this process, which outlives the servers that use it and can be told to fail."""

import contextlib
import datetime
import http.server
import itertools
import re
import threading
import urllib.parse
from xml.sax.saxutils import escape


class Bucket(http.server.ThreadingHTTPServer):
    """Objects by path. `requests` are (method, path, query, headers); `failure` answers every request while it is set, and each of `faults`
    (a word of the query, a status) one request; while `speaks` is
    not set, nothing is answered; what is there seems to be `age` old."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects, self.uploads, self.requests, self.failure = {}, {}, [], None
        self.faults = []
        self.speaks = threading.Event()
        self.speaks.set()
        self.age, self.numbers, self.lock = datetime.timedelta(), itertools.count(), threading.RLock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """A client that was killed is nothing to tell of."""


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

    def xml(self, root, **fields):
        shown = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
        self.answer(200, f"<{root}>{shown}</{root}>", content_type="application/xml")

    def refuse(self, status, code):
        self.answer(status, f"<Error><Code>{code}</Code><Message>refused</Message></Error>", content_type="application/xml")

    def handle_request(self):
        bucket = self.server
        path, _, query = self.path.partition("?")
        path, query = urllib.parse.unquote(path), dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            return  # The client is gone: nothing is stored of half a request.
        bucket.speaks.wait()
        with bucket.lock:
            bucket.requests.append((self.command, path, query, dict(self.headers)))
            if path == "/" and b"AssumeRoleWithWebIdentity" in body:
                self.give_role(urllib.parse.parse_qs(body.decode())["WebIdentityToken"][0])
            elif bucket.failure:
                self.refuse(*bucket.failure)
            elif fault := next((fault for fault in bucket.faults if fault[0] in query), None):
                bucket.faults.remove(fault)
                self.refuse(fault[1], {403: "AccessDenied", 503: "SlowDown"}[fault[1]])
            elif not path.startswith("/files"):
                self.refuse(404, "NoSuchBucket")
            elif query.get("list-type") == "2":
                self.list(query)
            elif "uploads" in query or "uploadId" in query:
                self.upload(path, query, body)
            elif self.command == "PUT":
                self.put(path, body)
            elif self.command == "DELETE":
                bucket.objects.pop(path, None)
                self.answer(204)
            elif path not in bucket.objects:
                self.refuse(404, "NoSuchKey")
            else:
                content, asked = bucket.objects[path], re.match(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
                self.answer(206, content[int(asked[1]):int(asked[2]) + 1]) if asked else self.answer(200, content)

    def do(self):
        # A server that is killed closes its connections at any moment.
        with contextlib.suppress(ConnectionError):
            self.handle_request()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

    def give_role(self, token):
        credentials = "<AccessKeyId>ROLEKEY</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
        credentials += f"<SessionToken>session-of-{token}</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>"
        result = f"<AssumeRoleWithWebIdentityResult><Credentials>{credentials}</Credentials></AssumeRoleWithWebIdentityResult>"
        self.answer(200, f"<AssumeRoleWithWebIdentityResponse>{result}</AssumeRoleWithWebIdentityResponse>", content_type="text/xml")

    def put(self, path, content):
        if self.headers.get("if-none-match") == "*" and path in self.server.objects:
            self.refuse(412, "PreconditionFailed")
            return
        self.server.objects[path] = content
        self.answer(200, etag='"x"')

    def upload(self, path, query, body):
        """Uploads in parts: begun, continued, ended, given up, or listed."""
        uploads, identity = self.server.uploads, query.get("uploadId")
        if "uploads" in query and self.command == "POST":
            identity = f"u{next(self.server.numbers)}"
            uploads[identity] = (path, {})
            self.xml("InitiateMultipartUploadResult", UploadId=identity)
        elif "uploads" in query:
            entry = "<Upload><Key>{}</Key><UploadId>{}</UploadId><Initiated>{}</Initiated></Upload>"
            shown = (entry.format(escape(of.removeprefix("/files/")), identity, self.age()) for identity, (of, _) in uploads.items())
            self.answer(200, f"<ListMultipartUploadsResult>{''.join(shown)}</ListMultipartUploadsResult>", content_type="application/xml")
        elif identity not in uploads:
            self.refuse(404, "NoSuchUpload")
        elif self.command == "DELETE":
            uploads.pop(identity)
            self.answer(204)
        elif self.command == "PUT":
            uploads[identity][1][int(query["partNumber"])] = body
            self.answer(200, etag=f'"{query["partNumber"]}"')
        else:
            parts = uploads.pop(identity)[1]
            self.server.objects[path] = b"".join(parts[number] for number in sorted(parts))
            self.xml("CompleteMultipartUploadResult", ETag="x")

    def age(self):
        return (datetime.datetime.now(datetime.timezone.utc) - self.server.age).strftime("%Y-%m-%dT%H:%M:%SZ")

    def list(self, query):
        """The objects, or with a delimiter the folders, whose names begin so."""
        start, prefix = query.get("start-after", ""), query.get("prefix", "")
        names = sorted(path.removeprefix("/files/") for path in self.server.objects)
        names = [name for name in names if name.startswith(prefix) and name > start]
        if "delimiter" in query:
            folders = sorted({prefix + name.removeprefix(prefix).split("/")[0] + "/" for name in names if "/" in name.removeprefix(prefix)})
            shown = "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
            self.answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{shown}</ListBucketResult>", content_type="application/xml")
            return
        most = int(query.get("max-keys", 1000))
        entry = "<Contents><Key>{}</Key><Size>{}</Size><LastModified>{}</LastModified></Contents>"
        shown = "".join(entry.format(escape(name), len(self.server.objects["/files/" + name]), self.age()) for name in names[:most])
        more = "true" if len(names) > most else "false"
        self.answer(200, f"<ListBucketResult><IsTruncated>{more}</IsTruncated>{shown}</ListBucketResult>", content_type="application/xml")


def settings(bucket, name="files"):
    """What a server is started with whose files are in this bucket."""
    flags = ["--store", "s3", "--s3-bucket", name, "--s3-region", "eu-west-1", "--s3-endpoint", bucket.url, "--s3-path-style"]
    return flags, {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK", "AWS_EC2_METADATA_DISABLED": "true"}
