"""A package index on 127.0.0.1 and uv that knows no other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builder.sources.fakes import Site, serving


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in [n for n in os.environ if n.startswith("UV_") or n.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with serving() as running:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{running.url}/simple")
        yield running
