"""Git-style unified diffs, parsed with unidiff and then held to stricter rules.

Only edited, created and deleted text files: no renames, no mode changes, no binary files, no path
outside the packages. unidiff skips what it does not understand, so its result is written back and
compared with the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, PatchedFile, PatchSet

from builder.errors import PatchSeriesError

EXAMPLE_REMEDY = "mend it; CONTRIBUTING.md, 'Add a patch', shows a whole patch file"
_HUNK = re.compile(r"^@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@.*$")
_NEW = re.compile(r"^new file mode 100(644|755)$", re.MULTILINE)
_GONE = re.compile(r"^deleted file mode 100(?:644|755)$", re.MULTILINE)
_NO_NEWLINE = "\\"


@dataclass(frozen=True)
class FileHunk:
    """One hunk as bytes: the lines it expects, the lines it leaves, and where (1-based)."""

    header: str
    source_start: int
    target_start: int
    source: tuple[bytes, ...]
    target: tuple[bytes, ...]


@dataclass(frozen=True)
class FileChange:
    """What a patch does to one file; `created`/`deleted` exclude each other."""

    path: str
    created: bool
    deleted: bool
    executable: bool  # of a created file
    hunks: tuple[FileHunk, ...]


def canonical_diff(diff: str) -> str:
    """`diff` without what depends on the git that wrote it: blob ids and hunk headings.

    Lines of a hunk's body start with a space, a sign or a backslash and are never touched.
    """
    lines = []
    for line in diff.split("\n"):
        if line.startswith("index "):
            continue
        if match := _HUNK.match(line):
            lines.append(f"@@ -{match[1]}{match[2] or ',1'} +{match[3]}{match[4] or ',1'} @@")
        else:
            lines.append(line)
    return "\n".join(lines)


def parse_diff(name: str, diff: str) -> tuple[FileChange, ...]:
    """A git-style diff. Raises PatchSeriesError for anything but text edits of whole lines."""
    canonical = canonical_diff(diff)
    try:
        parsed = PatchSet.from_string(canonical)
    except UnidiffParseError as exc:
        reason = str(exc).strip().replace("\n", " ")[:120]
        raise PatchSeriesError(f"{name}: malformed diff: {reason}", EXAMPLE_REMEDY) from None
    if str(parsed) != canonical:
        # unidiff skips what it does not know; writing its result back shows it.
        raise PatchSeriesError(
            f"{name}: malformed diff: text between the files, or a count that does not fit",
            "regenerate it with `python3 build.py patches export DIR`",
        )
    changes = tuple(_change(name, file) for file in parsed)
    paths = [change.path for change in changes]
    doubled = sorted({path for path in paths if paths.count(path) > 1})
    if doubled:
        raise PatchSeriesError(f"{name}: {doubled[0]} appears twice", EXAMPLE_REMEDY)
    return changes


def _change(name: str, file: PatchedFile) -> FileChange:
    info = str(file.patch_info or "")
    path = _path(name, file, info)
    created, deleted = _NEW.search(info), _GONE.search(info)
    if info.count("\n") > (2 if created or deleted else 1):
        extra = info.strip().split("\n")[-1]
        raise PatchSeriesError(
            f"{name}: {path}: {extra!r} is not supported: only edited, new and deleted text files",
            "keep the mode, delete and create instead of renaming, no binary files",
        )
    if not (created or deleted or len(file)):
        raise PatchSeriesError(f"{name}: {path}: nothing is changed", EXAMPLE_REMEDY)
    return FileChange(
        path=path,
        created=created is not None,
        deleted=deleted is not None,
        executable=bool(created and created[1] == "755"),
        hunks=tuple(_hunk(hunk) for hunk in file),
    )


def _path(name: str, file: PatchedFile, info: str) -> str:
    first = info.split("\n", 1)[0]
    match = re.fullmatch(r"diff --git a/(.+) b/\1", first)
    if match is None:
        raise PatchSeriesError(
            f"{name}: {(first or file.target_file)[:80]!r} is not `diff --git a/PATH b/PATH`",
            EXAMPLE_REMEDY,
        )
    path = match[1]
    sides = {file.source_file, file.target_file} - {"/dev/null"}
    if len(file) and not sides <= {f"a/{path}", f"b/{path}"}:
        raise PatchSeriesError(f"{name}: {path}: --- and +++ name other files", EXAMPLE_REMEDY)
    if not is_safe_path(path):
        raise PatchSeriesError(
            f"{name}: {path}: leaves the package tree", "patch only files of the wheel's packages"
        )
    return path


def is_safe_path(path: str) -> bool:
    """Relative, normalized, inside the tree, and not metadata of the wheel or of git."""
    parts = path.split("/")
    return not (
        "\\" in path
        or "\0" in path
        or any(part in ("", ".", "..", ".git") for part in parts)
        or parts[0].endswith((".dist-info", ".data"))
        or re.match(r"^[A-Za-z]:", path)
    )


def _hunk(hunk: Hunk) -> FileHunk:
    source: list[bytes] = []
    target: list[bytes] = []
    last: tuple[list[bytes], ...] = ()
    for line in hunk:
        if line.line_type == _NO_NEWLINE:
            for side in last:
                side[-1] = side[-1].removesuffix(b"\n")
            continue
        value = str(line.value).encode("utf-8", "surrogateescape")
        last = tuple(
            side
            for side, absent in ((source, line.is_added), (target, line.is_removed))
            if not absent
        )
        for side in last:
            side.append(value)
    header = str(hunk).split("\n", 1)[0].rstrip()
    return FileHunk(
        header, int(hunk.source_start), int(hunk.target_start), tuple(source), tuple(target)
    )
