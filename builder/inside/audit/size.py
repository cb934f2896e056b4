"""SIZ: the whole file system and each of its layers against their budgets."""

from __future__ import annotations

from collections.abc import Iterator

from builder.inside.audit.distributions import OURS
from builder.inside.audit.model import Context, Finding

GIB = 2**30
MIB = 2**20
_HOME = "opt/ddtree/"


def budget(context: Context) -> Iterator[Finding]:
    """SIZ001: the sum of unpacked file sizes."""
    total, limit = context.files.total, context.target.budget_gib
    context.count("SIZ001", len(context.files.sizes))
    context.notes["size"] = {"bytes": total, "gib": round(total / GIB, 3), "budget_gib": limit}
    if total > limit * GIB:
        yield Finding(
            "SIZ001",
            "/",
            f"{total / GIB:.2f} GiB exceed the budget of {limit} GiB; "
            f"largest: {_largest(context.files.sizes)}",
            "extend images/prune.toml, or raise budget.image_gib with a reason",
        )


def has_layer_budgets(context: Context) -> bool:
    """False for the pins of an image that was built before there were any."""
    return bool(context.target.budget_layers_mib)


def layers(context: Context) -> Iterator[Finding]:
    """SIZ002: what is fetched anew when a layer changes stays small enough to be fetched."""
    groups = by_layer(context)
    limits = context.target.budget_layers_mib
    context.notes["size_by_layer"] = {
        name: {"bytes": sum(sizes.values()), "budget_mib": limits.get(name)}
        for name, sizes in groups.items()
    }
    for name, sizes in groups.items():
        context.count("SIZ002", len(sizes))
        total = sum(sizes.values())
        if name not in limits:
            text = f"{total / MIB:.1f} MiB without a budget"
            yield Finding("SIZ002", name, text, f"set budget.layers_mib.{name}")
        elif total > limits[name] * MIB:
            yield Finding(
                "SIZ002",
                name,
                f"{total / MIB:.1f} MiB exceed the budget of {limits[name]} MiB; "
                f"largest: {_largest(sizes)}",
                f"find what grew, or raise budget.layers_mib.{name} with a reason",
            )


def by_layer(context: Context) -> dict[str, dict[str, int]]:
    """Each file's size under the part that it belongs to.

    `sglang` and `overlay` are the files that those distributions record; `dependencies` is all
    else below /opt/ddtree, `system` the rest (Debian).
    """
    files = context.files
    owner: dict[str, str] = {}
    for name in OURS:
        distribution = files.distribution(name)
        for row in distribution.files if distribution else ():
            owner[row.path] = "overlay" if name == "ddtree-overlay" else name
    groups: dict[str, dict[str, int]] = {
        name: {} for name in ("system", "dependencies", "sglang", "overlay")
    }
    for path, size in files.sizes.items():
        name = owner.get(path) or ("dependencies" if path.startswith(_HOME) else "system")
        groups[name][path] = size
    return groups


def _largest(sizes: dict[str, int]) -> str:
    first = sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0]))[:3]
    return ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in first)
