from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import PatchSeriesError
from builder.patches.series import (
    FIELDS,
    format_header,
    load_series,
    parse_patch,
    patch_name,
    series_names,
)
from tests.builder.patches.conftest import PACKAGES, Lab, make_diff, patch_text

DIFF = make_diff(PACKAGES, {**PACKAGES, "tools/tag.py": b"tag = 2\n"})
GOOD = patch_text("A subject", DIFF)


def test_a_patch_file_is_its_header_and_its_diff() -> None:
    patch = parse_patch("p", GOOD)
    assert patch.subject == "A subject"
    assert patch.reason == "the first line\nand a second one, na\u00efve"
    assert patch.removal == "when upstream has it"
    assert [change.path for change in patch.changes] == ["tools/tag.py"]
    assert format_header(patch.subject, patch.reason, patch.removal) + "\n" + patch.diff == GOOD


@pytest.mark.parametrize("field", FIELDS)
def test_every_header_is_required_and_not_empty(field: str) -> None:
    lines = GOOD.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith(field))
    end = at + 1
    while lines[end].startswith("  "):
        end += 1
    for spoiled in ([], [f"{field}:\n"], [f"{field}: \t\n"]):
        with pytest.raises(PatchSeriesError) as caught:
            parse_patch("0007-x.patch", "".join(lines[:at] + spoiled + lines[end:]))
        assert "0007-x.patch" in caught.value.what
        assert field in caught.value.what


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("Removal:", "Because: x\nRemoval:"), "Because: x"),
        (GOOD.replace("Removal:", "Reason: again\nRemoval:"), "twice"),
        (GOOD.replace("A subject", "A subject\n  and more"), "more than one line"),
        (GOOD.replace("  and a second", "and a second"), "and a second"),
        ("  early\n" + GOOD, "early"),
        (GOOD.split("\n\n")[0], "no diff"),
        (GOOD.split("\n\n")[0] + "\n\n \n", "no diff"),
    ],
    ids=["unknown", "double", "long subject", "no indent", "indent first", "end", "empty diff"],
)
def test_a_malformed_header_names_the_file_and_the_line(text: str, says: str) -> None:
    with pytest.raises(PatchSeriesError) as caught:
        parse_patch("0007-x.patch", text)
    assert caught.value.what.startswith("0007-x.patch: ")
    assert says in caught.value.what
    assert "\n" not in caught.value.what + caught.value.remedy


def test_the_series_may_hold_comments_and_blank_lines(lab: Lab) -> None:
    folder = lab.project.patches
    names = series_names(folder)
    (folder / "series").write_text(f"# first\n\n{names[0]}  # why\n\n#x.patch\n{names[1]}\n")
    assert [patch.name for patch in load_series(folder)] == names


@pytest.mark.parametrize(
    "line", ["../x.patch", "sub/x.patch", "/x.patch", "x.diff", "0001-first-change.patch"]
)
def test_a_series_names_each_patch_beside_it_once(lab: Lab, line: str) -> None:
    series = lab.project.patches / "series"
    series.write_text(series.read_text() + line + "\n")
    with pytest.raises(PatchSeriesError, match=line.replace(".", r"\.")):
        load_series(lab.project.patches)


def test_series_and_folder_hold_the_same_files(lab: Lab) -> None:
    folder = lab.project.patches
    (folder / "0009-stray.patch").write_text("x")
    with pytest.raises(PatchSeriesError, match=r"0009-stray\.patch"):
        load_series(folder)
    (folder / "0009-stray.patch").unlink()
    (folder / "0001-first-change.patch").unlink()
    with pytest.raises(PatchSeriesError, match=r"0001-first-change\.patch: no such file"):
        load_series(folder)
    (folder / "series").unlink()
    with pytest.raises(PatchSeriesError, match="series: cannot be read"):
        load_series(folder)


def test_a_file_is_named_after_its_place_and_subject(lab: Lab) -> None:
    folder = lab.project.patches
    (folder / "0001-first-change.patch").rename(folder / "0001-other.patch")
    series = folder / "series"
    series.write_text(series.read_text().replace("0001-first-change", "0001-other"))
    with pytest.raises(PatchSeriesError, match=r"named 0001-first-change\.patch"):
        load_series(folder)


def test_patch_names_are_plain_file_names() -> None:
    for subject in ("A/../b: c", "\u00fcber alles \u2192 x", "w" * 200, "tail " * 30):
        name = patch_name(12, subject)
        assert name.startswith("0012-") and name.endswith(".patch")
        assert Path(name).name == name and len(name) < 70 and "-.patch" not in name


def test_the_shipped_series_is_well_formed() -> None:
    from builder.project import default_project

    patches = load_series(default_project().patches)
    assert patches
    for patch in patches:
        for change in patch.changes:
            if change.created and change.path.endswith(".py"):
                source = b"".join(line for hunk in change.hunks for line in hunk.target)
                compile(source, change.path, "exec")
