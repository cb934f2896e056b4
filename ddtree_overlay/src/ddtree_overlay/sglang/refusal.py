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


def refusal(field: str, found: Any, why: str, remedy: str) -> ValueError:
    """The error to raise. `field` is a server argument's name or, with a leading `--` or in
    capitals, what it is called outside (a flag as typed, an environment variable)."""
    name = field if field.startswith("--") or field.isupper() else flag(field)
    value = one_line(found, _LONGEST_VALUE)
    return ValueError(one_line(f"DDTREE: {name} (got {value}) {why}: {remedy}.", 1000))
