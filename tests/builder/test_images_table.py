"""README's table of images: what is not shown by a receipt is not claimed."""

from __future__ import annotations

import json

import pytest

from builder.errors import EvidenceError
from builder.images_table import images_table
from builder.project import Project
from builder.receipts import Count, committed_path, record
from tests.builder.test_receipts import a_receipt

GPUS = [{"name": "RTX PRO 6000", "architecture": "sm_120"}] * 8


def rows(project: Project) -> dict[str, list[str]]:
    lines = images_table(project).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(row) for row in cells} == {7}
    return {row[0].strip("`"): row for row in cells[2:]}


def test_without_receipts_nothing_is_claimed(scratch: Project) -> None:
    for target in ("cu128", "cu130", "cu128-stand-in"):
        committed_path(scratch, target).unlink(missing_ok=True)
    found = rows(scratch)
    assert list(found) == ["cu128", "cu130", "cu128-stand-in"]
    assert {cell for row in found.values() for cell in row[4:6]} == {"**no**"}
    assert found["cu130"][6] == found["cu128"][6] == "**no**"
    assert found["cu128-stand-in"][6].startswith("never")


def test_what_it_is_made_from_comes_from_the_pins(scratch: Project) -> None:
    found = rows(scratch)
    assert found["cu130"][1:4] == ["2.11.0", "13.0, driver >= 580.65.06", "PyPI"]
    assert found["cu128"][3] == "PyPI, the PyTorch index, GitHub, NVIDIA"
    assert found["cu128-stand-in"][2:4] == ["12.8", "PyPI"]


def test_a_receipt_is_shown_with_its_build(scratch: Project) -> None:
    verified = a_receipt("cpu-verified", suites={"a": Count(120, 0, 1), "b": Count(30, 0, 1)})
    built = a_receipt(revision="f" * 40 + "-dirty", suites={"audit": Count(23, 0, 0)})
    machine = {"tp": 4, "gpus": GPUS}
    record(scratch, "cu130", [built, verified, a_receipt("gpu-qualified", machine=machine)])
    row = rows(scratch)["cu130"]
    assert row[4] == (
        "2026-11-30: build `0123456789abcdef` of `ffffffffff-dirty`, 7.00 GiB, 23 audit rules"
    )
    assert row[5] == "2026-11-30: 150 tests passed, 2 skipped"
    assert row[6] == "2026-11-30: self-test on 4 of 8 x RTX PRO 6000 (sm_120)"


def test_a_stand_in_stays_without_gpu_whatever_a_receipt_says(scratch: Project) -> None:
    machine = {"tp": 4, "gpus": GPUS}
    receipt = a_receipt("gpu-qualified", target="cu128-stand-in", machine=machine)
    record(scratch, "cu128-stand-in", [receipt])
    assert rows(scratch)["cu128-stand-in"][6].startswith("never")


def test_a_receipt_of_failed_tests_claims_nothing(scratch: Project) -> None:
    """Nothing writes one; a file that says so is not to be shown as a pass."""
    record(scratch, "cu130", [a_receipt("cpu-verified", suites={"a": Count(5, 1, 0)})])
    assert rows(scratch)["cu130"][5] == "**no**"


def test_a_damaged_receipt_is_an_error_and_not_a_no(scratch: Project) -> None:
    path = committed_path(scratch, "cu130")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps([{"level": "built"}]))
    with pytest.raises(EvidenceError, match=r"cu130\.json"):
        images_table(scratch)
