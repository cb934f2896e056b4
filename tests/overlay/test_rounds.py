"""A round's tensors and its counts, against plain Python. Runs inside the image (needs the op)."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

from ddtree_overlay.sglang.metrics import TreeMetrics  # noqa: E402
from ddtree_overlay.sglang.ranking import HeadSlice, drafted_rows, rank_tokens  # noqa: E402
from ddtree_overlay.sglang.rounds import (  # noqa: E402
    DraftTree,
    GraphTreeBuilder,
    build_draft_tree,
)
from ddtree_overlay.sglang.stats import TreeCounts, TreeStats  # noqa: E402
from ddtree_overlay.tree.walk import walk_greedy  # noqa: E402

NEVER = float("-inf")


def drafted(batch: int, levels: int, topk: int, seed: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch, levels, 30, generator=generator)
    top = torch.log_softmax(logits, -1).topk(topk, -1)
    return top.values, top.indices


def walked(tree: Any, columns: int, seed: int) -> Any:
    """A walk that accepts often: at most nodes the target wants one of the children's tokens."""
    pick = random.Random(seed)  # noqa: S311 - test data
    batch, width = tree.tokens.shape
    target = torch.full((batch, width), 29)
    for row in range(batch):
        for node in range(width):
            children = (tree.parents[row] == node).nonzero().flatten().tolist()
            if children and pick.random() < 0.9:
                target[row, node] = tree.tokens[row, pick.choice(children)]
    return walk_greedy(tree.tokens, tree.parents, target, columns)


def test_the_root_carries_the_committed_token() -> None:
    tree = build_draft_tree(*drafted(3, 4, 5, 0), 8, torch.tensor([7, 8, 9]))
    assert tree.tokens[:, 0].tolist() == [7, 8, 9]
    assert tree.depths[:, 0].tolist() == [0, 0, 0]
    assert tree.parents[:, 0].tolist() == [-1, -1, -1]


def test_the_graph_tree_builder_leaves_what_the_eager_round_builds() -> None:
    block, batch, topk, budget = 4, 3, 5, 6
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(batch * block, 16, generator=generator)
    weight = torch.randn(25, 16, generator=generator)
    slices = (HeadSlice(0, 25, 0),)
    builder = GraphTreeBuilder(
        weight=weight,
        slices=slices,
        block_size=block,
        topk=topk,
        budget=budget,
        max_batch=8,
        tp=None,
    )
    block_ids = torch.arange(batch * block).view(batch, block)
    before = builder.tree(batch)
    builder(hidden, block_ids.flatten())
    logprobs, ids = rank_tokens(drafted_rows(hidden, block), weight, slices, topk, None)
    shape = (batch, block - 1, topk)
    expected = build_draft_tree(logprobs.view(shape), ids.view(shape), budget, block_ids[:, 0])
    for name in DraftTree.__dataclass_fields__:
        found = getattr(builder.tree(batch), name)
        assert torch.equal(found, getattr(expected, name)), name
        # What a graph has captured: the same memory before and after.
        assert found.data_ptr() == getattr(before, name).data_ptr(), name
    # Padded requests of a graph are not the caller's.
    assert builder.tree(2).tokens.shape == (2, budget + 1)


def off_spine(tree: Any, walk: Any) -> int:
    """Accepted tokens that the drafter's greedy chain does not hold."""
    total = 0
    for row in range(len(tree.tokens)):
        spine, node = set(), 0
        while node >= 0:
            spine.add(node)
            node = int(tree.first_child[row, node])
        path = walk.path[row, : int(walk.accepted[row]) + 1].tolist()
        total += sum(node not in spine for node in path)
    return total


def test_counts_add_up_over_rounds() -> None:
    stats = TreeStats("cpu")
    expected = [0] * 6
    for seed in range(5):
        logprobs, ids = drafted(4, 3, 3, seed)
        logprobs[1] = NEVER  # this drafter gave nothing
        tree = build_draft_tree(logprobs, ids, 6, torch.zeros(4, dtype=torch.int64))
        walk = walked(tree, 4, seed)
        stats.add(tree, walk)
        for index, value in enumerate(
            (
                4,
                int(tree.counts.sum()),
                int(walk.accepted.sum()),
                off_spine(tree, walk),
                int((~tree.exact).sum()),
                1,
            )
        ):
            expected[index] += value
    assert stats.read() == TreeCounts(*expected)
    assert stats.read().off_spine > 0 and stats.read().fallbacks == 5


def test_the_log_line_speaks_of_what_happened_since_the_last_one() -> None:
    stats = TreeStats("cpu")
    metrics = TreeMetrics(stats, budget=6)
    assert metrics.report(None) == ""
    tree = build_draft_tree(*drafted(4, 3, 3, 1), 6, torch.zeros(4, dtype=torch.int64))
    stats.add(tree, walked(tree, 4, 1))
    line = metrics.report(None)
    assert line.startswith("tree budget: 6, tree nodes: 6.00, off-spine accept: ")
    assert line.endswith("tree fall-backs: 0, ")
    assert metrics.report(None) == ""


def test_prometheus_counts_each_tree_once() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    collector = type("Collector", (), {"labels": {"model_name": "tiny"}})
    stats = TreeStats("cpu")
    metrics = TreeMetrics(stats, budget=6)
    total = 0
    for seed in range(3):
        tree = build_draft_tree(*drafted(2, 3, 3, seed), 6, torch.zeros(2, dtype=torch.int64))
        stats.add(tree, walked(tree, 4, seed))
        total += int(tree.counts.sum())
        metrics.report(collector)
    read = prometheus.REGISTRY.get_sample_value
    labels = {"model_name": "tiny"}
    assert read("sglang:ddtree_nodes_verified_total", labels) == total
    assert read("sglang:ddtree_trees_total", labels) == 6
    assert read("sglang:ddtree_budget", labels) == 6
