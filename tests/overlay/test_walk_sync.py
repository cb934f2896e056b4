"""The walk asks the host for nothing, seen by running it on tensors that have no data."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]
from torch._subclasses.fake_tensor import (  # type: ignore[import-not-found, unused-ignore]
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from ddtree_overlay.tree.walk import Walk, walk_greedy, walk_sampled
from tests.overlay.torch_trees import fake_device

DEVICE = fake_device()


def _with_item(tokens: Any, parents: Any, target_ids: Any, columns: int) -> Walk:
    assert target_ids[0, 0].item() >= 0
    return walk_greedy(tokens, parents, target_ids, columns)


def _with_branch(tokens: Any, parents: Any, target_ids: Any, columns: int) -> Walk:
    return walk_greedy(tokens, parents, target_ids, columns if (tokens > 0).any() else 1)


def _with_boolean_index(tokens: Any, parents: Any, target_ids: Any, columns: int) -> Walk:
    return walk_greedy(tokens, parents, target_ids, len(target_ids[tokens > 0]) and columns)


def _with_host_table(tokens: Any, parents: Any, target_ids: Any, columns: int) -> Walk:
    return walk_greedy(tokens, parents + torch.zeros(tokens.shape[1]).long(), target_ids, columns)


def trace(function: Callable[..., Walk]) -> Walk:
    """On fake tensors of a GPU, which have no data: what needs a value, a shape from values, or a
    tensor on the host raises. No GPU is needed."""
    with FakeTensorMode():
        inputs = [torch.empty(3, 9, dtype=torch.int64, device=DEVICE) for _ in range(3)]
        return function(*inputs, 5)


def _draw_only(tokens: Any, parents: Any, target_ids: Any, columns: int) -> Walk:
    return walk_sampled(tokens, parents, lambda nodes, step: nodes + step, columns)


@pytest.mark.parametrize("function", [walk_greedy, _draw_only])
def test_no_host_sync(function: Callable[..., Walk]) -> None:
    walk = trace(function)
    assert walk.path.shape == walk.tokens.shape == (3, 5)
    assert walk.accepted.shape == walk.bonus.shape == (3,)
    assert {t.device.type for t in (walk.path, walk.accepted, walk.tokens, walk.bonus)} == {DEVICE}


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (_with_item, DataDependentOutputException),
        (_with_branch, DataDependentOutputException),
        (_with_boolean_index, DynamicOutputShapeException),
        *([(_with_host_table, RuntimeError)] if DEVICE == "cuda" else []),
    ],
)
def test_a_host_sync_would_be_seen(function: Callable[..., Walk], error: type) -> None:
    with pytest.raises(error):
        trace(function)
