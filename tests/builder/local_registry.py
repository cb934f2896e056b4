"""A real docker-registry on a free port of 127.0.0.1, its storage in a folder that a test may break.

    with serve_registry(tmp_path / "registry") as registry:
        ...  # http://{registry.host}/v2/, registry.blob(digest), registry.stop(), registry.start()

The program is the one on PATH or Debian's package in the builder's cache. Configuration:
https://distribution.github.io/distribution/about/configuration/ (version 2.8).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import requests

from builder.engine.aptsources import AptUnavailableError
from builder.engine.packages import Want, obtain
from builder.pins import load_shared
from builder.project import Project, default_project

USER, PASSWORD = "ddtree", "local-registry"
# bcrypt of PASSWORD at the lowest cost; the registry takes no other hash.
_HTPASSWD = f"{USER}:$2b$04$abcdefghijklmnopqrstuub8MuNdvXaOoAWalBtReZ2c8NQzRgupa\n"
_LISTENING = re.compile(r"listening on 127\.0\.0\.1:(\d+)")
_START_SECONDS = 30.0


def skip_or_fail(what: str) -> None:
    """What cannot be tried here is a skip; in CI that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must run this: {what}")
    pytest.skip(what)


@lru_cache(maxsize=1)
def _packaged(root: Path, cache: str) -> Path | None:
    project = Project(root)
    assert str(project.cache) == cache
    suite = load_shared(project).engine.suite
    return obtain(project, [Want(suite, ("docker-registry",))]).program("docker-registry")


def registry_program() -> Path:
    """docker-registry from PATH, else from Debian; skips where neither can be had (fails in CI)."""
    found = shutil.which("docker-registry")
    if found:
        return Path(found)
    project = default_project()
    try:
        packaged = _packaged(project.root, str(project.cache))
    except AptUnavailableError as exc:
        skip_or_fail(f"no docker-registry here: {exc.what} ({exc.remedy})")
        raise
    assert packaged is not None, "the package docker-registry has no program of that name"
    return packaged


@dataclass
class LocalRegistry:
    """One registry process; `stop` and `start` keep its port and its storage."""

    program: Path
    folder: Path
    config: Mapping[str, Any]
    prefix: tuple[str, ...] = ()
    elsewhere: bool = False
    port: int = 0
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        """`127.0.0.1:PORT`, the first part of a reference."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The base of the API, without `/v2/`."""
        return f"http://{self.host}"

    @property
    def storage(self) -> Path:
        """The storage driver's root."""
        return self.folder / "storage"

    @property
    def log(self) -> Path:
        """What the process said, over all its starts."""
        return self.folder / "registry.log"

    def blob(self, digest: str) -> Path:
        """The file that holds the bytes of a blob, a manifest included: edit it to tamper."""
        value = digest.removeprefix("sha256:")
        root = self.storage / "docker/registry/v2/blobs/sha256"
        return root / value[:2] / value / "data"

    def repository(self, name: str) -> Path:
        """The folder of links of one repository."""
        return self.storage / "docker/registry/v2/repositories" / name

    def tag_link(self, name: str, tag: str) -> Path:
        """The file with the digest that a tag names."""
        return self.repository(name) / "_manifests/tags" / tag / "current/link"

    def tags(self, name: str) -> list[str]:
        """Tags on the disk, sorted; empty for a repository that does not exist."""
        folder = self.repository(name) / "_manifests/tags"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def start(self) -> None:
        """Start it and wait until it answers. A first start chooses the port."""
        assert self._child is None
        self.storage.mkdir(parents=True, exist_ok=True)
        (self.folder / "htpasswd").write_text(_HTPASSWD)
        path = self.folder / "registry.json"  # JSON is YAML
        path.write_text(json.dumps(_merged(self._defaults(), self.config)))
        said = self.log.stat().st_size if self.log.exists() else 0
        env = {k: v for k, v in os.environ.items() if not k.startswith(("REGISTRY_", "OTEL_"))}
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*self.prefix, str(self.program), "serve", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        try:
            self._wait(said)
        except BaseException:
            self.stop()
            raise

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> None:
        """End it, and what the prefix started. Harmless when it does not run."""
        child, self._child = self._child, None
        if child is None:
            return
        for each in (sig, signal.SIGKILL):
            try:
                os.killpg(child.pid, each)
            except ProcessLookupError:
                break
            try:
                child.wait(10)
                break
            except subprocess.TimeoutExpired:
                continue
        child.wait(10)

    def _defaults(self) -> dict[str, Any]:
        return {
            "version": 0.1,
            "log": {"level": "info", "formatter": "text", "accesslog": {"disabled": False}},
            "storage": {
                "filesystem": {"rootdirectory": str(self.storage)},
                "delete": {"enabled": True},
            },
            "http": {"addr": self.host, "secret": "of-a-test"},
        }

    def _wait(self, said: int) -> None:
        assert self._child is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            with self.log.open("rb") as log:
                log.seek(said)
                text = log.read().decode(errors="replace")
            found = _LISTENING.search(text)
            if found:
                self.port = int(found[1])
                if self.elsewhere or self._answers():
                    return
            if self._child.poll() is not None:
                raise AssertionError(f"docker-registry ended at its start:\n{text[-2000:]}")
            time.sleep(0.02)
        raise AssertionError(f"docker-registry does not answer:\n{text[-2000:]}")

    def _answers(self) -> bool:
        try:
            with requests.Session() as session:
                session.trust_env = False  # a proxy of the host has no part in this
                return session.get(f"{self.url}/v2/", timeout=5).status_code in (200, 401)
        except requests.ConnectionError:
            return False


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = _merged(old, value)
        else:
            result[key] = value
    return result


def password_auth(folder: Path) -> dict[str, Any]:
    """Configuration by which the registry in `folder` asks for USER and PASSWORD."""
    return {"auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}}


@contextmanager
def serve_registry(
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    prefix: Sequence[str] = (),
    elsewhere: bool = False,
) -> Iterator[LocalRegistry]:
    """A registry that answers, for the time of the block.

    `config` is merged over the defaults. `prefix` goes before the program's argv (nsenter, unshare,
    prlimit, ...). `elsewhere` says that the prefix enters another network namespace: readiness is
    then taken from the log alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    registry = LocalRegistry(registry_program(), folder, config or {}, tuple(prefix), elsewhere)
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()
