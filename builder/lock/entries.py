"""The text of a lock: a pip requirements file with hashes, one entry a distribution.

Below each entry comments name the files behind the hashes (in the order of the hashes, with
their size in bytes, `-` where the index states none) and who asks for the distribution. Only
wheels that the image can install are listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from builder.errors import LockDriftError

_ENTRY = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[^\s;\\]+)(?: \\)?")
_HASH = re.compile(r"    --hash=sha256:(?P<digest>[0-9a-f]{64})(?: \\)?")
_FILE = re.compile(r"    # file (?P<filename>\S+) (?P<size>\d+|-)")
_VIA = re.compile(r"    # via (?P<via>.+)")


@dataclass(frozen=True)
class LockedFile:
    """One wheel that satisfies an entry. `size` in bytes, None where the index states none."""

    filename: str
    sha256: str
    size: int | None


@dataclass(frozen=True)
class LockEntry:
    """One distribution: normalised name, exact version, hex SHA-256 of the allowed wheels."""

    name: str
    version: str
    hashes: tuple[str, ...]
    files: tuple[LockedFile, ...] = ()
    via: tuple[str, ...] = ()


def format_entries(entries: Iterable[LockEntry]) -> str:
    """The body of a lock; `parse_lock` reads it back."""
    lines: list[str] = []
    for entry in sorted(entries, key=lambda e: e.name):
        lines.append(f"{entry.name}=={entry.version} \\")
        hashes = [f"    --hash=sha256:{digest}" for digest in entry.hashes]
        lines += [f"{line} \\" for line in hashes[:-1]] + hashes[-1:]
        lines += [
            f"    # file {file.filename} {'-' if file.size is None else file.size}"
            for file in entry.files
        ]
        if entry.via:
            lines.append(f"    # via {', '.join(entry.via)}")
    return "".join(f"{line}\n" for line in lines)


def parse_lock(text: str) -> list[LockEntry]:
    """Entries of a lock, in file order.

    Raises LockDriftError with the line number for anything that a lock never holds: a range, a
    marker, an index option, an entry without a hash.
    """
    entries: list[LockEntry] = []
    block: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith((" ", "\t")):
            if not block:
                raise _malformed(number, line)
            block.append(line)
        else:
            if block:
                entries.append(_entry(block, number))
            block = [line]
    if block:
        entries.append(_entry(block, len(text.splitlines()) + 1))
    return entries


def _entry(block: list[str], after: int) -> LockEntry:
    first = after - len(block)
    head = _ENTRY.fullmatch(block[0])
    if head is None:
        raise _malformed(first, block[0])
    hashes: list[str] = []
    named: list[tuple[str, int | None]] = []
    via: tuple[str, ...] = ()
    for offset, line in enumerate(block[1:], start=1):
        if found := _HASH.fullmatch(line):
            hashes.append(found["digest"])
        elif found := _FILE.fullmatch(line):
            named.append((found["filename"], None if found["size"] == "-" else int(found["size"])))
        elif found := _VIA.fullmatch(line):
            via = tuple(found["via"].split(", "))
        elif not line.lstrip().startswith("#"):
            raise _malformed(first + offset, line)
    if not hashes:
        raise LockDriftError(
            f"lock: {head['name']}=={head['version']} has no hash", "run `python3 build.py lock`"
        )
    files: tuple[LockedFile, ...] = ()
    if len(named) == len(hashes):
        pairs = zip(named, hashes, strict=True)
        files = tuple(LockedFile(name, digest, size) for (name, size), digest in pairs)
    return LockEntry(head["name"], head["version"], tuple(hashes), files, via)


def _malformed(number: int, line: str) -> LockDriftError:
    return LockDriftError(
        f"lock: line {number}: not `name==version` with hashes: {line.strip()!r}",
        "locks are generated: run `python3 build.py lock`",
    )
