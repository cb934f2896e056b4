"""What the torch tests of the tree share: legal trees of any shape, drafts for the op, plain-Python
walks. Needs torch; inside the image nothing but pytest and hypothesis beside it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from hypothesis import settings
from torch._subclasses.fake_tensor import (  # type: ignore[import-not-found, unused-ignore]
    DataDependentOutputException,
    FakeTensorMode,
)

# Inside the image nothing may be written, and a run must be repeatable.
PROPERTY = settings(max_examples=200, deadline=None, database=None, derandomize=True)


@dataclass(frozen=True)
class Trees:
    """A batch of trees as lists, [batch][width]; `parents` and `tokens` as the op gives them."""

    parents: list[list[int]]
    tokens: list[list[int]]
    counts: list[int]
    columns: int

    @property
    def width(self) -> int:
        return len(self.parents[0])

    @property
    def tensors(self) -> tuple[Any, Any]:
        return torch.tensor(self.tokens), torch.tensor(self.parents)


def arbitrary_trees(random_: random.Random, *, vocabulary: int = 4) -> Trees:
    """Parents before children and depth < columns, else anything: also shapes that no best-first
    search gives, siblings with one token, padding, and tokens that padding carries too."""
    batch, depth, budget = (random_.randint(1, most) for most in (4, 5, 12))
    columns = min(depth, budget) + 1
    parents, tokens, counts = [], [], []
    for _ in range(batch):
        count = random_.randint(0, budget)
        row, depths = [-1], [0]
        for _ in range(count):
            parent = random_.choice([i for i, d in enumerate(depths) if d < columns - 1])
            row.append(parent)
            depths.append(depths[parent] + 1)
        padding = budget - count
        parents.append(row + [-1] * padding)
        # The worker may put the committed token into the root's slot.
        root = random_.choice([-1, random_.randrange(vocabulary)])
        drafted = [random_.randrange(vocabulary) for _ in range(count)]
        tokens.append([root, *drafted, *[0] * padding])
        counts.append(count)
    return Trees(parents, tokens, counts, columns)


def lucky_targets(trees: Trees, random_: random.Random, *, vocabulary: int = 4) -> list[list[int]]:
    """A target's token for each node, often that of a child, so that walks go deep."""
    targets = []
    for parents, tokens in zip(trees.parents, trees.tokens, strict=True):
        row = []
        for node in range(trees.width):
            children = [tokens[i] for i, parent in enumerate(parents) if parent == node]
            follow = children and random_.random() < 0.8
            row.append(random_.choice(children) if follow else random_.randrange(vocabulary))
        targets.append(row)
    return targets


def op_draft(
    random_: random.Random, batch: int, levels: int, ranks: int, *, vocabulary: int | None = None
) -> tuple[Any, Any]:
    """Ranked log-probabilities and distinct token ids for `ops.build_tree`. With a vocabulary below
    `ranks` the missing ranks are absent tokens with id 0."""
    size = vocabulary or ranks + 3
    generator = torch.Generator().manual_seed(random_.getrandbits(40))
    logits = 2 * torch.randn(batch, levels, size, generator=generator)
    kept = min(ranks, size)
    top = torch.log_softmax(logits, -1).topk(kept, -1)
    absent = torch.full((batch, levels, ranks - kept), float("-inf"))
    return (
        torch.cat([top.values, absent], -1),
        torch.cat([top.indices, torch.zeros_like(absent, dtype=torch.int64)], -1),
    )


def dictionary_walk(
    tokens: Sequence[int], parents: Sequence[int], target: Callable[[int], int]
) -> tuple[list[int], list[int]]:
    """One request's walk by a dictionary of children: (nodes from the root on, emitted tokens)."""
    children: dict[tuple[int, int], int] = {}
    for node, parent in enumerate(parents):
        if parent >= 0:
            children.setdefault((parent, tokens[node]), node)
    path, emitted = [0], [target(0)]
    while (path[-1], emitted[-1]) in children:
        path.append(children[path[-1], emitted[-1]])
        emitted.append(target(path[-1]))
    return path, emitted


def reachable(parents: Sequence[int]) -> list[list[bool]]:
    """Row i, column j: whether j is i or is met on the way from i up to the root."""
    rows = []
    for node in range(len(parents)):
        row, at = [False] * len(parents), node
        while at >= 0:
            row[at], at = True, parents[at]
        rows.append(row)
    return rows


def packed(rows: Sequence[Sequence[bool]]) -> list[list[int]]:
    """Rows of booleans as the op packs `ancestors`: signed 64-bit words, bit j % 64 of word j // 64."""
    result = []
    for row in rows:
        words = [0] * ((len(row) + 63) // 64)
        for column, bit in enumerate(row):
            words[column // 64] |= bit << column % 64
        result.append([word - (1 << 64) if word >> 63 else word for word in words])
    return result


def fake_device() -> str:
    """Of fake tensors that stand for a GPU's: "cuda", which also refuses tensors on the host, or
    "cpu" with a torch (2.9) that asks the CUDA driver for fake tensors too."""
    with FakeTensorMode():
        try:
            torch.zeros(2, 2, dtype=torch.int64, device="cuda").gather(
                1, torch.zeros(2, 2, dtype=torch.int64, device="cuda")
            )[0, 0].item()
        except DataDependentOutputException:
            return "cuda"
        except RuntimeError:
            return "cpu"
    raise AssertionError("a value was read from a fake tensor")
