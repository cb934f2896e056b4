"""DDTREE's greedy answers over HTTP are those without speculation, token for token, in float32."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.configurations import CONFIGURATIONS, PROOF
from tests.e2e.session import NEW_TOKENS

pytestmark = pytest.mark.docker

WHOLE_PROMPTS = ("sequential", "sequential_streamed", "concurrent", "concurrent_streamed")
ASKED = [(name, group.__name__) for name in PROOF for group in CONFIGURATIONS[name].groups]


def asked(*groups: str) -> list[tuple[str, str]]:
    return [(name, group) for name, group in ASKED if group in groups and name != "plain"]


def differing(found: dict[str, Any], expected: dict[str, Any], *fields: str) -> list[str]:
    """Names whose answers differ in a field."""
    assert set(found) <= set(expected)
    return [n for n in found if any(found[n][f] != expected[n][f] for f in fields)]


def test_every_server_ran_in_float32_without_a_traceback(proof: dict[str, Any]) -> None:
    for name, result in proof.items():
        assert not result["error"], f"{name}: {result['error']}"
        assert "Traceback" not in result["log"], f"{name}: {result['log']['Traceback']}"
        assert result["dtype"] == "float32"


def test_batch_8_is_batch_1_without_speculation(plain: dict[str, Any]) -> None:
    """Else a difference below could be the reference's."""
    assert not differing(plain["concurrent"], plain["sequential"], "ids", "text")


@pytest.mark.parametrize(("name", "group"), asked(*WHOLE_PROMPTS))
def test_every_prompt(proof: dict[str, Any], plain: dict[str, Any], name: str, group: str) -> None:
    found = proof[name]["groups"][group]
    assert len(found) >= 30
    assert len({answer["text"] for answer in found.values()}) >= 30
    assert not differing(found, plain["sequential"], "ids", "text", "finish_reason")


@pytest.mark.parametrize("group", ["sequential_streamed", "concurrent_streamed"])
def test_streams_come_in_parts(proof: dict[str, Any], group: str) -> None:
    found = proof["ddtree16"]["groups"][group].values()
    assert sum(answer["chunks"] > 2 for answer in found) >= 30


def test_prefixes_are_taken_from_the_cache(proof: dict[str, Any]) -> None:
    groups = proof["ddtree16"]["groups"]
    for number in range(2):
        cold = [
            answer
            for name, answer in groups["sequential"].items()
            if name.startswith(f"prefix-{number}-")
        ]
        assert len(cold) >= 3
        # The first one of a group fills the cache for the others.
        assert all(answer["cached_tokens"] > 40 for answer in cold[1:])
    for name, answer in groups["sequential_streamed"].items():
        assert answer["cached_tokens"] == answer["prompt_tokens"] - 1, name


@pytest.mark.parametrize(("name", "group"), asked("endings", "edges", "staggered", "openai"))
def test_the_same_requests_get_the_same_answers(
    proof: dict[str, Any], plain: dict[str, Any], name: str, group: str
) -> None:
    found = proof[name]["groups"][group]
    if group == "openai":
        assert found == plain[group]
    elif group == "staggered":
        # This server may have been asked for it beside others: compare with the long answers too.
        for prompt, answer in found.items():
            assert answer["ids"] == plain["sequential"][prompt]["ids"][: len(answer["ids"])]
        assert not differing(found, plain[group], "ids", "text", "finish_reason")
    else:
        assert set(found) == set(plain[group])
        assert not differing(found, plain[group], "ids", "text", "finish_reason")


def test_a_round_that_holds_the_stop_token_and_the_length(plain: dict[str, Any]) -> None:
    """Else the equality of `edges` would say nothing."""
    reasons = [
        (int(n.split("+")[1]), a["finish_reason"]["type"]) for n, a in plain["edges"].items()
    ]
    assert sum(spare == 0 and reason == "length" for spare, reason in reasons) >= 8
    assert sum(0 < spare < 15 and reason == "stop" for spare, reason in reasons) >= 32


def test_requests_end_in_every_way(proof: dict[str, Any]) -> None:
    """What `endings` means to test did happen, and within a round, not only at its end."""
    found = proof["ddtree16"]["groups"]["endings"]
    ways: dict[str, list[Any]] = {}
    for name, answer in found.items():
        ways.setdefault(name.split("/")[0], []).append(answer)

    def stopped(way: str) -> list[Any]:
        return [a for a in ways[way] if a["finish_reason"]["type"] == "stop"]

    assert len(stopped("stop-token")) >= 6
    assert all(a["finish_reason"]["matched"] == a["ids"][-1] for a in stopped("stop-token"))
    assert len(stopped("stop-string")) >= 6
    assert any(isinstance(a["finish_reason"]["matched"], str) for a in stopped("stop-string"))
    assert len(stopped("stop-regex")) >= 2
    assert len(stopped("eos")) >= 3
    assert all(a["finish_reason"]["type"] == "length" for a in ways["length"])
    assert {len(a["ids"]) for a in ways["length"]} >= {1, 2, 3, 17}
    assert all(len(a["ids"]) == NEW_TOKENS for a in ways["ignore-eos"])


@pytest.mark.parametrize(("name", "group"), asked("aborts"))
def test_aborted_requests_harm_no_other(
    proof: dict[str, Any], plain: dict[str, Any], name: str, group: str
) -> None:
    found = proof[name]["groups"][group]
    assert 10 <= found["disconnected_after"] < 250
    assert found["aborted"]["type"] == "abort"
    assert 10 <= found["aborted_after"] < 250
    assert len(found["answers"]) == 14
    assert not differing(found["answers"], plain["sequential"], "ids", "text", "finish_reason")


@pytest.mark.parametrize(("name", "group"), asked("context"))
def test_the_end_of_the_context(
    proof: dict[str, Any], plain: dict[str, Any], name: str, group: str
) -> None:
    found, expected = proof[name]["groups"][group], plain[group]
    assert not differing(found["together"], expected["together"], "ids", "finish_reason")
    assert found["alone"]["ids"] == expected["alone"]["ids"]
    for left, answer in found["together"].items():
        assert answer["finish_reason"]["type"] == "length"
        # Cut by the context, not by max_new_tokens, which asks for all that is left.
        assert int(left) - 3 < len(answer["ids"]) < int(left)
    assert found["beyond"]["status"] == expected["beyond"]["status"] == 400


@pytest.mark.parametrize(("name", "group"), asked("pressure"))
def test_retracted_requests_are_resumed(
    proof: dict[str, Any], plain: dict[str, Any], name: str, group: str
) -> None:
    assert proof[name]["log"]["Retract requests"]["count"] > 0
    assert "Retract requests" not in proof["plain"]["log"]
    assert not differing(proof[name]["groups"][group], plain[group], "ids", "finish_reason")


def test_batches_change_from_round_to_round(proof: dict[str, Any]) -> None:
    assert len(proof["ddtree16"]["trace"]["batches"]) >= 8


def test_the_real_triton_kernels_verify_trees(proof: dict[str, Any], plain: dict[str, Any]) -> None:
    """SGLang's own attention kernels, interpreted: they read the tree mask as ours does."""
    found = proof["ddtree16-triton"]["groups"]["few"]
    for prompt, answer in found.items():
        assert len(answer["ids"]) == 10
        assert answer["ids"] == plain["sequential"][prompt]["ids"][:10]
    assert proof["ddtree16-triton"]["metrics"]["sglang:ddtree_trees_total"] > 0


def test_n_and_bias_did_what_they_say(plain: dict[str, Any]) -> None:
    """Else their equality would say nothing."""
    found = plain["openai"]
    for name in [name for name in found if name.startswith("n/")]:
        assert [choice["index"] for choice in found[name]] == [0, 1]
    biased = [name for name in found if name.startswith("bias/")]
    for name in biased:
        free = found[name.replace("bias/", "completion/")]
        assert found[name][0]["text"] != free[0]["text"]
