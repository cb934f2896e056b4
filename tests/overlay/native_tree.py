"""Runs csrc/ on this machine: the CPU op's single lane, and the kernel itself on emulated lanes."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SENTINEL = 0x5A5A5A5A5A5A5A5A
SECONDS = 3

Rows = Sequence[Sequence[float]]
Ids = Sequence[Sequence[int]]

_INDEX_OUTPUTS = ("tokens", "parents", "depths", "first_child", "next_sibling")


def holds(check: Callable[[], bool]) -> bool:
    """Whether `check` gives True, in a process of its own: a broken kernel may crash or hang."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        signal.alarm(SECONDS)
        passed = False
        try:
            passed = check()
        except AssertionError:  # the lanes diverged, or wrote beyond their memory
            pass
        finally:
            os._exit(0 if passed else 1)
    return os.waitpid(child, 0)[1] == 0


# Undefined behaviour is trapped: a score that overflows must not pass, nor a wide access to an
# address that is not aligned for it.
_COMPILE = (
    *("g++", "-std=c++20", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
    *("-ffp-contract=off", "-fsanitize=undefined", "-fno-sanitize-recover=undefined"),
    f"-I{HERE / 'native'}",
)


@functools.cache
def _emulator() -> tempfile.TemporaryDirectory[str]:
    """The emulator compiled ahead, which is most of the work of every shim and mutation."""
    folder = tempfile.TemporaryDirectory()
    header = Path(folder.name) / "emulator.h"
    header.write_text('#include "cuda_on_host.h"\n')
    subprocess.run([*_COMPILE, "-x", "c++-header", str(header)], check=True)
    return folder


def compile_shim(csrc: Path, target: Path, source: Path) -> ctypes.CDLL:
    """`source` and the kernels that it includes from `csrc`, as a library in `target`."""
    path = target / f"{source.stem}.so"
    header = str(Path(_emulator().name) / "emulator.h")
    subprocess.run(
        [*_COMPILE, "-shared", "-include", header, f"-I{csrc}", str(source), "-o", str(path)],
        check=True,
    )
    return ctypes.CDLL(str(path))


def mutated(csrc: Path, target: Path, file: str, old: str, new: str) -> Path:
    """A copy of the sources in `target` with one piece of text replaced."""
    copy = target / "csrc"
    shutil.copytree(csrc, copy)
    text = (copy / file).read_text()
    assert text.count(old) == 1, f"{file} holds {text.count(old)} times: {old}"
    (copy / file).write_text(text.replace(old, new))
    return copy


class _Args(ctypes.Structure):
    _fields_ = (
        ("logprobs", ctypes.POINTER(ctypes.c_float)),
        ("logprobs_stride", ctypes.c_int64 * 3),
        ("token_ids", ctypes.POINTER(ctypes.c_int64)),
        ("token_ids_stride", ctypes.c_int64 * 3),
        ("budgets", ctypes.POINTER(ctypes.c_int64)),
        ("budgets_stride", ctypes.c_int64),
        ("roots", ctypes.POINTER(ctypes.c_int64)),
        ("roots_stride", ctypes.c_int64),
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
        library = compile_shim(csrc, target, source)
        library.shim_args_size.restype = ctypes.c_size_t
        library.shim_workspace_bytes.restype = ctypes.c_long
        assert library.shim_args_size() == ctypes.sizeof(_Args)
        return NativeTree(library)

    def workspace_bytes(self, levels: int, ranks: int, budget: int) -> int:
        return int(self.library.shim_workspace_bytes(levels, ranks, budget))

    def single(
        self,
        logprobs: Sequence[Rows],
        token_ids: Sequence[Ids],
        budget: int,
        strided: bool = False,
        *,
        budgets: Sequence[int] | None = None,
        roots: Sequence[int] | None = None,
    ) -> list[Output]:
        """The algorithm on one lane, for a batch."""
        call = _Call(logprobs, token_ids, budget, strided, budgets, roots)
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
        *,
        budgets: Sequence[int] | None = None,
        roots: Sequence[int] | None = None,
    ) -> list[Output]:
        """The kernel on 32 emulated lanes, resumed in an order that depends on `seed`."""
        call = _Call(logprobs, token_ids, budget, strided, budgets, roots)
        status = self.library.shim_run_warp(ctypes.byref(call.args), ctypes.c_uint(seed))
        assert status != 1, "wrote beyond the shared memory of the launch"
        assert status == 0, "the lanes of the warp diverged"
        return call.outputs()


class _Call:
    """Arguments with outputs full of sentinels, so that an element left unwritten shows."""

    def __init__(
        self,
        logprobs: Sequence[Rows],
        token_ids: Sequence[Ids],
        budget: int,
        strided: bool,
        budgets: Sequence[int] | None,
        roots: Sequence[int] | None,
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

        self.inputs = [values, ids]
        for name, given in (("budgets", budgets), ("roots", roots)):
            if given is not None:
                array = self._per_request(given, stride=2 if strided else 1)
                setattr(args, name, array)
                setattr(args, f"{name}_stride", 2 if strided else 1)
                self.inputs.append(array)

        self.arrays: dict[str, Any] = {}
        for name in _INDEX_OUTPUTS:
            self._output(args, name, ctypes.c_int64, batch * self.width)
        self._output(args, "ancestors", ctypes.c_int64, batch * self.width * self.words)
        self._output(args, "counts", ctypes.c_int64, batch)
        self._output(args, "scores", ctypes.c_float, batch * self.width)
        self._output(args, "exact", ctypes.c_uint8, batch)
        self.args = args

    @staticmethod
    def _per_request(values: Sequence[int], stride: int) -> Any:
        array = (ctypes.c_int64 * (stride * len(values)))(*[SENTINEL] * (stride * len(values)))
        array[::stride] = list(values)
        return array

    def _output(self, args: _Args, name: str, kind: Any, size: int) -> None:
        array = (kind * (size + 1))()
        ctypes.memset(array, 0x5A, ctypes.sizeof(array))
        setattr(args, name, array)
        self.arrays[name] = array

    def outputs(self) -> list[Output]:
        for name, array in self.arrays.items():
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
