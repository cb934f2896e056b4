"""The one form of every refusal: flag, found value, reason and remedy, in one line."""

from __future__ import annotations

from typing import Any

_LONGEST_VALUE = 120


def flag(field: str) -> str:
    """`speculative_ddtree_budget` as it is typed: `--speculative-ddtree-budget`."""
    return "--" + field.replace("_", "-")


def one_line(text: object, longest: int = 300) -> str:
    """`text` without line breaks, cut at `longest` characters."""
    joined = " ".join(str(text).split())
    return joined if len(joined) <= longest else joined[: longest - 3] + "..."


class RefusalError(ValueError):
    """A refusal whose parts can be shown apart: what is wrong, and what to do."""

    def __init__(self, message: str, what: str, remedy: str) -> None:
        super().__init__(message)
        self.what = what
        self.remedy = remedy


def refusal(field: str, found: Any, why: str, remedy: str) -> RefusalError:
    """The error to raise. `field` is a server argument's name or, with a leading `--` or in
    capitals, what it is called outside (a flag as typed, an environment variable)."""
    name = field if field.startswith("--") or field.isupper() else flag(field)
    value = one_line(found, _LONGEST_VALUE)
    message = one_line(f"DDTREE: {name} (got {value}) {why}: {remedy}.", 1000)
    return RefusalError(message, one_line(f"{name} (got {value}) {why}", 1000), remedy)
