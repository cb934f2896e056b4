"""native/cuda_on_host.h: exchanges give what CUDA's do, a missing barrier or a lost update shows,
and what would hang a GPU is reported."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.overlay.compiler import require_compiler

NATIVE = Path(__file__).resolve().parent / "native"
# In the order of emulator_check.cpp.
EXCHANGES, SUM, RACING_SUM, ATOMICS, LOST_UPDATE = range(5)
HALF_AT_BARRIER, LANE_ENDS, DIFFERENT_BARRIERS, DIFFERENT_SHUFFLES = range(5, 9)
BEYOND_SHARED, WITHIN_SHARED = range(9, 11)
FINE, BEYOND, DIVERGED = range(3)
BLOCKS = 6

Run = Callable[..., tuple[int, list[int]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    require_compiler()
    path = tmp_path_factory.mktemp("emulator") / "check.so"
    source = str(NATIVE / "emulator_check.cpp")
    flags = ("-std=c++20", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["g++", *flags, source, "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))

    def call(kernel: int, threads: int, seed: int = 0) -> tuple[int, list[int]]:
        out = (ctypes.c_int * (BLOCKS * threads))()
        status = library.check_run(kernel, threads, ctypes.c_uint(seed), out)
        return status, list(out)

    return call


@pytest.mark.parametrize("threads", [32, 64, 256, 1024])
def test_exchanges_and_atomics(run: Run, threads: int) -> None:
    for seed in range(4):
        for kernel in (EXCHANGES, ATOMICS):
            assert run(kernel, threads, seed) == (FINE, [1] * BLOCKS * threads)
        total = threads * (threads - 1) // 2
        assert run(SUM, threads, seed) == (FINE, [total] * BLOCKS * threads)


@pytest.mark.parametrize("kernel", [RACING_SUM, LOST_UPDATE])
def test_what_depends_on_the_order_differs(run: Run, kernel: int) -> None:
    results = [run(kernel, 256, seed) for seed in range(4)]
    assert all(status == FINE for status, _ in results)
    assert len({tuple(values) for _, values in results}) > 1
    assert run(kernel, 256, 1) == results[1]


@pytest.mark.parametrize(
    "kernel", [HALF_AT_BARRIER, LANE_ENDS, DIFFERENT_BARRIERS, DIFFERENT_SHUFFLES]
)
def test_threads_that_part_are_reported(run: Run, kernel: int) -> None:
    for seed in range(4):
        assert run(kernel, 64, seed)[0] == DIVERGED


def test_writes_beyond_shared_memory_are_reported(run: Run) -> None:
    assert run(BEYOND_SHARED, 64)[0] == BEYOND
    assert run(WITHIN_SHARED, 64)[0] == FINE
