"""A registry inside the test process, for the corners of the protocol that no real one shows."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from builder.registry.reference import Reference
from tests.builder.registry.layouts import digest_of


@dataclass
class Request:
    """What came in."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def authorization(self) -> str:
        return self.headers.get("authorization", "")


@dataclass
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    """Close the connection after so many bytes of the body."""


Rule = Callable[["Handler", Request], Answer | None]


@dataclass
class FakeRegistry:
    """State of one repository. `rules` come before what it does by itself."""

    host: str = ""
    rules: list[Rule] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    received: int = 0
    """Bytes of request bodies."""
    chunk_minimum: int = 0
    cuts: list[int] = field(default_factory=list)
    """Of the next PATCH requests: take so many bytes, keep them, and drop the connection."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def reference(self) -> Reference:
        return Reference(self.host, "team/app")

    def add(self, content: bytes) -> str:
        digest = digest_of(content)
        self.blobs[digest] = content
        return digest

    def count(self, method: str, part: str = "") -> int:
        return sum(1 for r in self.seen if r.method == method and part in r.path)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: FakeRegistry

    def log_message(self, *args: object) -> None:
        pass

    def _any(self) -> None:
        registry = self.registry
        headers = {key.lower(): value for key, value in self.headers.items()}
        request = Request(self.command, self.path, headers)
        with registry.lock:
            registry.seen.append(request)
        self.unread = int(headers.get("content-length", "0"))
        answer = None
        for rule in list(registry.rules):
            answer = rule(self, request)
            if answer is not None:
                break
        if answer is None:
            answer = self._own(request)
        if answer is None:
            return
        self.body()
        self._reply(answer)

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = do_DELETE = _any  # noqa: N815

    def body(self, size: int | None = None) -> bytes:
        """The rest of the request's body, or `size` bytes of it."""
        want = self.unread if size is None else min(size, self.unread)
        content = self.rfile.read(want)
        self.unread -= len(content)
        with self.registry.lock:
            self.registry.received += len(content)
        return content

    def drop(self) -> None:
        """End the connection without an answer."""
        self.close_connection = True
        self.connection.shutdown(2)

    def _reply(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for key, value in answer.headers.items():
            self.send_header(key, value)
        if "Content-Length" not in answer.headers and answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(answer.body[: answer.cut])
        if answer.cut is not None:
            self.wfile.flush()
            self.drop()

    def _own(self, request: Request) -> Answer | None:
        parts = urlsplit(request.path)
        if parts.path == "/v2/":
            return Answer(200)
        match = re.fullmatch(r"/v2/team/app/(blobs/uploads|blobs|manifests|tags)/(.*)", parts.path)
        if match is None:
            return Answer(404)
        kind, name = match.groups()
        if kind == "blobs/uploads":
            return self._upload(request, name, parse_qs(parts.query))
        if kind == "blobs":
            return self._blob(request, name)
        if kind == "tags":
            return self._tags(parse_qs(parts.query))
        return self._manifest(request, name)

    def _upload(self, request: Request, name: str, query: dict[str, list[str]]) -> Answer | None:
        registry = self.registry
        if request.method == "POST":
            name = f"u{len(registry.seen)}"
            registry.uploads[name] = bytearray()
            found = self._state(202, name)
            if registry.chunk_minimum:
                found.headers["OCI-Chunk-Min-Length"] = str(registry.chunk_minimum)
            return found
        kept = registry.uploads.get(name)
        if kept is None:
            return Answer(404, body=error("BLOB_UPLOAD_UNKNOWN"))
        if request.method == "GET":
            return self._state(204, name)
        if request.method == "DELETE":
            del registry.uploads[name]
            return Answer(204)
        if request.method == "PATCH":
            if int(request.headers["content-range"].partition("-")[0]) != len(kept):
                return self._state(416, name)
            with registry.lock:
                cut = registry.cuts.pop(0) if registry.cuts else None
            kept += self.body(cut)
            if cut is not None:
                self.drop()
                return None
            return self._state(202, name)
        content = bytes(kept) + self.body()
        digest = query["digest"][0]
        if digest_of(content) != digest:
            return Answer(400, body=error("DIGEST_INVALID"))
        registry.blobs[digest] = content
        del registry.uploads[name]
        return Answer(201)

    def _state(self, status: int, name: str) -> Answer:
        end = max(0, len(self.registry.uploads[name]) - 1)
        place = f"/v2/team/app/blobs/uploads/{name}?state=1"
        return Answer(status, {"Location": place, "Range": f"0-{end}"})

    def _blob(self, request: Request, digest: str) -> Answer:
        content = self.registry.blobs.get(digest)
        if content is None:
            return Answer(404, body=error("BLOB_UNKNOWN"))
        if request.method == "HEAD":
            return Answer(200, {"Content-Length": str(len(content))})
        return ranged(request, content)

    def _manifest(self, request: Request, name: str) -> Answer:
        registry = self.registry
        if request.method == "PUT":
            content = self.body()
            digest = digest_of(content)
            for key in {name, digest}:
                registry.manifests[key] = (request.headers["content-type"], content)
            return Answer(201, {"Docker-Content-Digest": digest})
        found = registry.manifests.get(name)
        if found is None:
            return Answer(404, body=error("MANIFEST_UNKNOWN"))
        stated = {"Content-Type": found[0], "Docker-Content-Digest": digest_of(found[1])}
        return Answer(200, stated, found[1])

    def _tags(self, query: dict[str, list[str]]) -> Answer:
        names = sorted(name for name in self.registry.manifests if ":" not in name)
        last = query.get("last", [""])[0]
        page = [name for name in names if name > last][:2]
        headers = {}
        if page and page[-1] != names[-1]:
            headers["Link"] = f'</v2/team/app/tags/list?last={page[-1]}>; rel="next"'
        return Answer(200, headers, json.dumps({"tags": page}).encode())


def ranged(request: Request, content: bytes) -> Answer:
    """A GET that knows Range."""
    span = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
    if span is None:
        return Answer(200, {}, content)
    first = int(span[1])
    if first >= len(content):
        return Answer(416)
    headers = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"}
    return Answer(206, headers, content[first:])


def error(code: str, message: str = "", detail: object = None) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message, "detail": detail}]}).encode()


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """Answering on a free port of 127.0.0.1 for the time of the block."""
    registry = FakeRegistry()
    handler = type("Bound", (Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    registry.host = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()


def times(count: int, rule: Rule) -> Rule:
    """A rule that holds for its first `count` answers."""
    left = [count]

    def limited(handler: Handler, request: Request) -> Answer | None:
        if not left[0]:
            return None
        answer = rule(handler, request)
        left[0] -= answer is not None
        return answer

    return limited


def answers(method: str, part: str, answer: Answer) -> Rule:
    """One answer to all requests of a method whose path holds `part`."""

    def rule(handler: Handler, request: Request) -> Answer | None:
        return answer if request.method == method and part in request.path else None

    return rule
