"""Strict application in memory: every hunk at its exact line, with its exact context.

GNU patch and `git apply` accept an offset, and patch also fuzz: a hunk may then land in a place
that merely looks alike. Here any difference is drift, and a person looks at it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from builder.errors import PatchDriftError, PatchSeriesError
from builder.patches.diff import FileChange, FileHunk
from builder.patches.series import Patch
from builder.patches.treehash import Tree, TreeFile

_SHOWN = 60
REBASE = (
    "upstream changed: `python3 build.py patches apply DIR --partial`, redo the change there, "
    "`patches export DIR`"
)


def apply_series(tree: Tree, patches: Sequence[Patch]) -> dict[str, TreeFile]:
    """The tree after all patches; `tree` itself is unchanged. Raises PatchDriftError."""
    result = dict(tree)
    for patch in patches:
        result = apply_patch(result, patch)
    return result


def apply_patch(tree: Tree, patch: Patch) -> dict[str, TreeFile]:
    """The tree after one patch. Raises PatchDriftError naming the first thing that differs."""
    result = dict(tree)
    for change in patch.changes:
        file = tree.get(change.path)
        where = f"{patch.name}: {change.path}"
        if change.created:
            if file is not None:
                raise PatchDriftError(f"{where}: to be created, but it exists already", REBASE)
            folder = change.path + "/"
            if any(path.startswith(folder) for path in tree):
                raise PatchDriftError(f"{where}: to be created, but a folder is there", REBASE)
        elif file is None:
            raise PatchDriftError(f"{where}: no such file any more", REBASE)
        data = _apply_hunks(where, change, file.data if file else b"")
        if not change.deleted:
            executable = file.executable if file else change.executable
            result[change.path] = TreeFile(data, executable)
            continue
        if data:
            raise PatchDriftError(
                f"{where}: to be deleted, but it has lines that the patch does not know", REBASE
            )
        del result[change.path]
    return result


def _apply_hunks(where: str, change: FileChange, data: bytes) -> bytes:
    lines = io.BytesIO(data).readlines()  # splits at \n alone, keeps it
    out: list[bytes] = []
    taken = 0
    for hunk in change.hunks:
        # A hunk that expects nothing names the line *after* which it inserts.
        start = hunk.source_start - 1 if hunk.source else hunk.source_start
        if start < taken:
            raise PatchSeriesError(
                f"{where}: {hunk.header}: overlaps the hunk before it", "export the patch anew"
            )
        _expect(where, hunk, lines, start)
        out += lines[taken:start]
        if hunk.target_start != (len(out) + 1 if hunk.target else len(out)):
            raise PatchSeriesError(
                f"{where}: {hunk.header}: the line after + does not follow from the hunks before",
                "export the patch anew",
            )
        out += hunk.target
        taken = start + len(hunk.source)
    return b"".join(out + lines[taken:])


def _expect(where: str, hunk: FileHunk, lines: list[bytes], start: int) -> None:
    if start > len(lines):
        found = f"the file ends at line {len(lines)}"
        raise PatchDriftError(
            f"{where}: {hunk.header}: {found}{_elsewhere(hunk, lines, start)}", REBASE
        )
    for offset, expected in enumerate(hunk.source):
        number = start + offset
        actual = lines[number] if number < len(lines) else None
        if actual == expected:
            continue
        found = "the end of the file" if actual is None else _show(actual, expected)
        raise PatchDriftError(
            f"{where}: {hunk.header}: line {number + 1}: expected {_show(expected, actual)}, "
            f"found {found}{_elsewhere(hunk, lines, start)}",
            REBASE,
        )


def _show(line: bytes, other: bytes | None) -> str:
    """The line for a message; its ending only where the ending is the difference."""
    text = line.decode("utf-8", "backslashreplace")
    if other is None or line.rstrip(b"\r\n") != other.rstrip(b"\r\n"):
        text = text.rstrip("\r\n")
    if len(text) > _SHOWN:
        text = text[: _SHOWN - 3] + "..."
    return repr(text)


def _elsewhere(hunk: FileHunk, lines: list[bytes], start: int) -> str:
    wanted = list(hunk.source)
    if not wanted:
        return ""
    places = [
        at
        for at in range(len(lines) - len(wanted) + 1)
        if lines[at] == wanted[0] and lines[at : at + len(wanted)] == wanted
    ]
    if not places:
        return "; the hunk's lines are nowhere else in the file"
    nearest = min(places, key=lambda at: abs(at - start))
    more = f", and at {len(places) - 1} more places" if len(places) > 1 else ""
    return f"; the same lines are now at {nearest + 1} ({nearest - start:+d}){more}"
