"""The exact draft tree by a heap, in plain Python: what `ddtree::build_tree` must equal.

A request gives, for each of L draft positions ("levels"), K log-probabilities in descending order
and their token ids. A node at depth d is a rank tuple (r1..rd) and scores the sum of
logprob[i][ri]. The tree holds the first `budget` nodes in the order: score descending, then rank
tuple lexicographically ascending, a prefix before its extensions. This is best-first search, and
the optimum of expected accepted tokens under the factorised draft distribution
(Ringel & Romano, arXiv 2604.12989).

Scores are fixed-point integers of 2**-40, so that a comparison means the same on every device. The
rules of csrc/tree_core.h are restated here, not shared: two statements can disagree, and the tests
compare them.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

UNITS_PER_NAT = 2**40
ABSENT_LOGPROB = -131072.0
MAX_LEVELS = 63
MAX_BUDGET = 1024
WORD_BITS = 64


@dataclass(frozen=True)
class Tree:
    """One request's tree. Every list has `budget + 1` elements in node order: the root, the nodes
    as selected, then padding (slots beyond `count`).

    tokens:       token id; -1 for the root, whose token the caller knows; 0 in padding
    parents:      index of the parent; -1 for the root and padding
    depths:       0 for the root (and padding); position id = prefix length + depth
    first_child:  index of the best child, -1 if none
    next_sibling: index of the next child of the same parent, -1 if none
    ancestors:    bit set over node indices: the node itself and its ancestors; padding sees itself
    score_units:  path log-probability in 2**-40 nats; 0 for the root; None in padding
    ranks:        the rank tuple; () for the root and padding
    count:        nodes selected, the root not counted; less than `budget` when there are no more
    exact:        the truncation certificate: no tuple beyond the K given ranks can belong here.
                  False means "not certified" (more ranks might change the tree), not "wrong".
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    first_child: list[int]
    next_sibling: list[int]
    ancestors: list[int]
    score_units: list[int | None]
    ranks: list[tuple[int, ...]]
    count: int
    exact: bool


def build_tree(
    logprobs: Sequence[Sequence[float]], token_ids: Sequence[Sequence[int]], budget: int
) -> Tree:
    """The tree of one request from [L][K] log-probabilities (rounded to fp32) and token ids.

    A log-probability at or below -131072, -inf included, is "no such token" and never a node.
    Ranks from `budget` on cannot matter and are not read. Raises ValueError for a NaN, a positive
    or an unsorted log-probability, and for shapes or budgets out of range.
    """
    _check_shapes(logprobs, token_ids, budget)
    ranks = min(len(logprobs[0]), budget)
    units = [_level_units(row[:ranks], level) for level, row in enumerate(logprobs)]

    nodes = _select(units, budget)
    tokens, parents, depths, scores = [-1], [-1], [0], [0]
    tuples: list[tuple[int, ...]] = [()]
    first_child, next_sibling, ancestors = [-1], [-1], [1]
    last_child: dict[int, int] = {}
    for index, (score, path, parent) in enumerate(nodes, start=1):
        tokens.append(token_ids[len(path) - 1][path[-1]])
        parents.append(parent)
        depths.append(len(path))
        scores.append(score)
        tuples.append(path)
        ancestors.append(ancestors[parent] | 1 << index)
        first_child.append(-1)
        next_sibling.append(-1)
        if parent in last_child:
            next_sibling[last_child[parent]] = index
        else:
            first_child[parent] = index
        last_child[parent] = index

    padding = budget - len(nodes)
    return Tree(
        tokens=tokens + [0] * padding,
        parents=parents + [-1] * padding,
        depths=depths + [0] * padding,
        first_child=first_child + [-1] * padding,
        next_sibling=next_sibling + [-1] * padding,
        ancestors=ancestors + [1 << index for index in range(len(nodes) + 1, budget + 1)],
        score_units=[*scores, *[None] * padding],
        ranks=tuples + [()] * padding,
        count=len(nodes),
        exact=ranks == budget or all(path[-1] != ranks - 1 for _, path, _ in nodes),
    )


def pack_words(bits: int, budget: int) -> list[int]:
    """A bit set over `budget + 1` nodes as signed 64-bit words, as the op packs `ancestors`.

    Bit j is bit j % 64 of word j // 64; in memory this is a little-endian bit string.
    """
    words = []
    for word in range((budget + WORD_BITS) // WORD_BITS):
        value = bits >> (word * WORD_BITS) & (1 << WORD_BITS) - 1
        words.append(value - (1 << WORD_BITS) if value >> (WORD_BITS - 1) else value)
    return words


def visibility(tree: Tree) -> list[list[bool]]:
    """The square attention mask over nodes: row i may see column j."""
    width = len(tree.parents)
    return [[bool(row >> column & 1) for column in range(width)] for row in tree.ancestors]


def to_units(logprob: float) -> int | None:
    """Fixed point, truncated towards zero; None if there is no such token."""
    if logprob <= ABSENT_LOGPROB:
        return None
    return int(_to_float32(logprob) * UNITS_PER_NAT)


def _select(units: list[list[int | None]], budget: int) -> list[tuple[int, tuple[int, ...], int]]:
    """Best-first: (score, rank tuple, parent index) of each node, at most `budget` of them."""
    # An entry is (-score, tuple, parent's index, parent's score). Python compares tuples as the tie
    # rule asks: lexicographically, a prefix first.
    heap: list[tuple[int, tuple[int, ...], int, int]] = []

    def push(path: tuple[int, ...], parent: int, parent_score: int) -> None:
        level, rank = len(path) - 1, path[-1]
        if level < len(units) and rank < len(units[level]):
            step = units[level][rank]
            if step is not None:
                heapq.heappush(heap, (-(parent_score + step), path, parent, parent_score))

    push((0,), 0, 0)
    nodes: list[tuple[int, tuple[int, ...], int]] = []
    while heap and len(nodes) < budget:
        negated, path, parent, parent_score = heapq.heappop(heap)
        nodes.append((-negated, path, parent))
        push((*path[:-1], path[-1] + 1), parent, parent_score)
        push((*path, 0), len(nodes), -negated)
    return nodes


def _check_shapes(
    logprobs: Sequence[Sequence[float]], token_ids: Sequence[Sequence[int]], budget: int
) -> None:
    if not 1 <= budget <= MAX_BUDGET:
        raise ValueError(f"budget must be 1..{MAX_BUDGET}, got {budget}")
    if not 1 <= len(logprobs) <= MAX_LEVELS:
        raise ValueError(f"levels must be 1..{MAX_LEVELS}, got {len(logprobs)}")
    shape = {len(row) for row in logprobs} | {len(row) for row in token_ids}
    if len(token_ids) != len(logprobs) or len(shape) != 1 or shape == {0}:
        raise ValueError("logprobs and token_ids must both be [levels][ranks], ranks at least 1")


def _level_units(row: Sequence[float], level: int) -> list[int | None]:
    for rank, value in enumerate(row):
        where = f"logprobs[{level}][{rank}] = {value}"
        if math.isnan(value):
            raise ValueError(f"{where} is NaN")
        if value > 0:
            raise ValueError(f"{where} is positive, not a log-probability")
        if rank > 0 and value > row[rank - 1]:
            raise ValueError(f"{where} is greater than that of the rank before it")
    return [to_units(value) for value in row]


def _to_float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])
