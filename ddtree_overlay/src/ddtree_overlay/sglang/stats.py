"""What the trees of a server did, counted on the device and read rarely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ddtree_overlay import ops
from ddtree_overlay.sglang.rounds import DraftTree
from ddtree_overlay.tree.walk import Walk


@dataclass(frozen=True)
class TreeCounts:
    """Sums over requests and rounds since the start.

    trees:          trees verified (one per request and round)
    nodes:          drafted nodes verified, roots not counted
    accepted:       drafted tokens accepted
    off_spine:      accepted tokens that the greedy chain of the drafter did not hold: what the
                    tree gained over verifying that chain
    truncated:      trees not certified exact: a larger top-k could have changed them
    fallbacks:      trees without a node, because the drafter gave no usable distribution; such
                    a round decodes one token as without speculation
    """

    trees: int
    nodes: int
    accepted: int
    off_spine: int
    truncated: int
    fallbacks: int


class TreeStats:
    """Adds up on the device: `add` never waits for it, `read` does.

    With overlap scheduling `read` runs beside a round in flight, which it may miss or have counted.
    """

    def __init__(self, device: Any) -> None:
        self._sums = torch.zeros(6, dtype=torch.int64, device=device)

    def add(self, tree: DraftTree, walk: Walk) -> None:
        """Count one round."""
        ops.count_round(
            *(tree.parents, tree.first_child, tree.counts, tree.exact),
            *(walk.path, walk.accepted, self._sums),
        )

    def read(self) -> TreeCounts:
        """The sums so far. Waits for the device."""
        return TreeCounts(*self._sums.tolist())
