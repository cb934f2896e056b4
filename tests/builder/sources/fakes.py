"""A site on 127.0.0.1 laid out like the real sources, and a project whose pins point at it.

The pin files are the repository's own with addresses, hashes and sizes exchanged, so that a new
key or source reaches these tests by itself.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from builder.lock.entries import LockedFile, LockEntry, format_entries
from builder.pins import Target, load_target
from builder.project import Project, default_project

PLATFORM = "cp311-cp311-manylinux_2_28_x86_64"


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def make_wheel(filename: str, requires: tuple[str, ...] = (), filler: bytes = b"") -> bytes:
    """A wheel that pip and uv believe in; `filler` makes it big or different."""
    base, version, tags = filename.removesuffix(".whl").split("-", 2)
    info = f"{base}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {base.replace('_', '-')}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {line}" for line in requires]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{base}/filler"), filler)
        archive.writestr(zipfile.ZipInfo(f"{info}/METADATA"), "\n".join(metadata) + "\n")
        archive.writestr(zipfile.ZipInfo(f"{info}/WHEEL"), f"Wheel-Version: 1.0\nTag: {tags}\n")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "")
    return buffer.getvalue()


@dataclass
class Reply:
    """How one file is served. `cuts` ends the body early, one number of bytes per request."""

    body: bytes
    announce: int | None = None
    ranges: bool = True
    status: int = 200
    location: str = ""  # with a 3xx status
    hang: bool = False
    cuts: list[int] = field(default_factory=list)


@dataclass
class IndexFile:
    body: bytes
    uploaded: str = "2026-08-01T00:00:00Z"


class Site:
    """Files by path below `url`, and a package index below `url`/simple."""

    def __init__(self) -> None:
        self.files: dict[str, Reply] = {}
        self.index: dict[str, IndexFile] = {}
        self.requests: list[tuple[str, str]] = []  # path, Range
        self.closing = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def publish(self, filename: str, body: bytes, uploaded: str = "2026-08-01T00:00:00Z") -> None:
        self.index[filename] = IndexFile(body, uploaded)

    def asked(self, ending: str) -> list[str]:
        """Range headers of the requests for paths that end so."""
        return [span for path, span in self.requests if path.endswith(ending)]

    def simple(self, name: str) -> bytes | None:
        """PEP 691 page of a distribution."""
        files = [
            {
                "filename": filename,
                "url": f"{self.url}/files/{filename}",
                "hashes": {"sha256": digest(file.body)},
                "size": len(file.body),
                "upload-time": file.uploaded,
            }
            for filename, file in self.index.items()
            if re.sub(r"[-_.]+", "-", filename.split("-")[0]).lower() == name
        ]
        page = {"meta": {"api-version": "1.1"}, "name": name, "versions": [], "files": files}
        return json.dumps(page).encode() if files else None


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            site.requests.append((path, self.headers.get("Range", "")))
            if path.startswith("/simple/"):
                page = site.simple(path.split("/")[2])
                self.answer(Reply(page or b"", status=200 if page else 404), json_page=True)
            elif path.startswith("/files/") and path.split("/")[2] in site.index:
                self.answer(Reply(site.index[path.split("/")[2]].body))
            else:
                self.answer(site.files.get(path, Reply(b"", status=404)))

        def answer(self, reply: Reply, json_page: bool = False) -> None:
            if reply.hang:
                site.closing.wait(60)
                return
            body, status = reply.body, reply.status
            span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            total = len(body) if reply.announce is None else reply.announce
            start = 0
            if span and reply.ranges and status == 200:
                start = int(span[1])
                if start >= total:
                    self.send_error(416)
                    return
                body = body[start : int(span[2]) + 1 if span[2] else None]
                status = 206
            self.send_response(status)
            if reply.location:
                self.send_header("Location", reply.location)
            if json_page:
                self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            if reply.announce is None or status == 206:
                self.send_header("Content-Length", str(len(body)))
            else:
                self.send_header("Content-Length", str(total))
            self.end_headers()
            if self.command == "GET":
                cut = reply.cuts.pop(0) if reply.cuts and "bytes=0-0" not in str(span) else None
                self.wfile.write(body[:cut])
            self.close_connection = True

    return Handler


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.closing.set()
        site.server.shutdown()
        thread.join()
        site.server.server_close()


@dataclass(frozen=True)
class FakeProject:
    """A project in a temporary folder; `paths` are the served paths of its pinned sources."""

    project: Project
    paths: dict[str, str]
    locked: dict[str, bytes]

    def target(self, variant: str = "cu128", *, stand_in: bool = False) -> Target:
        return load_target(self.project, variant, stand_in=stand_in)


def _exchange(text: str, old: str, new: str) -> str:
    assert old in text, old
    return text.replace(old, new)


def fake_project(root: Path, site: Site) -> FakeProject:
    """The repository's pins with every outside file replaced by a small fake on `site`."""
    real = default_project()
    target = load_target(real, "cu128")
    variant = (real.images / "cu128.toml").read_text()
    paths: dict[str, str] = {}
    for number, source in enumerate(target.sources):
        body = (
            make_wheel(source.filename, filler=bytes([number]) * 4096)
            if source.kind == "wheel"
            else bytes([number + 65]) * 5000
        )
        paths[source.name] = unquote(urlsplit(source.url).path)
        site.files[paths[source.name]] = Reply(body)
        variant = _exchange(variant, source.sha256, digest(body))
        variant = _exchange(variant, source.url, site.url + urlsplit(source.url).path)
        if source.size is not None:
            variant = _exchange(variant, f"size = {source.size}", f"size = {len(body)}")
    shared = (real.images / "pins.toml").read_text()
    pins = target.shared
    outside = {
        pins.sglang.wheel: pins.sglang.sha256,
        f"uv-{pins.tools.uv.version}-py3-none-manylinux_2_17_x86_64.whl": pins.tools.uv.sha256,
        f"pyelftools-{pins.tools.pyelftools.version}-py3-none-any.whl": (
            pins.tools.pyelftools.sha256
        ),
    }
    for filename, sha256 in outside.items():
        body = make_wheel(filename)
        site.publish(filename, body)
        shared = _exchange(shared, sha256, digest(body))
    images = root / "images"
    (images / "cu128").mkdir(parents=True)
    (images / "cu128.toml").write_text(variant)
    (images / "pins.toml").write_text(shared)
    fake = FakeProject(Project(root), paths, {})
    _lock(fake, site)
    return fake


def _lock(fake: FakeProject, site: Site) -> None:
    target = fake.target()
    entries = [
        LockEntry(s.name, s.version, (s.sha256,), (LockedFile(s.filename, s.sha256, s.size),))
        for s in target.sources
        if s.kind == "wheel"
    ]
    for filename in (
        f"triton-{target.torch.triton}-{PLATFORM}.whl",
        "six-1.17.0-py2.py3-none-any.whl",
        "typing_extensions-4.16.0-py3-none-any.whl",
        "uv-0.1-py3-none-any.whl",  # another version than the tool pin's
    ):
        body = make_wheel(filename, filler=b"x" * 3000)
        site.publish(filename, body)
        fake.locked[filename] = body
        base, version, _ = filename.split("-", 2)
        file = LockedFile(filename, digest(body), len(body))
        entries.append(LockEntry(base.replace("_", "-"), version, (file.sha256,), (file,)))
    target.lock_file(fake.project).write_text(format_entries(entries))
