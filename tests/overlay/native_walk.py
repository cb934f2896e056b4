"""Runs csrc/walk_tree.cu on emulated blocks, and walks by a dictionary in plain Python."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.overlay.native_tree import HERE, SENTINEL, compile_shim

BF16, FP16, FP32 = 0, 1, 2
NAN, INFINITY = math.nan, math.inf


class _Integers(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


class _Logits(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("request_stride", ctypes.c_int64),
        ("node_stride", ctypes.c_int64),
        ("type", ctypes.c_int),
        ("vocabulary", ctypes.c_int),
    )


class _WalkArgs(ctypes.Structure):
    _fields_ = (
        ("tokens", _Integers),
        ("parents", _Integers),
        ("target_ids", _Integers),
        ("logits", _Logits),
        *((name, ctypes.c_void_p) for name in ("path", "accepted", "emitted", "bonus")),
        *((name, ctypes.c_int) for name in ("batch", "width", "columns")),
    )


class _ArgmaxArgs(ctypes.Structure):
    _fields_ = (("logits", _Logits), ("ids", ctypes.c_void_p), ("width", ctypes.c_int))


class _CountArgs(ctypes.Structure):
    _fields_ = (
        *((name, _Integers) for name in ("parents", "first_child", "counts")),
        ("exact", ctypes.c_void_p),
        ("exact_stride", ctypes.c_int64),
        *((name, _Integers) for name in ("path", "accepted")),
        ("sums", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("batch", "width", "columns")),
    )


@dataclass(frozen=True)
class Walked:
    """One request's walk."""

    path: list[int]
    accepted: int
    emitted: list[int]
    bonus: int


def walk(tokens: list[int], parents: list[int], target: Sequence[int], columns: int) -> Walked:
    """By a dictionary: (parent, token) -> the first such child."""
    children: dict[tuple[int, int], int] = {}
    for node, parent in enumerate(parents):
        children.setdefault((parent, tokens[node]), node)
    path = [0]
    while len(path) < columns and (path[-1], target[path[-1]]) in children:
        path.append(children[path[-1], target[path[-1]]])
    beyond = range(len(path), columns)
    return Walked(
        path=[*path, *beyond],
        accepted=len(path) - 1,
        emitted=[target[node] for node in path] + [0 for _ in beyond],
        bonus=target[path[-1]],
    )


def argmax(row: Sequence[float]) -> int:
    """The first NaN, or else the first of the largest."""
    for index, value in enumerate(row):
        if math.isnan(value):
            return index
    return max(range(len(row)), key=lambda index: (row[index], -index))


def count(
    parents: list[int],
    first_child: list[int],
    nodes: int,
    exact: bool,
    path: list[int],
    accepted: int,
) -> list[int]:
    """One request's part of the six sums."""
    spine, node = 0, 0
    while spine < accepted and path[spine + 1] == first_child[max(parents[path[spine + 1]], 0)]:
        spine += 1
        node = path[spine]
    assert node == path[spine]
    return [1, max(nodes, 0), accepted, accepted - spine, int(not exact), int(nodes <= 0)]


class NativeWalk:
    """The compiled library."""

    def __init__(self, csrc: Path, target: Path) -> None:
        self.library = compile_shim(csrc, target, HERE / "native" / "walk_shim.cpp")
        for name, kind in (("walk", _WalkArgs), ("argmax", _ArgmaxArgs), ("count", _CountArgs)):
            size = getattr(self.library, f"shim_{name}_args_size")
            size.restype = ctypes.c_size_t
            assert size() == ctypes.sizeof(kind)
        self.library.shim_walks_eagerly.restype = ctypes.c_bool

    def walks_eagerly(self, batch: int, width: int, multiprocessors: int) -> bool:
        answer = self.library.shim_walks_eagerly(
            *map(ctypes.c_long, (batch, width, multiprocessors))
        )
        return bool(answer)

    def by_ids(
        self,
        tokens: list[list[int]],
        parents: list[list[int]],
        target: list[list[int]],
        columns: int,
        *,
        seed: int = 0,
        step: int = 1,
    ) -> list[Walked]:
        call = _Walk(tokens, parents, columns, step)
        ids = _Matrix(target, step)
        call.args.target_ids = ids.view
        return call.run(self.library.shim_walk_tree, seed)

    def by_logits(
        self,
        tokens: list[list[int]],
        parents: list[list[int]],
        rows: Rows,
        columns: int,
        *,
        seed: int = 0,
        step: int = 1,
    ) -> list[Walked]:
        call = _Walk(tokens, parents, columns, step)
        call.args.logits = rows.view
        return call.run(self.library.shim_walk_greedy, seed)

    def argmax_rows(self, rows: Rows, batch: int, width: int, *, seed: int = 0) -> list[int]:
        ids = _Output(batch * width)
        args = _ArgmaxArgs(logits=rows.view, ids=ids.address, width=width)
        _check(self.library.shim_argmax_rows(ctypes.byref(args), batch, ctypes.c_uint(seed)))
        return ids.values()

    def count_round(
        self,
        parents: list[list[int]],
        first_child: list[list[int]],
        counts: list[int],
        exact: list[bool],
        path: list[list[int]],
        accepted: list[int],
        sums: list[int],
        *,
        seed: int = 0,
        step: int = 1,
    ) -> list[int]:
        inputs = [_Matrix(value, step) for value in (parents, first_child, path)]
        counted = [_Matrix([[value] for value in values], step) for values in (counts, accepted)]
        flags = (ctypes.c_uint8 * (step * len(exact) + 1))(*[7] * (step * len(exact) + 1))
        flags[: step * len(exact) : step] = [int(value) for value in exact]
        total = _Output(6)
        total.array[:6] = list(sums)
        args = _CountArgs(
            parents=inputs[0].view,
            first_child=inputs[1].view,
            counts=counted[0].view,
            exact=ctypes.addressof(flags),
            exact_stride=step,
            path=inputs[2].view,
            accepted=counted[1].view,
            sums=total.address,
            batch=len(parents),
            width=len(parents[0]),
            columns=len(path[0]),
        )
        _check(self.library.shim_count_round(ctypes.byref(args), ctypes.c_uint(seed)))
        return total.values()


class Rows:
    """Logits [batch * width][vocabulary] in memory that is full of NaN elsewhere: the first row
    `offset` elements behind a 16-byte boundary, `gap` elements between rows."""

    def __init__(
        self, values: list[list[float]], width: int, kind: int, *, offset: int = 0, gap: int = 0
    ) -> None:
        vocabulary, size = len(values[0]), 4 if kind == FP32 else 2
        stride = vocabulary + gap
        pad = encode(NAN, kind)
        row_bytes = [b"".join(encode(value, kind) for value in row) + pad * gap for row in values]
        data = pad * (offset + 16) + b"".join(row_bytes) + pad * 16
        self.memory = (ctypes.c_uint8 * (len(data) + 16))()
        begin = -ctypes.addressof(self.memory) % 16
        self.memory[begin : begin + len(data)] = list(data)
        self.view = _Logits(
            data=ctypes.addressof(self.memory) + begin + size * (offset + 16),
            request_stride=stride * width,
            node_stride=stride,
            type=kind,
            vocabulary=vocabulary,
        )


def encode(value: float, kind: int) -> bytes:
    """`value`, which must be exact in the type, as it lies in memory."""
    if kind == FP16:
        return struct.pack("<e", value)
    return struct.pack("<f", value)[2 if kind == BF16 else 0 :]


class _Matrix:
    """Integers with `step` elements from one to the next, and sentinels in between."""

    def __init__(self, rows: Sequence[Sequence[int]], step: int) -> None:
        flat = [value for row in rows for value in row]
        self.array = (ctypes.c_int64 * (step * len(flat) + 1))(*[SENTINEL] * (step * len(flat) + 1))
        self.array[: step * len(flat) : step] = list(flat)
        self.view = _Integers(ctypes.addressof(self.array), step * len(rows[0]), step)


class _Output:
    """Sentinels to be written over, and a guard."""

    def __init__(self, size: int) -> None:
        self.array = (ctypes.c_int64 * (size + 1))(*[SENTINEL] * (size + 1))
        self.address = ctypes.addressof(self.array)

    def values(self) -> list[int]:
        assert self.array[-1] == SENTINEL, "written beyond its end"
        return list(self.array[:-1])


class _Walk:
    def __init__(
        self, tokens: list[list[int]], parents: list[list[int]], columns: int, step: int
    ) -> None:
        self.batch, self.columns = len(tokens), columns
        self.inputs = [_Matrix(tokens, step), _Matrix(parents, step)]
        sizes = (self.batch * columns, self.batch, self.batch * columns, self.batch)
        self.outputs = [_Output(size) for size in sizes]
        self.args = _WalkArgs(
            tokens=self.inputs[0].view,
            parents=self.inputs[1].view,
            batch=self.batch,
            width=len(tokens[0]),
            columns=columns,
        )
        for name, output in zip(
            ("path", "accepted", "emitted", "bonus"), self.outputs, strict=True
        ):
            setattr(self.args, name, output.address)

    def run(self, kernel: Any, seed: int) -> list[Walked]:
        _check(kernel(ctypes.byref(self.args), ctypes.c_uint(seed)))
        path, accepted, emitted, bonus = (output.values() for output in self.outputs)
        rows = [slice(i * self.columns, (i + 1) * self.columns) for i in range(self.batch)]
        return [
            Walked(path[row], accepted[i], emitted[row], bonus[i]) for i, row in enumerate(rows)
        ]


def _check(status: int) -> None:
    assert status != 1, "wrote beyond the shared memory of the launch"
    assert status == 0, "the threads of the block diverged"
