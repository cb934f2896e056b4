"""Which engine has built the large layers, and so how much room the next build needs."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from builder.context import EARLY_STEPS
from builder.engine.model import Engine
from builder.files import sha256_file
from builder.pins import Target
from builder.project import Project

# An overlay edit writes two small layers and the image's configuration.
REBUILD_GIB = 4


def large_layers(project: Project, target: Target) -> str:
    """Hex SHA-256 over what the dependencies layer is made from; same value, same cached layer."""
    digest = hashlib.sha256()
    steps = [project.root / "builder" / "inside" / name for name in EARLY_STEPS]
    for path in (
        target.dockerfile(project),
        target.lock_file(project),
        project.images / "prune.toml",
        *steps,
    ):
        digest.update(sha256_file(path).encode())
    return digest.hexdigest()


def disk_need(project: Project, target: Target, engine: Engine, *, no_cache: bool) -> int:
    """GiB that the build needs free: little where this engine has built the large layers."""
    record = _record(project, target)
    known = record.exists() and record.read_text() == _here(project, target, engine)
    return REBUILD_GIB if known and not no_cache else target.shared.engine.disk_gib


def forget_layers(project: Project) -> None:
    """Called when build cache is dropped: the next build needs its whole room again."""
    for record in (project.cache / "reports").glob("*.layers"):
        record.unlink()


def share_layers(project: Project, target: Target, cache: Path) -> None:
    """Tell another cache, which builds on the same engine, what this one knows of it."""
    record = _record(project, target)
    if record.exists():
        (cache / "reports").mkdir(parents=True, exist_ok=True)
        shutil.copy2(record, cache / "reports" / record.name)


def remember_layers(project: Project, target: Target, engine: Engine) -> None:
    """Called after a build: this engine has the large layers now."""
    _record(project, target).write_text(_here(project, target, engine))


def _record(project: Project, target: Target) -> Path:
    return project.cache / "reports" / f"{target.name}.layers"


def _here(project: Project, target: Target, engine: Engine) -> str:
    return f"{engine.client.info()['ID']} {large_layers(project, target)}"
