"""walk_tree, walk_greedy and count_round against `ddtree_overlay.tree.walk` and plain Python. Runs
where torch and the wheel are: inside the image (an image test does it)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

from ddtree_overlay import ops  # noqa: E402
from ddtree_overlay.tree import walk as walk_module  # noqa: E402
from tests.overlay.torch_ops import INTS, SENTINEL, generator, tree  # noqa: E402

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def walk_inputs(seed: int, batch: int = 6, budget: int = 12) -> tuple[Any, Any, Any]:
    """Tokens, parents and target ids, of which many follow a child."""
    tokens, parents, *_ = tree(batch, budget, seed)
    target = torch.randint(0, 7, tokens.shape, generator=generator(seed))
    likely = tokens.roll(-1, 1)
    return tokens, parents, torch.where(target < 4, likely.clamp(min=0), target)


def same_walk(got: tuple[Any, ...], want: walk_module.Walk) -> bool:
    expected = (want.path, want.accepted, want.tokens, want.bonus)
    return all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_walks_as_the_reference_does() -> None:
    accepted = 0
    for seed in range(40):
        tokens, parents, target = walk_inputs(seed)
        for columns in (1, 2, 5, 13):
            want = walk_module.walk_greedy(tokens, parents, target, columns)
            assert same_walk(ops.walk_tree(tokens, parents, target, columns), want)
            accepted += int(want.accepted.sum())
    assert accepted > 500


def test_walks_strided_views() -> None:
    tokens, parents, target = walk_inputs(1)
    want = walk_module.walk_greedy(tokens, parents, target, 5)
    turned = [each.t().contiguous().t() for each in (tokens, parents, target)]
    assert same_walk(ops.walk_tree(*turned, 5), want)
    spread = [torch.stack([each, each + 1], 2)[:, :, 0] for each in (tokens, parents, target)]
    assert same_walk(ops.walk_tree(*spread, 5), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_walks_by_the_argmax(dtype: Any) -> None:
    for seed in range(20):
        tokens, parents, target = walk_inputs(seed)
        logits = torch.randint(-3, 3, (*tokens.shape, 9), generator=generator(seed)).to(dtype)
        logits.scatter_(2, target[:, :, None], 5.0)
        if seed % 2:
            chosen = torch.randint(0, 9, tokens.shape, generator=generator(seed + 1))
            logits.scatter_(2, chosen[:, :, None], 5.0)  # ties: the lower id
            logits[:, ::3, seed % 9] = float("nan")
            logits[:, 1::3] = float("-inf")
        ids = first_largest(logits)
        want = walk_module.walk_greedy(tokens, parents, ids, 5)
        assert same_walk(ops.walk_greedy(tokens, parents, logits, 5), want)
        # Rows that start anywhere, with other values around them.
        wide = torch.full((*tokens.shape, 20), 99.0).to(dtype)
        wide[:, :, 5:14] = logits
        assert same_walk(ops.walk_greedy(tokens, parents, wide[:, :, 5:14], 5), want)
        turned = logits.transpose(0, 1).contiguous().transpose(0, 1)
        assert same_walk(ops.walk_greedy(tokens, parents, turned, 5), want)


def first_largest(logits: Any) -> Any:
    """The lowest index of the largest value, a NaN above all."""
    values = logits.float().nan_to_num(nan=float("inf"), posinf=1e30, neginf=-1e30)
    largest = values == values.amax(-1, keepdim=True)
    return largest.int().argmax(-1)


def test_parents_out_of_range_are_refused() -> None:
    tokens, parents, target = walk_inputs(0)
    for value in (13, -2, 2**40):
        bad = parents.clone()
        bad[2, 5] = value
        text = rf"walk_tree: parents\[2, 5\] must be -1..12, got {value}"
        with pytest.raises(ValueError, match=text):
            ops.walk_tree(tokens, bad, target, 5)
        with pytest.raises(ValueError, match=r"walk_greedy: parents\[2, 5\]"):
            ops.walk_greedy(tokens, bad, torch.zeros(6, 13, 7), 5)


def test_counts_as_the_formula_says() -> None:
    """Restated in plain Python from the meaning of the six sums."""
    want = [0] * 6
    sums = torch.zeros(6, dtype=INTS)
    for seed in range(30):
        tokens, parents, target = walk_inputs(seed)
        _, _, _, first_child, _, _, counts, _, exact = tree(6, 12, seed)
        counts[seed % 6] = (0, -9, 4)[seed % 3]
        path, accepted, _, _ = ops.walk_tree(tokens, parents, target, 5)
        assert ops.count_round(parents, first_child, counts, exact, path, accepted, sums) is None
        for i in range(6):
            spine = 0
            while spine < accepted[i]:
                node = int(path[i, spine + 1])
                if first_child[i, max(int(parents[i, node]), 0)] != node:
                    break
                spine += 1
            nodes = max(int(counts[i]), 0)
            new = (
                1,
                nodes,
                int(accepted[i]),
                int(accepted[i]) - spine,
                int(not exact[i]),
                int(nodes == 0),
            )
            want = [a + b for a, b in zip(want, new, strict=True)]
    assert sums.tolist() == want
    assert min(want) > 0


def test_bad_paths_are_refused() -> None:
    _, parents, _, first_child, _, _, counts, _, exact = tree()
    sums = torch.full((6,), SENTINEL)
    path = torch.arange(5).repeat(3, 1)
    for at, accepted, text in (
        ((1, 2, 13), [0, 4, 0], r"path\[1, 2\] must be 0..12, got 13"),
        ((1, 1, -1), [0, 4, 0], r"path\[1, 1\] must be 0..12, got -1"),
        ((0, 0, 0), [0, 0, 5], r"accepted\[2\] must be 0..4, got 5"),
        ((0, 0, 0), [-1, 0, 0], r"accepted\[0\] must be 0..4, got -1"),
    ):
        bad = path.clone()
        bad[at[0], at[1]] = at[2]
        best = first_child.clone()
        best[1, 0] = 1  # so that the walk stays on the spine up to the bad step
        with pytest.raises(ValueError, match=text):
            ops.count_round(parents, best, counts, exact, bad, torch.tensor(accepted), sums)
    assert (sums == SENTINEL).all()
