"""Grammars, tools, sampling and refusals under DDTREE over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from tests.e2e.chisquare import homogeneity
from tests.e2e.frontends import REFUSED, REGEX
from tests.e2e.sampled import LAWS, LENGTH, SAMPLES

pytestmark = pytest.mark.docker

# Of all tests together (Bonferroni). A run repeats on one machine; models trained on another are
# others, and 24 tests at 0.01 each would fail for one pair in five.
STATISTICS = 4
P_VALUE = 0.01 / (STATISTICS * len(LAWS))
PAIR_BINS = 13


def test_grammars_and_tools_give_what_they_give_without_speculation(
    proof: dict[str, Any], plain: dict[str, Any]
) -> None:
    found = proof["ddtree16"]["groups"]["grammar"]
    assert set(found) == set(plain["grammar"])
    differ = [
        name
        for name, answer in found.items()
        if _without_counts(answer) != _without_counts(plain["grammar"][name])
    ]
    assert not differ


def _without_counts(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {k: v for k, v in answer.items() if k in ("ids", "text", "finish_reason")}
    return answer


def test_grammars_were_obeyed(proof: dict[str, Any]) -> None:
    """Else their equality would say nothing."""
    found = proof["ddtree16"]["groups"]["grammar"]
    documents = words = calls = 0
    for name, answer in found.items():
        kind = name.removeprefix("alone/").split("/")[0]
        done = kind not in ("tool", "response-format") and answer["finish_reason"]["type"] == "stop"
        if kind == "json":
            assert answer["text"].lstrip().startswith("{")
            if done:
                assert set(json.loads(answer["text"])) == {"name", "count", "tags"}
                documents += 1
        elif kind == "regex" and done:
            assert re.fullmatch(REGEX, answer["text"]), answer["text"]
            words += 1
        elif kind == "tool" and answer[0]["finish_reason"] == "tool_calls":
            call = answer[0]["message"]["tool_calls"][0]["function"]
            assert call["name"] == "look_up"
            # JSON, and no more: SGLang holds arguments to their schema in strict tools only.
            json.loads(call["arguments"])
            calls += 1
    assert documents and words and calls, (documents, words, calls)


@pytest.mark.parametrize("law", LAWS)
def test_samples_have_the_law_of_plain_decoding(
    proof: dict[str, Any], plain: dict[str, Any], law: str
) -> None:
    """Tokens and pairs of tokens that a tree's walk drew, against plain samples; fixed
    --random-seed. Pairs share PAIR_BINS bins: by themselves most are too rare to be compared."""
    found, expected = proof["ddtree16"]["groups"]["samples"][law], plain["samples"][law]
    assert len(found) == len(expected) == SAMPLES
    assert all(len(ids) == LENGTH for ids in found)
    statistics: dict[str, Callable[[list[int]], Hashable]] = {
        "second": lambda ids: ids[1],
        "third": lambda ids: ids[2],
        "second and third": lambda ids: (31 * ids[1] + ids[2]) % PAIR_BINS,
        "third and fourth": lambda ids: (31 * ids[2] + ids[3]) % PAIR_BINS,
    }
    assert len(statistics) == STATISTICS
    for name, statistic in statistics.items():
        p, bins = homogeneity(list(map(statistic, found)), list(map(statistic, expected)))
        assert p > P_VALUE, (law, name, p, bins)


@pytest.mark.parametrize(("law", "other"), [("plain", "top-p"), ("hot", "all"), ("top-k", "hot")])
def test_samples_of_another_law_are_told_apart(
    proof: dict[str, Any], plain: dict[str, Any], law: str, other: str
) -> None:
    """The test above can fail: a parameter that were ignored would show."""
    found, expected = proof["ddtree16"]["groups"]["samples"][law], plain["samples"][other]
    assert min(homogeneity(*_tokens(found, expected, place))[0] for place in (1, 2)) < P_VALUE


def _tokens(one: Any, other: Any, place: int) -> tuple[list[int], list[int]]:
    return [ids[place] for ids in one], [ids[place] for ids in other]


def test_seeded_samples_are_those_of_plain_decoding(proof: dict[str, Any]) -> None:
    """A draw depends on the seed and the position alone, so that even samples are token for token
    the same."""
    found = proof["ddtree16-seeded"]["groups"]["seeded"]
    expected = proof["plain-seeded"]["groups"]["seeded"]
    assert len(found) >= 12
    assert [n for n in found if found[n]["ids"] != expected[n]["ids"]] == []
    assert any(answer["spec_accept_length"] > 1.3 for answer in found.values())


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused_by_name(
    proof: dict[str, Any], plain: dict[str, Any], name: str
) -> None:
    answer = proof["ddtree16"]["groups"]["refusals"][name]
    assert answer["status"] == 400, answer
    assert name in answer["text"], answer["text"]
    assert "DDTREE" in answer["text"]


def test_a_refusal_leaves_the_server_answering(
    proof: dict[str, Any], plain: dict[str, Any]
) -> None:
    answers = proof["ddtree16"]["groups"]["refusals"].values()
    assert {tuple(answer["after"]) for answer in answers} == {
        tuple(plain["sequential"]["text-3"]["ids"][:8])
    }
