"""What the torch tests of the ops on a tree share: drafts, trees, graph buffers. Needs torch."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ddtree_overlay import ops

SENTINEL = 0x5A5A5A5A5A5A5A5A
INTS = torch.int64


def generator(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def draft(batch: int, levels: int, ranks: int, seed: int = 0) -> tuple[Any, Any]:
    """Ranked log-probabilities and ids as a drafter gives them."""
    logits = 2 * torch.randn(batch, levels, max(ranks, 40), generator=generator(seed))
    top = torch.log_softmax(logits, -1).topk(ranks, -1)
    return top.values, top.indices


def buffers(batch: int, width: int, fill: int = SENTINEL) -> list[Any]:
    """Graph buffers for build_tree_out, full of sentinels."""
    words = (width + 63) // 64
    nodes = [torch.full((batch, width), fill) for _ in range(5)]
    return [
        *nodes,
        torch.full((batch, width, words), fill),
        torch.full((batch,), fill),
        torch.full((batch, width), float("nan")),
        torch.ones(batch, dtype=torch.bool),
    ]


def tree(batch: int = 3, budget: int = 12, seed: int = 0) -> tuple[Any, ...]:
    """build_tree's outputs, some with padding."""
    logprobs, ids = draft(batch, 4, 6, seed)
    logprobs[0, 1:] = float("-inf")
    return tuple(ops.build_tree(logprobs, ids % 7, budget))
