"""Calls of compact_kv and gather_path for the native tests: any layout, and the ones that a mistake
shows in."""

from __future__ import annotations

import math
import random

from tests.overlay.native_compact import Layout, Move, NativeCompact
from tests.overlay.trees import seeded


def random_path(random_: random.Random, width: int, columns: int) -> tuple[list[int], int]:
    """A walk's path and how many nodes it accepted."""
    accepted = random_.choice([random_.randrange(columns), columns - 1])
    nodes = sorted(random_.sample(range(1, width), accepted))
    return [0, *nodes, *range(accepted + 1, columns)], accepted


def random_move(random_: random.Random, *, widest: int = 24) -> Move:
    """Any layout: misaligned starts, padded strides, row sizes of one byte up, windows of one run
    of slots or of scattered ones."""
    batch, width = random_.randint(1, 3), random_.randint(1, widest)
    columns = random_.randint(1, width)
    paths = [random_path(random_, width, columns) for _ in range(batch)]
    rows = batch * width + random_.randrange(4)
    order = list(range(rows))
    if random_.random() < 0.5:
        random_.shuffle(order)
    slots = [order[i * width : (i + 1) * width] for i in range(batch)]
    layouts, end = [], 0
    for _ in range(random_.randint(1, 4)):
        unit = random_.choice([1, 2, 4, 8, 16])
        row_bytes = unit * random_.randint(1, 12)
        stride = row_bytes + random_.choice([0, 0, unit, 16, random_.randrange(40)])
        start = end + random_.choice([0, unit, random_.randrange(16)])
        start += -start % unit
        layouts.append(Layout(start, stride, row_bytes))
        end = start + rows * stride + random_.randrange(32)
    return Move(
        arena=random_.randbytes(end),
        layouts=layouts,
        rows=rows,
        slots=slots,
        path=[path for path, _ in paths],
        accepted=[accepted for _, accepted in paths],
        spacing=random_.choice([1, 3]),
    )


def crowded(random_: random.Random, columns: int) -> Move:
    """Nodes right behind their targets: almost every row is a source and a target."""
    width = columns + random_.randrange(1, 4)
    skipped = set(random_.sample(range(1, width), width - columns))
    return Move(
        arena=random_.randbytes(width * 24),
        layouts=[Layout(0, 24, 24)],
        rows=width,
        slots=[list(range(width))],
        path=[[node for node in range(width) if node not in skipped]],
        accepted=[columns - 1],
    )


def wide(random_: random.Random) -> Move:
    """A row of 1,025 vectors of four bytes, and narrow rows (scales) beside it."""
    path, accepted = random_path(random_, 12, 9)
    return Move(
        arena=random_.randbytes(12 * 4112 + 3 + 12 * 17 + 40),
        layouts=[Layout(0, 4112, 4100), Layout(12 * 4112 + 3, 17, 5)],
        rows=12,
        slots=[random_.sample(range(12), 12)],
        path=[path],
        accepted=[accepted],
    )


def small(path: list[int], accepted: int, slots: list[int] | None = None, rows: int = 8) -> Move:
    return Move(
        arena=seeded(1).randbytes(32 * (rows + 2)),
        layouts=[Layout(32, 32, 32)],
        rows=rows,
        slots=[slots or list(range(8))],
        path=[path],
        accepted=[accepted],
    )


def gathered(rows: bytes, start: int, stride: int, row_bytes: int, nodes: list[int]) -> bytes:
    parts = [rows[start + stride * n : start + stride * n + row_bytes] for n in nodes]
    return b"".join(parts)


def random_gather(native: NativeCompact, random_: random.Random, seed: int) -> bool:
    """Whether one gather of any layout gives what slicing gives."""
    batch, width = random_.randint(1, 3), random_.randint(1, 9)
    unit = random_.choice([1, 2, 4, 8, 16])
    row_bytes = unit * random_.choice([1, 3, random_.randrange(1, 200), 300])
    stride = row_bytes + unit * random_.randrange(3)
    start, output = unit * random_.randrange(3), random_.choice([0, 0, 0, unit])
    rows = random_.randbytes(start + batch * width * stride)
    columns = random_.randint(1, width)
    path = [random_path(random_, width, columns)[0] for _ in range(batch)]
    found, vector = native.gather(
        rows,
        start=start,
        stride=stride,
        row_bytes=row_bytes,
        path=path,
        width=width,
        output=output,
        spacing=random_.choice([1, 3]),
        seed=seed,
    )
    assert vector == math.gcd(16, start, stride, row_bytes, output)
    nodes = [width * i + node for i, row in enumerate(path) for node in row]
    return found == gathered(rows, start, stride, row_bytes, nodes)


def long_rows(native: NativeCompact) -> bool:
    """Whether rows of more vectors than all of their blocks have threads are gathered."""
    row_bytes = 64 * 256 + 77
    rows = seeded("long").randbytes(3 * row_bytes)
    found, vector = native.gather(
        rows, start=0, stride=row_bytes, row_bytes=row_bytes, path=[[0, 2]], width=3
    )
    assert vector == 1
    return found == gathered(rows, 0, row_bytes, row_bytes, [0, 2])


def absent_nodes(native: NativeCompact, far: int) -> bool:
    """Whether rows of nodes just outside the tree, or `far` outside, are zero."""
    rows = bytes(range(1, 41))
    path = [[0, 3, 2], [-1, 1, far]]
    found, _ = native.gather(rows, start=4, stride=4, row_bytes=4, width=3, path=path)
    nothing = bytes(4)
    return found == rows[4:8] + nothing + rows[12:16] + nothing + rows[20:24] + nothing
