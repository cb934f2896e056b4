"""Tensors of one DDTREE round, on any device. Imports no SGLang."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ddtree_overlay import ops
from ddtree_overlay.sglang.ranking import HeadSlice, rank_block


@dataclass(frozen=True)
class DraftTree:
    """`ddtree::build_tree`'s outputs for a batch, with the committed token at the root.

    tokens, parents, depths, first_child, next_sibling: int64 [batch, budget + 1].
    ancestors: int64 [batch, budget + 1, words]. counts: int64 [batch], nodes without the root.
    scores: fp32 [batch, budget + 1]. exact: bool [batch], the truncation certificate.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    first_child: torch.Tensor
    next_sibling: torch.Tensor
    ancestors: torch.Tensor
    counts: torch.Tensor
    scores: torch.Tensor
    exact: torch.Tensor


def build_draft_tree(
    logprobs: torch.Tensor, token_ids: torch.Tensor, budget: int, roots: torch.Tensor
) -> DraftTree:
    """The tree of each request, on the device of its candidates and without a host sync.

    logprobs fp32 and token_ids int64: [batch, block_size - 1, top-k], ranked. roots: int64
    [batch], the tokens to verify from.
    """
    return DraftTree(*ops.build_tree(logprobs, token_ids, budget, None, roots))


class GraphTreeBuilder:
    """Ranks and builds inside the draft CUDA graph: the trees land in buffers that outlive the
    replay and are overwritten by the next one.

    Called by the capture hook with the draft block's hidden states and token ids.
    """

    def __init__(
        self,
        *,
        weight: torch.Tensor,
        slices: tuple[HeadSlice, ...],
        block_size: int,
        topk: int,
        budget: int,
        max_batch: int,
        tp: Any,
    ) -> None:
        self._weight, self._slices, self._tp = weight, slices, tp
        self._block_size, self._topk = block_size, topk
        # Only for its shapes: a table of absent tokens gives roots alone.
        shape = (max_batch, block_size - 1, topk)
        nothing = torch.full(shape, float("-inf"), dtype=torch.float32, device=weight.device)
        ids = torch.zeros(shape, dtype=torch.int64, device=weight.device)
        self._buffers: tuple[torch.Tensor, ...] = ops.build_tree(nothing, ids, budget)

    def __call__(self, hidden_states: torch.Tensor, input_ids: torch.Tensor) -> None:
        blocks = input_ids.view(-1, self._block_size)
        logprobs, ids = rank_block(
            *(hidden_states, self._block_size, self._weight, self._slices, self._topk, self._tp)
        )
        ops.build_tree_out(logprobs, ids, None, blocks[:, 0], *self._views(blocks.shape[0]))

    def tree(self, batch: int) -> DraftTree:
        """The trees of the last call's first `batch` requests: views, valid until the next."""
        return DraftTree(*self._views(batch))

    def _views(self, batch: int) -> tuple[torch.Tensor, ...]:
        return tuple(buffer[:batch] for buffer in self._buffers)
