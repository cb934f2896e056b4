"""Licences of an image in brief: how many parts have which, and what a person must look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builder.supply.components import Component

_KINDS = ("proprietary", "copyleft", "limited-copyleft", "unknown")


def licence_report(parts: Sequence[Component]) -> dict[str, Any]:
    """`licences`: parts by expression, most first. `attention`: lines by kind.

    What lies in another part with the same licence is listed with that part alone. `no-text`: the
    image holds no licence text of it; for what was compiled into a wheel the wheel is named.
    Debian's packages are free software by Debian's policy; those whose copyleft obliges whoever
    passes the image on (to offer the source) are listed all the same.
    """
    by_ref = {part.ref: part for part in parts}
    counts: dict[str, int] = {}
    attention: dict[str, list[str]] = {kind: [] for kind in (*_KINDS, "no-text")}
    for part in parts:
        licence = part.licence
        counts[licence.expression] = counts.get(licence.expression, 0) + 1
        parent = by_ref.get(part.parent)
        line = f"{part.ref}: {licence.expression}"
        same = parent is not None and parent.licence.expression == licence.expression
        if licence.kind in _KINDS and not same:
            attention[licence.kind].append(line)
        if not licence.texts and parent is None:
            attention["no-text"].append(line)
    return {
        "licences": dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))),
        "attention": {kind: sorted(lines) for kind, lines in attention.items()},
    }
