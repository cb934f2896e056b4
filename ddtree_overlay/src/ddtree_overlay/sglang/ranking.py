"""The drafter's candidates: top-k log-probabilities of a block over a vocabulary-parallel head.

A DFlash drafter has no head; its hidden states go through the target's, of which each
tensor-parallel rank holds some rows. Each rank ranks its own rows and all ranks merge the same
gathered candidates, so that all build the same tree. The normaliser runs over the whole
vocabulary, in fp32, at temperature 1 (Ringel & Romano, arXiv 2604.12989, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ddtree_overlay import ops

# Bounds the logits that exist at a time: 512 rows of 152k tokens in bf16 are 156 MB.
CHUNK_ROWS = 512


@dataclass(frozen=True)
class HeadSlice:
    """Rows [start, start + rows) of a head's local weight hold token ids from `first_id` on."""

    start: int
    rows: int
    first_id: int


class HeadUnsupportedError(RuntimeError):
    """The target's head cannot rank draft tokens."""


def head_slices(lm_head: Any, tp_size: int, hidden_size: int) -> tuple[HeadSlice, ...]:
    """The rows of this rank that are tokens: padding rows between and behind them are not.

    As many slices on every rank of a group. Raises HeadUnsupportedError for a missing or quantised
    head (fp8 is stored transposed, int4 packed) and for a sharded head that does not say which
    tokens it holds.
    """
    weight = getattr(lm_head, "weight", None)
    plain = (torch.float32, torch.bfloat16, torch.float16)
    if weight is None or weight.dtype not in plain or weight.shape[1] != hidden_size:
        found = "missing" if weight is None else f"{weight.dtype} {list(weight.shape)}"
        raise HeadUnsupportedError(
            f"DDTREE ranks draft tokens with the target's lm_head, which is {found}: "
            "use a checkpoint with an unquantised lm_head."
        )
    shard = getattr(lm_head, "shard_indices", None)
    if shard is None:
        if tp_size != 1:
            raise HeadUnsupportedError(
                f"DDTREE with --tp-size {tp_size} needs an lm_head that says which tokens each "
                "rank holds (shard_indices), and this target's has none: use --tp-size 1."
            )
        return (HeadSlice(0, int(weight.shape[0]), 0),)
    own = HeadSlice(0, int(shard.num_org_elements), int(shard.org_vocab_start_index))
    # Every rank must gather as many slices as every other, its own empty ones included.
    if not getattr(lm_head, "num_added_embeddings", shard.num_added_elements):
        return (own,)
    added = HeadSlice(
        int(shard.num_org_elements_padded),
        int(shard.num_added_elements),
        int(shard.added_vocab_start_index),
    )
    return own, added


def rank_tokens(
    hidden: torch.Tensor, weight: torch.Tensor, slices: tuple[HeadSlice, ...], topk: int, tp: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `topk` most likely tokens of each row.

    hidden: [rows, hidden size]. weight: [local vocabulary, hidden size]. tp: the tensor-parallel
    group, None for one rank. Returns log-probabilities fp32 [rows, topk], descending, equal ones
    by ascending token id, and the ids int64 [rows, topk]. A row that holds a NaN or a +inf
    has no candidates: all its log-probabilities are -inf. No host synchronisation; may be
    captured in a CUDA graph.
    """
    parts = [
        _rank_chunk(hidden[row : row + CHUNK_ROWS].to(weight.dtype), weight, slices, topk, tp)
        for row in range(0, max(hidden.shape[0], 1), CHUNK_ROWS)
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _rank_chunk(
    hidden: torch.Tensor, weight: torch.Tensor, slices: tuple[HeadSlice, ...], topk: int, tp: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = [torch.matmul(hidden, weight[s.start : s.start + s.rows].T) for s in slices]
    if tp is None and len(slices) == 1:
        return ops.rank_tokens(logits[0], topk, slices[0].first_id)  # type: ignore[no-any-return]
    parts = [ops.rank_shard(part, topk, s.first_id) for part, s in zip(logits, slices, strict=True)]
    own = parts[0][None] if len(parts) == 1 else torch.stack(parts)
    if tp is None:
        return ops.merge_shards(own, topk)  # type: ignore[no-any-return]
    # One gather: on PCIe a small one costs tens of microseconds, whatever it carries.
    gathered = own.new_empty((int(tp.world_size) * len(slices), *own.shape[1:]))
    tp.all_gather_into_tensor(gathered, own)
    return ops.merge_shards(gathered, topk)  # type: ignore[no-any-return]


def drafted_rows(hidden_states: torch.Tensor, block_size: int) -> torch.Tensor:
    """[batch * (block_size - 1), hidden size] of a block's [batch * block_size, hidden size]:
    column 0 of a block is the bonus token, which is committed and not drafted."""
    width = hidden_states.shape[-1]
    return hidden_states.view(-1, block_size, width)[:, 1:].reshape(-1, width)


def rank_block(
    hidden_states: torch.Tensor,
    block_size: int,
    weight: torch.Tensor,
    slices: tuple[HeadSlice, ...],
    topk: int,
    tp: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The candidates of a drafted block, as `ddtree::build_tree` takes them: log-probabilities and
    ids [batch, block_size - 1, topk], from hidden states [batch * block_size, hidden size]."""
    ranked = rank_tokens(drafted_rows(hidden_states, block_size), weight, slices, topk, tp)
    logprobs, ids = (part.view(-1, block_size - 1, topk) for part in ranked)
    return logprobs, ids
