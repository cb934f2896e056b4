"""What the tree tests share: inputs by kind, the brute-force answer, and float32 rounding."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Sequence

Table = list[list[float]]
Path = tuple[int, ...]

NEVER = float("-inf")


def seeded(key: int | str) -> random.Random:
    """A generator whose values are the same in every run."""
    return random.Random(key)  # noqa: S311 - test data


def token_table(levels: int, ranks: int) -> list[list[int]]:
    """Ids that tell level and rank, so that a swapped index shows."""
    return [[1000 * (level + 1) + rank for rank in range(ranks)] for level in range(levels)]


def grid_table(levels: int, ranks: int, steps: int, random_: random.Random) -> Table:
    """Multiples of 1/8 (exact in fp32 and fixed point) out of few values, so that ties abound."""
    return [
        sorted((-random_.randrange(steps) / 8 for _ in range(ranks)), reverse=True)
        for _ in range(levels)
    ]


def softmax_table(levels: int, ranks: int, random_: random.Random, sharpness: float = 3.0) -> Table:
    """Log-softmax of normal logits over a vocabulary a little larger than `ranks`, fp32-rounded."""
    rows = []
    for _ in range(levels):
        logits = sorted((random_.gauss(0, sharpness) for _ in range(ranks + 8)), reverse=True)
        norm = math.log(sum(math.exp(x - logits[0]) for x in logits)) + logits[0]
        rows.append([float32(x - norm) for x in logits[:ranks]])
    return rows


def brute_force(table: Sequence[Sequence[float]], budget: int) -> list[Path]:
    """The first `budget` rank tuples of all that exist, by exact score, then lexicographically."""
    scored: list[tuple[int, Path]] = []
    units = [[None if v == NEVER else _exact(v) for v in row] for row in table]
    for depth in range(1, len(table) + 1):
        for path in itertools.product(range(len(table[0])), repeat=depth):
            values = [units[level][rank] for level, rank in enumerate(path)]
            if None not in values:
                scored.append((-sum(value for value in values if value is not None), path))
    return [path for _, path in sorted(scored)[:budget]]


def _exact(value: float) -> int:
    """Any fp32 as a whole number of its smallest subnormal."""
    numerator, denominator = value.as_integer_ratio()
    return numerator * (2**149 // denominator)


def float32(value: float) -> float:
    """The nearest fp32."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def units_to_float32(units: int) -> float:
    """An exact integer of 2**-40 to the nearest fp32, ties to even, in one rounding."""
    magnitude = abs(units)
    shift = max(magnitude.bit_length() - 24, 0)
    kept, rest = magnitude >> shift, magnitude & (1 << shift) - 1
    half = 1 << shift >> 1
    if shift and (rest > half or (rest == half and kept & 1)):
        kept += 1
    return (-1.0 if units < 0 else 1.0) * float(kept << shift) / 2**40
