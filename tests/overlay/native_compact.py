"""Runs csrc/compact_kv.cu on this machine: one arena of bytes holds all buffers of a launch."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MAX_BUFFERS = 160
ALIGNMENT = 16
# An index that is never a row: what lies between the elements of a strided index tensor.
BETWEEN = -0x5A5A5A5A5A5A5A5A
# What lies behind one: it looks like an index, so that one who reads it moves a row.
BEHIND = 7
# Undefined behaviour is trapped: a misaligned vector must not pass.
CHECKED = (
    *("-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
    *("-fsanitize=undefined", "-fno-sanitize-recover=undefined"),
)
QUICK = ("-O0", "-w")


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("row_bytes", ctypes.c_int),
        ("vector", ctypes.c_int),
    )


class CompactArgs(ctypes.Structure):
    _fields_ = (
        ("buffers", _Buffer * MAX_BUFFERS),
        ("slots", ctypes.POINTER(ctypes.c_int64)),
        ("slots_stride", ctypes.c_int64 * 2),
        ("path", ctypes.POINTER(ctypes.c_int64)),
        ("path_stride", ctypes.c_int64 * 2),
        ("accepted", ctypes.POINTER(ctypes.c_int64)),
        ("accepted_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("width", "columns", "tiles", "threads")),
    )


class GatherArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("gathered", ctypes.c_void_p),
        ("path", ctypes.POINTER(ctypes.c_int64)),
        ("path_stride", ctypes.c_int64 * 2),
        ("row_bytes", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("vector", "width", "columns", "tiles")),
    )


@dataclass(frozen=True)
class Layout:
    """Where a buffer lies in the arena, in bytes."""

    start: int
    stride: int
    row_bytes: int


@dataclass
class Move:
    """One call of compact_kv: the arena and the indices, as lists."""

    arena: bytes
    layouts: list[Layout]
    rows: int
    slots: list[list[int]]
    path: list[list[int]]
    accepted: list[int]
    # Elements between two of each index tensor; 1 is contiguous.
    spacing: int = 1
    shape: list[tuple[int, int]] = field(default_factory=list)

    def expected(self) -> bytes:
        """All rows as they were, then all moves."""
        result = bytearray(self.arena)
        for layout in self.layouts:
            for request, path in enumerate(self.path):
                for step in range(1, self.accepted[request] + 1):
                    source, target = (
                        layout.start + self.slots[request][node] * layout.stride
                        for node in (path[step], step)
                    )
                    row = self.arena[source : source + layout.row_bytes]
                    result[target : target + layout.row_bytes] = row
        return bytes(result)


def strided(values: Sequence[Sequence[int]], spacing: int) -> tuple[Any, Any]:
    """An int64 array of [rows][columns] and its strides; spaced ones also swap the dimensions."""
    rows, columns = len(values), len(values[0])
    strides = (columns, 1) if spacing == 1 else (spacing, spacing * rows)
    size = rows * columns * spacing
    array = (ctypes.c_int64 * (size + 8))(*[BETWEEN] * size, *[BEHIND] * 8)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            array[i * strides[0] + j * strides[1]] = value
    return array, (ctypes.c_int64 * 2)(*strides)


def aligned(data: bytes) -> tuple[Any, int]:
    """A copy of `data` and its address, a multiple of ALIGNMENT."""
    block = ctypes.create_string_buffer(len(data) + ALIGNMENT)
    address = ctypes.addressof(block)
    address += -address % ALIGNMENT
    ctypes.memmove(address, data, len(data))
    return block, address


class NativeCompact:
    """compact_shim.cpp, compiled."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    @staticmethod
    def compile(csrc: Path, target: Path, flags: Sequence[str] = CHECKED) -> NativeCompact:
        """`flags` are the compiler's, beyond the language and the paths."""
        path = target / "compact.so"
        subprocess.run(
            [
                *("g++", "-std=c++20", "-shared", "-fPIC", *flags),
                *(f"-I{csrc}", f"-I{HERE / 'native'}"),
                *(str(HERE / "native" / "compact_shim.cpp"), "-o", str(path)),
            ],
            check=True,
        )
        library = ctypes.CDLL(str(path))
        for name, kind in (("compact", CompactArgs), ("gather", GatherArgs)):
            size = getattr(library, f"shim_{name}_args_size")
            size.restype = ctypes.c_size_t
            assert size() == ctypes.sizeof(kind)
        return NativeCompact(library)

    def compact(self, move: Move, *, seed: int = 0, tiles: int | None = None) -> bytes:
        """The arena after the launch. `tiles` overrides how many blocks share a row."""
        block, address = aligned(move.arena)
        args = CompactArgs(rows=move.rows, width=len(move.slots[0]), columns=len(move.path[0]))
        args.slots, args.slots_stride = strided(move.slots, move.spacing)
        args.path, args.path_stride = strided(move.path, move.spacing)
        args.accepted, strides = strided([[n] for n in move.accepted], move.spacing)
        args.accepted_stride = strides[0]
        for i, layout in enumerate(move.layouts):
            self.library.shim_buffer(
                *(ctypes.byref(args), i, ctypes.c_void_p(address + layout.start)),
                *(ctypes.c_long(layout.stride), layout.row_bytes),
            )
        self.library.shim_shape_compact(ctypes.byref(args), len(move.layouts))
        move.shape = [(args.threads, args.tiles)]
        move.shape += [(b.vector, b.row_bytes) for b in args.buffers[: len(move.layouts)]]
        if tiles is not None:
            args.tiles = tiles
        status = self.library.shim_compact(
            ctypes.byref(args), len(move.layouts), len(move.slots), seed
        )
        assert status == 0, status
        return ctypes.string_at(address, len(move.arena)) if block else b""

    def gather(
        self,
        rows: bytes,
        *,
        start: int,
        stride: int,
        row_bytes: int,
        path: list[list[int]],
        width: int,
        output: int = 0,
        spacing: int = 1,
        seed: int = 0,
    ) -> tuple[bytes, int]:
        """The gathered rows, written `output` bytes into a block, and the vector's bytes. Checks
        that nothing else of the block was written."""
        kept, address = aligned(rows)
        size = len(path) * len(path[0]) * row_bytes
        guard = b"\x5a" * 64
        target, at = aligned(guard + bytes(size) + guard)
        at += output
        ctypes.memset(at - output, 0x5A, size + 2 * len(guard))
        args = GatherArgs(stride=stride, row_bytes=row_bytes, width=width, columns=len(path[0]))
        args.rows, args.gathered = address + start, at + len(guard) - ALIGNMENT
        args.path, args.path_stride = strided(path, spacing)
        self.library.shim_shape_gather(ctypes.byref(args))
        status = self.library.shim_gather(ctypes.byref(args), len(path), seed)
        assert status == 0, status
        block = ctypes.string_at(at - output, size + 2 * len(guard))
        begin = output + len(guard) - ALIGNMENT
        assert set(block[:begin] + block[begin + size :]) == {0x5A}, "written beyond the output"
        assert kept
        assert target
        return block[begin : begin + size], args.vector
