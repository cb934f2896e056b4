"""csrc/ on this machine: the CPU op's core and the kernel (32 emulated lanes) against the
reference. `check` compares every element of every output."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_overlay.tree.reference import build_tree, pack_words
from tests.overlay.conftest import OVERLAY
from tests.overlay.native_tree import NativeTree, Output
from tests.overlay.trees import (
    NEVER,
    Table,
    brute_force,
    float32,
    grid_table,
    seeded,
    softmax_table,
    token_table,
    units_to_float32,
)


def want(table: Table, ids: list[list[int]], budget: int) -> Output:
    tree = build_tree(table, ids, budget)
    return Output(
        tokens=tree.tokens,
        parents=tree.parents,
        depths=tree.depths,
        first_child=tree.first_child,
        next_sibling=tree.next_sibling,
        ancestors=[pack_words(bits, budget) for bits in tree.ancestors],
        count=tree.count,
        scores=[-131072.0 if s is None else units_to_float32(s) for s in tree.score_units],
        exact=tree.exact,
    )


def check(native: NativeTree, tables: list[Table], budget: int, *, seeds: int = 1) -> list[Output]:
    """Single lane and warp, contiguous and strided, give exactly the reference's outputs."""
    ids = [token_table(len(table), len(table[0])) for table in tables]
    expected = [want(table, row, budget) for table, row in zip(tables, ids, strict=True)]
    assert native.single(tables, ids, budget) == expected
    assert native.single(tables, ids, budget, strided=True) == expected
    for seed in range(seeds):
        assert native.warp(tables, ids, budget, seed=seed, strided=seed % 2 == 1) == expected
    return expected


@pytest.mark.parametrize(("levels", "ranks"), [(1, 6), (6, 1), (3, 5), (6, 6)])
@pytest.mark.parametrize("steps", [1, 3, 40])
def test_equals_brute_force(native: NativeTree, levels: int, ranks: int, steps: int) -> None:
    """Without the reference in between: its mistakes must not be ours."""
    table = grid_table(levels, ranks, steps, seeded(f"{levels} {ranks} {steps}"))
    ids = token_table(levels, ranks)
    ranked = brute_force(table, 70)
    for budget in (1, 7, 70):
        paths = ranked[:budget]
        index = {path: i for i, path in enumerate([(), *paths])}
        for run in (native.single, native.warp):
            output = run([table], [ids], budget)[0]
            assert output.count == len(paths)
            assert output.parents[1 : len(paths) + 1] == [index[path[:-1]] for path in paths]
            assert output.tokens[1 : len(paths) + 1] == [
                1000 * len(path) + path[-1] for path in paths
            ]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_random_trees(native: NativeTree, data: st.DataObject) -> None:
    levels, ranks = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 9))
    value = st.one_of(
        st.sampled_from([0.0, -0.0, -0.5, -1.0, NEVER, -131071.0, -131072.0, -3.0e38, -1e-42]),
        st.floats(-20, 0, width=32),
    )
    row = st.lists(value, min_size=ranks, max_size=ranks).map(lambda v: sorted(v, reverse=True))
    table = st.lists(row, min_size=levels, max_size=levels)
    tables = data.draw(st.lists(table, min_size=1, max_size=3))
    check(native, tables, data.draw(st.integers(1, 40)))


@pytest.mark.parametrize(
    ("levels", "ranks", "budget"),
    [
        *((15, 16, 16), (15, 64, 64), (31, 64, 256), (31, 3, 256), (2, 64, 256)),
        *((15, 100, 33), (63, 5, 63), (7, 40, 31), (7, 40, 32), (7, 40, 64), (7, 40, 65)),
    ],
)
def test_serving_shapes(native: NativeTree, levels: int, ranks: int, budget: int) -> None:
    random_ = seeded(f"{levels} {ranks} {budget}")
    sharp = softmax_table(levels, ranks, random_, sharpness=5.0)
    flat = softmax_table(levels, ranks, random_, sharpness=0.1)
    check(native, [sharp, flat], budget)


def test_largest_budget(native: NativeTree) -> None:
    table = softmax_table(15, 64, seeded(1))
    ids = token_table(15, 64)
    assert native.single([table], [ids], 1024) == [want(table, ids, 1024)]


ADVERSARIAL: dict[str, tuple[Table, int]] = {
    "all certain": ([[0.0] * 5] * 4, 50),
    "all equal": ([[-2.5] * 40] * 9, 128),
    "one hot": ([[0.0] + [NEVER] * 7] * 12, 40),
    "nothing": ([[NEVER] * 3] * 3, 8),
    "nothing after the first level": ([[-1.0, -2.0], [NEVER, NEVER], [-0.1, -0.2]], 8),
    "budget below the block": (softmax_table(15, 8, seeded(2)), 5),
    "budget 1": (softmax_table(15, 8, seeded(3)), 1),
    "a chain": ([[-0.5]] * 15, 15),
    "a chain shorter than the budget": ([[-0.5]] * 3, 64),
    "one level": (softmax_table(1, 64, seeded(4)), 64),
    "one level, one rank": ([[-0.25]], 1),
    "small vocabulary, padded": ([[-0.1, -3.0] + [NEVER] * 14] * 6, 60),
    "falling staircase": ([[-float(r) for r in range(16)]] * 8, 100),
    "hardly below zero": ([[-0.0, -1e-45, -1e-38, -1e-13, -1e-12]] * 5, 60),
    "as deep and as unlikely as can be": ([[-131071.99] * 2] * 63, 200),
    "neighbours in fp32": ([[-1.0, -1.0000001, -1.0000002]] * 6, 90),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial(native: NativeTree, name: str) -> None:
    table, budget = ADVERSARIAL[name]
    rounded = [[float32(value) if value != NEVER else value for value in row] for row in table]
    check(native, [rounded], budget, seeds=3)


def test_order_of_the_lanes_does_not_matter(native: NativeTree) -> None:
    """A missing barrier shows as a difference between schedules."""
    random_ = seeded(5)
    for seed in range(25):
        tables = [grid_table(random_.randrange(1, 7), 9, 4, random_)]
        ids = [token_table(len(tables[0]), 9)]
        budget = random_.randrange(30, 80)
        assert native.warp(tables, ids, budget, seed=seed) == native.single(tables, ids, budget)


def test_duplicate_token_ids_are_kept_apart(native: NativeTree) -> None:
    """Nodes are rank tuples; what a token id is does not enter the selection."""
    table = softmax_table(4, 6, seeded(6))
    ids = [[7] * 6] * 4
    assert native.single([table], [ids], 20) == [want(table, ids, 20)]


def test_requests_of_a_batch_do_not_mix(native: NativeTree) -> None:
    random_ = seeded(7)
    check(native, [softmax_table(5, 7, random_) for _ in range(5)], 21)


@pytest.mark.parametrize(
    ("value", "code"), [(math.nan, 1), (0.25, 2), (-0.5, 3)], ids=["nan", "positive", "unsorted"]
)
def test_faults_name_the_first_element(native: NativeTree, value: float, code: int) -> None:
    """counts = -(4 * (level * ranks + rank) + code), a root alone, and the neighbours unharmed."""
    good = [[-1.0, -2.0, -3.0] for _ in range(3)]
    bad = [list(row) for row in good]
    bad[1][2] = value
    bad[2][0] = math.nan
    ids = token_table(3, 3)
    for run in (native.single, native.warp):
        before, faulty, after = run([good, bad, good], [ids] * 3, 9)
        assert before == after == want(good, ids, 9)
        assert faulty.count == -(4 * (1 * 3 + 2) + code)
        assert not faulty.exact
        assert faulty.tokens == [-1] + [0] * 9
        assert faulty.first_child == [-1] * 10
        assert faulty.ancestors == [[1 << i] for i in range(10)]


def test_ranks_beyond_the_budget_are_not_read(native: NativeTree) -> None:
    table = [[-1.0, -2.0, math.nan], [-1.0, -1.5, math.nan]]
    output = native.single([table], [token_table(2, 3)], 2)[0]
    assert (output.count, output.exact) == (2, True)


def test_workspace_fits_sm_120s_shared_memory(native: NativeTree) -> None:
    """99 KiB a block on sm_120; the largest shape that the appliance configures."""
    assert native.workspace_bytes(31, 64, 256) <= 48 * 1024
    assert native.workspace_bytes(15, 64, 1024) <= 99 * 1024


# Each breaks the algorithm in one place; the checks above must see it, or they prove nothing.
MUTATIONS = {
    "tie goes to the higher index": ("b.index < a.index", "b.index > a.index"),
    "sibling before child": (
        "put_entry(work, top.index, child, node, 0);",
        "put_entry(work, top.index + 1, child, node, 0);",
    ),
    "sibling scored from the node": (
        "extend(work.node_score[parent], level",
        "extend(top.score, level",
    ),
    "depth off by one": ("depth < args.levels ?", "depth + 1 < args.levels ?"),
    "row without itself": (
        "for (int at = node; at >= 0;",
        "for (int at = work.node_parent[node]; at >= 0;",
    ),
    "sibling link dropped": (
        "(rank == 0 ? work.node_child : work.node_sibling)[prev]",
        "work.node_child[prev]",
    ),
    "certificate always given": ("if (ranks < args.budget) {", "if (ranks < 0) {"),
    "absent tokens taken": ("|| value <= kAbsentLogprob", ""),
    "token of the level above": (
        "(work.node_depth[node] - 1) *",
        "(work.node_depth[node] / 2) *",
    ),
    "padding sees the root": (
        "at = selected ? work.node_parent[at] : kNone",
        "at = selected ? work.node_parent[at] : at > 0 ? 0 : kNone",
    ),
}
# Each takes one barrier away, which a single lane cannot notice.
RACES = {
    "written before all have read": (
        "child != kAbsentScore && sibling != kAbsentScore;\n    lanes.sync();",
        "child != kAbsentScore && sibling != kAbsentScore;",
    ),
    "moved before all have read": (
        "rank = work.entry_rank[i];\n    }\n    lanes.sync();",
        "rank = work.entry_rank[i];\n    }",
    ),
    "read before it is written": ("if (both) ++size;\n    lanes.sync();", "if (both) ++size;"),
    "a lane that stays behind": (
        "if (top.score == kAbsentScore) break;",
        "if (top.score == kAbsentScore || (lanes.lane() == 31 && node > 2)) break;",
    ),
}


def mutate(old: str, new: str, target: Path) -> NativeTree:
    csrc = target / "csrc"
    shutil.copytree(OVERLAY / "csrc", csrc)
    header = csrc / "tree_core.h"
    text = header.read_text()
    assert text.count(old) == 1
    header.write_text(text.replace(old, new))
    return NativeTree.compile(csrc, target)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_algorithm_is_seen(native: NativeTree, name: str, tmp_path: Path) -> None:
    broken = mutate(*MUTATIONS[name], tmp_path)
    random_ = seeded(8)
    tables = [grid_table(4, 5, 4, random_) for _ in range(3)]
    tables.append([[-0.125, *[-131072.0] * 4]] * 4)
    ids = [token_table(4, 5)] * len(tables)
    outputs = broken.single(tables, ids, 40) + broken.single(tables, ids, 5)
    expected = native.single(tables, ids, 40) + native.single(tables, ids, 5)
    assert expected == [want(table, ids[0], budget) for budget in (40, 5) for table in tables]
    assert outputs != expected


@pytest.mark.parametrize("name", RACES)
def test_a_missing_barrier_is_seen(native: NativeTree, name: str, tmp_path: Path) -> None:
    broken = mutate(*RACES[name], tmp_path)
    # Mixed scores on four levels move many entries. With two levels and an unlikely second token
    # the best entry is the last one: nothing is moved, so no other barrier stands in for the
    # missing one.
    moving = softmax_table(4, 33, seeded(9))
    still = [[-float(r) / 8 for r in range(33)], [-64.0] * 33]
    assert not all(_survives(native, broken, table) for table in (moving, still))


def _survives(native: NativeTree, broken: NativeTree, table: Table) -> bool:
    """Whether every schedule gives the right tree; on one lane even a broken one must."""
    ids = [token_table(len(table), len(table[0]))]
    expected = native.single([table], ids, 80)
    assert native.warp([table], ids, 80) == expected
    assert broken.single([table], ids, 80) == expected
    try:
        return all(broken.warp([table], ids, 80, seed=seed) == expected for seed in range(5))
    except AssertionError:  # the lanes diverged
        return False
