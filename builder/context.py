"""The build context: a clean folder with exactly the files that the Dockerfile mounts.

Staging a copy (instead of sending the repository) keeps editors' and Python's droppings out of
BuildKit's cache keys, and makes the build id a hash of what really goes in.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.files import sha256_file
from builder.patches.treehash import tree_hash
from builder.pins import Target
from builder.project import Project

_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*")
# Not for the image, or left by a build in place; only at the top of ddtree_overlay/.
_OVERLAY_ONLY = {"patches", "build", "dist"}

# Scripts of early, expensive layers are staged apart: a change of an audit rule must not
# reinstall torch.
EARLY_STEPS = ("fatbin.py", "prune.py", "settle.py", "toolchain.py", "unpack.py")


@dataclass(frozen=True)
class Context:
    """A staged build context and the identity of its content."""

    folder: Path
    build_id: str  # 16 hex digits over everything that goes into the image
    description: dict[str, Any]  # what became target.json


def describe_target(
    project: Project, target: Target, *, sglang: dict[str, str], base: dict[str, str]
) -> dict[str, Any]:
    """The pins as the modules inside the image read them (target.json, without the build id)."""
    shared = target.shared
    return {
        "name": target.name,
        "variant": target.variant,
        "stand_in": target.stand_in,
        "stand_in_reason": target.stand_in_reason,
        "version": shared.project.version,
        "label_prefix": shared.project.label_prefix,
        "source_date_epoch": shared.source_date_epoch,
        "python": shared.python.model_dump(),
        "resolve_before": shared.resolve_before,
        "tools": shared.tools.model_dump(),
        "base_image": shared.base.image,
        "cuda": target.cuda.model_dump(),
        "torch": target.torch.model_dump(),
        "kernels": target.kernels.model_dump(),
        "cubin": target.cubin.model_dump(mode="json"),
        "toolchain": target.toolchain.model_dump(),
        "lock_sha256": sha256_file(target.lock_file(project)),
        "overridden": list(target.lock.overrides),
        "excluded": [e.model_dump() for e in target.lock.exclude],
        "sources": [{"name": s.name, "url": s.url, "sha256": s.sha256} for s in target.sources],
        "sglang": sglang,
        "base": base,
        "budget_gib": target.budget.image_gib,
        "budget_layers_mib": target.budget.layers_mib.model_dump(),
    }


def stage(
    project: Project,
    target: Target,
    *,
    sglang_wheel: Path,
    tools: dict[str, Path],
    description: dict[str, Any],
) -> Context:
    """Assemble <cache>/context/<target>/ anew and compute the build id."""
    folder = project.cache / "context" / target.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copyfile(target.dockerfile(project), folder / "Dockerfile")
    shutil.copyfile(target.lock_file(project), folder / "requirements.lock")
    shutil.copyfile(project.images / "prune.toml", folder / "prune.toml")
    shutil.copytree(
        project.overlay,
        folder / "overlay",
        ignore=lambda folder, names: {
            *_IGNORED(folder, names),
            *(_OVERLAY_ONLY & set(names) if Path(folder) == project.overlay else ()),
        },
    )
    inside = folder / "inside" / "builder"
    shutil.copytree(project.root / "builder" / "inside", inside / "inside", ignore=_IGNORED)
    for name in ("__init__.py", "errors.py"):
        shutil.copyfile(project.root / "builder" / name, inside / name)
    (folder / "steps").mkdir()
    for name in EARLY_STEPS:
        shutil.copyfile(project.root / "builder" / "inside" / name, folder / "steps" / name)
    (folder / "sglang").mkdir()
    _link(sglang_wheel, folder / "sglang" / sglang_wheel.name)
    (folder / "tools").mkdir()
    for wheel in tools.values():
        _link(wheel, folder / "tools" / wheel.name)
    digest = hashlib.sha256(tree_hash(folder).encode())
    digest.update(json.dumps(description, sort_keys=True).encode())
    build_id = digest.hexdigest()[:16]
    document = {**description, "build_id": build_id}
    (folder / "target.json").write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    return Context(folder, build_id, document)


def _link(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError:  # another file system
        shutil.copyfile(source, destination)
