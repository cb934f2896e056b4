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

# Bounds the fp32 logits that exist at a time: 128 rows of 152k tokens are 78 MB.
CHUNK_ROWS = 128


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

    Raises HeadUnsupportedError for a missing or quantised head (fp8 is stored transposed, int4
    packed) and for a sharded head that does not say which tokens it holds.
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
    slices = (
        HeadSlice(0, int(shard.num_org_elements), int(shard.org_vocab_start_index)),
        HeadSlice(
            int(shard.num_org_elements_padded),
            int(shard.num_added_elements),
            int(shard.added_vocab_start_index),
        ),
    )
    return tuple(s for s in slices if s.rows > 0)


def rank_tokens(
    hidden: torch.Tensor, weight: torch.Tensor, slices: tuple[HeadSlice, ...], topk: int, tp: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `topk` most likely tokens of each row.

    hidden: [rows, hidden size]. weight: [local vocabulary, hidden size]. tp: the tensor-parallel
    group, None for one rank. Returns log-probabilities fp32 [rows, topk], descending, equal ones
    by ascending token id, and the ids int64 [rows, topk]. A row that holds a NaN or an infinite
    logit has no candidates: all its log-probabilities are -inf. No host synchronisation; may be
    captured in a CUDA graph.
    """
    parts = [
        _rank_chunk(hidden[row : row + CHUNK_ROWS], weight, slices, topk, tp)
        for row in range(0, hidden.shape[0], CHUNK_ROWS)
    ]
    if not parts:
        return hidden.new_empty((0, topk), dtype=torch.float32), torch.empty(
            (0, topk), dtype=torch.int64, device=hidden.device
        )
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _rank_chunk(
    hidden: torch.Tensor, weight: torch.Tensor, slices: tuple[HeadSlice, ...], topk: int, tp: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    values, ids, normaliser = _rank_local(hidden.to(weight.dtype), weight, slices, topk)
    if tp is not None:
        rows, ranks = hidden.shape[0], int(tp.world_size)
        values = _gather(tp, values, ranks).transpose(0, 1).reshape(rows, ranks * topk)
        ids = _gather(tp, ids, ranks).transpose(0, 1).reshape(rows, ranks * topk)
        normaliser = torch.logsumexp(_gather(tp, normaliser, ranks), dim=0)
    # torch.topk leaves the order of equal values open; two stable sorts settle it.
    ids, order = torch.sort(ids, dim=-1, stable=True)
    values = values.gather(-1, order)
    values, order = torch.sort(values, dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)[:, :topk]
    logprobs = values[:, :topk] - normaliser[:, None]
    usable = torch.isfinite(normaliser)[:, None] & ~torch.isnan(logprobs)
    return torch.where(usable, logprobs.clamp(max=0.0), float("-inf")), ids


def _rank_local(
    hidden: torch.Tensor, weight: torch.Tensor, slices: tuple[HeadSlice, ...], topk: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """This rank's candidates [rows, topk] (padded with -inf) and its log-sum-exp [rows]."""
    rows = hidden.shape[0]
    logits = [torch.matmul(hidden, weight[s.start : s.start + s.rows].T).float() for s in slices]
    local = sum(s.rows for s in slices)
    values = torch.full((rows, topk), float("-inf"), dtype=torch.float32, device=hidden.device)
    ids = torch.zeros((rows, topk), dtype=torch.int64, device=hidden.device)
    if local == 0:
        return values, ids, values[:, 0]
    joined = logits[0] if len(logits) == 1 else torch.cat(logits, dim=-1)
    kept = min(topk, local)
    values[:, :kept], index = torch.topk(joined, kept, dim=-1)
    first = slices[0]
    global_id = index + first.first_id
    if len(slices) > 1:
        added = index - first.rows + slices[1].first_id
        global_id = torch.where(index < first.rows, global_id, added)
    ids[:, :kept] = global_id
    return values, ids, torch.logsumexp(joined, dim=-1)


def _gather(tp: Any, local: torch.Tensor, ranks: int) -> torch.Tensor:
    """[ranks, *local.shape], the same on every rank."""
    gathered = local.new_empty((ranks * local.shape[0], *local.shape[1:]))
    tp.all_gather_into_tensor(gathered, local.contiguous())
    return gathered.view(ranks, *local.shape)


class GraphRanker:
    """Ranks inside the draft CUDA graph: results land in buffers that outlive the replay.

    Called by the capture hook with the draft block's hidden states; column 0 of a block is the
    bonus token, which is committed and not drafted.
    """

    def __init__(
        self,
        *,
        weight: torch.Tensor,
        slices: tuple[HeadSlice, ...],
        block_size: int,
        topk: int,
        max_batch: int,
        tp: Any,
    ) -> None:
        self._weight, self._slices, self._tp = weight, slices, tp
        self._block_size, self._topk = block_size, topk
        shape = (max_batch * (block_size - 1), topk)
        self.logprobs = torch.empty(shape, dtype=torch.float32, device=weight.device)
        self.token_ids = torch.empty(shape, dtype=torch.int64, device=weight.device)

    def __call__(self, hidden_states: torch.Tensor, input_ids: Any = None) -> None:
        hidden = drafted_rows(hidden_states, self._block_size)
        logprobs, ids = rank_tokens(hidden, self._weight, self._slices, self._topk, self._tp)
        self.logprobs[: hidden.shape[0]].copy_(logprobs)
        self.token_ids[: hidden.shape[0]].copy_(ids)


def drafted_rows(hidden_states: torch.Tensor, block_size: int) -> torch.Tensor:
    """[batch * (block_size - 1), hidden size] of a block's [batch * block_size, hidden size]."""
    width = hidden_states.shape[-1]
    return hidden_states.view(-1, block_size, width)[:, 1:].reshape(-1, width)
