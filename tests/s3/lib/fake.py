# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server that gives credentials as AWS does, and one object that is to be read with
them. Every request is a line of the file `requests`.

  fake.py FOLDER OBJECT [CERT KEY]    writes its port to FOLDER/port; with a certificate, over TLS

POST /sts            STS: AssumeRoleWithWebIdentity, with the token in FOLDER/identity alone;
                     AssumeRole, signed for STS by AKIDSRC, with the external id "agreed"
GET  /container      a container's endpoint, with Authorization: container-token alone; none once there is FOLDER/broken
PUT, GET /latest/... the metadata service of an instance, version 2
GET, HEAD /BUCKET/K  the object; in bucket `expiring` with a token that is not among those refused in
                     FOLDER/expired; `throttled`: 503 to the first three; `torn`: half of the first
                     two answers; `elsewhere`: only signed for eu-north-7; `refusing` and
                     `ignoring` keep small objects, and do so with If-None-Match; `renewing`: each
                     answer takes a second, and FOLDER/lives gets a line `used TOKEN SECONDS` of
                     what life the token had left
GET  /process        what a program may print: SessionToken, no questions asked
What is given out has the key and the secret of FOLDER/keys, the token token-N for the Nth answer, and
expires in as many seconds as FOLDER/lifetime says; FOLDER/lives gets a line `given TOKEN SECONDS` of the life
that was left to the one before.
"""
import http.server
import json
import os
import re
import ssl
import sys
import threading
import time
import urllib.parse

folder, data = sys.argv[1], open(sys.argv[2], "rb").read()
lock = threading.Lock()
given, seen, kept, ends = [0], {}, {}, {}


def read(name, default=""):
    try:
        return open(os.path.join(folder, name)).read().strip()
    except OSError:
        return default


def note_life(what, token, of):
    """With the lock held."""
    with open(os.path.join(folder, "lives"), "a") as f:
        f.write("%s %s %d\n" % (what, token or "none", ends.get(of, 0) - time.time()))


def creds(token_name):
    end = int(time.time()) + int(read("lifetime", "3600"))
    with lock:
        note_life("given", "token-%d" % (given[0] + 1), "token-%d" % given[0])
        given[0] += 1
        token = "token-%d" % given[0]
        ends[token] = end
    key, secret = (read("keys") or "AKIDFAKE SECRETFAKE").split()
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))
    return {"AccessKeyId": key, "SecretAccessKey": secret, token_name: token, "Expiration": expires}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers=()):
        if isinstance(body, str):
            body = body.encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name == "Content-Length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status, code, more=""):
        self.answer(status, "<Error><Code>%s</Code><Message>m</Message>%s</Error>" % (code, more))

    def sts(self, form):
        auth = self.headers.get("Authorization", "")
        if form.get("Action") == ["AssumeRole"]:
            if not re.match(r"AWS4-HMAC-SHA256 Credential=AKIDSRC/\d{8}/us-east-1/sts/aws4_request, SignedHeaders=host;x-amz-date,", auth):
                return self.error(403, "InvalidClientTokenId")
            if form.get("RoleArn") != ["arn:role"] or form.get("ExternalId") != ["agreed"]:
                return self.error(403, "AccessDenied")
        elif form.get("WebIdentityToken") != [read("identity")] or form.get("RoleArn") != ["arn:role"]:
            return self.error(400, "InvalidIdentityToken")
        c = creds("SessionToken")
        self.answer(200, "<R><Credentials>%s</Credentials></R>" % "".join("<%s>%s</%s>" % (k, v, k) for k, v in c.items()))

    def metadata(self, path):
        if self.command == "PUT" and path.endswith("/api/token"):
            return self.answer(200, "imds-token" if self.headers.get("X-aws-ec2-metadata-token-ttl-seconds") else "")
        if self.headers.get("X-aws-ec2-metadata-token") != "imds-token":
            return self.answer(401)
        if path.endswith("/security-credentials/"):
            return self.answer(200, "the-role")
        self.answer(200, json.dumps(creds("Token")))

    def keep(self, bucket, path, query, body):
        """A store of small objects without conditions."""
        if "delete" in query:
            for key in re.findall(r"<Key>([^<]*)</Key>", body.decode()):
                kept.pop("/%s/%s" % (bucket, key), None)
            return self.answer(200, "<DeleteResult/>")
        if self.command == "PUT":
            if bucket == "refusing" and self.headers.get("If-None-Match"):
                return self.error(501, "NotImplemented")
            kept[path] = body
            return self.answer(200, "", [("ETag", '"e"')])
        if "list-type" in query:
            begin = "/%s/%s" % (bucket, query.get("prefix", [""])[0])
            names = "".join("<Contents><Key>%s</Key></Contents>" % k[len(bucket) + 2:] for k in sorted(kept) if k.startswith(begin))
            return self.answer(200, "<ListBucketResult>%s<IsTruncated>false</IsTruncated></ListBucketResult>" % names)
        if self.command == "DELETE":
            return self.answer(204 if kept.pop(path, None) is not None else 404)
        if path not in kept:
            return self.error(404, "NoSuchKey")
        part = re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("Range", ""))
        data_here = kept[path][int(part[1]):int(part[2]) + 1] if part else kept[path]
        self.answer(206 if part else 200, data_here, [("ETag", '"e"'), ("Content-Length", str(len(data_here)))])

    def object(self, bucket, query):
        token = self.headers.get("X-Amz-Security-Token", "")
        auth = self.headers.get("Authorization", "")
        with lock:
            seen[bucket] = seen.get(bucket, 0) + 1
            count = seen[bucket]
        if bucket == "expiring" and token in read("expired").split():
            return self.error(400, "ExpiredToken")
        if bucket == "renewing":
            with lock:
                note_life("used", token, token)
            time.sleep(1)
        if bucket == "throttled" and count <= 3:
            return self.error(503, "SlowDown")
        if bucket == "elsewhere" and "/eu-north-7/s3/" not in auth:
            return self.answer(301, "", [("x-amz-bucket-region", "eu-north-7")])
        if "list-type" in query:
            return self.answer(200, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
        part = re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("Range", ""))
        body = data[int(part[1]):int(part[2]) + 1] if part else data
        head = [("ETag", '"e"'), ("Content-Length", str(len(body))), ("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")]
        if bucket == "torn" and self.command == "GET" and count <= 4:
            self.close_connection = True
            body = body[: len(body) // 2]
        self.answer(206 if part else 200, body, head)

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urllib.parse.urlsplit(self.path)
        with lock, open(os.path.join(folder, "requests"), "a") as f:
            hashed = self.headers.get("x-amz-content-sha256", "").replace("UNSIGNED-PAYLOAD", " unsigned")
            f.write("%s %s%s\n" % (self.command, self.path, hashed if hashed.startswith(" ") else ""))
        if url.path == "/sts":
            return self.sts(urllib.parse.parse_qs(body.decode()))
        if url.path == "/container":
            ok = self.headers.get("Authorization") == "container-token" and not os.path.exists(os.path.join(folder, "broken"))
            return self.answer(200, json.dumps(creds("Token"))) if ok else self.answer(403)
        if url.path == "/process":
            return self.answer(200, json.dumps({"Version": 1, **creds("SessionToken")}))
        if url.path.startswith("/latest/"):
            return self.metadata(url.path)
        bucket, query = url.path.split("/")[1], urllib.parse.parse_qs(url.query, keep_blank_values=True)
        if bucket in ("refusing", "ignoring"):
            return self.keep(bucket, url.path, query, body)
        self.object(bucket, query)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
if len(sys.argv) > 3:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3], sys.argv[4])
    server.socket = context.wrap_socket(server.socket, server_side=True)
with open(os.path.join(folder, "port.new"), "w") as f:
    f.write(str(server.server_port))
os.rename(os.path.join(folder, "port.new"), os.path.join(folder, "port"))
server.serve_forever()
