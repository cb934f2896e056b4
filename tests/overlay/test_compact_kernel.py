"""csrc/compact_kv.cu on this machine against plain Python. Whole arenas are compared: a byte that
is moved wrongly, or written anywhere else, is seen."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests.overlay.compact_cases import (
    absent_nodes,
    crowded,
    long_rows,
    random_gather,
    random_move,
    random_path,
    small,
    wide,
)
from tests.overlay.compiler import require_compiler
from tests.overlay.conftest import OVERLAY
from tests.overlay.native_compact import Layout, Move, NativeCompact
from tests.overlay.trees import seeded


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeCompact]:
    require_compiler()
    yield NativeCompact.compile(OVERLAY / "csrc", tmp_path_factory.mktemp("compact"))


def test_random_moves(compiled: NativeCompact) -> None:
    random_ = seeded("moves")
    moved = 0
    for seed in range(4000):
        move = random_move(random_)
        expected = move.expected()
        assert compiled.compact(move, seed=seed) == expected, seed
        moved += expected != move.arena
        (threads, tiles), *buffers = move.shape
        widest = max(size // vector for vector, size in buffers)
        assert threads == min(128, -(-widest // 32) * 32)
        assert tiles == -(-widest // threads)
        for layout, (vector, _) in zip(move.layouts, buffers, strict=True):
            assert vector == math.gcd(16, layout.start, layout.stride, layout.row_bytes)
    assert moved > 2000


@pytest.mark.parametrize("columns", [2, 8, 9, 16, 17, 32])
def test_long_paths_through_one_window(compiled: NativeCompact, columns: int) -> None:
    """Sources of later steps are targets of none, wherever a group of steps ends."""
    random_ = seeded(columns)
    for seed in range(60):
        move = crowded(random_, columns)
        assert compiled.compact(move, seed=seed) == move.expected()


@pytest.mark.parametrize("tiles", [1, 2, 3, 64])
def test_rows_wider_than_a_block(compiled: NativeCompact, tiles: int) -> None:
    """Whether one block or many share a row."""
    move = wide(seeded(tiles))
    assert compiled.compact(move, tiles=tiles) == move.expected()
    assert move.shape == [(128, 9), (4, 4100), (1, 5)]


def test_as_many_buffers_as_a_launch_takes(compiled: NativeCompact) -> None:
    random_ = seeded("many")
    path, accepted = random_path(random_, 8, 8)
    move = Move(
        arena=random_.randbytes(160 * 8 * 16),
        layouts=[Layout(i * 8 * 16, 16, 16) for i in range(160)],
        rows=8,
        slots=[random_.sample(range(8), 8)],
        path=[path],
        accepted=[accepted],
    )
    assert compiled.compact(move) == move.expected()


@pytest.mark.parametrize(
    "move",
    [
        small([0, 3, 5, 7], 0),
        small([0, 3, 5, 7], -5),
        small([0, 1, 2, 3], 3),
        small([0, 3, 5, 7], 3, slots=[4] * 8),
        small([0, 9, 1 << 40, -1], 3),
        small([0, -3, 1, 0], 3),
        small([0, 3, 5, 7], 3, slots=[0, 1, 2, 9, 4, -1, 6, 1 << 40]),
        small([0, 3, 5, 7], 3, slots=[0, -1, 8, 1 << 40, 4, 5, 6, 7]),
    ],
    ids=[
        *("nothing accepted", "negative", "in place already", "one slot for all", "no such node"),
        *("a path that goes back", "no such source row", "no such target row"),
    ],
)
def test_nothing_is_moved(compiled: NativeCompact, move: Move) -> None:
    assert compiled.compact(move) == move.arena


def test_more_accepted_than_there_are_steps(compiled: NativeCompact) -> None:
    move = small([0, 3, 5, 7], 1 << 40)
    clamped = small([0, 3, 5, 7], 3)
    assert compiled.compact(move) == clamped.expected() != move.arena


def test_random_gathers(compiled: NativeCompact) -> None:
    random_ = seeded("gathers")
    for seed in range(150):
        assert random_gather(compiled, random_, seed), seed


def test_long_rows(compiled: NativeCompact) -> None:
    assert long_rows(compiled)


def test_a_gathered_node_that_does_not_exist_is_zero(compiled: NativeCompact) -> None:
    assert absent_nodes(compiled, 1 << 40)
