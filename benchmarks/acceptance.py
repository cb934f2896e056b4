#!/usr/bin/env python3
"""Measure acceptance on the tiny trained pair and write benchmarks/acceptance.md.

  python benchmarks/acceptance.py MODELS [--python PYTHON] [--results FILE]

MODELS holds target/ and draft/ (tests/e2e/models/train.py makes them). PYTHON has the image's
stack; FILE is what an earlier run of tests/e2e/run.py recorded. Greedy, float32, on the CPU, the
shipped worker over HTTP: acceptance is the same on a GPU up to near-ties; speed is not measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.machine import machine  # noqa: E402

NAMES = ("dflash", "ddtree4", "ddtree8", "ddtree16", "ddtree32", "ddtree64")
GROUP = "sequential"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--results", type=Path, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        results = given.results or Path(work) / "acceptance.json"
        command = ["tests/e2e/run.py", "MODELS", "OUT.json", "plain", *NAMES, "--groups", GROUP]
        if given.results is None:
            argv = [given.python, str(ROOT / command[0]), str(given.models), str(results)]
            subprocess.run([*argv, *command[3:]], check=True)
        document = json.loads(results.read_text("utf-8"))
    text = report(document, shlex.join(["python", *command]))
    (ROOT / "benchmarks" / "acceptance.md").write_text(text, "utf-8")
    print(text)


def row(name: str, result: dict[str, Any]) -> str:
    """One line of the table."""
    answers = list(result["groups"][GROUP].values())
    rounds = sum(answer["spec_verify_ct"] for answer in answers)
    # The first token of a request comes from its prefill.
    tokens = sum(answer["completion_tokens"] - 1 for answer in answers)
    metrics = result["sequential_metrics"]
    if "sglang:ddtree_trees_total" not in metrics:
        return f"| {name} | {tokens / rounds:.2f} | | | | |"
    trees = metrics["sglang:ddtree_trees_total"]
    nodes = metrics["sglang:ddtree_nodes_verified_total"] / trees
    off = metrics["sglang:ddtree_off_spine_tokens_total"]
    truncated = metrics["sglang:ddtree_truncated_trees_total"]
    accepted = tokens / rounds - 1
    return (
        f"| {name} | {tokens / rounds:.2f} | {nodes:.1f} | {nodes / accepted:.1f} | {off:.0f} "
        f"| {truncated:.0f} of {trees:.0f} |"
    )


def report(document: dict[str, Any], command: str) -> str:
    """The page."""
    plain = document["plain"]["groups"][GROUP]
    same = {
        name: all(
            answer["ids"] == plain[prompt]["ids"]
            for prompt, answer in document[name]["groups"][GROUP].items()
        )
        for name in NAMES
    }
    exact = "yes" if all(same.values()) else f"NO: {[n for n in NAMES if not same[n]]}"
    lines = [
        "# Acceptance",
        "",
        "Written by `benchmarks/acceptance.py` from",
        f"`{command}`.",
        "",
        f"- date: {datetime.datetime.now(datetime.timezone.utc).date()}",
        f"- machine: {machine()} (no GPU)",
        f"- {document['dflash']['dtype']}, greedy, batch 1, {len(plain)} held-out prompts,",
        "  up to 64 new tokens, block size 16, top-k = min(budget, 32)",
        f"- every answer equals plain decoding's, token for token: {exact}",
        "",
        "Models: the tiny pair of `tests/e2e/models`, trained in minutes. The numbers show that",
        "trees accept more than their drafter's chain; how much more depends on the drafter.",
        "",
        "| | tokens per verify | nodes verified | nodes per accepted drafted token | "
        "accepted off the greedy chain | trees that a larger top-k could have changed |",
        "|---|---|---|---|---|---|",
        *(row(label(name), document[name]) for name in NAMES),
        "",
    ]
    return "\n".join(lines)


def label(name: str) -> str:
    """How the table calls a configuration."""
    return "DFLASH (chain)" if name == "dflash" else f"DDTREE, budget {name.removeprefix('ddtree')}"


if __name__ == "__main__":
    main()
