"""The batched walk against a dictionary walk per request."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

from ddtree_overlay import ops  # noqa: E402
from ddtree_overlay.tree.walk import Walk, walk_greedy, walk_sampled  # noqa: E402
from tests.overlay.torch_trees import (  # noqa: E402
    PROPERTY,
    Trees,
    arbitrary_trees,
    dictionary_walk,
    lucky_targets,
    op_draft,
)
from tests.overlay.trees import seeded  # noqa: E402

RANDOM = st.randoms(use_true_random=False)


def greedy_by_draws(tokens: Any, parents: Any, target_ids: Any, columns: int) -> Walk:
    """walk_sampled with a target that is certain; it must be asked for every step, once."""
    steps = []

    def draw(nodes: Any, step: int) -> Any:
        steps.append(step)
        assert nodes.dtype == torch.int64
        assert ((nodes >= 0) & (nodes < tokens.shape[1])).all()
        return target_ids.gather(1, nodes.unsqueeze(1)).squeeze(1)

    walk = walk_sampled(tokens, parents, draw, columns)
    assert steps == list(range(columns))
    return walk


WALKS: list[Callable[[Any, Any, Any, int], Walk]] = [walk_greedy, greedy_by_draws]


def check(trees: Trees, targets: list[list[int]]) -> list[int]:
    """Both walks equal the dictionary walk in every element; returns the accepted counts."""
    paths, emitted = [], []
    for tokens, parents, target in zip(trees.tokens, trees.parents, targets, strict=True):
        path, out = dictionary_walk(tokens, parents, target.__getitem__)
        paths.append(path + list(range(len(path), trees.columns)))
        emitted.append(out)
    accepted = [len(out) - 1 for out in emitted]
    padded = [out + [0] * (trees.columns - len(out)) for out in emitted]
    for function in WALKS:
        tokens, parents = trees.tensors
        walk = function(tokens, parents, torch.tensor(targets), trees.columns)
        tensors = (walk.path, walk.accepted, walk.tokens, walk.bonus)
        assert all(tensor.dtype == torch.int64 for tensor in tensors)
        assert walk.path.tolist() == paths
        assert walk.accepted.tolist() == accepted
        assert walk.tokens.tolist() == padded
        assert walk.bonus.tolist() == [out[-1] for out in emitted]
    return accepted


@PROPERTY
@given(RANDOM)
def test_equals_the_dictionary_walk_on_any_legal_tree(random_: Any) -> None:
    trees = arbitrary_trees(random_)
    check(trees, lucky_targets(trees, random_))


def built(random_: Any, batch: int, levels: int, ranks: int, budget: int, **draft: int) -> Trees:
    outputs = ops.build_tree(*op_draft(random_, batch, levels, ranks, **draft), budget)
    columns = min(levels, budget) + 1
    return Trees(outputs[1].tolist(), outputs[0].tolist(), outputs[6].tolist(), columns)


@PROPERTY
@given(RANDOM, st.integers(1, 6), st.integers(1, 6), st.integers(1, 40))
def test_equals_the_dictionary_walk_on_built_trees(
    random_: Any, levels: int, ranks: int, budget: int
) -> None:
    trees = built(random_, 3, levels, ranks, budget)
    check(trees, lucky_targets(trees, random_, vocabulary=ranks + 3))


@pytest.mark.parametrize(
    ("batch", "levels", "ranks", "budget", "vocabulary"),
    [
        pytest.param(1, 15, 16, 16, 64, id="one request"),
        pytest.param(8, 15, 64, 64, 512, id="serving shape"),
        pytest.param(3, 15, 8, 5, 64, id="budget below the block"),
        pytest.param(3, 7, 1, 7, 64, id="one rank: the chain"),
        pytest.param(3, 1, 8, 8, 64, id="one level"),
        pytest.param(3, 15, 8, 1, 64, id="budget 1"),
        pytest.param(3, 3, 16, 60, 2, id="vocabulary below the ranks"),
        pytest.param(3, 2, 2, 40, 2, id="mostly padding"),
    ],
)
def test_shapes(batch: int, levels: int, ranks: int, budget: int, vocabulary: int) -> None:
    random_ = seeded(f"{batch} {levels} {ranks} {budget}")
    accepted: list[int] = []
    for _ in range(20):
        trees = built(random_, batch, levels, ranks, budget, vocabulary=vocabulary)
        # One token that no node carries, so that walks also end early.
        targets = lucky_targets(trees, random_, vocabulary=vocabulary + 1)
        accepted += check(trees, targets)
    assert len(set(accepted)) > 1


@pytest.mark.parametrize("function", WALKS)
def test_one_rank_is_the_chain(function: Callable[..., Walk]) -> None:
    """K = 1: the longest prefix of the drafted block that the target agrees with."""
    logprobs, ids = torch.full((6, 5, 1), -0.5), torch.arange(10, 15).expand(6, 5).unsqueeze(-1)
    tokens, parents = ops.build_tree(logprobs, ids, 5)[:2]
    targets = torch.arange(10, 16).repeat(6, 1)
    for request in range(5):
        targets[request, request] = 99
    walk = function(tokens, parents, targets, 6)
    assert walk.accepted.tolist() == [0, 1, 2, 3, 4, 5]
    assert walk.bonus.tolist() == [99, 99, 99, 99, 99, 15]
    assert walk.path.tolist() == [[0, 1, 2, 3, 4, 5]] * 6
    assert walk.tokens.tolist() == [
        [*range(10, 10 + n), bonus, *[0] * (5 - n)]
        for n, bonus in enumerate([99, 99, 99, 99, 99, 15])
    ]


@pytest.mark.parametrize("function", WALKS)
def test_neither_padding_nor_the_root_is_a_child(function: Callable[..., Walk]) -> None:
    """Token 0 is a real token, which padding carries; the root may carry the target's token."""
    tokens = torch.tensor([[0, 5, 0, 0], [0, 0, 0, 0]])
    parents = torch.tensor([[-1, 0, -1, -1], [-1, -1, -1, -1]])
    walk = function(tokens, parents, torch.zeros(2, 4, dtype=torch.int64), 3)
    assert walk.accepted.tolist() == [0, 0]
    assert walk.path.tolist() == [[0, 1, 2]] * 2
    assert walk.tokens.tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize("function", WALKS)
def test_a_finished_request_stays_finished(function: Callable[..., Walk]) -> None:
    """The first request misses at the root, where the deeper node would match what comes later."""
    tokens = torch.tensor([[-1, 7, 7], [-1, 7, 7]])
    parents = torch.tensor([[-1, 0, 1], [-1, 0, 1]])
    targets = torch.tensor([[3, 7, 7], [7, 7, 4]])
    walk = function(tokens, parents, targets, 3)
    assert walk.accepted.tolist() == [0, 2]
    assert walk.tokens.tolist() == [[3, 0, 0], [7, 7, 4]]
    assert walk.bonus.tolist() == [3, 4]


def test_answers_after_the_end_are_ignored() -> None:
    """A finished request's draw may be anything, also a token that its root's child carries."""
    tokens, parents = torch.tensor([[-1, 7, 8]]), torch.tensor([[-1, 0, 1]])
    answers = [9, 7, 8]
    walk = walk_sampled(tokens, parents, lambda nodes, step: torch.tensor([answers[step]]), 3)
    assert (walk.accepted.item(), walk.bonus.item()) == (0, 9)
    assert walk.tokens.tolist() == [[9, 0, 0]]
    assert walk.path.tolist() == [[0, 1, 2]]


def test_of_siblings_with_one_token_the_first_wins() -> None:
    tokens, parents = torch.tensor([[-1, 4, 4, 6, 5]]), torch.tensor([[-1, 0, 0, 1, 2]])
    for function in WALKS:
        walk = function(tokens, parents, torch.tensor([[4, 6, 5, 1, 1]]), 3)
        assert walk.path.tolist() == [[0, 1, 3]]


@pytest.mark.parametrize("columns", [1, 2])
def test_fewer_columns_than_the_tree_is_deep(columns: int) -> None:
    """Not a legal call, but no garbage either: the walk stops early, with the target's token."""
    tokens, parents = torch.tensor([[-1, 4, 5]]), torch.tensor([[-1, 0, 1]])
    for function in WALKS:
        walk = function(tokens, parents, torch.tensor([[4, 5, 6]]), columns)
        assert walk.tokens.tolist() == [[4, 5][:columns]]
        assert (walk.accepted.item(), walk.bonus.item()) == (columns - 1, [4, 5][columns - 1])


def test_empty_batch() -> None:
    empty = torch.empty(0, 9, dtype=torch.int64)
    for function in WALKS:
        walk = function(empty, empty, empty, 4)
        assert [tuple(t.shape) for t in (walk.path, walk.accepted, walk.tokens, walk.bonus)] == [
            *((0, 4), (0,), (0, 4), (0,))
        ]


def test_draws_of_another_integer_dtype() -> None:
    tokens, parents = torch.tensor([[-1, 4]]), torch.tensor([[-1, 0]])
    walk = walk_sampled(
        tokens, parents, lambda nodes, step: torch.tensor([4 + step], dtype=torch.int32), 2
    )
    assert (walk.tokens.tolist(), walk.tokens.dtype) == ([[4, 5]], torch.int64)


def test_inputs_are_left_alone() -> None:
    inputs = [torch.tensor([[-1, 4, 5]]), torch.tensor([[-1, 0, 1]]), torch.tensor([[4, 5, 6]])]
    before = [tensor.clone() for tensor in inputs]
    for function in WALKS:
        function(inputs[0], inputs[1], inputs[2], 3)
        assert all(map(torch.equal, inputs, before))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tokens": torch.zeros(3, dtype=torch.int64)}, r"tokens is torch.int64 \[3\]"),
        ({"tokens": torch.zeros(2, 3, dtype=torch.int32)}, r"tokens is torch.int32 \[2, 3\]"),
        ({"parents": torch.zeros(2, 4, dtype=torch.int64)}, r"parents is torch.int64 \[2, 4\]"),
        ({"parents": torch.zeros(2, 3)}, r"parents is torch.float32 \[2, 3\]"),
        ({"target_ids": torch.zeros(6, dtype=torch.int64)}, r"target_ids is torch.int64 \[6\]"),
        ({"columns": 4}, "columns is 4 for a tree of width 3"),
        ({"columns": 0}, "columns is 0 for a tree of width 3"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], text: str) -> None:
    zeros = torch.zeros(2, 3, dtype=torch.int64)
    arguments = {"tokens": zeros, "parents": zeros - 1, "target_ids": zeros, "columns": 2} | change
    with pytest.raises(ValueError, match=text):
        walk_greedy(**arguments)
