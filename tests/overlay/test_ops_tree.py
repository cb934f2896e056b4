"""Building trees into graph buffers, with budgets and roots of the requests' own, and placing them as
mask and positions. Runs where torch and the wheel are: inside the image (an image test does it)."""

from __future__ import annotations

import heapq
import importlib.util
import time
from collections.abc import Callable
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
from ddtree_overlay.tree.mask import full_mask, mask_numel  # noqa: E402
from tests.overlay.torch_ops import INTS, SENTINEL, buffers, draft, tree  # noqa: E402


@pytest.mark.parametrize("budget", [1, 20, 64])
def test_building_into_buffers_gives_what_building_gives(budget: int) -> None:
    logprobs, ids = draft(5, 7, 9)
    own, roots = torch.tensor([0, 1, budget, -4, 2**40]), torch.arange(5)
    for budgets, root in ((None, None), (own, None), (None, roots), (own, roots)):
        want = ops.build_tree(logprobs, ids, budget, budgets, root)
        got = buffers(5, budget + 1)
        assert ops.build_tree_out(logprobs, ids, budgets, root, *got) is None
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one, other)


def test_a_request_of_its_own_budget_has_the_tree_of_that_budget() -> None:
    """The first nodes, links among them, the certificate; the rest is padding."""
    logprobs, ids = draft(40, 5, 8)
    own = torch.arange(40)
    got = ops.build_tree(logprobs, ids, 39, own, torch.arange(40) + 100)
    assert got[0][:, 0].tolist() == list(range(100, 140))
    padding = ops.build_tree(
        torch.full((1, 1, 1), float("-inf")), torch.zeros(1, 1, 1, dtype=INTS), 39
    )
    for request in range(1, 40):
        alone = ops.build_tree(logprobs[request : request + 1], ids[request : request + 1], request)
        for at in (1, 2, 3, 4, 7):
            assert torch.equal(got[at][request, : request + 1], alone[at][0])
            assert torch.equal(got[at][request, request + 1 :], padding[at][0, request + 1 :])
        assert torch.equal(got[0][request, 1 : request + 1], alone[0][0, 1:])
        assert torch.equal(got[5][request, : request + 1], alone[5][0])
        assert got[6][request] == alone[6][0]
        assert got[8][request] == alone[8][0]


def test_per_request_arguments_may_be_strided() -> None:
    logprobs, ids = draft(4, 5, 8)
    own = torch.tensor([3, -1, 9, -1, 1, -1, 30, -1])
    got = ops.build_tree(logprobs, ids, 20, own[::2], own[::2])
    want = ops.build_tree(logprobs, ids, 20, own[::2].contiguous(), own[::2].contiguous())
    assert all(map(torch.equal, got, want))
    assert got[6].tolist() == [3, 9, 1, 20]
    one = ops.build_tree(logprobs, ids, 20, torch.tensor([5]).expand(4))
    assert one[6].tolist() == [5] * 4


def test_a_fault_in_a_buffer_call_is_named() -> None:
    logprobs, ids = draft(2, 4, 5)
    logprobs[1, 2, 1] = float("nan")
    with pytest.raises(ValueError, match=r"build_tree_out: logprobs\[1, 2, 1\] = nan is NaN"):
        ops.build_tree_out(logprobs, ids, None, None, *buffers(2, 9))
    # What a request's own budget does not use is not looked at.
    assert ops.build_tree(logprobs, ids, 8, torch.tensor([8, 1]))[6].tolist() == [8, 1]


def test_the_op_is_ten_times_as_fast_as_a_heap_in_python() -> None:
    """One op call, 32 requests of 15 levels, 64 nodes each, against a heap that gives the same.
    Each is the best of many, so that a busy machine disturbs neither."""
    logprobs, ids = draft(32, 15, 64)
    table, tokens = logprobs[0].tolist(), ids[0].tolist()
    built = ops.build_tree(logprobs, ids, 64)
    assert heap(table, tokens, 64)[:3] == tuple(built[at][0].tolist() for at in range(3))

    def best(repetitions: int, call: Callable[[], object]) -> float:
        least = float("inf")
        for _ in range(repetitions):
            start = time.perf_counter()
            call()
            least = min(least, time.perf_counter() - start)
        return least

    python = best(200, lambda: heap(table, tokens, 64))
    op = best(200, lambda: ops.build_tree(logprobs, ids, 64)) / 32
    assert python >= 10 * op, f"{python * 1e6:.1f} us against {op * 1e6:.1f} us a request"


def heap(
    table: list[list[float]], ids: list[list[int]], budget: int
) -> tuple[list[int], list[int], list[int], list[dict[int, int]], list[int]]:
    """Best-first in plain Python: tokens, parents, depths, children by token, ancestors as bits."""
    waiting: list[tuple[float, tuple[int, ...], int]] = [(-table[0][0], (0,), 0)]
    tokens, parents, depths, children, ancestors = [-1], [-1], [0], [dict[int, int]()], [1]
    while waiting and len(tokens) <= budget:
        negated, path, parent = heapq.heappop(waiting)
        level, rank, node = len(path) - 1, path[-1], len(tokens)
        tokens.append(ids[level][rank])
        parents.append(parent)
        depths.append(level + 1)
        children.append({})
        children[parent][tokens[-1]] = node
        ancestors.append(ancestors[parent] | 1 << node)
        if rank + 1 < len(table[level]):
            step = table[level][rank] - table[level][rank + 1]
            heapq.heappush(waiting, (negated + step, (*path[:-1], rank + 1), parent))
        if level + 1 < len(table):
            heapq.heappush(waiting, (negated - table[level + 1][0], (*path, 0), node))
    return tokens, parents, depths, children, ancestors


@pytest.mark.parametrize("lengths", [torch.int32, torch.int64])
@pytest.mark.parametrize("budget", [1, 12, 64, 130])
def test_places_the_mask_and_the_positions(lengths: Any, budget: int) -> None:
    _, _, depths, _, _, ancestors, *_ = tree(3, budget)
    for prefixes, extra in (([0, 0, 0], 0), ([5, 0, 31], 7), ([1000, 16, 15], 1)):
        prefix_lens = torch.tensor(prefixes, dtype=lengths)
        numel = mask_numel(sum(prefixes), 3, budget + 1) + extra
        want = full_mask(ancestors, prefix_lens, numel)
        for shift in (0, 1, 7):  # the mask may start anywhere
            memory = torch.zeros(numel + shift + 9, dtype=torch.bool)
            positions = torch.full_like(depths, SENTINEL)
            view = memory[shift : shift + numel]
            assert ops.place_tree(ancestors, depths, prefix_lens, view, positions) is None
            assert torch.equal(view, want)
            assert not memory[:shift].any()
            assert not memory[shift + numel :].any()
            assert torch.equal(positions, prefix_lens.to(INTS)[:, None] + depths)


def test_places_strided_views() -> None:
    _, _, depths, _, _, ancestors, *_ = tree()
    prefixes = torch.tensor([4, -1, 0, -1, 9, -1], dtype=torch.int32)[::2]
    numel = mask_numel(13, 3, 13)
    mask, positions = torch.empty(numel, dtype=torch.bool), torch.empty_like(depths)
    ops.place_tree(
        ancestors.transpose(0, 1).contiguous().transpose(0, 1),
        torch.stack([depths, depths], 2)[:, :, 0],
        prefixes,
        mask,
        positions,
    )
    assert torch.equal(mask, full_mask(ancestors, prefixes, numel))
    assert torch.equal(positions, prefixes.to(INTS)[:, None] + depths)


def test_bad_lengths_are_refused_before_anything_is_written() -> None:
    _, _, depths, _, _, ancestors, *_ = tree()
    numel = mask_numel(9, 3, 13)
    mask, positions = torch.zeros(numel, dtype=torch.bool), torch.full_like(depths, SENTINEL)
    for prefixes, text in (
        ([0, -1, 9], r"prefix_lens\[1\] must be 0..2147483647, got -1"),
        ([0, 0, 2**40], r"prefix_lens\[2\] must be 0..2147483647, got 1099511627776"),
        ([1, 0, 9], f"mask must have at least {numel + 13} elements .* got {numel}"),
    ):
        with pytest.raises(ValueError, match=text):
            ops.place_tree(ancestors, depths, torch.tensor(prefixes), mask, positions)
    assert not mask.any()
    assert (positions == SENTINEL).all()
