"""`test` without an image: what runs, in which order."""

from __future__ import annotations

from typing import Any

import pytest

from builder import test_cli
from builder.cli import main
from builder.errors import ChecksFailedError
from builder.pins import Target


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, in order; nothing is."""
    happened: list[str] = []

    def tested(project: Any, target: Target, options: Any) -> str:
        happened.append(f"test {target.name}")
        return target.name

    def note(what: str) -> Any:
        return lambda *given, **options: happened.append(what)

    monkeypatch.setattr(test_cli, "static_checks", note("static"))
    monkeypatch.setattr(test_cli, "unit_tests", note("unit"))
    monkeypatch.setattr(test_cli, "_pytest", note("engine"))
    monkeypatch.setattr(test_cli, "image_tests", tested)
    monkeypatch.setattr(test_cli, "commit_receipts", lambda _, s: happened.append(f"record {s}"))
    return happened


def test_no_receipt_changes_the_tree_before_the_last_image(done: list[str]) -> None:
    """An image that is built from a changed tree is of no commit."""
    assert main(["test", "--record"]) == 0
    assert done[:3] == ["static", "unit", "engine"]
    assert done[3:] == [
        "test cu130",
        "test cu128-stand-in",
        "record cu130",
        "record cu128-stand-in",
    ]


def test_a_failing_image_leaves_no_receipt(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tested(project: Any, target: Target, options: Any) -> str:
        if target.stand_in:
            raise ChecksFailedError("broken", "mend it")
        return target.name

    monkeypatch.setattr(test_cli, "image_tests", tested)
    assert main(["test", "--record"]) == ChecksFailedError.exit_code
    assert done == ["static", "unit", "engine"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--unit"], ["static", "unit"]),
        (["--image", "cu130"], ["test cu130"]),
        ([], ["static", "unit", "engine", "test cu130", "test cu128-stand-in"]),
    ],
)
def test_what_runs(done: list[str], argv: list[str], expected: list[str]) -> None:
    assert main(["test", *argv]) == 0
    assert done == expected
