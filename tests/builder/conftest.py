"""A copy of the repository's data files that a test may break."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder.project import Project, default_project


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """images/, templates/, builder/ and ddtree_overlay/ in a temporary root, with a cache of its own."""
    source = default_project()
    root = tmp_path / "repository"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("images", "templates", "ddtree_overlay", "builder"):
        shutil.copytree(source.root / name, root / name, ignore=ignored)
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))
    return Project(root)


def edit(path: Path, old: str, new: str) -> None:
    """Replace exactly one occurrence; a test that edits nothing would prove nothing."""
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {path.name}"
    path.write_text(text.replace(old, new))
