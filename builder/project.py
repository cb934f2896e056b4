"""Where things are: the repository's folders and the builder's cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Project:
    """The repository being built. Tests point it at a copy."""

    root: Path

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def templates(self) -> Path:
        return self.root / "templates"

    @property
    def overlay(self) -> Path:
        return self.root / "ddtree_overlay"

    @property
    def patches(self) -> Path:
        return self.overlay / "patches"

    @property
    def cache(self) -> Path:
        """`$DDTREE_CACHE`, else `ddtree-builder` below `$XDG_CACHE_HOME` or `~/.cache`."""
        explicit = os.environ.get("DDTREE_CACHE")
        if explicit:
            return Path(explicit).resolve()
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(base) / "ddtree-builder"


def default_project() -> Project:
    """The repository that this package lies in."""
    return Project(Path(__file__).resolve().parent.parent)
