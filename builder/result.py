"""What a build ended with."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class BuildResult:
    """What a build ended with; printed by --json."""

    target: str
    reference: str
    image_id: str
    build_id: str
    up_to_date: bool
    seconds: float
    size_bytes: int
    layers: list[dict[str, Any]]
    base: str
    engine: dict[str, str]
    proof: dict[str, Any]


def layers(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Layers that hold files, base first: `bytes`, and `step`, the command that made it."""
    found = []
    for entry in reversed(history):
        if entry["Size"]:
            made = str(entry["CreatedBy"])
            step = re.sub(r"--mount=\S+\s*|\s+", " ", made.removeprefix("RUN /bin/sh -c "))
            words = re.sub(r" {2,}", " ", step).removesuffix("# buildkit").strip()
            found.append({"bytes": int(entry["Size"]), "step": words or "base"})
    return found


def as_json(result: BuildResult) -> dict[str, Any]:
    """The result as plain data."""
    return asdict(result)
