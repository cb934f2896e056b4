"""The Python tree against brute force and against its own definition."""

from __future__ import annotations

import heapq
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_overlay.tree.reference import Tree, build_tree, pack_words, to_units, visibility
from tests.overlay.trees import NEVER, brute_force, grid_table, seeded, softmax_table, token_table

SMALL = [(1, 1), (1, 6), (6, 1), (2, 2), (3, 5), (5, 3), (4, 6), (6, 4), (6, 6)]


def tree_of(table: list[list[float]], budget: int) -> Tree:
    return build_tree(table, token_table(len(table), len(table[0])), budget)


def paths_of(tree: Tree) -> list[tuple[int, ...]]:
    return tree.ranks[1 : tree.count + 1]


@pytest.mark.parametrize(("levels", "ranks"), SMALL)
@pytest.mark.parametrize("steps", [1, 3, 40])
def test_equals_brute_force(levels: int, ranks: int, steps: int) -> None:
    random_ = seeded(f"{levels} {ranks} {steps}")
    table = grid_table(levels, ranks, steps, random_)
    ranked = brute_force(table, 300)
    for budget in (1, 2, 7, 64, 300):
        assert paths_of(tree_of(table, budget)) == ranked[:budget]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_equals_brute_force_with_absent_tokens(data: st.DataObject) -> None:
    levels, ranks = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    value = st.sampled_from([0.0, -0.125, -0.25, -0.5, -1.0, -3.0, NEVER])
    row = st.lists(value, min_size=ranks, max_size=ranks).map(lambda v: sorted(v, reverse=True))
    table = data.draw(st.lists(row, min_size=levels, max_size=levels))
    budget = data.draw(st.integers(1, 400))
    assert paths_of(tree_of(table, budget)) == brute_force(table, budget)


@pytest.mark.parametrize("seed", range(20))
def test_large_trees_are_optimal_in_fp64(seed: int) -> None:
    """A heap of its own, in fp64, without the tie rule: equal expected length, and a certificate
    that nothing on the frontier beats what was taken."""
    random_ = seeded(seed)
    levels, ranks, budget = random_.randrange(2, 32), random_.randrange(2, 65), 256
    table = softmax_table(levels, ranks, random_)
    tree = tree_of(table, budget)
    chosen = set(paths_of(tree))

    def score(path: tuple[int, ...]) -> float:
        return math.fsum(table[level][rank] for level, rank in enumerate(path))

    heap: list[tuple[float, tuple[int, ...]]] = [(-score((0,)), (0,))]
    expected = 1.0
    for _ in range(tree.count):
        negated, path = heapq.heappop(heap)
        expected += math.exp(-negated)
        for successor in ((*path[:-1], path[-1] + 1), (*path, 0)):
            if successor[-1] < ranks and len(successor) <= levels:
                heapq.heappush(heap, (-score(successor), successor))
    ours = 1.0 + math.fsum(math.exp(score(path)) for path in chosen)
    assert ours == pytest.approx(expected, rel=1e-12)

    for path in chosen:
        assert path[:-1] in chosen or len(path) == 1
        assert path[-1] == 0 or (*path[:-1], path[-1] - 1) in chosen
    frontier = {(*p[:-1], p[-1] + 1) for p in chosen} | {(*p, 0) for p in chosen}
    excluded = [score(p) for p in frontier - chosen if p[-1] < ranks and len(p) <= levels]
    worst = min(map(score, chosen))
    assert not excluded or worst >= max(excluded) - 1e-9


@pytest.mark.parametrize("seed", range(10))
def test_links_masks_and_depths_follow_from_parents(seed: int) -> None:
    random_ = seeded(seed)
    levels, ranks = random_.randrange(1, 9), random_.randrange(1, 9)
    tree = tree_of(grid_table(levels, ranks, 12, random_), random_.randrange(1, 200))
    width = len(tree.parents)
    mask = visibility(tree)
    for node in range(width):
        reachable = {node}
        at = node
        while tree.parents[at] >= 0:
            at = tree.parents[at]
            reachable.add(at)
        assert {j for j in range(width) if mask[node][j]} == reachable
        if node <= tree.count:
            assert tree.depths[node] == len(reachable) - 1 == len(tree.ranks[node])
        children = [i for i in range(width) if tree.parents[i] == node]
        walked, child = [], tree.first_child[node]
        while child >= 0:
            walked.append(child)
            child = tree.next_sibling[child]
        assert walked == children
        assert [tree.ranks[i][-1] for i in walked] == list(range(len(walked)))


def test_tokens_are_those_of_level_and_rank() -> None:
    tree = tree_of([[-0.5, -1.0], [-0.25, -2.0]], 4)
    assert tree.ranks[1:] == [(0,), (0, 0), (1,), (1, 0)]
    assert tree.tokens == [-1, 1000, 2000, 1001, 2000]


def test_prefix_comes_before_its_extensions_and_ties_go_left() -> None:
    tree = tree_of([[0.0, 0.0], [0.0, 0.0]], 6)
    assert tree.ranks[1:] == [(0,), (0, 0), (0, 1), (1,), (1, 0), (1, 1)]


@pytest.mark.parametrize("seed", range(40))
def test_certificate_means_that_more_ranks_change_nothing(seed: int) -> None:
    """The table is cut to K ranks; where the cut is certified, the whole table gives that tree."""
    random_ = seeded(seed)
    levels, budget = random_.randrange(1, 6), random_.randrange(2, 40)
    whole = softmax_table(levels, 40, random_, sharpness=4.0)
    certified = 0
    for ranks in range(1, 40):
        cut = tree_of([row[:ranks] for row in whole], budget)
        used_last = any(path[-1] == ranks - 1 for path in paths_of(cut))
        assert cut.exact == (ranks >= budget or not used_last)
        if cut.exact:
            certified += 1
            assert paths_of(cut) == paths_of(tree_of(whole, budget))
    assert certified > 0


def test_fewer_nodes_than_the_budget() -> None:
    tree = tree_of([[-1.0, -2.0], [-1.0, NEVER]], 9)
    assert tree.count == 4
    assert tree.ranks[1:5] == [(0,), (0, 0), (1,), (1, 0)]
    assert tree.tokens[5:] == [0] * 5
    assert tree.parents[5:] == tree.first_child[5:] == tree.next_sibling[5:] == [-1] * 5
    assert tree.depths[5:] == [0] * 5
    assert tree.ancestors[5:] == [1 << i for i in range(5, 10)]
    assert not tree.exact


def test_nothing_but_absent_tokens_is_a_root_alone() -> None:
    tree = tree_of([[NEVER, NEVER], [-1.0, -1.0]], 3)
    assert (tree.count, tree.exact) == (0, True)
    assert tree.ancestors == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("table", "budget", "text"),
    [
        ([[math.nan]], 1, "NaN"),
        ([[0.5]], 1, "positive"),
        ([[-2.0, -1.0]], 2, "greater than that of the rank before"),
        ([[-1.0]], 0, "budget must be 1"),
        ([[-1.0]], 1025, "budget must be 1"),
        ([], 1, "levels must be 1"),
        ([[-1.0]] * 64, 1, "levels must be 1"),
        ([[]], 1, "ranks at least 1"),
        ([[-1.0], [-1.0, -2.0]], 1, "ranks at least 1"),
    ],
)
def test_bad_input_is_refused(table: list[list[float]], budget: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build_tree(table, [[0] * len(row) for row in table], budget)


def test_fixed_point_is_exact_where_it_says_so() -> None:
    assert to_units(-1.0) == -(2**40)
    assert to_units(-(2.0**-17) * (1 + 2.0**-23)) == -(2**23 + 1)
    assert to_units(-(2.0**-41)) == 0
    assert to_units(-131071.0) == -131071 * 2**40
    assert to_units(-131072.0) is None
    assert to_units(NEVER) is None


def test_words_are_signed_and_little_endian() -> None:
    assert pack_words(1 << 63 | 5, 63) == [-(2**63) + 5]
    assert pack_words(1 << 64, 64) == [0, 1]
