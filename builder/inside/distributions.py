"""Installed distributions as their metadata on disk describes them, without importing any."""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RecordRow:
    """One line of a RECORD. `path` is relative to the audited root; `digest` is `sha256=...`."""

    path: str
    digest: str
    size: str


@dataclass(frozen=True)
class Distribution:
    """One .dist-info. `name` is normalised (PEP 503)."""

    name: str
    version: str
    folder: str  # of the .dist-info, relative to the audited root
    requires: tuple[str, ...]
    files: tuple[RecordRow, ...]


def normalise(name: str) -> str:
    """PEP 503: `Foo.Bar_baz` and `foo-bar-baz` are one distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_distributions(root: Path, site: Path) -> list[Distribution]:
    """All distributions of one site-packages, by name. Raises ValueError for a broken one."""
    found = []
    base = str(site.relative_to(root))
    for info in sorted(site.glob("*.dist-info")):
        headers = _headers(info / "METADATA")
        if not headers.get("name") or not headers.get("version"):
            raise ValueError(f"{info.name}: METADATA names no distribution")
        found.append(
            Distribution(
                name=normalise(headers["name"][0]),
                version=headers["version"][0],
                folder=f"{base}/{info.name}",
                requires=tuple(headers.get("requires-dist", ())),
                files=tuple(_record(info / "RECORD", base)),
            )
        )
    return sorted(found, key=lambda d: d.name)


def _headers(path: Path) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    if not path.is_file():
        return headers
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.rstrip("\r\n"):
                break  # the description follows; a line of blanks still belongs to a licence text
            key, colon, value = line.partition(":")
            if colon and not line[0].isspace():
                headers.setdefault(key.lower(), []).append(value.strip())
    return headers


def _record(path: Path, base: str) -> list[RecordRow]:
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except (ValueError, csv.Error) as exc:
        raise ValueError(f"{path.parent.name}/RECORD cannot be read: {exc}") from None
    return [
        RecordRow(os.path.normpath(f"{base}/{row[0]}"), *(row[1:3] if len(row) >= 3 else ("", "")))
        for row in rows
    ]
