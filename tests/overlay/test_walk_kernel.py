"""csrc/walk_tree.cu on emulated blocks: the walks by a dictionary, the argmax and the sums in plain
Python."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.overlay.compiler import require_compiler
from tests.overlay.conftest import OVERLAY
from tests.overlay.native_tree import holds, mutated
from tests.overlay.native_walk import (
    BF16,
    FP16,
    FP32,
    INFINITY,
    NAN,
    NativeWalk,
    Rows,
    argmax,
    count,
    walk,
)
from tests.overlay.trees import seeded

Ints = list[list[int]]
KINDS = pytest.mark.parametrize("kind", [BF16, FP16, FP32], ids=["bf16", "fp16", "fp32"])
# Exact in all three types; the last is a subnormal of fp16.
VALUES = (0.0, -0.0, 1.0, 1.5, -2.0, 3.0, 100.0, -100.0, 2.0**-24)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeWalk]:
    require_compiler()
    yield NativeWalk(OVERLAY / "csrc", tmp_path_factory.mktemp("walk"))


def random_tree(width: int, vocabulary: int, random_: Random) -> tuple[list[int], list[int]]:
    """Tokens and parents, with padding; few tokens, so that siblings share one."""
    nodes = random_.randrange(width)
    depth = random_.choice((1, 3, width))
    parents = [-1, *(random_.randrange(max(0, i - depth), i) for i in range(1, nodes + 1))]
    tokens = [random_.randrange(vocabulary) for _ in range(nodes + 1)]
    padding = width - 1 - nodes
    return tokens + [0] * padding, parents + [-1] * padding


def random_batch(random_: Random) -> tuple[Ints, Ints, Ints, int]:
    """Tokens, parents, target ids and columns."""
    width = random_.choice((1, 2, 3, 5, 17, 33, 65, 70))
    vocabulary = random_.choice((1, 2, 3, 9))
    trees = [random_tree(width, vocabulary, random_) for _ in range(random_.randrange(1, 4))]
    target = [[random_.randrange(vocabulary) for _ in range(width)] for _ in trees]
    columns = min(width, random_.choice((1, 2, 8, 16, width)))
    return [tree[0] for tree in trees], [tree[1] for tree in trees], target, columns


def check_by_ids(native: NativeWalk, random_: Random, rounds: int) -> bool:
    for seed in range(rounds):
        tokens, parents, target, columns = random_batch(random_)
        rows = zip(tokens, parents, target, strict=True)
        want = [walk(*row, columns) for row in rows]
        if native.by_ids(tokens, parents, target, columns, seed=seed, step=1 + seed % 2) != want:
            return False
    return True


def check_by_logits(native: NativeWalk, random_: Random, rounds: int, kind: int) -> bool:
    """Both kernels that read logits. What is around a row is NaN, which would win."""
    for seed in range(rounds):
        vocabulary = random_.randrange(1, 40)
        width, batch = random_.choice((1, 3, 17)), random_.randrange(1, 3)
        trees = [random_tree(width, vocabulary, random_) for _ in range(batch)]
        values = [random_row(vocabulary, random_) for _ in range(batch * width)]
        for (tokens, parents), first in zip(trees, range(0, batch * width, width), strict=True):
            for node, parent in enumerate(parents):
                if parent >= 0 and random_.random() < 0.6:
                    tokens[node] = argmax(values[first + parent])
        layout = {"offset": random_.randrange(9), "gap": random_.randrange(9)}
        rows = Rows(values, width, kind, **layout)
        ids = native.argmax_rows(rows, batch, width, seed=seed)
        if ids != [argmax(row) for row in values]:
            return False
        columns = random_.randrange(1, width + 1)
        all_tokens, all_parents = [list(each) for each in zip(*trees, strict=True)]
        want = [
            walk(tokens, parents, ids[i * width : (i + 1) * width], columns)
            for i, (tokens, parents) in enumerate(trees)
        ]
        got = native.by_logits(all_tokens, all_parents, rows, columns, seed=seed, step=1 + seed % 2)
        if got != want:
            return False
    return True


def random_row(vocabulary: int, random_: Random) -> list[float]:
    values: tuple[float, ...] = VALUES
    if random_.random() < 0.3:
        values += (-INFINITY, INFINITY, NAN, -NAN)
    if random_.random() < 0.1:
        values = (-INFINITY,)
    return [random_.choice(values) for _ in range(vocabulary)]


def check_counts(native: NativeWalk, random_: Random, rounds: int) -> bool:
    for seed in range(rounds):
        tokens, parents, target, columns = random_batch(random_)
        batch, width = len(tokens), len(tokens[0])
        first_child = []
        for row in parents:
            best = [-1] * width
            for node in range(width - 1, 0, -1):
                if row[node] >= 0:
                    best[row[node]] = node
            first_child.append(best)
        # Half of the targets follow the first child, so that paths leave the spine late.
        for i in range(batch):
            for node, child in enumerate(first_child[i]):
                if child >= 0 and random_.random() < 0.5:
                    target[i][node] = tokens[i][child]
        walks = [walk(*row, columns) for row in zip(tokens, parents, target, strict=True)]
        nodes = [random_.choice((-9, 0, 1, width - 1)) for _ in range(batch)]
        exact = [random_.random() < 0.5 for _ in range(batch)]
        path, accepted = [walked.path for walked in walks], [walked.accepted for walked in walks]
        want = [10, 20, 30, 40, 50, 2**40]
        for each in zip(parents, first_child, nodes, exact, path, accepted, strict=True):
            want = [a + b for a, b in zip(want, count(*each), strict=True)]
        got = native.count_round(
            *(parents, first_child, nodes, exact, path, accepted),
            [10, 20, 30, 40, 50, 2**40],
            seed=seed,
            step=1 + seed % 2,
        )
        if got != want:
            return False
    return True


def test_walks_by_given_ids(native: NativeWalk) -> None:
    assert check_by_ids(native, seeded(1), 500)


@KINDS
def test_walks_by_logits(native: NativeWalk, kind: int) -> None:
    assert check_by_logits(native, seeded(kind), 40, kind)


@KINDS
@pytest.mark.parametrize("offset", [0, 1, 5])
def test_the_argmax_of_a_long_row(native: NativeWalk, kind: int, offset: int) -> None:
    """Long enough for several loads of every thread; the largest at the ends and in between, and
    again behind it."""
    vocabulary, rows = 40_003, []
    for at in (0, 1, 7, 8, 511, 4096, 20_000, 32_767, 32_768, 39_999, 40_001, 40_002):
        row = [1.0] * vocabulary
        row[at] = 2.0
        for later in (at + 1, at + 8, at + 8192, vocabulary - 1):
            if later < vocabulary:
                row[later] = 2.0
        rows.append(row)
    got = native.argmax_rows(Rows(rows[:4], 4, kind, offset=offset, gap=3), 1, 4)
    got += native.argmax_rows(Rows(rows[4:], 8, kind, offset=offset, gap=3), 1, 8)
    assert got == [0, 1, 7, 8, 511, 4096, 20_000, 32_767, 32_768, 39_999, 40_001, 40_002]
    walks = native.by_logits([[5, 39_999]], [[-1, 0]], Rows(rows[9:11], 2, kind, offset=offset), 2)
    assert walks == [walk([5, 39_999], [-1, 0], [39_999, 40_001], 2)]


def test_a_chain_is_accepted_to_its_end(native: NativeWalk) -> None:
    tokens, parents = [list(range(16))], [list(range(-1, 15))]
    target = [list(range(1, 17))]
    values = [[float(token == node + 1) for token in range(20)] for node in range(16)]
    for columns in (1, 2, 15, 16):
        want = [walk(tokens[0], parents[0], target[0], columns)]
        assert want[0].accepted == columns - 1
        assert native.by_ids(tokens, parents, target, columns) == want
        assert native.by_logits(tokens, parents, Rows(values, 16, BF16), columns) == want


def test_parents_out_of_range_are_nobodys_children(native: NativeWalk) -> None:
    """The CPU op refuses them; the kernel cannot, and must not follow them."""
    tokens = [[1, 1, 1, 1, 1, 1]]
    parents = [[-1, 6, 2**40, -(2**40), 2**31, 0]]
    ones = [[1] * 6]
    want = [walk(tokens[0], [-1, -1, -1, -1, -1, 0], ones[0], 3)]
    assert native.by_ids(tokens, parents, ones, 3) == want
    assert native.by_logits(tokens, parents, Rows([[0.0, 1.0]] * 6, 6, FP32), 3) == want


def test_a_circle_of_parents_ends(native: NativeWalk) -> None:
    tokens, parents, ones = [[1] * 3], [[2, 0, 1]], [[1] * 3]
    want = [walk(tokens[0], parents[0], ones[0], 3)]
    assert native.by_ids(tokens, parents, ones, 3) == want
    assert native.by_logits(tokens, parents, Rows([[0.0, 1.0]] * 3, 3, FP32), 3) == want


def test_rounds_are_counted(native: NativeWalk) -> None:
    assert check_counts(native, seeded(2), 500)


def test_indices_out_of_range_are_off_the_spine_unread(native: NativeWalk) -> None:
    parents, first = [[-1, 0, 2**40]], [[1, -1, -1]]
    for path, accepted, off in (([0, 2**40, 2], 2, 2), ([0, 1, 2], 2, 1), ([0, 1, -7], 9, 1)):
        got = native.count_round(parents, first, [2], [True], [path], [accepted], [0] * 6)
        assert got == [1, 2, accepted, off, 0, 0]


def test_all_rows_are_read_only_while_they_are_few(native: NativeWalk) -> None:
    """At most one row a multiprocessor (188 on an RTX PRO 6000, 132 on an H200)."""
    assert native.walks_eagerly(1, 65, 188)
    assert native.walks_eagerly(2, 65, 132)
    assert native.walks_eagerly(11, 17, 188)
    assert not native.walks_eagerly(3, 65, 188)
    assert not native.walks_eagerly(1, 257, 188)
    assert not native.walks_eagerly(2**20, 2**20, 188)
    assert native.walks_eagerly(0, 65, 188)


MUTATIONS = {
    "any of the siblings": (
        "walk_tree.cu",
        "__reduce_min_sync(kAllLanes, found)",
        "__shfl_sync(kAllLanes, found, 0)",
    ),
    "another child of the node": ("walk_tree.cu", "(carried == token)", "(carried >= token)"),
    "a padding node followed": (
        "walk_tree.cu",
        "if (!within(parent, args.width)) continue;\n    const int node = static_cast<int>(parent);",
        "const int node = within(parent, args.width) ? static_cast<int>(parent) : 0;",
    ),
    "NaN never the largest": (
        "walk_core.h",
        "!(other <= value) && value == value",
        "other > value",
    ),
    "the last NaN": ("walk_core.h", "!(other <= value) && value == value", "!(other <= value)"),
    "the last of equals": ("walk_core.h", "!(other <= value)", "!(other < value)"),
    "the last of equals among threads": (
        "walk_tree.cu",
        "other > key ? other",
        "other < key ? other",
    ),
    "only -inf has no index": ("walk_core.h", "index == 0x7fffffffu ? 0", "index == 1 ? 1"),
    "head of a row not added": (
        "walk_tree.cu",
        "(last, head + at * kLanes",
        "(last, at * kLanes",
    ),
    "tail of a row not read": ("walk_tree.cu", "if (tail < vocabulary)", "if (tail < 0)"),
    "path beyond the walk": ("walk_tree.cu", "args.path[row + i] = i;", "args.path[row + i] = 0;"),
    "tokens beyond the walk": (
        "walk_tree.cu",
        "on_path ? args.target_ids.at(request, at) : 0",
        "at",
    ),
    "bonus of the root": (
        "walk_tree.cu",
        "args.bonus[request] = args.target_ids.at(request, node)",
        "args.bonus[request] = args.target_ids.at(request, 0)",
    ),
    "a fault counted as nodes": ("walk_tree.cu", "count > 0 ? count : 0", "count"),
    "accepted nodes on the spine": (
        "walk_tree.cu",
        "accepted + 1 - static_cast<i64>(leaves)",
        "static_cast<i64>(leaves) - 1",
    ),
}
RACES = {
    "keys read before all have written": (
        "= key;\n  __syncthreads();",
        "= key;",
    ),
    "keys written before all have read": ("keys + step % 2 * kWarp", "keys"),
    "a successor found before it is cleared": (
        "successor[i] = args.width;\n  __syncthreads();",
        "successor[i] = args.width;",
    ),
    "a successor followed before it is found": (
        "  __syncthreads();\n\n  int node = 0;",
        "\n  int node = 0;",
    ),
    "a step read before it is written": (
        "  __syncthreads();\n  const i64 row",
        "  const i64 row",
    ),
}


def passes(native: NativeWalk) -> bool:
    random_ = seeded(3)
    return (
        check_by_ids(native, random_, 40)
        and check_counts(native, random_, 20)
        and all(check_by_logits(native, random_, 4, kind) for kind in (BF16, FP16, FP32))
    )


def test_what_a_broken_kernel_must_fail_passes(native: NativeWalk) -> None:
    assert passes(native)


@pytest.mark.parametrize("name", [*MUTATIONS, *RACES])
def test_a_broken_kernel_is_seen(name: str, tmp_path: Path) -> None:
    text = MUTATIONS[name] if name in MUTATIONS else ("walk_tree.cu", *RACES[name])
    broken = NativeWalk(mutated(OVERLAY / "csrc", tmp_path, *text), tmp_path)
    assert not holds(lambda: passes(broken))


def test_the_reference_knows_nan_and_ties() -> None:
    assert argmax([1.0, 3.0, 3.0]) == 1
    assert argmax([INFINITY, math.nan, math.nan]) == 1
    assert argmax([-0.0, 0.0]) == 0
    assert argmax([-INFINITY] * 3) == 0
