"""What `verify` found: one row a check, a table for people, JSON for scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from builder.errors import (
    BuilderError,
    EvidenceError,
    ImageAbsentError,
    ImageReferenceError,
    TamperedError,
    UnsignedError,
)

State = Literal["ok", "FAILED", "absent", "skipped"]
# The first of these that any row has is the verdict.
_WORST: tuple[type[BuilderError], ...] = (
    TamperedError,
    UnsignedError,
    ImageReferenceError,
    ImageAbsentError,
    EvidenceError,
)
_REMEDIES: dict[type[BuilderError], str] = {
    TamperedError: "do not run this image; look at who can write to that registry, delete what is "
    "there, and push a good one (a blob that is there in its size is not sent again)",
    UnsignedError: "do not run this image unless you know who signed it; have it signed, or check "
    "with the right key",
    ImageReferenceError: "use the digest of the image that you mean, not this tag",
    ImageAbsentError: "the image there is not whole: push it again",
    EvidenceError: "have the image pushed again with its evidence (`build.py push --key`)",
}


@dataclass(frozen=True)
class Row:
    """One check. A row with an `error` makes the whole verification fail."""

    name: str
    state: State
    detail: str
    error: type[BuilderError] | None = None


def passed(name: str, detail: str) -> Row:
    """The check was made and holds."""
    return Row(name, "ok", _shown(detail))


def failed(name: str, detail: str, error: type[BuilderError]) -> Row:
    """The check was made and does not hold."""
    return Row(name, "FAILED", _shown(detail), error)


def absent(name: str, detail: str, error: type[BuilderError] | None = None) -> Row:
    """There is nothing to check; with `error` that is a failure."""
    return Row(name, "absent", _shown(detail), error)


def skipped(name: str, detail: str) -> Row:
    """The check was not made, and why."""
    return Row(name, "skipped", _shown(detail))


@dataclass(frozen=True)
class Report:
    """All rows for one digest."""

    reference: str
    """As it was asked for."""
    digest: str
    authentic: bool
    """Whether signatures were checked at all."""
    rows: tuple[Row, ...]

    def error(self) -> BuilderError | None:
        """The verdict: the worst failure, naming each row that has it; None when all is well."""
        others = [row.error for row in self.rows if row.error and row.error not in _WORST]
        for kind in (*_WORST, *others):
            bad = [f"{row.name}: {row.detail}" for row in self.rows if row.error is kind]
            if bad:
                return kind(
                    f"{self.reference} does not verify: {'; '.join(bad)}",
                    _REMEDIES.get(kind, "read that row"),
                )
        return None

    def table(self) -> str:
        """Columns: state, check, one line."""
        state, name = (
            max(len(value) for value in column)
            for column in zip(*((row.state, row.name) for row in self.rows), strict=True)
        )
        return "\n".join(
            f"{row.state:<{state}}  {row.name:<{name}}  {row.detail}" for row in self.rows
        )

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        error = self.error()
        return {
            "reference": self.reference,
            "digest": self.digest,
            "verified": error is None and self.authentic,
            "authenticity_checked": self.authentic,
            "rows": [
                {
                    "name": row.name,
                    "state": row.state,
                    "detail": row.detail,
                    "error": row.error.__name__ if row.error else None,
                }
                for row in self.rows
            ],
            "error": type(error).__name__ if error else None,
            "exit_code": error.exit_code if error else 0,
        }


def one_line(text: str, width: int = 160) -> str:
    """For a row: control characters (what a registry sent is shown) and line ends go."""
    plain = _shown(text)
    return plain if len(plain) <= width else plain[: width - 3] + "..."


def _shown(text: str) -> str:
    """Whatever comes from a registry may end on a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
