"""Moving the accepted rows of the KV cache to the front of the verify window, by a walk's path."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]

from ddtree_overlay.tree.walk import walk_greedy
from tests.overlay.torch_trees import (
    PROPERTY,
    arbitrary_trees,
    dictionary_walk,
    lucky_targets,
)


@PROPERTY
@given(st.randoms(use_true_random=False))
def test_the_kv_move_puts_the_path_in_front(random_: Any) -> None:
    """Path rows ascend (path[r] >= r), so one gather and scatter over the slots of all requests,
    or ascending single moves, bring root and accepted rows to the front and touch nothing else."""
    trees = arbitrary_trees(random_)
    tokens, parents = trees.tensors
    targets = lucky_targets(trees, random_)
    walk = walk_greedy(tokens, parents, torch.tensor(targets), trees.columns)
    batch, width = tokens.shape
    assert (walk.path >= torch.arange(trees.columns)).all()
    assert (walk.path < width).all()

    pool = batch * width + 9
    slots = list(range(pool))
    random_.shuffle(slots)
    window = torch.tensor(slots[: batch * width]).view(batch, width)
    before = torch.arange(pool * 2.0).view(pool, 2)
    moved, stepwise = before.clone(), before.clone()
    destination = window[:, : trees.columns]
    source = window.gather(1, walk.path)
    moved[destination.reshape(-1)] = moved[source.reshape(-1)]
    for column in range(trees.columns):
        stepwise[destination[:, column]] = stepwise[source[:, column]]
    assert torch.equal(moved, stepwise)

    for request in range(batch):
        path, _ = dictionary_walk(
            trees.tokens[request], trees.parents[request], targets[request].__getitem__
        )
        n = int(walk.accepted[request])
        assert len(path) == n + 1
        assert torch.equal(moved[window[request, : n + 1]], before[window[request, path]])
        assert torch.equal(moved[window[request, n + 1 :]], before[window[request, n + 1 :]])
    outside = torch.tensor(slots[batch * width :])
    assert torch.equal(moved[outside], before[outside])
