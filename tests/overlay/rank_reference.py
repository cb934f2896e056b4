"""Ranking in plain Python, for comparison with csrc/rank_tokens.*.

A row of logits is a list of bit patterns, so that every NaN, infinity and signed zero can be said.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BF16, FP16, FP32 = 0, 1, 2
NAN = (0x7FC0, 0x7E00, 0x7FC00000)
INFINITY = (0x7F80, 0x7C00, 0x7F800000)
NEVER = (0xFF80, 0xFC00, 0xFF800000)  # -inf
MINUS_ZERO = (0x8000, 0x8000, 0x80000000)

Row = Sequence[int]


def fp32_bits(kind: int, bits: int) -> int:
    """The fp32 bit pattern of a logit."""
    if kind == FP16:
        half = struct.unpack("<e", struct.pack("<H", bits))[0]
        return int(struct.unpack("<I", struct.pack("<f", half))[0])
    return bits << 16 if kind == BF16 else bits


def fp32_value(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def encode(kind: int, values: Iterable[float]) -> list[int]:
    """Bit patterns near the values (bf16 by truncation)."""
    if kind == FP16:
        return [struct.unpack("<H", struct.pack("<e", value))[0] for value in values]
    bits = [struct.unpack("<I", struct.pack("<f", value))[0] for value in values]
    return [word >> 16 for word in bits] if kind == BF16 else bits


@dataclass(frozen=True)
class Packed:
    """Packed candidates of one row. `sum` is NaN for a row with no log-probabilities."""

    keys: list[int]
    max: float
    sum: float

    @staticmethod
    def of(words: Sequence[int]) -> Packed:
        word = words[-1] & (1 << 64) - 1
        return Packed(
            [key & (1 << 64) - 1 for key in words[:-1]],
            fp32_value(word >> 32),
            fp32_value(word & 0xFFFFFFFF),
        )


@dataclass(frozen=True)
class Ranked:
    """What the ops return for one row."""

    logprobs: list[float]
    ids: list[int]


def reference(kind: int, row: Row, k: int, id_offset: int = 0) -> tuple[Packed, Ranked]:
    """The whole row at once, by sorting (value, id) pairs, with sums in double precision."""
    bits = [fp32_bits(kind, word) for word in row]
    values = [fp32_value(word) for word in bits]
    real = [(v + 0.0, id_offset + i) for i, v in enumerate(values) if v > -math.inf]
    best = sorted(real, key=lambda pair: (-pair[0], pair[1]))[:k]
    keys = []
    for value, token in best:
        word = struct.unpack("<I", struct.pack("<f", value))[0]
        order = word ^ (0xFFFFFFFF if word >> 31 else 0x80000000)
        keys.append(order << 32 | 0xFFFFFFFF - token)
    keys += [0] * (k - len(keys))
    top = best[0][0] if best else -math.inf
    if any(math.isnan(value) or value == math.inf for value in values):
        return Packed(keys, top, math.nan), Ranked([-math.inf] * k, [0] * k)
    total = math.fsum(math.exp(value - top) for value, _ in real)
    missing = k - len(best)
    logprobs = [(value - top) - math.log(total) for value, _ in best] + [-math.inf] * missing
    return Packed(keys, top, total), Ranked(logprobs, [token for _, token in best] + [0] * missing)


def near(got: float, want: float, relative: float, absolute: float) -> bool:
    if math.isnan(want):
        return math.isnan(got)
    return got == want or math.isclose(got, want, rel_tol=relative, abs_tol=absolute)


def same_packed(got: Packed, want: Packed) -> bool:
    """A row that is not usable needs a NaN sum; its maximum does not matter."""
    same_zero = math.copysign(1, got.max) == math.copysign(1, want.max)
    same_max = math.isnan(want.sum) or (got.max == want.max and same_zero)
    return got.keys == want.keys and same_max and near(got.sum, want.sum, 2e-6, 0)


def same_ranked(got: Ranked, want: Ranked) -> bool:
    return (
        got.ids == want.ids
        and all(near(a, b, 2e-7, 2e-5) for a, b in zip(got.logprobs, want.logprobs, strict=True))
        and got.logprobs == sorted(got.logprobs, reverse=True)
        and all(value <= 0 for value in got.logprobs)
    )
