"""A fake registry, and a Docker configuration that is empty but for what a test writes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder import console
from builder.registry.client import Registry
from builder.registry.failures import Patience
from builder.registry.reference import Reference
from tests.builder.registry.fake import FakeRegistry, fake_registry

QUICK = Patience(attempts=4, first=0.001, longest=0.002, longest_asked=0.01, connect=5, read=10)
Login = Callable[[str, str, str], None]


@pytest.fixture(autouse=True)
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing of the host's configuration has a part in these tests."""
    folder = tmp_path / "docker-config"
    folder.mkdir()
    (folder / "config.json").write_text("{}")  # without one, the SDK would look in the home folder
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    console.set_quiet(True)
    yield folder
    console.set_quiet(False)


@pytest.fixture
def login(docker_config: Path) -> Login:
    """Write what `docker login HOST` writes."""

    def write(host: str, user: str, password: str) -> None:
        auth = base64.b64encode(f"{user}:{password}".encode()).decode()
        (docker_config / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))

    return write


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


def client(reference: Reference, *, chunk: int = 64 << 10) -> Registry:
    """Quick to lose patience, with small chunks."""
    return Registry(reference, patience=QUICK, chunk=chunk)
