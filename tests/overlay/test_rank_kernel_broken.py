"""The checks of csrc/rank_tokens.cu must fail when its source is broken, or they prove nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.overlay.compiler import require_compiler
from tests.overlay.conftest import OVERLAY
from tests.overlay.native_rank import (
    QUICK,
    Layout,
    NativeRank,
    check,
    check_normalisers,
    precompile,
    random_row,
)
from tests.overlay.rank_reference import BF16, FP32, INFINITY, MINUS_ZERO, NAN, NEVER, encode
from tests.overlay.trees import seeded


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    require_compiler()


# Each breaks the source in one place.
MUTATIONS = {
    "ties to the higher id": ("(0xffffffffu - id)", "id"),
    "minus zero below zero": ("if (bits == 0x80000000u) return bits;", ""),
    "-inf is a candidate": ("value != value || value == negative_infinity()", "value != value"),
    "-inf minus -inf": ("return max == negative_infinity() ? 0.0f : max;", "return max;"),
    "sum not rescaled": ("sum *= exp_below(max - value);", ""),
    "one of two zeros as the maximum": ("float_bits(max + 0.0f)", "float_bits(max)"),
    "half the sums joined": ("mine.sum + other.sum}", "mine.sum}"),
    "rounded to the step of the maximum": (
        "(value - max) - logf(sum)",
        "value - (max + logf(sum))",
    ),
    "infinity is usable": ("is_finite(max) && is_finite(sum) && sum", "is_finite(sum) && sum"),
    "an infinite sum is usable": ("is_finite(sum) && sum > 0.0f", "sum > 0.0f"),
    "nothing at all is usable": ("&& sum > 0.0f", ""),
    "NaN is usable": ("is_finite(max) && is_finite(sum) && sum > 0.0f", "is_finite(max)"),
    "floor a rank too high": ("reached >= k)", "reached >= k - 1)"),
    "ties with the floor lost": ("lane) >= least) found", "lane) > least) found"),
    "floor is the best key": (
        "shared.floor_key = shared.best[k - 1]",
        "shared.floor_key = shared.best[0]",
    ),
    "keys lost when the buffer is full": ("waiting |= 1u << (u * Type::kLanes + lane);", ""),
    "the second half of the buffer lost": ("if (second >= floor) shared", "if (false) shared"),
    "ids of misaligned rows": ("* Type::kLanes - row.lead);", "* Type::kLanes);"),
    "reads behind the row": ("first + Type::kLanes <= row.columns;", "first <= row.columns;"),
    "reads before the row": ("first >= 0 && first +", "first +"),
    "tail dropped": (
        "if (column < 0 || column >= row.columns)",
        "if (column < 1 || column >= row.columns)",
    ),
    "next round counted twice": (
        "< vectors ? begin + args.segment_vectors : vectors",
        "< vectors ? vectors : vectors",
    ),
    "segments mixed up": (
        "static_cast<i64>(blockIdx.y) * args.rows + index",
        "index * gridDim.y + blockIdx.y",
    ),
    "a warp's sum lost": ("for (int warp = 1; warp < kWarps", "for (int warp = 2; warp < kWarps"),
    "merge drops the last": ("last == 0 ? 1 : last;", "last + 1;"),
    "merge forgets lists": ("list += kWarpLanes)", "list += 2 * kWarpLanes)"),
}
SOURCES = ("rank_tokens.cu", "rank_block.h")
BARRIER = "__syncthreads();"
NOT_NEEDED = "// An old floor is as right as the new one, but lets more keys pass.\n  "


@pytest.fixture(scope="module")
def precompiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return precompile(tmp_path_factory.mktemp("precompiled"))


def mutate(change: Callable[[str], str], target: Path, native: Path) -> NativeRank:
    csrc = target / "csrc"
    shutil.copytree(OVERLAY / "csrc", csrc)
    changed = 0
    for name in (*SOURCES, "rank_core.h", "device.h"):
        text = (csrc / name).read_text()
        broken = change(text)
        changed += broken != text
        (csrc / name).write_text(broken)
    assert changed == 1
    return NativeRank.compile(csrc, target, QUICK, native)


def battery(native: NativeRank, seeds: Sequence[int]) -> None:
    """What every mutation must fail: each check above in its smallest form."""
    random_ = seeded("battery")
    ties = encode(BF16, [float(i * 7 % 5) for i in range(700)])
    mixed = [random_row(BF16, 3000, random_) for _ in range(2)]
    absent = [NEVER[BF16]] * 69 + [0]
    spoiled = [NAN[BF16], *ties[:69]]
    infinite = [*ties[:69], INFINITY[BF16]]
    zeros = [0, MINUS_ZERO[BF16]] * 35
    # Each of the best 64 is the only candidate of its pair of threads.
    alone = [NEVER[BF16]] * 1024
    alone[::16] = encode(BF16, [-1.0 - i / 16 for i in range(64)])
    ascending = encode(FP32, [i / 64 for i in range(14000)])
    large = encode(FP32, [50000.0 + i / 256 for i in range(300)])
    for seed in seeds:
        check(native, BF16, [ties, ties[::-1]], 64, layout=Layout(3), seed=seed)
        check(native, BF16, [absent, spoiled, infinite, zeros, zeros[1::2] * 2], 4, seed=seed)
        check(native, BF16, [absent, zeros], 64, segment_vectors=2, layout=Layout(7), seed=seed)
        check(native, BF16, mixed, 16, segment_vectors=9, layout=Layout(1, 1, 3), seed=seed)
        check(native, BF16, [alone], 64, seed=seed)
        check(native, FP32, [ascending], 64, seed=seed)
        check(native, FP32, [large], 9, layout=Layout(1, 2), seed=seed)
        for row in mixed:
            check(native, BF16, [row], 1, segment_vectors=100, seed=seed)
        check_normalisers(native)


def test_the_battery_passes_unbroken(tmp_path: Path, precompiled: Path) -> None:
    battery(NativeRank.compile(OVERLAY / "csrc", tmp_path, QUICK, precompiled), range(4))


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_seen(name: str, tmp_path: Path, precompiled: Path) -> None:
    old, new = MUTATIONS[name]
    broken = mutate(lambda text: text.replace(old, new), tmp_path, precompiled)
    with pytest.raises(AssertionError):
        battery(broken, range(1))


def barriers() -> list[tuple[str, int]]:
    """Where the sources have barriers that results depend on: all but the one that only makes every
    thread use the newest floor."""
    found = []
    for name in SOURCES:
        text = (OVERLAY / "csrc" / name).read_text()
        found += [(name, text[: match.start()]) for match in re.finditer(re.escape(BARRIER), text)]
    needed = [(name, len(before)) for name, before in found if not before.endswith(NOT_NEEDED)]
    assert len(needed) == len(found) - 1
    return needed


@pytest.mark.parametrize("index", range(len(barriers())))
def test_a_missing_barrier_is_seen(index: int, tmp_path: Path, precompiled: Path) -> None:
    name, at = barriers()[index]
    text = (OVERLAY / "csrc" / name).read_text()
    without = text[:at] + text[at + len(BARRIER) :]
    broken = mutate(lambda source: without if source == text else source, tmp_path, precompiled)
    with pytest.raises(AssertionError):
        battery(broken, range(4))
