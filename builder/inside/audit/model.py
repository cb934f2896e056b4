"""What a rule is, what it reads and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from builder.inside.filesystem import FileSystem
from builder.inside.target import Target


@dataclass(frozen=True, order=True)
class Finding:
    """One broken promise. `file` is relative to the root, or a distribution's name."""

    code: str
    file: str
    evidence: str
    remedy: str


@dataclass
class Context:
    """Everything that rules read. `notes` are facts worth reporting although nothing is wrong."""

    files: FileSystem
    target: Target
    import_checks: bool = False
    notes: dict[str, Any] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)

    def count(self, code: str, number: int = 1) -> None:
        """Say how many things a rule looked at: a rule that saw nothing proves nothing."""
        self.checked[code] = self.checked.get(code, 0) + number


@dataclass(frozen=True)
class Rule:
    """A check with a stable code. `applies` is false where there is nothing it could look at."""

    code: str
    title: str
    check: Callable[[Context], Iterator[Finding]]
    applies: Callable[[Context], bool] = lambda _context: True
