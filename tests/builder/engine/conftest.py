"""A stand-in Docker API on a real socket, and a real private engine with a cache of its own."""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from builder.base import bootstrapped
from builder.engine.support import why_not_private
from builder.pins import SharedPins, load_shared
from builder.project import Project, default_project

FakeEngine = Callable[[dict[str, Any]], str]


def require_private() -> None:
    """Skip where no private engine can be started; in CI that is a failure, not a skip."""
    reason = why_not_private()
    if reason is None:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI must run this: {reason.what} ({reason.remedy})")
    pytest.skip(f"no private engine here: {reason.what}")


@pytest.fixture
def shared() -> SharedPins:
    return load_shared(default_project())


@contextmanager
def separate_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The repository with a data root of its own; downloads are taken from the usual cache."""
    project = default_project()
    usual = project.cache
    folder.mkdir(parents=True)
    for name in ("engine", "base"):
        (usual / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(usual / name)
    monkeypatch.setenv("DDTREE_CACHE", str(folder))
    try:
        yield project
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # hundreds of megabytes that pytest would keep


@pytest.fixture
def separate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    require_private()
    with separate_cache(tmp_path / "cache", monkeypatch) as project:
        yield project


@pytest.fixture
def base_tar(separate: Project, shared: SharedPins) -> Path:
    """A `docker load` archive of Debian, bootstrapped once into the usual cache."""
    return bootstrapped(separate, shared)[0] / "image.tar"


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def fake_engine(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeEngine]:
    """Serve `{path suffix: JSON}` as a Docker API; sets DOCKER_HOST and returns it."""
    servers: list[_UnixServer] = []

    def start(replies: dict[str, Any]) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                found = next((v for k, v in replies.items() if path.endswith(k)), None)
                body = json.dumps(found if found is not None else {"message": "no such"}).encode()
                self.send_response(200 if found is not None else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def address_string(self) -> str:
                return "test"

            def log_message(self, format: str, *args: object) -> None:
                pass

        path = tmp_path_factory.mktemp("s") / "d.sock"
        server = _UnixServer(str(path), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        return f"unix://{path}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def engine_replies(version: str, data_root: Path, **components: str) -> dict[str, Any]:
    """What a Docker engine of `version` answers to the calls that the builder makes."""
    parts = [{"Name": name, "Version": value} for name, value in components.items()]
    return {
        "/_ping": "OK",
        "/version": {"Version": version, "ApiVersion": "1.45", "Components": parts},
        "/info": {"DockerRootDir": str(data_root), "DriverStatus": []},
    }
