"""README's table of images: what is not shown by a receipt is not claimed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from builder.errors import EvidenceError
from builder.images_table import images_table
from builder.project import Project
from builder.qualification import REQUIRED
from builder.receipts import LEVELS, Count, Receipt, committed_path, record
from tests.builder.test_receipts import a_receipt

GPUS = [{"name": "RTX PRO 6000", "architecture": "sm_120"}] * 8


BUILT = a_receipt(
    revision="f" * 40 + "-dirty", suites={"audit": Count(23, 0, 0), "proof": Count(2, 0, 0)}
)
VERIFIED = a_receipt("cpu-verified", suites=dict.fromkeys(REQUIRED, Count(7, 0, 1)))
QUALIFIED = a_receipt(
    "gpu-qualified", suites={"selftest": Count(12, 0, 0)}, machine={"tp": 4, "gpus": GPUS}
)


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
    record(scratch, "cu130", [BUILT, VERIFIED, QUALIFIED])
    row = rows(scratch)["cu130"]
    assert row[4] == (
        "2026-11-30: build `0123456789abcdef` of `ffffffffff-dirty`, 7.00 GiB, 23 audit rules"
    )
    assert row[5] == f"2026-11-30: {7 * len(REQUIRED)} tests passed, {len(REQUIRED)} skipped"
    assert row[6] == "2026-11-30: self-test on 4 of 8 x RTX PRO 6000 (sm_120)"


def test_a_stand_in_stays_without_gpu_whatever_a_receipt_says(scratch: Project) -> None:
    record(scratch, "cu128-stand-in", [replace(QUALIFIED, target="cu128-stand-in")])
    assert rows(scratch)["cu128-stand-in"][6].startswith("never")


@pytest.mark.parametrize(
    "receipt",
    [
        replace(BUILT, suites={"proof": Count(2, 0, 0)}),
        replace(BUILT, suites={**BUILT.suites, "proof": Count(0, 0, 2)}),
        replace(BUILT, suites={**BUILT.suites, "audit": Count(23, 1, 0)}),
        replace(VERIFIED, suites={**VERIFIED.suites, "other": Count(1, 1, 0)}),
        replace(VERIFIED, suites={**VERIFIED.suites, "image/abi": Count(0, 0, 7)}),
        replace(VERIFIED, suites={"image/abi": Count(7, 0, 0)}),
        replace(VERIFIED, suites={"selftest": Count(7, 0, 0)}),
        replace(QUALIFIED, suites={"selftest": Count(12, 1, 0)}),
        replace(QUALIFIED, suites=VERIFIED.suites),
        replace(QUALIFIED, machine={"tp": 1, "gpus": []}),
        replace(QUALIFIED, machine={"gpus": GPUS}),
        replace(QUALIFIED, machine={"tp": 9, "gpus": GPUS}),
        replace(QUALIFIED, machine={"tp": 1, "gpus": ["sm_120"]}),
    ],
    ids=lambda r: f"{r.level}-{len(r.suites)}-{r.machine.get('tp')}",
)
def test_a_receipt_that_does_not_show_its_level_claims_nothing(
    scratch: Project, receipt: Receipt
) -> None:
    """Nothing writes one; a file that says so is not to be shown as a pass."""
    record(scratch, "cu130", [receipt])
    assert rows(scratch)["cu130"][4 + LEVELS.index(receipt.level)] == "**no**"


def test_a_damaged_receipt_is_an_error_and_not_a_no(scratch: Project) -> None:
    path = committed_path(scratch, "cu130")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps([{"level": "built"}]))
    with pytest.raises(EvidenceError, match=r"cu130\.json"):
        images_table(scratch)
