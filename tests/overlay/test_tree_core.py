"""csrc/ on this machine: the CPU op's core and the kernel (32 emulated lanes) against the
reference. `check` compares every element of every output."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_overlay.tree.reference import build_tree, pack_words
from tests.overlay.conftest import OVERLAY
from tests.overlay.native_tree import NativeTree, Output, holds, mutated
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


def want(
    table: Table, ids: list[list[int]], budget: int, *, own: int | None = None, root: int = -1
) -> Output:
    """The reference's tree of a request whose own budget is `own`, padded to `budget`."""
    own = budget if own is None else min(max(own, 0), budget)
    padding = budget - own
    ancestors = [1 << index for index in range(budget + 1)]
    if own == 0:
        alone = [-1] * (1 + padding)
        return Output(
            tokens=[root] + [0] * padding,
            parents=alone,
            depths=[0] * (1 + padding),
            first_child=alone,
            next_sibling=alone,
            ancestors=[pack_words(bits, budget) for bits in ancestors],
            count=0,
            scores=[0.0] + [-131072.0] * padding,
            exact=True,
        )
    tree = build_tree(table, ids, own)
    ancestors[: own + 1] = tree.ancestors
    scores = [-131072.0 if s is None else units_to_float32(s) for s in tree.score_units]
    return Output(
        tokens=[root, *tree.tokens[1:]] + [0] * padding,
        parents=tree.parents + [-1] * padding,
        depths=tree.depths + [0] * padding,
        first_child=tree.first_child + [-1] * padding,
        next_sibling=tree.next_sibling + [-1] * padding,
        ancestors=[pack_words(bits, budget) for bits in ancestors],
        count=tree.count,
        scores=scores + [-131072.0] * padding,
        exact=tree.exact,
    )


def check(
    native: NativeTree,
    tables: list[Table],
    budget: int,
    *,
    seeds: int = 1,
    budgets: list[int] | None = None,
    roots: list[int] | None = None,
) -> list[Output]:
    """Single lane and warp, contiguous and strided, give exactly the reference's outputs."""
    ids = [token_table(len(table), len(table[0])) for table in tables]
    expected = [
        want(
            table,
            ids[i],
            budget,
            own=budgets[i] if budgets else None,
            root=roots[i] if roots else -1,
        )
        for i, table in enumerate(tables)
    ]
    for strided in (False, True):
        got = native.single(tables, ids, budget, strided, budgets=budgets, roots=roots)
        assert got == expected
    for seed in range(seeds):
        got = native.warp(tables, ids, budget, seed, seed % 2 == 1, budgets=budgets, roots=roots)
        assert got == expected
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
    budget = data.draw(st.integers(1, 40))
    per_request = st.lists(st.integers(-2, 42), min_size=len(tables), max_size=len(tables))
    budgets = data.draw(st.none() | per_request)
    check(native, tables, budget, budgets=budgets, roots=data.draw(st.none() | per_request))


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


def test_each_request_has_its_own_budget_and_root(native: NativeTree) -> None:
    """With fewer ranks than some budgets and more than others, for both kinds of certificate."""
    random_ = seeded(10)
    tables = [softmax_table(4, 6, random_, sharpness=0.3) for _ in range(9)]
    budgets = [0, 1, 5, 6, 7, 20, 40, -3, 2**40]
    roots = [7, -1, 0, 2**40, 11, 12, 13, 14, 15]
    outputs = check(native, tables, 40, seeds=2, budgets=budgets, roots=roots)
    assert [output.count for output in outputs] == [0, 1, 5, 6, 7, 20, 40, 0, 40]
    assert [output.exact for output in outputs[:4]] == [True] * 4
    assert not all(output.exact for output in outputs)


def test_what_an_own_budget_cannot_use_is_not_read(native: NativeTree) -> None:
    table = [[-1.0, -2.0, math.nan], [-1.0, -1.5, 0.5]]
    nothing = [[math.nan] * 3] * 2
    ids = [token_table(2, 3)] * 3
    for run in (native.single, native.warp):
        outputs = run([table, nothing, table], ids, 8, budgets=[2, 0, 3])
        assert [output.count for output in outputs] == [2, 0, -(4 * 2 + 1)]
        assert [output.exact for output in outputs] == [True, True, False]


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
    """99 KiB a block on sm_120; the largest shape that DDTREE lets through, and a usual one."""
    assert native.workspace_bytes(63, 64, 1024) <= 99 * 1024
    assert native.workspace_bytes(31, 64, 256) <= 48 * 1024


# Each breaks the algorithm in one place; the checks above must see it, or they prove nothing.
MUTATIONS = {
    "tie goes to the later place": ("b.key < a.key", "b.key > a.key"),
    "no room made behind a pop": ("> taken ? kSlots : 0", "> taken ? 0 : 0"),
    "sibling two places on": ("top.key - slot + size", "top.key - slot + size + kSlots"),
    "sibling scored from the node": (
        "extend(top.score - level[rank], level",
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
    "certificate always given": ("if (ranks < budget) {", "if (ranks < 0) {"),
    "certificate by the launch's budget": (
        "if (ranks < budget) {",
        "if (ranks < args.budget) {",
    ),
    "absent tokens taken": ("logprob > kAbsentLogprob && logprob", "logprob"),
    "a level's ranks read again": ("rank -= ranks;\n        ++level;", "rank -= ranks;"),
    "own budget ignored": ("return own < 0 ? 0", "return own < 99 ? args.budget"),
    "root of the first request": ("request * args.roots_stride", "0 * request"),
    "token of the level above": (
        "(work.node_depth[node] - 1) *",
        "(work.node_depth[node] / 2) *",
    ),
    "padding sees the root": (
        "at = selected ? work.node_parent[at] : kNone",
        "at = selected ? work.node_parent[at] : at > 0 ? 0 : kNone",
    ),
}
# Each lets lanes share what only one of them may touch, which a single lane cannot notice.
RACES = {
    "read before the last node is written": (
        "faulty ? 0 : budget, work);\n  lanes.sync();",
        "faulty ? 0 : budget, work);",
    ),
    "an entry put by another lane than reads it": (
        "lane == size % Lanes::kWidth",
        "leader",
    ),
    "an entry changed by another lane than reads it": (
        "if (lane == owner) {",
        "if (leader) {",
    ),
    "an entry read by another lane than writes it": (
        "lanes.from(lane == owner ? work.entry_place[slot] : 0, owner)",
        "work.entry_place[slot]",
    ),
    "a lane that stays behind": (
        "if (top.score == kAbsentScore) break;",
        "if (top.score == kAbsentScore || (lane == 31 && node > 2)) break;",
    ),
}


def mutate(old: str, new: str, target: Path) -> NativeTree:
    return NativeTree.compile(mutated(OVERLAY / "csrc", target, "tree_core.h", old, new), target)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_algorithm_is_seen(native: NativeTree, name: str, tmp_path: Path) -> None:
    broken = mutate(*MUTATIONS[name], tmp_path)
    random_ = seeded(8)
    tables = [grid_table(4, 5, 4, random_) for _ in range(3)]
    tables.append([[-0.125, *[-131072.0] * 4]] * 4)
    tables.append([[-float(r) for r in range(5)], *[[-131072.0] * 5] * 3])
    ids = [token_table(4, 5)] * len(tables)
    # More values than lanes, on a chain to the last level.
    deep = [[-(level + 1) / 8, *[-9.0] * 4] for level in range(9)]
    own, roots = [40, 3, 20, 40, 3], [5, 6, 7, 8, 9]

    def run(library: NativeTree) -> list[Output]:
        return [
            *library.single(tables, ids, 40, budgets=own, roots=roots),
            *library.single(tables, ids, 5),
            *library.warp(tables, ids, 5),
            *library.warp([deep], [token_table(9, 5)], 12),
        ]

    expected = [
        want(table, row, 40, own=b, root=r)
        for table, row, b, r in zip(tables, ids, own, roots, strict=True)
    ]
    expected += 2 * [want(table, ids[0], 5) for table in tables]
    expected.append(want(deep, token_table(9, 5), 12))
    assert run(native) == expected
    assert not holds(lambda: run(broken) == expected)


@pytest.mark.parametrize("name", RACES)
def test_a_missing_barrier_is_seen(native: NativeTree, name: str, tmp_path: Path) -> None:
    broken = mutate(*RACES[name], tmp_path)
    # Mixed scores on four levels, and two levels with an unlikely second token, where the best
    # entry is the last one.
    moving = softmax_table(4, 33, seeded(9))
    still = [[-float(r) / 8 for r in range(33)], [-64.0] * 33]
    assert not all(_survives(native, broken, table) for table in (moving, still))


def _survives(native: NativeTree, broken: NativeTree, table: Table) -> bool:
    """Whether every schedule gives the right tree; on one lane even a broken one must."""
    ids = [token_table(len(table), len(table[0]))]
    expected = native.single([table], ids, 80)
    assert native.warp([table], ids, 80) == expected
    assert broken.single([table], ids, 80) == expected
    return holds(
        lambda: all(broken.warp([table], ids, 80, seed=seed) == expected for seed in range(5))
    )
