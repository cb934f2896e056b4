"""Licences of an image in brief: how many parts have which, and what a person must look at."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from builder.supply.components import Component
from builder.supply.report import one_line

_WIDTH = 100  # columns of the table
_JOINT = "\N{NO-BREAK SPACE}"  # between words that stay on one line
# What makes a part worth a look, in the order of the table, and what the look is for.
_ATTENTION = {
    "proprietary": "its terms say who may pass it on, and how",
    "copyleft": "whoever passes the image on owes its source too",
    "limited-copyleft": "the same for the part itself, not for what uses it",
    "unknown": "nothing states one licence: read its text",
    "no-text": "the image holds no licence text of it",
}


@dataclass(frozen=True)
class LicenceReport:
    """`counts`: parts by expression, most first. `attention`: the parts of each kind, by ref.

    What lies in another part with the same licence is listed with that part alone. `no-text`: the
    image holds no licence text of it; for what was compiled into a wheel the wheel is named.
    Debian's packages are free software by Debian's policy; those whose copyleft obliges whoever
    passes the image on (to offer the source) are listed all the same.
    """

    parts: tuple[Component, ...]
    counts: Mapping[str, int]
    attention: Mapping[str, tuple[Component, ...]]

    def document(self) -> dict[str, Any]:
        """For `--json`: `attention` holds refs, which `parts` describes."""
        return {
            "licences": dict(self.counts),
            "attention": {kind: [p.ref for p in parts] for kind, parts in self.attention.items()},
            "parts": [_described(part) for part in self.parts],
        }

    def lines(self) -> Iterator[str]:
        """The table: licences by count, then each kind's parts below their licence."""
        yield f"parts  licence ({len(self.parts)} parts, {len(self.counts)} licences)"
        for expression, count in self.counts.items():
            yield _wrapped(expression, f"{count:>5}  ", 7)
        names = {part.ref: part.name for part in self.parts}
        for kind, parts in self.attention.items():
            yield ""
            yield f"{kind.replace('-', ' ')}: {_number(len(parts))} ({_ATTENTION[kind]})"
            for expression in sorted({part.licence.expression for part in parts}):
                yield _wrapped(expression, "  ", 4)
                having = (_label(p, names) for p in parts if p.licence.expression == expression)
                yield _wrapped(", ".join(having), "      ", 6)


def licence_report(parts: Sequence[Component]) -> LicenceReport:
    """Count the licences of an image's parts and pick what needs attention."""
    by_ref = {part.ref: part for part in parts}
    attention: dict[str, list[Component]] = {kind: [] for kind in _ATTENTION}
    for part in parts:
        licence = part.licence
        parent = by_ref.get(part.parent)
        same = parent is not None and parent.licence.expression == licence.expression
        if licence.kind in attention and not same:
            attention[licence.kind].append(part)
        if not licence.texts and parent is None:
            attention["no-text"].append(part)
    counts = Counter(part.licence.expression for part in parts)
    return LicenceReport(
        parts=tuple(parts),
        counts=dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))),
        attention={
            kind: tuple(sorted(found, key=lambda part: part.ref))
            for kind, found in attention.items()
        },
    )


def _described(part: Component) -> dict[str, Any]:
    """Without what the bills of materials are for: hashes and dependencies."""
    return {
        "ref": part.ref,
        "name": part.name,
        "version": part.version,
        "in": part.parent,
        "purl": part.purl,
        "licence": asdict(part.licence),
    }


def _label(part: Component, names: Mapping[str, str]) -> str:
    """Names come out of an image, and end on a terminal."""
    inside = f" (in {names[part.parent]})" if part.parent in names else ""
    return one_line(f"{part.name} {part.version}".strip() + inside).replace(" ", _JOINT)


def _number(parts: int) -> str:
    return "none" if not parts else "1 part" if parts == 1 else f"{parts} parts"


def _wrapped(text: str, first: str, rest: int) -> str:
    """Nothing is cut: what an expression ends with may be what matters."""
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=" " * rest,
        break_long_words=False,
        break_on_hyphens=False,
    ).replace(_JOINT, " ")
