"""The command as a build stage calls it: exit codes, report, no dependency of the builder's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from builder.inside.audit.__main__ import UNUSABLE, main
from tests.builder.inside.tree import Tree, raw_target


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target.json"
    path.write_text(json.dumps(raw_target()))
    return path


def _arguments(tree: Tree, target: Path, report: Path) -> list[str]:
    return ["--root", str(tree.root), "--target", str(target), "--report", str(report)]


def test_a_clean_tree_passes(
    tree: Tree, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "audit.json"
    assert main(_arguments(tree, target, report)) == 0
    assert json.loads(report.read_text())["findings"] == []
    assert "LNK001" in capsys.readouterr().out


def test_findings_have_their_own_exit_code_and_a_report(
    tree: Tree, target: Path, tmp_path: Path
) -> None:
    tree.library("x/libcublas.so.12")
    report = tmp_path / "audit.json"
    assert main(_arguments(tree, target, report)) == 51
    (finding,) = json.loads(report.read_text())["findings"]
    assert finding["code"] == "MIX002"
    assert finding["severity"] == "error"


@pytest.mark.parametrize("what", ["target", "site", "json", "metadata"])
def test_what_cannot_be_audited_is_no_pass(
    tree: Tree, target: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if what == "target":
        target.unlink()
    elif what == "json":
        target.write_text('{"name": "cu130"}')
    elif what == "metadata":
        next(tree.site.glob("torch-*.dist-info/METADATA")).write_text("\n")
    else:
        tree.site.rename(tree.site.with_name("elsewhere"))
    report = tmp_path / "audit.json"
    assert main(_arguments(tree, target, report)) == UNUSABLE
    assert not report.exists()
    error = capsys.readouterr().err
    assert error.startswith("audit: ")
    assert "Traceback" not in error


def test_it_needs_nothing_of_the_builder_s_environment() -> None:
    """In a build stage there are the standard library and pyelftools."""
    program = (
        "import sys\n"
        "for name in ('pydantic', 'docker', 'jinja2', 'unidiff', 'builder.pins'):\n"
        "    sys.modules[name] = None\n"
        "import builder.inside.audit.__main__, builder.inside.observe, builder.inside.prune\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
