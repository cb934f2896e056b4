"""The tiny models that ship with the wheel, checked before they are used."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_overlay.serve.errors import SelftestNotRunError

FOLDER = Path(__file__).resolve().parent / "models"
RECORD = "models.json"
REMEDY = "use the image as it was built: the models come with it"


@dataclass(frozen=True)
class Models:
    """Target and drafter, with what was recorded when they were made.

    accept_length:  at batch 1 on the workload's texts, by the reference tree in float32
    answers:        the target's greedy tokens for each text, by Transformers in float32
    """

    target: Path
    draft: Path
    budget: int
    accept_length: float
    answers: dict[str, list[int]]


def load_models(folder: Path = FOLDER) -> Models:
    """The models, each file's bytes as recorded. Raises SelftestNotRunError for any other state."""
    record = _record(folder / RECORD)
    try:
        files = dict(record["files"])
        made = Models(
            folder / "target",
            folder / "draft",
            int(record["budget"]),
            float(record["accept_length"]),
            {str(name): [int(i) for i in ids] for name, ids in record["answers"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SelftestNotRunError(
            f"{folder / RECORD} is not what it should be: {type(error).__name__}: {error}", REMEDY
        ) from None
    there = {
        path.relative_to(folder).as_posix()
        for part in (made.target, made.draft)
        for path in part.rglob("*")
        if path.is_file()
    }
    for name in sorted(set(files) | there):
        _check(folder / name, files.get(name))
    return made


def _check(path: Path, expected: Any) -> None:
    if expected is None:
        raise SelftestNotRunError(f"{path} is no file of the self-test's models", REMEDY)
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise SelftestNotRunError(f"{path} cannot be read: {error.strerror}", REMEDY) from None
    if found != expected:
        raise SelftestNotRunError(
            f"{path} is damaged: sha256 {found[:16]}... instead of {str(expected)[:16]}...", REMEDY
        )


def _record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SelftestNotRunError(f"{path} cannot be read: {error}", REMEDY) from None
    if not isinstance(record, dict):
        raise SelftestNotRunError(f"{path} is not a JSON object", REMEDY)
    return record
