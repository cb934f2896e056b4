"""Known findings that are harmless, as data with a reason each."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from builder.inside.audit.model import Finding

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("exceptions.toml")
_KEYS = {"code", "files", "evidence", "targets", "reason"}


class ExceptionsError(Exception):
    """exceptions.toml is malformed."""


@dataclass(frozen=True)
class KnownFinding:
    """Matches findings of one code by globs on file (below site-packages) and evidence."""

    code: str
    files: tuple[str, ...]
    evidence: tuple[str, ...]
    targets: tuple[str, ...]
    reason: str

    def matches(self, finding: Finding, site: str) -> bool:
        file = finding.file.removeprefix(site + "/")
        return (
            finding.code == self.code
            and any(fnmatchcase(file, pattern) for pattern in self.files)
            and any(fnmatchcase(finding.evidence, pattern) for pattern in self.evidence)
        )


@dataclass(frozen=True)
class Sorted:
    """Findings after the exceptions: what fails, what is waived and why, what matched nothing."""

    errors: tuple[Finding, ...]
    waived: tuple[tuple[Finding, str], ...]
    unused: tuple[KnownFinding, ...]


def load_exceptions(text: str) -> list[KnownFinding]:
    """Raises ExceptionsError for an unknown key or an entry without a reason."""
    try:
        entries = tomllib.loads(text).get("exception", [])
    except tomllib.TOMLDecodeError as exc:
        raise ExceptionsError(f"not valid TOML: {exc}") from None
    found = []
    for number, entry in enumerate(entries, 1):
        unknown = set(entry) - _KEYS
        if unknown:
            raise ExceptionsError(f"exception {number}: unknown key {min(unknown)}")
        if (
            not all(entry.get(key) for key in ("code", "files"))
            or not entry.get("reason", "").strip()
        ):
            raise ExceptionsError(f"exception {number}: code, files and reason are required")
        found.append(
            KnownFinding(
                code=entry["code"],
                files=tuple(entry["files"]),
                evidence=tuple(entry.get("evidence", ("*",))),
                targets=tuple(entry.get("targets", ())),
                reason=entry["reason"],
            )
        )
    return found


def sort_findings(
    findings: Iterable[Finding], known: list[KnownFinding], target: str, site: str
) -> Sorted:
    """Apply the exceptions that hold for `target` (`cu130`, `cu128-stand-in`, ...)."""
    active = [entry for entry in known if not entry.targets or target in entry.targets]
    errors: list[Finding] = []
    waived: list[tuple[Finding, str]] = []
    used: set[KnownFinding] = set()
    for finding in sorted(set(findings)):
        entry = next((e for e in active if e.matches(finding, site)), None)
        if entry is None:
            errors.append(finding)
        else:
            used.add(entry)
            waived.append((finding, entry.reason))
    return Sorted(
        tuple(errors), tuple(waived), tuple(entry for entry in active if entry not in used)
    )
