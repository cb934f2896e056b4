"""The staged context: its id moves with every input and with nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from builder.context import Context, describe_target, stage
from builder.pins import Target, load_target
from builder.project import Project
from tests.builder.conftest import edit

SGLANG = {"version": "0", "base_tree": "a", "patched_tree": "b", "wheel_sha256": "c"}
BASE = {"kind": "bootstrap", "detail": "x"}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "sglang-0.whl"
    path.write_bytes(b"wheel")
    return path


def make(project: Project, wheel: Path, target: Target | None = None, **changed: Any) -> Context:
    target = target or load_target(project, "cu130")
    description = describe_target(project, target, sglang=SGLANG, base=changed.get("base", BASE))
    return stage(project, target, sglang_wheel=wheel, tools={"uv": wheel}, description=description)


def test_same_inputs_same_id_whatever_lies_around(scratch: Project, wheel: Path) -> None:
    first = make(scratch, wheel)
    (scratch.overlay / "src" / "__pycache__").mkdir(exist_ok=True)
    (scratch.overlay / "src" / "__pycache__" / "x.pyc").write_bytes(b"droppings")
    (scratch.overlay / ".editor.swp").write_bytes(b"droppings")
    for path in scratch.overlay.rglob("*.py"):
        os.utime(path, (1, 1))
    assert make(scratch, wheel).build_id == first.build_id


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("images/cu130/Dockerfile", "EXPOSE 30000", "EXPOSE 30001"),
        ("builder/inside/unpack.py", "UNPACK_FAILED = 57", "UNPACK_FAILED = 58"),
        ("images/prune.toml", "# What sm_120", "# What  sm_120"),
        ("images/cu130/requirements.lock", "torch==2.11.0", "torch==2.11.00"),
        ("builder/errors.py", "exit_code = 51", "exit_code = 151"),
        ("ddtree_overlay/csrc/tree_types.h", "kMaxBudget = 1024;", "kMaxBudget = 1023;"),
        ("ddtree_overlay/pyproject.toml", 'version = "0.1.0"', 'version = "0.1.1"'),
        ("images/cu130.toml", 'driver_floor = "580.65.06"', 'driver_floor = "580.65.07"'),
    ],
)
def test_every_input_moves_the_id(
    scratch: Project, wheel: Path, path: str, old: str, new: str
) -> None:
    first = make(scratch, wheel).build_id
    edit(scratch.root / path, old, new)
    assert make(scratch, wheel).build_id != first


def test_the_base_and_the_sglang_wheel_are_inputs(scratch: Project, wheel: Path) -> None:
    first = make(scratch, wheel).build_id
    assert make(scratch, wheel, base={"kind": "registry", "detail": "y"}).build_id != first
    wheel.unlink()  # stage hard-links it: writing in place would change the staged one too
    wheel.write_bytes(b"another")
    assert make(scratch, wheel).build_id != first


def test_target_json_carries_the_id_and_the_pins(scratch: Project, wheel: Path) -> None:
    context = make(scratch, wheel)
    document = json.loads((context.folder / "target.json").read_text())
    assert document["build_id"] == context.build_id
    assert document["torch"]["version"] == "2.11.0"
    assert document["cubin"]["sass"] == ["sm_90", "sm_120"]


def test_patches_and_caches_are_not_sent(scratch: Project, wheel: Path) -> None:
    context = make(scratch, wheel)
    assert not (context.folder / "overlay" / "patches").exists()
    assert not list(context.folder.rglob("__pycache__"))
