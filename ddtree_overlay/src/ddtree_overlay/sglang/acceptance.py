"""From the target's logits at a tree's nodes to the accepted path."""

from __future__ import annotations

import copy
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.speculative.spec_utils import build_grammar_vocab_mask
from sglang.srt.utils.async_probe import sanitize_nan_logits

from ddtree_overlay import ops
from ddtree_overlay.sglang.rounds import DraftTree
from ddtree_overlay.tree.walk import Walk, walk_sampled


def constrain(logits: torch.Tensor, batch: Any, grammar_tree: Any, grammar_barrier: Any) -> None:
    """Apply in place what constrains each node's next token whatever its path.

    logits: [batch, width, vocabulary]. What depends on the path other than by the grammar is
    refused with the request (requests.py).
    """
    if grammar_tree is not None:
        mask = build_grammar_vocab_mask(
            reqs=batch.reqs,
            tree=grammar_tree,
            sampling_info=batch.sampling_info,
            device=logits.device,
            barrier=grammar_barrier,
        )
        if mask is not None:
            mask.apply(logits.flatten(0, 1))
    info = batch.sampling_info
    if info is not None and info.logit_bias is not None:
        logits.add_(info.logit_bias[:, None].to(logits))


def walk_tree(
    logits: torch.Tensor,
    tree: DraftTree,
    positions: torch.Tensor,
    info: Any,
    sampler: Any,
    columns: int,
    tp: Any,
) -> Walk:
    """The accepted path, without a host sync. May overwrite the logits.

    logits: [batch, width, vocabulary]. positions: int64 [batch, width]. info: the batch's
    SamplingBatchInfo, None for greedy. sampler: SGLang's `Sampler`. columns: the most that a round
    commits. tp: the tensor-parallel group, None for one rank.

    Greedy reads the logits of the visited nodes only, unless those of all nodes are few enough to
    be read at once. When sampling, each node of a walk gets one draw from the target's own sampler:
    see `requests_at_once`.
    """
    if info is None or info.is_all_greedy:
        # What the sampler does before its own argmax; nothing unless asked for.
        sanitize_nan_logits(logits, "DDTREE verify: target logits")
        return Walk(*ops.walk_greedy(tree.tokens, tree.parents, logits, columns))
    batch, width, vocabulary = logits.shape
    many = requests_at_once(batch, width, columns, vocabulary)
    if many > 0:
        drawn = [
            _draw(
                logits[first : first + many].flatten(0, 1),
                repeated(info, first, min(first + many, batch), width),
                sampler,
                positions[first : first + many].flatten(),
            )
            for first in range(0, batch, many)
        ]
        target_ids = _agreed(torch.cat(drawn), tp).view(batch, width)
        return Walk(*ops.walk_tree(tree.tokens, tree.parents, target_ids, columns))
    rows = torch.arange(batch, device=logits.device)

    def draw(nodes: torch.Tensor, step: int) -> torch.Tensor:
        # A copy: the sampler turns logits into probabilities in place.
        return _agreed(_draw(logits[rows, nodes], info, sampler, positions[:, 0] + step), tp)

    return walk_sampled(tree.tokens, tree.parents, draw, columns)


# What a call of the sampler costs besides its rows, in rows: some ten launches and their host time,
# about 200 us, against about 1.7 us a row of 152k fp32 logits read and written five times at
# 1.8 TB/s. An estimate from byte counts, not a measurement.
CALL_ROWS = 120
SAMPLER_BYTES = 2**30
"""What the sampler may take beside the logits for all nodes at once (see memory_gate)."""
SAMPLER_COPIES = 8
"""Matrices as large as its fp32 logits that a call takes at most: about 2 with FlashInfer, 5 with
torch's sorts, and fp64 where it is seeded."""


def requests_at_once(batch: int, width: int, columns: int, vocabulary: int) -> int:
    """Of how many requests to draw for all nodes in one call of the sampler; 0 to draw for visited
    nodes only, in `columns` calls for the whole batch, each of which needs the one before.

    Both emit draws from the target after their own prefix, one a visited node; the draws of nodes
    that are not visited are ignored. The choice is by cost, in rows, and within SAMPLER_BYTES.
    """
    fitting = SAMPLER_BYTES // (width * vocabulary * 4 * SAMPLER_COPIES)
    if fitting == 0:
        return 0
    many = min(batch, fitting)
    at_once = batch * width + -(-batch // many) * CALL_ROWS
    by_step = columns * (batch + CALL_ROWS)
    return many if at_once <= by_step else 0


def repeated(info: Any, first: int, end: int, width: int) -> Any:
    """The sampling parameters of requests first..end - 1 of a batch, each for `width` rows."""
    expanded = copy.copy(info)
    for name in ("temperatures", "top_ps", "top_ks", "min_ps", "sampling_seed"):
        value = getattr(info, name)
        if value is not None:
            setattr(expanded, name, value[first:end].repeat_interleave(width, dim=0))
    return expanded


def _draw(logits: torch.Tensor, info: Any, sampler: Any, positions: torch.Tensor) -> torch.Tensor:
    """One token a row; consumes the logits."""
    visited = LogitsProcessorOutput(next_token_logits=logits)
    return sampler(visited, info, False, [], [], positions)


def _agreed(drawn: torch.Tensor, tp: Any) -> torch.Tensor:
    """int64, the same on all ranks: those that drew differently would commit different lengths and
    then hang."""
    if tp is not None:
        tp.broadcast(drawn, src=0)
    return drawn.to(torch.int64)
