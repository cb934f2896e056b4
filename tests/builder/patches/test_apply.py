from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import PatchDriftError, PatchSeriesError
from builder.patches.apply import apply_patch, apply_series
from builder.patches.series import Patch, parse_patch
from builder.patches.treehash import TreeFile, write_tree
from tests.builder.patches.conftest import (
    AFTER_FIRST,
    AFTER_SECOND,
    LINES,
    NEW_EXECUTABLE,
    PACKAGES,
    make_diff,
    patch_text,
)


def tree_of(files: dict[str, bytes]) -> dict[str, TreeFile]:
    return {name: TreeFile(data, name in NEW_EXECUTABLE) for name, data in files.items()}


def patch_of(
    before: dict[str, bytes], after: dict[str, bytes], name: str = "0001-p.patch"
) -> Patch:
    return parse_patch(name, patch_text("A subject", make_diff(before, after)))


FIRST = patch_of(PACKAGES, AFTER_FIRST, "0001-first.patch")
SECOND = patch_of(AFTER_FIRST, AFTER_SECOND, "0002-second.patch")
EDIT_A = patch_of(PACKAGES, {**PACKAGES, "sglang/a.py": AFTER_FIRST["sglang/a.py"]})


def test_a_series_gives_exactly_the_expected_tree() -> None:
    before = tree_of(PACKAGES)
    assert apply_series(before, [FIRST, SECOND]) == tree_of(AFTER_SECOND)
    assert before == tree_of(PACKAGES), "the input is left alone"


lines = st.lists(st.sampled_from(["a\n", "b\n", "c\r\n", "\n", "d\x0ce\n", "  f\n"]), max_size=30)


@given(lines, lines, st.booleans(), st.booleans())
def test_any_diff_leads_from_its_source_to_its_target(
    old: list[str], new: list[str], open_old: bool, open_new: bool
) -> None:
    files = {"x": ("".join(old) + ("tail" if open_old else "")).encode()}
    wanted = {"x": ("".join(new) + ("tail" if open_new else "")).encode()}
    if files != wanted:
        patch = patch_of(files, wanted)
        assert apply_patch(tree_of(files), patch) == tree_of(wanted)


def drift(files: dict[str, bytes], patch: Patch) -> str:
    with pytest.raises(PatchDriftError) as caught:
        apply_series(tree_of(files), [patch])
    assert "\n" not in caught.value.what + caught.value.remedy
    return caught.value.what


def gnu_patch_accepts(files: dict[str, bytes], patch: Patch, folder: Path) -> bool:
    write_tree(tree_of(files), folder)
    done = subprocess.run(
        ["patch", "-p1", "--batch"],
        cwd=folder,
        input=patch.diff.encode(),
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


needs_patch = pytest.mark.skipif(shutil.which("patch") is None, reason="GNU patch is not installed")


def moved() -> dict[str, bytes]:
    return {**PACKAGES, "sglang/a.py": b"added\n" * 6 + PACKAGES["sglang/a.py"]}


def blurred() -> dict[str, bytes]:
    # The first line of the first hunk's context.
    return {**PACKAGES, "sglang/a.py": LINES.replace("line 2\n", "line two\n").encode()}


def test_an_offset_is_drift_and_the_message_says_where_the_lines_are_now() -> None:
    said = drift(moved(), EDIT_A)
    assert said.startswith("0001-p.patch: sglang/a.py: @@ -2,7 +2,7 @@: line 2: ")
    assert "expected 'line 2', found 'added'" in said
    assert "now at 8 (+6)" in said


def test_fuzz_is_drift() -> None:
    said = drift(blurred(), EDIT_A)
    assert "line 2: expected 'line 2', found 'line two'" in said
    assert "nowhere else" in said


@needs_patch
@pytest.mark.parametrize("files", [moved(), blurred()], ids=["offset", "fuzz"])
def test_gnu_patch_would_have_taken_both(files: dict[str, bytes], tmp_path: Path) -> None:
    assert gnu_patch_accepts(files, EDIT_A, tmp_path)
    drift(files, EDIT_A)


def test_line_endings_count() -> None:
    unix = {**PACKAGES, "sglang/windows.txt": b"one\ntwo\nthree\n"}
    said = drift(unix, FIRST)
    assert r"'one\r\n'" in said and r"'one\n'" in said
    dos = {**PACKAGES, "sglang/a.py": LINES.replace("\n", "\r\n").encode()}
    assert r"'line 2\r\n'" in drift(dos, EDIT_A)


def test_a_missing_final_newline_counts() -> None:
    closed = {**PACKAGES, "sglang/no_newline.txt": b"first\nlast\n"}
    assert r"expected 'last', found 'last\n'" in drift(closed, FIRST)


def test_a_shorter_file_is_drift() -> None:
    short = {**PACKAGES, "sglang/a.py": b"line 1\nline 2\nline 3\n"}
    assert "found the end of the file" in drift(short, EDIT_A)
    assert "ends at line 0" in drift({**PACKAGES, "sglang/a.py": b""}, EDIT_A)


def test_several_other_places_are_counted() -> None:
    twice = {**PACKAGES, "sglang/a.py": (LINES + "x\n" + LINES + "x\n" + LINES)[7:].encode()}
    assert "and at 2 more places" in drift(twice, EDIT_A)


def test_long_lines_are_shown_short() -> None:
    long = {**PACKAGES, "sglang/a.py": LINES.replace("line 2\n", "y" * 500 + "\n").encode()}
    assert len(drift(long, EDIT_A)) < 300


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sglang/gone.py": b"old\ntext\nmore\n"}, "lines that the patch does not know"),
        ({"sglang/new/hook.py": b"theirs\n"}, "exists already"),
        ({"sglang/new/hook.py/inner.py": b""}, "a folder is there"),
        ({"sglang/gone.py": None}, "no such file any more"),
        ({"sglang/latin1.txt": None}, "no such file any more"),
    ],
)
def test_created_and_deleted_files_are_held_to_the_same_rule(
    change: dict[str, bytes | None], says: str
) -> None:
    files = {n: d for n, d in {**AFTER_FIRST, **change}.items() if d is not None}
    said = drift(files, SECOND)
    assert "0002-second.patch" in said and next(iter(change)).split("/inner")[0] in said
    assert says in said


def test_hunks_that_overlap_or_do_not_add_up_are_malformed() -> None:
    hunk = EDIT_A.diff[EDIT_A.diff.index("@@") :]
    second = hunk[hunk.index("\n@@") + 1 :]
    for spoiled in (
        EDIT_A.diff.replace(second, hunk[: hunk.index("\n@@") + 1]),
        EDIT_A.diff.replace(second, hunk[: hunk.index("\n@@") + 1].replace("+2,7", "+9,7")),
        EDIT_A.diff.replace("@@ -28,6 +28,7 @@", "@@ -28,6 +29,7 @@"),
    ):
        assert spoiled != EDIT_A.diff
        patch = parse_patch("0001-p.patch", patch_text("A subject", spoiled))
        with pytest.raises(PatchSeriesError, match="0001-p"):
            apply_patch(tree_of(PACKAGES), patch)
