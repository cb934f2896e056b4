"""What the image holds, as far as a bill of materials needs it: read from the finished file system.

Written by builder.inside.observe, which has scanned the file system already.

Debian packages, Python distributions, native libraries and programs with owner and SHA-256, our
kernels, and where each licence text lies. Only observations: licences are judged by
builder/supply/licences.py, outside the image. Sorted, without a clock: the same tree and pins
give the same bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from builder.inside import debian, wheels
from builder.inside.filesystem import FileSystem
from builder.inside.manifest import debian as debian_release
from builder.inside.manifest import kernels
from builder.inside.natives import natives, others, sha256_file
from builder.inside.target import Target

SCHEMA = 1
_PINS = ("base", "base_image", "lock_sha256", "sglang", "sources", "toolchain", "tools")


def inventory(files: FileSystem, target: Target, documents: list[Path]) -> dict[str, Any]:
    """The document. `documents`: others that go into the image, recorded by hash.

    Raises NotElfError, ObservationError, OSError.
    """
    owner = owners(files)
    release = debian_release(files.root)
    kernel_folder = f"{files.site}/ddtree_overlay/kernels"
    return {
        "schema": SCHEMA,
        "name": target.name,
        "version": target.version,
        "build_id": target.raw["build_id"],
        "source_date_epoch": target.source_date_epoch,
        "label_prefix": target.label_prefix,
        "debian": {**release, "packages": [asdict(p) for p in debian.packages(files.root)]},
        "python": {
            "site": files.site,
            "distributions": [wheels.describe(files, d) for d in files.distributions],
            "vendored": wheels.vendored(files, owner),
        },
        "native": natives(files, owner),
        "other": [e for e in others(files, owner) if not e["path"].startswith(kernel_folder)],
        "kernels": [
            {"path": f"{kernel_folder}/{name}", **entry}
            for name, entry in sorted(kernels(files).items())
        ],
        "documents": {path.name: sha256_file(path) for path in sorted(documents)},
        "pins": {key: target.raw[key] for key in _PINS if key in target.raw},
    }


def owners(files: FileSystem) -> dict[str, str]:
    """Path to `python:NAME` or `debian:NAME`; what neither lists has none."""
    found = {path: f"debian:{name}" for path, name in debian.owners(files.root).items()}
    for distribution in files.distributions:
        for row in distribution.files:
            found.setdefault(row.path, f"python:{distribution.name}")
    return found


def encode(document: dict[str, Any]) -> bytes:
    """The bytes of inventory.json: sorted, compact, newline-terminated."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # A name that is no UTF-8 is read with surrogates, which JSON can only hold escaped.
    return text.encode("utf-8", "backslashreplace") + b"\n"
