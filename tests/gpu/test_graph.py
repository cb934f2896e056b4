"""Drafted trees and the stepwise walk inside a CUDA graph: a replay gives what the eager call gives."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]

from ddtree_overlay.sglang.ranking import HeadSlice, drafted_rows, rank_tokens
from ddtree_overlay.sglang.rounds import DraftTree, GraphTreeBuilder, build_draft_tree
from ddtree_overlay.tree.walk import walk_greedy, walk_sampled
from tests.gpu.conftest import on_gpu
from tests.gpu.graphs import recorded

DEVICES = [pytest.param("cpu", id="cpu"), on_gpu("cuda", id="cuda")]
BATCH, BLOCK, VOCABULARY, HIDDEN, TOPK, BUDGET = 3, 8, 211, 32, 16, 16


def normal(*shape: int, seed: int, device: str) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_trees_of_a_draft(device: str, dtype: Any) -> None:
    weight = normal(VOCABULARY, HIDDEN, seed=0, device=device).to(dtype)
    slices = (HeadSlice(0, VOCABULARY, 0),)
    builder = GraphTreeBuilder(
        weight=weight,
        slices=slices,
        block_size=BLOCK,
        topk=TOPK,
        budget=BUDGET,
        max_batch=BATCH + 2,
        tp=None,
    )
    hidden = normal(BATCH * BLOCK, HIDDEN, seed=1, device=device).to(dtype)
    block_ids = torch.arange(BATCH * BLOCK, device=device)
    replay = recorded(device, lambda: builder(hidden, block_ids))
    shape = (BATCH, BLOCK - 1, TOPK)
    for seed in (2, 3):
        hidden.copy_(normal(BATCH * BLOCK, HIDDEN, seed=seed, device=device))
        block_ids.add_(100)
        replay()
        logprobs, ids = rank_tokens(drafted_rows(hidden, BLOCK), weight, slices, TOPK, None)
        roots = block_ids.view(BATCH, BLOCK)[:, 0]
        expected = build_draft_tree(logprobs.view(shape), ids.view(shape), BUDGET, roots)
        found = builder.tree(BATCH)
        for name in DraftTree.__dataclass_fields__:
            assert torch.equal(getattr(found, name), getattr(expected, name)), name


def tree(seed: int, device: str) -> Any:
    logits = 2 * normal(BATCH, BLOCK - 1, VOCABULARY, seed=seed, device=device)
    top = torch.log_softmax(logits, -1).topk(TOPK, -1)
    roots = torch.arange(BATCH, device=device)
    return build_draft_tree(top.values, top.indices, BUDGET, roots)


def lucky_targets(drawn: Any, seed: int) -> Any:
    """A target's token per node: the first child's for about half of the nodes."""
    first = drawn.first_child.clamp(min=0)
    children = drawn.tokens.gather(1, first)
    flips = normal(*children.shape, seed=seed, device=str(children.device)) > 0
    return torch.where((drawn.first_child >= 0) & flips, children, children + 1)


@pytest.mark.parametrize("device", DEVICES)
def test_the_stepwise_walk(device: str) -> None:
    first = tree(4, device)
    tokens, parents = first.tokens.clone(), first.parents.clone()
    targets = lucky_targets(first, 5)

    def draw(nodes: Any, _step: int) -> Any:
        return targets.gather(1, nodes.unsqueeze(1)).squeeze(1)

    columns = min(BLOCK, BUDGET + 1)
    sampled = recorded(device, lambda: walk_sampled(tokens, parents, draw, columns))
    accepted = 0
    for seed in range(6, 12):
        other = tree(seed, device)
        tokens.copy_(other.tokens)
        parents.copy_(other.parents)
        targets.copy_(lucky_targets(other, seed + 100))
        expected = walk_greedy(tokens.cpu(), parents.cpu(), targets.cpu(), columns)
        walk = sampled()
        for field in ("path", "accepted", "tokens", "bonus"):
            assert torch.equal(getattr(walk, field).cpu(), getattr(expected, field)), field
        accepted += int(expected.accepted.sum())
    assert accepted > 0
