from __future__ import annotations

import random

import pytest

from tests.e2e.chisquare import homogeneity, survival


@pytest.mark.parametrize(
    ("freedom", "statistic", "tail"),
    # Any statistics table.
    [
        (1, 3.841, 0.05),
        (2, 5.991, 0.05),
        (3, 11.345, 0.01),
        (10, 18.307, 0.05),
        (30, 50.892, 0.01),
    ],
)
def test_survival_is_the_tabulated_one(freedom: int, statistic: float, tail: float) -> None:
    assert survival(statistic, freedom) == pytest.approx(tail, rel=2e-3)
    assert survival(0.0, freedom) == 1.0


def draw(weights: list[float], size: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(len(weights)), weights, k=size)  # noqa: S311


def test_one_law_passes_and_its_p_values_are_spread() -> None:
    weights = [8, 4, 2, 1, 1, 0.2, 0.2]
    found = [
        homogeneity(draw(weights, 240, s), draw(weights, 240, 1000 + s))[0] for s in range(200)
    ]
    assert 0.35 < sum(found) / len(found) < 0.65
    assert sum(p < 0.05 for p in found) < 24


def test_another_law_is_seen() -> None:
    one, other = draw([8, 4, 2, 1], 240, 1), draw([5, 6, 2, 2], 240, 2)
    assert homogeneity(one, other)[0] < 0.01


def test_rare_outcomes_share_a_bin_and_nothing_is_lost() -> None:
    p, bins = homogeneity(["a"] * 90 + list(range(10)), ["a"] * 90 + list(range(10, 20)))
    assert bins == 2 and p == pytest.approx(1.0)


def test_a_certain_law_cannot_be_tested() -> None:
    with pytest.raises(ValueError, match="at least two bins"):
        homogeneity(["a"] * 50, ["a"] * 50)
