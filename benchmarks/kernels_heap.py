"""The draft tree by a heap in plain Python floats, as published DDTree code selects it: what the
op's time is compared with. The tests' reference is another (exact scores, no floats)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class HeapTree:
    """What a verify forward and a walk need, in node order, the root first: tokens, parents (-1:
    none), depths, children by token of each node, and each node's ancestors as a bit set."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    children: list[dict[int, int]]
    ancestors: list[int]


def heap_tree(
    logprobs: Sequence[Sequence[float]], token_ids: Sequence[Sequence[int]], budget: int
) -> HeapTree:
    """One request's `budget` best nodes: score descending, then rank tuple ascending. Both
    arguments are [levels][ranks], ranks in descending order of log-probability."""
    levels, ranks = len(logprobs), len(logprobs[0])
    tree = HeapTree([-1], [-1], [0], [{}], [1])
    heap: list[tuple[float, tuple[int, ...], int]] = [(-logprobs[0][0], (0,), 0)]
    while heap and len(tree.tokens) <= budget:
        negated, path, parent = heapq.heappop(heap)
        level, rank, node = len(path) - 1, path[-1], len(tree.tokens)
        token = token_ids[level][rank]
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.depths.append(level + 1)
        tree.children.append({})
        tree.children[parent][token] = node
        tree.ancestors.append(tree.ancestors[parent] | 1 << node)
        if rank + 1 < ranks:
            sibling = negated + logprobs[level][rank] - logprobs[level][rank + 1]
            heapq.heappush(heap, (sibling, (*path[:-1], rank + 1), parent))
        if level + 1 < levels:
            heapq.heappush(heap, (negated - logprobs[level + 1][0], (*path, 0), node))
    return tree
