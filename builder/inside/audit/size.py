"""SIZ: the whole file system against the budget."""

from __future__ import annotations

from collections.abc import Iterator

from builder.inside.audit.model import Context, Finding

GIB = 2**30


def budget(context: Context) -> Iterator[Finding]:
    """SIZ001: the sum of unpacked file sizes."""
    total, limit = context.files.total, context.target.budget_gib
    context.count("SIZ001", len(context.files.sizes))
    context.notes["size"] = {"bytes": total, "gib": round(total / GIB, 3), "budget_gib": limit}
    if total > limit * GIB:
        largest = sorted(context.files.sizes.items(), key=lambda pair: -pair[1])[:3]
        parts = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in largest)
        yield Finding(
            "SIZ001",
            "/",
            f"{total / GIB:.2f} GiB exceed the budget of {limit} GiB; largest: {parts}",
            "extend images/prune.toml, or raise budget.image_gib with a reason",
        )
