"""The shipped series on the real wheel."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from builder.patches.archive import read_wheel
from builder.patches.scratch import apply_to_scratch, export_from_scratch
from builder.patches.series import load_series
from builder.patches.wheel import build_patched_wheel
from builder.pins import SharedPins, load_shared
from builder.project import Project, default_project
from builder.sources.index import fetch_sglang_wheel

pytestmark = pytest.mark.network
SRT = "sglang/srt/"


@pytest.fixture(scope="module")
def shared() -> SharedPins:
    return load_shared(default_project())


@pytest.fixture(scope="module")
def wheel(shared: SharedPins) -> Path:
    return fetch_sglang_wheel(default_project(), shared)


@pytest.fixture(scope="module")
def sources(
    shared: SharedPins, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Python files of the built wheel that a patch touched."""
    out = tmp_path_factory.mktemp("out")
    made = build_patched_wheel(default_project(), shared, wheel, out)
    packages = read_wheel(made.path).packages
    touched = {c.path for p in load_series(default_project().patches) for c in p.changes}
    return {name: packages[name].data.decode() for name in touched if name.endswith(".py")}


def test_every_patched_file_compiles(sources: dict[str, str]) -> None:
    assert SRT + "speculative/spec_info.py" in sources
    for name, source in sources.items():
        compile(source, name, "exec")


def _class(source: str, name: str) -> ast.ClassDef:
    (found,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    return found


def _methods(source: str, name: str) -> set[str]:
    return {n.name for n in _class(source, name).body if isinstance(n, ast.FunctionDef)}


def test_ddtree_is_a_member_and_every_predicate_has_its_plugin_twin(
    sources: dict[str, str],
) -> None:
    spec_info = sources[SRT + "speculative/spec_info.py"]
    members = {
        target.id
        for node in _class(spec_info, "SpeculativeAlgorithm").body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert {"DDTREE", "DFLASH", "NONE"} <= members
    predicates = {
        name for name in _methods(spec_info, "SpeculativeAlgorithm") if name.startswith("is_")
    }
    assert "is_ddtree" in predicates
    registry = sources[SRT + "speculative/spec_registry.py"]
    assert predicates <= _methods(registry, "CustomSpecAlgo"), "registering a plugin checks this"


def test_the_three_fields_stand_beside_the_dflash_one_and_default_to_none(
    sources: dict[str, str],
) -> None:
    fields = [
        node
        for node in _class(sources[SRT + "server_args.py"], "ServerArgs").body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    names = [node.target.id for node in fields if isinstance(node.target, ast.Name)]
    at = names.index("speculative_dflash_block_size") + 1
    ours = fields[at : at + 3]
    assert names[at : at + 3] == [
        "speculative_ddtree_budget",
        "speculative_ddtree_topk",
        "speculative_ddtree_allow_hybrid_unsafe",
    ]
    for node in ours:
        assert isinstance(node.value, ast.Constant) and node.value.value is None
        assert "DDTREE only" in ast.unparse(node.annotation)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_shipped_series_exports_byte_for_byte(
    shared: SharedPins, wheel: Path, tmp_path: Path
) -> None:
    root = tmp_path / "project"
    copy = root / "ddtree_overlay" / "patches"
    shutil.copytree(default_project().patches, copy)
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    folder = tmp_path / "scratch"
    apply_to_scratch(Project(root), shared, wheel, folder)
    done = export_from_scratch(Project(root), shared, wheel, folder)
    assert done.patched_tree == shared.sglang.patched_tree
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
