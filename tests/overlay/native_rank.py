"""Runs the ranking kernels of csrc/ on emulated blocks."""

from __future__ import annotations

import ctypes
import math
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.overlay.rank_reference import (
    MINUS_ZERO,
    NEVER,
    Packed,
    Ranked,
    Row,
    encode,
    reference,
    same_packed,
    same_ranked,
)

HERE = Path(__file__).resolve().parent
CHECKED = ("-O2", "-fsanitize=undefined", "-fno-sanitize-recover=undefined")
QUICK = ("-O1",)
GUARD = 0x5A
WHOLE = 1 << 20  # vectors: a row is one segment
LANES = (8, 8, 4)  # elements of a vector
WORDS = (ctypes.c_uint16, ctypes.c_uint16, ctypes.c_uint32)


def precompile(target: Path) -> Path:
    """A copy of native/ whose emulator is a precompiled header for QUICK: mutants compile twice as
    fast."""
    for name in ("cuda_on_host.h", "rank_shim.cpp"):
        shutil.copy(HERE / "native" / name, target)
    header = target / "cuda_on_host.h"
    flags = ("-std=c++20", "-fPIC", "-ffp-contract=off", *QUICK, "-w")
    subprocess.run(["g++", *flags, "-x", "c++-header", header], check=True)
    return target


class _RankArgs(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("packed", ctypes.c_void_p),
        ("type", ctypes.c_int),
        ("rows", ctypes.c_int),
        ("vocabulary", ctypes.c_int),
        ("k", ctypes.c_int),
        ("id_offset", ctypes.c_int),
        ("segment_vectors", ctypes.c_int),
    )


class _MergeArgs(ctypes.Structure):
    _fields_ = (
        ("candidates", ctypes.c_void_p),
        ("list_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("word_stride", ctypes.c_int64),
        ("packed", ctypes.c_void_p),
        ("logprobs", ctypes.c_void_p),
        ("token_ids", ctypes.c_void_p),
        ("lists", ctypes.c_int),
        ("list_ranks", ctypes.c_int),
        ("rows", ctypes.c_int),
        ("k", ctypes.c_int),
    )


@dataclass(frozen=True)
class Layout:
    """Where logits lie: `start` elements past a 16-byte boundary, then strides in elements."""

    start: int = 0
    stride: int = 1
    gap: int = 0  # unused elements between rows


class _Output:
    """An array full of sentinels with a guard behind it."""

    def __init__(self, kind: Any, size: int) -> None:
        self.size, self.array = size, (kind * (size + 4))()
        ctypes.memset(self.array, GUARD, ctypes.sizeof(self.array))
        self.address = ctypes.addressof(self.array)

    def values(self) -> list[Any]:
        guard = bytes(self.array)[-4 * ctypes.sizeof(self.array._type_) :]
        assert set(guard) == {GUARD}, "written beyond its end"
        return list(self.array[: self.size])


@dataclass(frozen=True)
class NativeRank:
    """The compiled library."""

    library: ctypes.CDLL

    @staticmethod
    def compile(
        csrc: Path, target: Path, flags: Sequence[str] = CHECKED, native: Path = HERE / "native"
    ) -> NativeRank:
        path = target / "rank.so"
        subprocess.run(
            [
                *("g++", "-std=c++20", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"),
                *("-ffp-contract=off", *flags, f"-I{csrc}", f"-I{native}"),
                *(str(native / "rank_shim.cpp"), "-o", str(path)),
            ],
            check=True,
        )
        library = ctypes.CDLL(str(path))
        for name in ("args_size", "shared"):
            for kernel in ("rank", "merge"):
                getattr(library, f"shim_{kernel}_{name}").restype = ctypes.c_size_t
        for name in ("value_bits", "orderable", "from_orderable"):
            getattr(library, f"shim_{name}").restype = ctypes.c_uint
        assert library.shim_rank_args_size() == ctypes.sizeof(_RankArgs)
        assert library.shim_merge_args_size() == ctypes.sizeof(_MergeArgs)
        return NativeRank(library)

    def segments(self, rows: int, vocabulary: int, kind: int, processors: int) -> tuple[int, int]:
        """(count, vectors) of the launch."""
        out = (ctypes.c_int * 2)()
        self.library.shim_segments(
            ctypes.c_long(rows), ctypes.c_long(vocabulary), kind, processors, out
        )
        return out[0], out[1]

    def rank(
        self,
        kind: int,
        rows: Sequence[Row],
        k: int,
        *,
        segment_vectors: int,
        id_offset: int = 0,
        layout: Layout = Layout(),
        seed: int = 0,
    ) -> list[list[list[int]]]:
        """The shard kernel's words, [segments][rows][k + 1]. Around the rows lie large logits."""
        columns = len(rows[0])
        vectors = (columns + 2 * (LANES[kind] - 1)) // LANES[kind]
        segments = max(1, -(-vectors // segment_vectors))
        step = max(1, columns) * layout.stride + layout.gap
        size = 16 + layout.start + step * len(rows) + 16
        logits = (WORDS[kind] * (size + 16))()
        logits[:] = [encode(kind, [60000.0])[0]] * (size + 16)
        width = ctypes.sizeof(WORDS[kind])
        first = -(ctypes.addressof(logits) // width) % (16 // width) + 16 + layout.start
        for i, row in enumerate(rows):
            at = first + i * step
            logits[at : at + columns * layout.stride : layout.stride] = list(row)
        packed = _Output(ctypes.c_int64, segments * len(rows) * (k + 1))
        args = _RankArgs(
            logits=ctypes.addressof(logits) + first * width,
            row_stride=step,
            stride=layout.stride,
            packed=packed.address,
            type=kind,
            rows=len(rows),
            vocabulary=columns,
            k=k,
            id_offset=id_offset,
            segment_vectors=segment_vectors,
        )
        status = self.library.shim_rank(ctypes.byref(args), segments, ctypes.c_uint(seed))
        _check(status)
        words = packed.values()
        lines = [words[i : i + k + 1] for i in range(0, len(words), k + 1)]
        return [lines[i : i + len(rows)] for i in range(0, len(lines), len(rows))]

    def merge(
        self, candidates: Sequence[Sequence[Sequence[int]]], k: int, *, seed: int = 0
    ) -> list[Ranked]:
        """merge_shards of [lists][rows][ranks + 1], read with the lists innermost."""
        rows = len(candidates[0])
        logprobs = _Output(ctypes.c_float, rows * k)
        ids = _Output(ctypes.c_int64, rows * k)
        self._merge(candidates, k, seed, logprobs=logprobs.address, token_ids=ids.address)
        values, tokens = logprobs.values(), ids.values()
        return [
            Ranked(values[i * k : (i + 1) * k], tokens[i * k : (i + 1) * k]) for i in range(rows)
        ]

    def join(
        self, candidates: Sequence[Sequence[Sequence[int]]], k: int, *, seed: int = 0
    ) -> list[list[int]]:
        """The merge of the segments of rank_shard: packed words, [rows][k + 1]."""
        packed = _Output(ctypes.c_int64, len(candidates[0]) * (k + 1))
        self._merge(candidates, k, seed, packed=packed.address)
        words = packed.values()
        return [words[i : i + k + 1] for i in range(0, len(words), k + 1)]

    def _merge(
        self, candidates: Sequence[Sequence[Sequence[int]]], k: int, seed: int, **outputs: int
    ) -> None:
        lists, rows, width = len(candidates), len(candidates[0]), len(candidates[0][0])
        words = (ctypes.c_int64 * (lists * rows * width))()
        for i, rows_of in enumerate(candidates):
            for j, line in enumerate(rows_of):
                for word, value in enumerate(line):
                    words[(j * width + word) * lists + i] = value
        args = _MergeArgs(
            candidates=ctypes.addressof(words),
            list_stride=1,
            row_stride=width * lists,
            word_stride=lists,
            lists=lists,
            list_ranks=width - 1,
            rows=rows,
            k=k,
            **outputs,
        )
        _check(self.library.shim_merge(ctypes.byref(args), ctypes.c_uint(seed)))


def _check(status: int) -> None:
    assert status != 1, "wrote beyond the shared memory of the launch"
    assert status == 0, "the threads of a block diverged"


def check(
    native: NativeRank,
    kind: int,
    rows: Sequence[Row],
    k: int,
    *,
    segment_vectors: int = WHOLE,
    id_offset: int = 0,
    layout: Layout = Layout(),
    seed: int = 0,
) -> None:
    """The shard kernel, and both merges of what it gives, on every row."""
    parts = native.rank(
        kind,
        rows,
        k,
        segment_vectors=segment_vectors,
        id_offset=id_offset,
        layout=layout,
        seed=seed,
    )
    joined, ranked = native.join(parts, k, seed=seed), native.merge(parts, k, seed=seed)
    for i, row in enumerate(rows):
        packed, want = reference(kind, row, k, id_offset)
        assert same_packed(Packed.of(joined[i]), packed)
        assert same_ranked(ranked[i], want)
        if len(parts) == 1:
            assert same_packed(Packed.of(parts[0][i]), packed)


def check_normalisers(native: NativeRank) -> None:
    """Rows that have candidates but no finite normaliser have no log-probabilities."""
    key = (0x80000000 | 0x3F800000) << 32 | 0xFFFFFFFF - 7  # 1.0, token 7
    pairs = [(1.0, 2.0), (math.inf, 1.0), (1.0, math.inf), (1.0, math.nan), (-math.inf, 0.0)]
    pairs += [(0.0, 0.0)]
    words = [struct.unpack("<q", struct.pack("<ff", total, top))[0] for top, total in pairs]
    ranked = native.merge([[[key - (1 << 64), word] for word in words]], 1)
    assert same_ranked(ranked[0], Ranked([-math.log(2)], [7]))
    assert ranked[1:] == [Ranked([-math.inf], [0])] * 5


def random_row(kind: int, columns: int, random_: Random) -> Row:
    """Smooth, or so coarse that most values are ties, with absent tokens here and there."""
    scale = random_.choice([0.1, 3.0, 20.0])
    coarse = random_.random() < 0.5
    values = [random_.gauss(random_.choice([0, 30]), scale) for _ in range(columns)]
    row = encode(kind, [float(round(value)) if coarse else value for value in values])
    for _ in range(random_.choice([0, 0, columns // 4, columns])):
        row[random_.randrange(columns)] = random_.choice([NEVER[kind], MINUS_ZERO[kind], 0])
    return row
