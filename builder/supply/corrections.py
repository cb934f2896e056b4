"""licences.toml: wordings and corrections as data, each with its reason."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import EvidenceError
from builder.supply.expressions import Kind, normalise

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("licences.toml")
_KEYS = {
    "python": {"names", "licence", "reason"},
    "debian": {"sources", "licence", "reason"},
    "library": {"match", "project", "licence", "reason"},
}
_KINDS = {"permissive", "limited-copyleft", "copyleft", "proprietary"}


@dataclass(frozen=True)
class Correction:
    """A licence that metadata does not state so, and where it was read."""

    licence: str
    reason: str
    project: str = ""
    match: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corrections:
    """The whole table. Expressions are SPDX's."""

    names: Mapping[str, str]  # lower case
    classifiers: Mapping[str, str]
    kinds: Mapping[str, Kind]
    python: Mapping[str, Correction]
    debian: Mapping[str, Correction]
    libraries: tuple[Correction, ...]

    def library(self, below_site: str) -> Correction | None:
        """The first entry that fits a path inside site-packages."""
        for entry in self.libraries:
            if any(fnmatch.fnmatchcase(below_site, pattern) for pattern in entry.match):
                return entry
        return None


def load_corrections(path: Path = FILE) -> Corrections:
    """Raises EvidenceError naming the entry that is malformed."""
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise _malformed(path, str(exc)) from None
    unknown = sorted(set(raw) - {*_KEYS, "names", "classifiers", "kinds"})
    if unknown:
        raise _malformed(path, f"unknown table {unknown[0]}")
    kinds: dict[str, Kind] = raw.get("kinds", {})
    for prefix, kind in kinds.items():
        if kind not in _KINDS:
            raise _malformed(path, f"kinds: {prefix} = {kind!r} is none of {', '.join(_KINDS)}")
    return Corrections(
        names={k.lower(): _spdx(path, k, v) for k, v in raw.get("names", {}).items()},
        classifiers={k: _spdx(path, k, v) for k, v in raw.get("classifiers", {}).items()},
        kinds=kinds,
        python=_named(path, raw, "python", "names"),
        debian=_named(path, raw, "debian", "sources"),
        libraries=tuple(_entry(path, "library", entry) for entry in raw.get("library", [])),
    )


def _named(path: Path, raw: dict[str, Any], table: str, key: str) -> dict[str, Correction]:
    found: dict[str, Correction] = {}
    for entry in raw.get(table, []):
        correction = _entry(path, table, entry)
        for name in entry[key]:
            if name in found:
                raise _malformed(path, f"{table}: {name} has two entries")
            found[name] = correction
    return found


def _entry(path: Path, table: str, entry: dict[str, Any]) -> Correction:
    where = f"{table} {next((v for v in entry.values() if isinstance(v, list)), '')}"
    if set(entry) != _KEYS[table]:
        raise _malformed(path, f"{where}: exactly {', '.join(sorted(_KEYS[table]))} are required")
    if not str(entry["reason"]).strip():
        raise _malformed(path, f"{where}: no reason")
    return Correction(
        licence=_spdx(path, where, entry["licence"]),
        reason=entry["reason"],
        project=entry.get("project", ""),
        match=tuple(entry.get("match", ())),
    )


def _spdx(path: Path, where: str, text: str) -> str:
    found = normalise(text)
    if found is None:
        raise _malformed(path, f"{where}: {text!r} is no SPDX expression")
    return found


def _malformed(path: Path, what: str) -> EvidenceError:
    return EvidenceError(f"{path.name}: {what}", "mend that file; its head says what it may hold")
