from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest

from builder.errors import HashMismatchError, TreeHashError
from builder.patches import cli
from tests.builder.patches.conftest import PACKAGES, Lab, make_wheel


def call(lab: Lab, *arguments: str, wheel: bool = True) -> int:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    extra = ["--wheel", str(lab.wheel)] if wheel else []
    args = parser.parse_args(["patches", *arguments, *extra])
    code: int = args.handler(args, lab.project)
    return code


def test_check_names_patches_and_trees(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(lab, "check") == 0
    shown = capsys.readouterr().out
    assert "0001-first-change.patch: First change" in shown
    assert lab.shared.sglang.patched_tree in shown


def test_check_as_json(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(lab, "check", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["patched_tree"] == lab.shared.sglang.patched_tree
    assert found["patches"][0]["subject"] == "First change"
    assert "sglang/new/hook.py" in found["patches"][1]["files"]
    assert found["pinned"] == []


def test_check_fails_on_another_tree_and_pins_it_when_asked(lab: Lab) -> None:
    make_wheel(lab.wheel, {**PACKAGES, "tools/tag.py": b"tag = 9\n"})
    with pytest.raises(HashMismatchError):
        call(lab, "check")
    from builder.files import sha256_file

    lab.set_pin("sha256", sha256_file(lab.wheel))
    before = lab.pins.read_text()
    with pytest.raises(TreeHashError):
        call(lab, "check")
    assert lab.pins.read_text() == before
    assert call(lab, "check", "--pin") == 0
    assert lab.pins.read_text() != before
    assert call(lab, "check") == 0


def test_without_wheel_it_is_fetched_by_hash(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(project: object, shared: object) -> Path:
        asked.append((project, shared))
        return lab.wheel

    monkeypatch.setattr(cli, "fetch_sglang_wheel", fetch)
    assert call(lab, "check", wheel=False) == 0
    assert asked == [(lab.project, lab.shared)]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_apply_edit_export_pin(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.builder.patches.test_scratch import commit

    folder = tmp_path / "scratch"
    assert call(lab, "apply", str(folder)) == 0
    assert call(lab, "export", str(folder)) == 0
    assert "nothing changed" in capsys.readouterr().out
    (folder / "tools/tag.py").write_bytes(b"tag = 3\n")
    commit(folder, "Third\n\nReason: because\nRemoval: never")
    assert call(lab, "export", str(folder)) == 0
    shown = capsys.readouterr().out
    assert "written: 0003-third.patch" in shown and "export with --pin" in shown
    with pytest.raises(TreeHashError):
        call(lab, "check")
    assert call(lab, "export", str(folder), "--pin") == 0
    assert "written: patched_tree" in capsys.readouterr().out
    assert call(lab, "check") == 0


def test_help_teaches_the_round_trip(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    for verb, words in (
        ((), ("check", "apply", "export", "--pin")),
        (("apply",), ("Reason:", "Removal:", "ddtree-base", "--partial")),
        (("export",), ("byte-identical", "--pin")),
        (("check",), ("--json", "--wheel")),
    ):
        with pytest.raises(SystemExit) as caught:
            parser.parse_args(["patches", *verb, "--help"])
        assert caught.value.code == 0
        shown = capsys.readouterr().out
        assert all(word in shown for word in words)
    with pytest.raises(SystemExit):
        parser.parse_args(["patches"])
