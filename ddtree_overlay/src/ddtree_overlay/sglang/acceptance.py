"""From the target's logits at a tree's nodes to the accepted path."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.speculative.spec_utils import build_grammar_vocab_mask
from sglang.srt.utils.async_probe import sanitize_nan_logits

from ddtree_overlay.sglang.rounds import DraftTree
from ddtree_overlay.tree.walk import Walk, walk_greedy, walk_sampled


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
    prefix_lens: torch.Tensor,
    info: Any,
    sampler: Any,
    columns: int,
    tp: Any,
) -> Walk:
    """The accepted path; when sampling, by one draw a visited node from the target's own sampler.

    logits: [batch, width, vocabulary]. prefix_lens: [batch]. info: the batch's SamplingBatchInfo,
    None for greedy. sampler: SGLang's `Sampler`. columns: the most that a round commits.
    tp: the tensor-parallel group, None for one rank.
    """
    if info is None or info.is_all_greedy:
        # What the sampler does before its own argmax.
        sanitize_nan_logits(logits, "DDTREE verify: target logits")
        target_ids = torch.argmax(logits, dim=-1)
        return walk_greedy(tree.tokens, tree.parents, target_ids, columns)
    rows = torch.arange(logits.shape[0], device=logits.device)

    def draw(nodes: torch.Tensor, step: int) -> torch.Tensor:
        # A copy: the sampler turns logits into probabilities in place.
        visited = LogitsProcessorOutput(next_token_logits=logits[rows, nodes])
        drawn = sampler(visited, info, False, [], [], prefix_lens + step)
        if tp is not None:
            # Ranks that drew differently would commit different lengths and then hang.
            tp.broadcast(drawn, src=0)
        return drawn.to(torch.int64)

    return walk_sampled(tree.tokens, tree.parents, draw, columns)
