"""Runs csrc/ on this machine: the CPU op's single lane, and the kernel itself on emulated lanes."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SENTINEL = 0x5A5A5A5A5A5A5A5A

Rows = Sequence[Sequence[float]]
Ids = Sequence[Sequence[int]]

_INDEX_OUTPUTS = ("tokens", "parents", "depths", "first_child", "next_sibling")


class _Args(ctypes.Structure):
    _fields_ = (
        ("logprobs", ctypes.POINTER(ctypes.c_float)),
        ("logprobs_stride", ctypes.c_int64 * 3),
        ("token_ids", ctypes.POINTER(ctypes.c_int64)),
        ("token_ids_stride", ctypes.c_int64 * 3),
        *((name, ctypes.POINTER(ctypes.c_int64)) for name in _INDEX_OUTPUTS),
        ("ancestors", ctypes.POINTER(ctypes.c_int64)),
        ("counts", ctypes.POINTER(ctypes.c_int64)),
        ("scores", ctypes.POINTER(ctypes.c_float)),
        ("exact", ctypes.POINTER(ctypes.c_uint8)),
        ("batch", ctypes.c_int),
        ("levels", ctypes.c_int),
        ("ranks", ctypes.c_int),
        ("budget", ctypes.c_int),
    )


@dataclass(frozen=True)
class Output:
    """One request's outputs as the op would give them."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    first_child: list[int]
    next_sibling: list[int]
    ancestors: list[list[int]]
    count: int
    scores: list[float]
    exact: bool


@dataclass(frozen=True)
class NativeTree:
    """The compiled library."""

    library: ctypes.CDLL

    @staticmethod
    def compile(
        csrc: Path, target: Path, source: Path = HERE / "native" / "shim.cpp"
    ) -> NativeTree:
        """Compile with undefined behaviour trapped: a score that overflows must not pass."""
        path = target / "tree.so"
        subprocess.run(
            [
                *("g++", "-std=c++20", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"),
                *("-ffp-contract=off", "-fsanitize=undefined", "-fno-sanitize-recover=undefined"),
                *(f"-I{csrc}", f"-I{HERE / 'native'}", str(source), "-o", str(path)),
            ],
            check=True,
        )
        library = ctypes.CDLL(str(path))
        library.shim_args_size.restype = ctypes.c_size_t
        library.shim_workspace_bytes.restype = ctypes.c_long
        assert library.shim_args_size() == ctypes.sizeof(_Args)
        return NativeTree(library)

    def workspace_bytes(self, levels: int, ranks: int, budget: int) -> int:
        return int(self.library.shim_workspace_bytes(levels, ranks, budget))

    def single(
        self, logprobs: Sequence[Rows], token_ids: Sequence[Ids], budget: int, strided: bool = False
    ) -> list[Output]:
        """The algorithm on one lane, for a batch."""
        call = _Call(logprobs, token_ids, budget, strided)
        status = self.library.shim_run_single(ctypes.byref(call.args))
        assert status == 0, "wrote beyond the workspace"
        return call.outputs()

    def warp(
        self,
        logprobs: Sequence[Rows],
        token_ids: Sequence[Ids],
        budget: int,
        seed: int = 0,
        strided: bool = False,
    ) -> list[Output]:
        """The kernel on 32 emulated lanes, resumed in an order that depends on `seed`."""
        call = _Call(logprobs, token_ids, budget, strided)
        status = self.library.shim_run_warp(ctypes.byref(call.args), ctypes.c_uint(seed))
        assert status != 1, "wrote beyond the shared memory of the launch"
        assert status == 0, "the lanes of the warp diverged"
        return call.outputs()


class _Call:
    """Arguments with outputs full of sentinels, so that an element left unwritten shows."""

    def __init__(
        self, logprobs: Sequence[Rows], token_ids: Sequence[Ids], budget: int, strided: bool
    ) -> None:
        batch, levels, ranks = len(logprobs), len(logprobs[0]), len(logprobs[0][0])
        self.batch, self.width = batch, budget + 1
        self.words = budget // 64 + 1
        args = _Args(batch=batch, levels=levels, ranks=ranks, budget=budget)
        # Strided: ranks outermost, requests innermost, every other element unused.
        strides = (2, 2 * batch, 2 * batch * levels) if strided else (levels * ranks, ranks, 1)
        size = batch * levels * ranks * (2 if strided else 1)
        values, ids = (ctypes.c_float * size)(), (ctypes.c_int64 * size)()
        for i in range(size):
            values[i], ids[i] = float("nan"), SENTINEL
        for request in range(batch):
            for level in range(levels):
                for rank in range(ranks):
                    at = request * strides[0] + level * strides[1] + rank * strides[2]
                    values[at] = logprobs[request][level][rank]
                    ids[at] = token_ids[request][level][rank]
        args.logprobs, args.token_ids = values, ids
        args.logprobs_stride = args.token_ids_stride = (ctypes.c_int64 * 3)(*strides)

        self.arrays: dict[str, Any] = {"values": values, "ids": ids}
        for name in _INDEX_OUTPUTS:
            self._output(args, name, ctypes.c_int64, batch * self.width)
        self._output(args, "ancestors", ctypes.c_int64, batch * self.width * self.words)
        self._output(args, "counts", ctypes.c_int64, batch)
        self._output(args, "scores", ctypes.c_float, batch * self.width)
        self._output(args, "exact", ctypes.c_uint8, batch)
        self.args = args

    def _output(self, args: _Args, name: str, kind: Any, size: int) -> None:
        array = (kind * (size + 1))()
        ctypes.memset(array, 0x5A, ctypes.sizeof(array))
        setattr(args, name, array)
        self.arrays[name] = array

    def outputs(self) -> list[Output]:
        for name, array in self.arrays.items():
            if name not in ("values", "ids"):
                guard = bytes(array)[-ctypes.sizeof(array._type_) :]
                assert set(guard) == {0x5A}, f"{name}: written beyond its end"
        result = []
        for request in range(self.batch):
            rows = {
                name: list(self.arrays[name][request * self.width : (request + 1) * self.width])
                for name in (*_INDEX_OUTPUTS, "scores")
            }
            start = request * self.width * self.words
            flat = self.arrays["ancestors"][start : start + self.width * self.words]
            packed = [flat[i : i + self.words] for i in range(0, len(flat), self.words)]
            exact = self.arrays["exact"][request]
            assert exact in (0, 1), "exact was not written"
            result.append(
                Output(
                    **rows,
                    ancestors=packed,
                    count=self.arrays["counts"][request],
                    exact=bool(exact),
                )
            )
        return result
