"""benchmarks/build_page.py: what the page says, and what it keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import build_page
from benchmarks.build_page import Place, Run, State

OLD = Place("2026-01-02", "aaaaaaaaaaaa", "2 x Old, 8 GiB", "engine 20", "image:old")
NEW = Place("2026-03-04", "bbbbbbbbbbbb", "4 x New, 16 GiB", "engine 26", "image:new")
MIB = 2**20


def manifest() -> dict[str, Any]:
    return {
        "sizes": {
            "total_bytes": 3 * 2**30,
            "packages": {f"package-{number:02}": number * MIB for number in range(1, 21)},
        },
        "pins": {"budget_gib": 4.0},
        "audit": {
            "notes": {
                "size_by_layer": {
                    "system": {"bytes": 50 * MIB, "budget_mib": 100},
                    "overlay": {"bytes": 512 * 1024, "budget_mib": None},
                }
            }
        },
    }


def result() -> dict[str, Any]:
    return {"size_bytes": 2**30, "layers": [{"bytes": 5 * MIB, "step": "cat a | b"}]}


def line(page: str, start: str) -> str:
    (found,) = [one for one in page.splitlines() if one.startswith(f"| {start}")]
    return found


def test_a_run_that_was_left_out_keeps_its_numbers_and_their_date(tmp_path: Path) -> None:
    path = tmp_path / "build.json"
    State({"cold": Run(152.2, OLD), "same": Run(9.9, OLD)}).save(path)
    kept = build_page.load(path)
    State({**kept.runs, "same": Run(3.4, NEW)}).save(path)
    page = build_page.page(build_page.load(path))
    assert line(page, "build: cold") == (
        "| build: cold, nothing cached | 152.2 |  |  |  |  | 2026-01-02 [1] |"
    )
    assert (
        line(page, "build: no change")
        == "| build: no change | 3.4 | <= 5 |  |  |  | 2026-03-04 [2] |"
    )
    assert "not measured" in line(page, "build: one-line edit")
    assert f"- [1] {OLD.text()}\n- [2] {NEW.text()}\n" in page


def test_a_transfer_shows_what_crossed(tmp_path: Path) -> None:
    path = tmp_path / "build.json"
    State({"update-pull": Run(1.25, NEW, 3 * MIB, 2, 17, 2048)}).save(path)
    page = build_page.page(build_page.load(path))
    row = line(page, "after that edit: pull")
    assert "| 1.2 |  | 3.0 MiB | 2 of 17 | 2.0 KiB | 2026-03-04 [1] |" in row


def test_nothing_crossing_is_not_the_same_as_nothing_measured() -> None:
    page = build_page.page(State({"push": Run(1.0, NEW, 0, 0, 17, 0)}))
    assert "| 0.0 KiB | 0 of 17 | 0.0 KiB |" in line(page, "push, registry empty")


def test_sizes_stand_against_their_budgets() -> None:
    sizes = build_page.sizes_of(manifest(), result(), NEW)
    page = build_page.page(State({}, sizes))
    assert "3.00 GiB as the sum of unpacked file sizes, 75% of the budget of 4.0 GiB" in page
    assert line(page, "system") == "| system | 50.0 MiB | 100 MiB | 50% |"
    assert line(page, "overlay") == "| overlay | 512.0 KiB | none |  |"
    assert line(page, "package-20") == "| package-20 | 20.0 MiB | 0.5% |"
    packages = [one for one in page.splitlines() if one.startswith("| package-")]
    assert len(packages) == build_page.LARGEST
    assert packages[0].startswith("| package-20") and packages[-1].startswith("| package-06")
    assert "| cat a \\| b | 5.0 MiB |" in page


def test_an_image_without_budgets_by_layer_has_no_such_table() -> None:
    old = manifest()
    old["audit"]["notes"] = {}
    page = build_page.page(State({}, build_page.sizes_of(old, result(), NEW)))
    assert "| part |" not in page and "75% of the budget" in page


def test_layers_that_the_update_has_no_more_are_marked() -> None:
    layers = [("sha256:a", 30 * MIB), ("sha256:b", 10 * MIB)]
    exported = build_page.exported_layers(["part torch", "overlay"], layers, NEW)
    page = build_page.page(State({}, None, exported))
    assert line(page, "part torch") == "| part torch | 30.0 MiB | not measured |"
    updated = build_page.with_update(exported, ["sha256:a", "sha256:c"])
    page = build_page.page(State({}, None, updated))
    assert "in 2 layers [1]" in page
    assert line(page, "part torch") == "| part torch | 30.0 MiB |  |"
    assert line(page, "overlay") == "| overlay | 10.0 MiB | yes |"


def test_everything_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "build.json"
    exported = build_page.exported_layers(["x"], [("sha256:a", 1)], OLD)
    state = State(
        {"push": Run(1.0, NEW, 1, 2, 3, 4)},
        build_page.sizes_of(manifest(), result(), NEW),
        build_page.with_update(exported, []),
    )
    state.save(path)
    assert build_page.load(path) == state


def test_nothing_was_kept_yet(tmp_path: Path) -> None:
    assert build_page.load(tmp_path / "build.json") == State({})


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        json.dumps({"format": 2, "runs": {}, "sizes": None, "exported": None}),
        json.dumps(
            {"format": 1, "runs": {"cold": {"seconds": 1}}, "sizes": None, "exported": None}
        ),
        json.dumps(
            {
                "format": 1,
                "runs": {"other": {"seconds": 1, "place": vars(OLD)}},
                "sizes": None,
                "exported": None,
            }
        ),
    ],
)
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "build.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"build\.json is not what"):
        build_page.load(path)


def test_the_committed_page_is_what_the_committed_numbers_say() -> None:
    folder = Path(build_page.__file__).parent
    assert (folder / "build.md").read_text() == build_page.page(
        build_page.load(folder / "build.json")
    )
