"""Trees were verified as trees: branches, accepted siblings, longer accepts, every node's logits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Stack

pytestmark = pytest.mark.docker

GAIN = 1.1
LINE = re.compile(
    r"accept len: (?P<accept>[\d.]+), accept rate: [\d.]+, tree budget: (?P<budget>\d+), "
    r"tree nodes: (?P<nodes>[\d.]+), off-spine accept: (?P<off>[\d.]+), "
    r"truncated trees: \d+, tree fall-backs: (?P<fallbacks>\d+), "
)


def accept_length(answers: Iterable[dict[str, Any]]) -> float:
    """Tokens per verify forward and request."""
    answers = list(answers)
    # The first token of a request comes from its prefill.
    tokens = sum(int(a["completion_tokens"]) - 1 for a in answers)
    return tokens / sum(int(a["spec_verify_ct"]) for a in answers)


def test_the_tree_accepts_more_than_the_chain(proof: dict[str, Any]) -> None:
    chain = accept_length(proof["dflash"]["groups"]["sequential"].values())
    tree = accept_length(proof["ddtree16"]["groups"]["sequential"].values())
    assert chain > 1.5, "the drafter has no skill: the comparison would say nothing"
    assert tree >= GAIN * chain, (tree, chain)


def test_a_budget_below_the_block_size_works(proof: dict[str, Any]) -> None:
    result = proof["ddtree4"]
    assert result["trace"]["widths"] == [5]
    assert accept_length(result["groups"]["sequential"].values()) > 1.5
    assert result["metrics"]["sglang:ddtree_off_spine_tokens_total"] > 0


@pytest.mark.parametrize(("name", "budget"), [("ddtree16", 16), ("ddtree4", 4)])
def test_branching_masks_and_accepted_siblings(
    proof: dict[str, Any], name: str, budget: int
) -> None:
    trace, metrics = proof[name]["trace"], proof[name]["metrics"]
    assert trace["widths"] == [budget + 1]
    assert trace["masked"] == trace["forwards"] > 0
    assert trace["branching_requests"] > 0.5 * metrics["sglang:ddtree_trees_total"]
    assert metrics["sglang:ddtree_off_spine_tokens_total"] > 0


def test_the_chain_was_verified_as_a_chain(proof: dict[str, Any]) -> None:
    trace = proof["dflash"]["trace"]
    assert trace["forwards"] > 0
    assert trace["branching_requests"] == 0
    assert not any(name.startswith("sglang:ddtree") for name in proof["dflash"]["metrics"])


def test_metrics(proof: dict[str, Any]) -> None:
    result = proof["ddtree16"]
    metrics = result["sequential_metrics"]
    rounds = sum(a["spec_verify_ct"] for a in result["groups"]["sequential"].values())
    # The server's own warm-up request is counted too.
    assert rounds <= metrics["sglang:ddtree_trees_total"] <= rounds + 16
    assert metrics["sglang:ddtree_budget"] == 16
    per_tree = metrics["sglang:ddtree_nodes_verified_total"] / metrics["sglang:ddtree_trees_total"]
    assert per_tree == 16
    assert metrics["sglang:ddtree_fallbacks_total"] == 0
    assert metrics["sglang:spec_accept_length"] > 1


def test_the_decode_log_line(proof: dict[str, Any]) -> None:
    logged = proof["ddtree16"]["log"]["tree budget:"]
    lines = [LINE.search(line) for line in logged["lines"]]
    assert lines and all(lines), logged["lines"][:2]
    assert {match["budget"] for match in lines if match} == {"16"}
    assert {match["fallbacks"] for match in lines if match} == {"0"}
    assert any(float(match["off"]) > 0 for match in lines if match)
    assert "tree budget:" not in proof["dflash"]["log"]


def test_each_node_has_the_logits_of_its_path_as_a_chain(
    proof: dict[str, Any], stack: Stack, tiny_models: Path, workspace: Path
) -> None:
    """Against Transformers, in fp32; an argmax may differ only where the gap is below that."""
    record, out = Path(proof["ddtree16-nodes"]["nodes"]), workspace / "nodes.json"
    ran = stack.run(
        *("tests/e2e/nodes.py", str(tiny_models / "target"), str(record), str(out)),
        writable=workspace,
        readable=[tiny_models],
        seconds=600,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    found = json.loads(out.read_text("utf-8"))
    print(found)
    assert found["trees"] >= 60
    assert found["nodes"] == 17 * found["trees"]
    assert found["branching_trees"] >= 0.5 * found["trees"]
    assert found["worst"] < found["tolerance"]
    assert found["flips"] == 0
