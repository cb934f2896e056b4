"""How far a draft tree follows the target's greedy tokens. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddtree_overlay.tree.reference import Tree, build_tree


@dataclass(frozen=True)
class Acceptance:
    """Counts under one budget; 0 is DFLASH's chain.

    rounds:     verify rounds
    tokens:     emitted by them, the first token (the prefill's) not among them
    off_spine:  rounds whose accepted path held a token that was not the drafter's first choice
    """

    budget: int
    rounds: int
    tokens: int
    off_spine: int

    @property
    def length(self) -> float:
        """Mean accept length, the bonus token included."""
        return self.tokens / self.rounds


def total(parts: Sequence[Acceptance]) -> Acceptance:
    """The sum of counts under one budget."""
    budgets = {part.budget for part in parts}
    if len(budgets) != 1:
        raise ValueError(f"counts of different budgets do not add up: {sorted(budgets)}")
    return Acceptance(
        budget=budgets.pop(),
        rounds=sum(part.rounds for part in parts),
        tokens=sum(part.tokens for part in parts),
        off_spine=sum(part.off_spine for part in parts),
    )


def follow(tree: Tree, expected: Sequence[int]) -> tuple[int, bool]:
    """(accepted nodes, whether a rank other than the first was among them) along `expected`."""
    node, off_spine = 0, False
    for depth, token in enumerate(expected):
        child = tree.first_child[node]
        while child >= 0 and tree.tokens[child] != token:
            child = tree.next_sibling[child]
        if child < 0:
            return depth, off_spine
        node, off_spine = child, off_spine or tree.ranks[child][-1] > 0
    return len(expected), off_spine


def draft_tree(
    logprobs: Sequence[Sequence[float]], token_ids: Sequence[Sequence[int]], budget: int
) -> Tree:
    """The tree of `budget` nodes over [levels][ranks] ranked candidates; budget 0 is the chain of
    first choices, as long as the block."""
    if budget == 0:
        first = [row[:1] for row in logprobs]
        return build_tree(first, [row[:1] for row in token_ids], len(first))
    ranks = min(budget, len(logprobs[0]))
    kept = [row[:ranks] for row in token_ids]
    return build_tree([row[:ranks] for row in logprobs], kept, budget)
