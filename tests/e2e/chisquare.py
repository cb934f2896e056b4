"""The chi-square test that two samples come from one law, with the standard library alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

MERGED = object()
EXPECTED = 5.0


def survival(statistic: float, freedom: int) -> float:
    """P(chi-square with `freedom` degrees of freedom >= statistic), by the incomplete gamma's
    recurrence (DLMF 8.8.2) from 1/2 or 1."""
    if freedom < 1:
        raise ValueError(f"{freedom} degrees of freedom: there must be at least two bins")
    half = statistic / 2
    if freedom % 2:
        tail, shape = math.erfc(math.sqrt(half)), 0.5
    else:
        tail, shape = math.exp(-half), 1.0
    while shape < freedom / 2:
        if half > 0:
            tail += math.exp(shape * math.log(half) - half - math.lgamma(shape + 1))
        shape += 1
    return min(tail, 1.0)


def homogeneity(one: Sequence[Hashable], other: Sequence[Hashable]) -> tuple[float, int]:
    """(p value, bins) of the hypothesis that both samples were drawn from one law.

    Outcomes whose expected count in either sample is below EXPECTED share one bin. Raises
    ValueError where fewer than two bins are left: such a test could not fail.
    """
    counts = Counter(one), Counter(other)
    sizes = len(one), len(other)
    total = counts[0] + counts[1]
    smallest = min(sizes) / sum(sizes)
    bins: Counter[object] = Counter()
    rows: tuple[Counter[object], Counter[object]] = Counter(), Counter()
    for outcome, count in total.items():
        name = outcome if count * smallest >= EXPECTED else MERGED
        bins[name] += count
        for row, sample in zip(rows, counts, strict=True):
            row[name] += sample[outcome]
    if 0 < bins[MERGED] * smallest < EXPECTED and len(bins) > 2:
        least = min((name for name in bins if name is not MERGED), key=bins.__getitem__)
        for counter in (bins, *rows):
            counter[MERGED] += counter.pop(least)
    if not bins[MERGED]:
        del bins[MERGED]
    statistic = 0.0
    for row, size in zip(rows, sizes, strict=True):
        for name, count in bins.items():
            expected = count * size / sum(sizes)
            statistic += (row[name] - expected) ** 2 / expected
    return survival(statistic, len(bins) - 1), len(bins)
