"""A running site and a project that takes everything from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builder.sources.fakes import FakeProject, Site, fake_project, serving


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


@pytest.fixture
def fake(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> FakeProject:
    """Pip knows only the site's index; the builder's cache is empty."""
    for name in [n for n in os.environ if n.startswith("PIP_") or n.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("DDTREE_MIRRORS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))
    return fake_project(tmp_path / "project", site)
