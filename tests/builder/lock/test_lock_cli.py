"""`build.py lock`, as a user calls it."""

from __future__ import annotations

import argparse
import json

import pytest

from builder.errors import LockDriftError, UnknownVariantError
from builder.lock import files
from builder.lock.cli import add_parser
from builder.pins import Target, all_targets
from builder.project import Project


def lock(project: Project, *argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["lock", *argv])
    code: int = args.handler(args, project)
    return code


def names(text: str) -> list[str]:
    return [result["target"] for result in json.loads(text)]


def test_check_covers_every_target(scratch: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert lock(scratch, "--check", "--offline", "--json") == 0
    assert names(capsys.readouterr().out) == [t.name for t in all_targets(scratch)]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("--cuda", "cu128"), ["cu128"]),
        (("--cuda", "cu128", "--stand-in"), ["cu128-stand-in"]),
        (("--stand-in",), ["cu128-stand-in"]),
    ],
)
def test_targets_can_be_named(
    scratch: Project,
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
    expected: list[str],
) -> None:
    lock(scratch, "--check", "--offline", "--json", *argv)
    assert names(capsys.readouterr().out) == expected


def test_every_drift_is_named_and_nothing_is_written(scratch: Project) -> None:
    locks = [t.lock_file(scratch) for t in all_targets(scratch)]
    for path in locks:
        path.write_text(path.read_text() + "x==1\n")
    before = [path.read_text() for path in locks]
    with pytest.raises(LockDriftError) as caught:
        lock(scratch, "--check", "--offline")
    assert all(f"lock of {t.name}:" in caught.value.what for t in all_targets(scratch))
    assert caught.value.remedy == "run `python3 build.py lock`"
    assert [path.read_text() for path in locks] == before


def test_lock_writes_what_the_resolver_says(
    scratch: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(_project: Project, target: Target) -> str:
        return f"# {target.name}\nx==1 \\\n    --hash=sha256:{'a' * 64}\n"

    monkeypatch.setattr(files, "resolve", fake)
    lock(scratch, "--json")
    results = json.loads(capsys.readouterr().out)
    assert [(r["entries"], r["changed"]) for r in results] == [(1, True)] * len(results)
    assert all((scratch.root / r["lock"]).read_text().startswith("# cu") for r in results)


def test_offline_never_resolves(scratch: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(files, "resolve")
    assert lock(scratch, "--offline") == 0


def test_an_unknown_variant(scratch: Project) -> None:
    with pytest.raises(UnknownVariantError):
        lock(scratch, "--cuda", "cu999")
