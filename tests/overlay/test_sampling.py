"""DDTree rounds that sample emit what the target alone emits: exactly, by enumeration of all draws,
and by chi-square over sequences of many rounds, which broken walks must fail. Fixed seeds."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections import defaultdict
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
from ddtree_overlay.tree.walk import walk_sampled  # noqa: E402
from tests.overlay.markov import (  # noqa: E402
    LENGTH,
    SAMPLES,
    START,
    VOCABULARY,
    Emitted,
    Markov,
    Round,
    Rule,
    bonus_drawn_again,
    bonus_from_the_root,
    by,
    drafter,
    draw_from_the_parent,
    draw_per_child,
    first_child,
    one_draw,
    p_value,
    plain,
    rejection,
    sequences,
    shipped,
    shipped_at_once,
    survival,
)
from tests.overlay.torch_trees import PROPERTY, arbitrary_trees  # noqa: E402

SHAPES = {
    "tree": (3, 4, 8),
    "vocabulary below the ranks": (2, 8, 12),
    "chain": (3, 1, 3),
    "one level": (1, 4, 4),
    "budget below the block": (6, 4, 2),
}


def test_the_law_is_that_of_the_chain() -> None:
    """What everything is compared with, against a loop over every sequence."""
    table, law = Markov(0).table.tolist(), Markov(0).law().tolist()
    for number, sequence in enumerate(itertools.product(range(VOCABULARY), repeat=LENGTH)):
        steps = itertools.pairwise((START, *sequence))
        assert law[number] == pytest.approx(math.prod(table[a][b] for a, b in steps), rel=1e-12)


@pytest.mark.parametrize(("freedom", "point"), [(1, 3.8415), (1000, 1074.6794)])
def test_survival_at_the_tabulated_five_percent_points(freedom: int, point: float) -> None:
    assert survival(point, freedom) == pytest.approx(0.05, abs=1e-5)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("walk", [shipped, shipped_at_once])
def test_rounds_emit_what_the_target_emits(
    walk: Callable[[Round], Emitted], shape: str, seed: int
) -> None:
    assert p_value(sequences(walk, seed, SHAPES[shape]), Markov(0).law()) > 0.01


@pytest.mark.parametrize("walk", [plain, by(one_draw)], ids=["plain", "one draw, spelled out"])
def test_controls_pass(walk: Callable[[Round], Emitted]) -> None:
    assert p_value(sequences(walk, 3, SHAPES["tree"]), Markov(0).law()) > 0.01


def test_the_same_draws_give_the_same_rounds() -> None:
    """The shipped walk and the one spelled out use the stream of draws alike."""
    assert torch.equal(
        sequences(shipped, 4, SHAPES["tree"]), sequences(by(one_draw), 4, SHAPES["tree"])
    )


@pytest.mark.parametrize(
    "rule",
    [
        draw_per_child,
        bonus_drawn_again,
        bonus_from_the_root,
        draw_from_the_parent,
        first_child,
        rejection,
    ],
)
def test_a_broken_walk_is_seen(rule: Rule) -> None:
    assert p_value(sequences(by(rule), 1, SHAPES["tree"]), Markov(0).law()) < 1e-4


def test_walks_go_deep_and_off_the_spine() -> None:
    """Or the tests above would say nothing about trees."""
    levels, ranks, budget = SHAPES["tree"]
    logprobs, ids = drafter(levels, ranks)
    last = torch.full((SAMPLES,), START)
    tokens, parents = ops.build_tree(logprobs[last], ids[last], budget)[:2]
    tokens[:, 0] = last
    round_ = Round(tokens, parents, None, levels + 1, Markov(5))
    walk = walk_sampled(tokens, parents, lambda nodes, step: round_.draw(nodes), levels + 1)
    assert walk.accepted.double().mean() > 0.8
    spine = ops.build_tree(logprobs[:, :, :1], ids[:, :, :1], levels)[0][START, 1:]
    off = (walk.tokens[:, :levels] != spine) & (torch.arange(levels) < walk.accepted.unsqueeze(1))
    assert off.any(1).double().mean() > 0.2


@PROPERTY
@given(st.randoms(use_true_random=False))
def test_any_tree_emits_exactly_the_targets_law(random_: Any) -> None:
    """No statistics: every sequence of draws, weighted by its probability, on an arbitrary tree.
    After each emitted prefix the next token has exactly the target's probabilities there."""
    vocabulary = 3
    trees = arbitrary_trees(random_, vocabulary=vocabulary)
    columns = min(trees.columns, 4)
    draws = torch.tensor(list(itertools.product(range(vocabulary), repeat=columns)))
    tokens, parents = (tensor[:1].expand(len(draws), -1) for tensor in trees.tensors)
    generator = torch.Generator().manual_seed(random_.getrandbits(40))
    law = torch.rand(trees.width, vocabulary, generator=generator, dtype=torch.float64)
    law = law / law.sum(-1, keepdim=True)
    visited = []

    def draw(nodes: Any, step: int) -> Any:
        visited.append(nodes)
        return draws[:, step]

    walk = walk_sampled(tokens, parents, draw, columns)
    steps = torch.arange(columns)
    live = steps <= walk.accepted.unsqueeze(1)
    factors = law[torch.stack(visited, 1), draws]
    # Draws after the end are free: each of their values carries an equal share of the weight.
    weights = torch.where(live, factors, 1 / vocabulary).prod(1)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)
    mass: dict[tuple[int, ...], float] = defaultdict(float)
    for emitted, count, weight in zip(
        walk.tokens.tolist(), walk.accepted.tolist(), weights.tolist(), strict=True
    ):
        mass[tuple(emitted[: count + 1])] += weight
    for sequence, probability in mass.items():
        node, want = 0, 1.0
        for token in sequence:
            want *= float(law[node, token])
            node = _child(trees.tokens[0], trees.parents[0], node, token)
        assert probability == pytest.approx(want, abs=1e-12)


def _child(tokens: list[int], parents: list[int], node: int, token: int) -> int:
    """The first child with the token; 0 if there is none, where the walk has ended."""
    return next((i for i, p in enumerate(parents) if p == node and tokens[i] == token), 0)


def test_either_of_two_children_is_accepted_with_p1_plus_p2() -> None:
    """By enumeration of the draw at the root."""
    p = Markov(0).table[START]
    tokens = torch.tensor([[START, 4, 1]]).expand(VOCABULARY, -1)
    parents = torch.tensor([[-1, 0, 0]]).expand(VOCABULARY, -1)
    walk = walk_sampled(tokens, parents, lambda nodes, step: torch.arange(VOCABULARY), 2)
    assert float(p[walk.accepted == 1].sum()) == pytest.approx(float(p[4] + p[1]), rel=1e-12)
    assert walk.tokens[:, 0].tolist() == list(range(VOCABULARY))
