"""Patch files: a header that says why and for how long, and a git-style unified diff.

    Subject: one line, also the commit's subject and the file's name
    Reason: why upstream must be changed; more lines are
      indented
    Removal: when the patch can be dropped

    diff --git a/sglang/... b/sglang/...

`series` lists the files in order of application, one a line; `#` starts a comment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from builder.errors import PatchSeriesError
from builder.patches.diff import EXAMPLE_REMEDY, FileChange, parse_diff

SERIES = "series"
FIELDS = ("Subject", "Reason", "Removal")
_HEADER = re.compile(r"^([A-Za-z][A-Za-z-]*):[ \t]*(.*)$")


@dataclass(frozen=True)
class Patch:
    """One patch file. `reason` and `removal` keep their line breaks, without the indentation."""

    name: str
    subject: str
    reason: str
    removal: str
    diff: str  # as written, surrogate escapes for bytes that are not UTF-8
    changes: tuple[FileChange, ...]


def load_series(folder: Path) -> tuple[Patch, ...]:
    """The patches that `folder`/series lists, in order. Raises PatchSeriesError."""
    names = series_names(folder)
    patches = []
    for number, name in enumerate(names, start=1):
        path = folder / name
        try:
            text = path.read_bytes().decode("utf-8", "surrogateescape")
        except OSError:
            raise PatchSeriesError(
                f"{SERIES}: {name}: no such file in {folder}", "restore it or drop the line"
            ) from None
        patch = parse_patch(name, text)
        expected = patch_name(number, patch.subject)
        if name != expected:
            raise PatchSeriesError(
                f"{SERIES}: {name}: patch {number} with this Subject is named {expected}",
                "rename the file, here and in the series",
            )
        patches.append(patch)
    unlisted = sorted({p.name for p in folder.glob("*.patch")} - set(names))
    if unlisted:
        raise PatchSeriesError(
            f"{SERIES}: {', '.join(unlisted)} is there but not listed",
            "list it or delete the file",
        )
    return tuple(patches)


def series_names(folder: Path) -> list[str]:
    """File names in `folder`/series, without comments and blank lines."""
    try:
        text = (folder / SERIES).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise PatchSeriesError(f"{folder / SERIES}: cannot be read", "restore the file") from None
    lines = [line.split("#", 1)[0].strip() for line in text.splitlines()]
    names = [line for line in lines if line]
    for name in names:
        if PurePosixPath(name).name != name or not name.endswith(".patch"):
            raise PatchSeriesError(
                f"{SERIES}: {name!r} is not the name of a .patch file beside it",
                "one file name a line",
            )
        if names.count(name) > 1:
            raise PatchSeriesError(f"{SERIES}: {name} is listed twice", "drop one of the lines")
    return names


def patch_name(number: int, subject: str) -> str:
    """File name of the `number`-th patch (from 1): `0001-words-of-the-subject.patch`."""
    slug = re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")[:52].rstrip("-")
    return f"{number:04d}-{slug}.patch"


def parse_patch(name: str, text: str) -> Patch:
    """Parse one patch file; `name` is for messages. Raises PatchSeriesError."""
    header, found, diff = text.partition("\n\n")
    if not found or not diff.strip():
        raise PatchSeriesError(f"{name}: no diff after the header and a blank line", EXAMPLE_REMEDY)
    fields = parse_header(name, header.split("\n"))
    return Patch(
        name=name,
        subject=fields["Subject"],
        reason=fields["Reason"],
        removal=fields["Removal"],
        diff=diff,
        changes=parse_diff(name, diff),
    )


def parse_header(name: str, lines: Sequence[str]) -> dict[str, str]:
    """Exactly Subject, Reason and Removal; `name` is for messages. Raises PatchSeriesError."""
    fields: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        match = _HEADER.match(line)
        if match and match[1] in FIELDS:
            if match[1] in fields:
                raise PatchSeriesError(f"{name}: header {match[1]}: twice", EXAMPLE_REMEDY)
            current = fields.setdefault(match[1], [match[2]])
        elif line[:1] in (" ", "\t") and line.strip() and current is not None:
            current.append(line)
        else:
            raise PatchSeriesError(
                f"{name}: {repr(line.strip()[:60]) if line.strip() else 'an empty line'} is no "
                f"header ({', '.join(FIELDS)}) nor an indented continuation",
                EXAMPLE_REMEDY,
            )
    parsed = {key: "\n".join(part.strip() for part in parts) for key, parts in fields.items()}
    missing = [key for key in FIELDS if not parsed.get(key, "").strip()]
    if missing:
        raise PatchSeriesError(f"{name}: header {missing[0]}: missing or empty", EXAMPLE_REMEDY)
    if "\n" in parsed["Subject"]:
        raise PatchSeriesError(
            f"{name}: header Subject: more than one line", "it is a commit's first line: shorten it"
        )
    return parsed


def format_header(subject: str, reason: str, removal: str) -> str:
    """The header of a patch file, without the blank line after it."""
    return f"Subject: {subject}\n{format_why(reason, removal)}"


def format_why(reason: str, removal: str) -> str:
    """Reason and Removal, as in a patch file and in a commit message."""
    pairs = (("Reason", reason), ("Removal", removal))
    return "".join(f"{key}: " + value.replace("\n", "\n  ") + "\n" for key, value in pairs)
