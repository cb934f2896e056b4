"""Which draft pays at which concurrency: a profile's [tree] table, and the choice from it.

A tree's nodes are all verified in one forward of the target, so what a tree costs grows with the
number of requests, and what it gains does not. Each tier says up to how many running requests an
algorithm and a budget are used; what lies above the last tier decodes plainly.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddtree_overlay.serve.catalogue import NO_ALGORITHM, TREE_ALGORITHMS
from ddtree_overlay.serve.errors import ProfileError
from ddtree_overlay.serve.toml_file import refuse_unknown

DRAFTED = "drafted"
"""As a budget: one node per position that the drafter drafts, its block size less one."""
USUAL_BLOCK = 16
"""Of the published DFlash drafters; used where the drafter's config cannot be read."""
_KEYS = ("max_running_requests", "algorithm", "budget", "why")
_ALGORITHMS = (*TREE_ALGORITHMS, NO_ALGORITHM)


@dataclass(frozen=True)
class Tier:
    """Up to `max_running_requests`, this algorithm. `budget` is None without a tree; 0 stands for
    DRAFTED."""

    max_running_requests: int
    algorithm: str
    budget: int | None
    why: str

    def nodes(self, block_size: int | None) -> int | None:
        """The budget for a drafter. Below the drafted positions a tree would lose the drafter's own
        greedy path, so it is never less (see sglang/defaults.py)."""
        if self.budget is None:
            return None
        return max(self.budget, (block_size or USUAL_BLOCK) - 1)


def choose(tiers: Sequence[Tier], requests: int) -> Tier | None:
    """The first tier that carries so many requests; None above the last."""
    return next((tier for tier in tiers if requests <= tier.max_running_requests), None)


def read_tiers(tree: Mapping[str, Any], where: str) -> tuple[Tier, ...]:
    """Raises ProfileError for tiers that are not in order, or do not say what they must."""
    refuse_unknown(tree, ("tier",), f"{where}: [tree]", ProfileError)
    found = tree.get("tier", [])
    if not isinstance(found, list) or not all(isinstance(tier, dict) for tier in found):
        raise ProfileError(f"{where}: [tree] tier is not a list", "write [[tree.tier]]")
    tiers = tuple(_tier(tier, f"{where}: [[tree.tier]] {n}") for n, tier in enumerate(found, 1))
    limits = [tier.max_running_requests for tier in tiers]
    if any(low >= high for low, high in itertools.pairwise(limits)):
        raise ProfileError(
            f"{where}: [[tree.tier]] max_running_requests are {limits}",
            "write them in rising order",
        )
    return tiers


def _tier(given: Mapping[str, Any], where: str) -> Tier:
    refuse_unknown(given, _KEYS, where, ProfileError)
    limit, algorithm, why = (given.get(key) for key in ("max_running_requests", "algorithm", "why"))
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ProfileError(f"{where}: max_running_requests is {limit!r}", "write a number from 1")
    if algorithm not in _ALGORITHMS:
        raise ProfileError(
            f"{where}: algorithm is {algorithm!r}", f"write one of {', '.join(_ALGORITHMS)}"
        )
    if not isinstance(why, str) or not why.strip():
        raise ProfileError(f"{where}: why is missing", "say from what the limit follows")
    return Tier(limit, algorithm, _budget(given.get("budget"), algorithm, where), why.strip())


def _budget(given: Any, algorithm: str, where: str) -> int | None:
    if algorithm != "DDTREE":
        if given is None:
            return None
        raise ProfileError(f"{where}: budget is {given!r} for {algorithm}", "remove it: no tree")
    if given == DRAFTED:
        return 0
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= 1024:
        raise ProfileError(f"{where}: budget is {given!r}", f'write 1 to 1024, or "{DRAFTED}"')
    return given
