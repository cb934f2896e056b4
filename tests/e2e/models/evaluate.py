"""Acceptance of a chain and of trees under greedy decoding, in plain torch: what SGLang must report.

    python evaluate.py MODELS [--budgets 4 8 16] [--tokens 96] [--json FILE]

MODELS holds `target` and `draft` as train.py wrote them. The accept length counts the bonus token,
as SGLang's does: tokens emitted by verify rounds / rounds. The target's continuation is greedy and
given once; each round only asks how far the drafter's guess follows it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch  # type: ignore[import-not-found, unused-ignore]

from tests.e2e.models import corpus
from tests.e2e.models.acceptance import Acceptance, draft_tree, follow, total
from tests.e2e.models.drafter import Drafter, load_drafter, target_features
from tests.e2e.models.target import continue_greedily


@dataclass(frozen=True)
class Run:
    """One prompt's greedy continuation, cut at the end token (included) or at the length limit."""

    name: str
    group: str
    prompt_tokens: int
    output: list[int]
    gaps: list[float]
    ended: bool


def draft_block(drafter: Drafter, target: Any, context: Any, bonus: int, prefix: int) -> Any:
    """Log-probabilities [block_size - 1, vocabulary] after `prefix` committed tokens."""
    size = drafter.shape.block_size
    ids = torch.full((1, size), drafter.shape.mask_id)
    ids[0, 0] = bonus
    places = prefix + torch.arange(size)[None]
    hidden = drafter(target.model.embed_tokens(ids), places, context, None)
    return torch.log_softmax(target.lm_head(hidden[0, 1:]).float(), -1)


def greedy_run(target: Any, tokenizer: Any, prompt: corpus.Prompt, limit: int) -> Run:
    """The target's own continuation of `prompt`, at most `limit` tokens."""
    ids = tokenizer(prompt.text, return_tensors="pt", add_special_tokens=False).input_ids
    end_id = tokenizer.eos_token_id
    tokens = continue_greedily(target, ids, limit)
    output = tokens[0, ids.shape[1] :].tolist()
    ended = end_id in output
    output = output[: output.index(end_id) + 1] if ended else output
    with torch.inference_mode():
        rows = target(tokens, use_cache=False).logits[0, ids.shape[1] - 1 :][: len(output)]
    best = rows.topk(2, -1).values
    gaps = (best[:, 0] - best[:, 1]).tolist()
    return Run(prompt.name, prompt.group, ids.shape[1], output, gaps, ended)


def measure(
    drafter: Drafter, target: Any, ids: Sequence[int], run: Run, budgets: Sequence[int]
) -> list[Acceptance]:
    """Chain and trees on one run; `ids` is prompt and output. The first token is the prefill's."""
    found = []
    drafts: dict[int, tuple[list[list[float]], list[list[int]]]] = {}
    features = target_features(target, torch.tensor([ids]), drafter.shape.taps)
    for budget in [0, *budgets]:
        at, rounds, off_spine = 0, 0, 0
        while at < len(run.output) - 1:
            if at not in drafts:
                prefix = run.prompt_tokens + at
                with torch.inference_mode():
                    context = drafter.context(features[:, :prefix], torch.arange(prefix)[None])
                    rows = draft_block(drafter, target, context, ids[prefix], prefix)
                top = rows.topk(min(max(1, *budgets), rows.shape[1]), -1)
                drafts[at] = (top.values.tolist(), top.indices.tolist())
            tree = draft_tree(*drafts[at], budget)
            accepted, branched = follow(tree, run.output[at + 1 :])
            at += accepted + 1
            rounds, off_spine = rounds + 1, off_spine + branched
        # What the last round would emit beyond the end is not counted, as a server does not.
        found.append(Acceptance(budget, rounds, len(run.output) - 1, off_spine))
    return found


def evaluate(
    folder: Path, budgets: Sequence[int], limit: int
) -> tuple[list[Run], list[list[Acceptance]]]:
    """The held-out prompts on the models in `folder`: each run, and its chain's and trees' counts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    target = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32).eval()
    drafter = load_drafter(folder / "draft")
    runs: list[Run] = []
    measured: list[list[Acceptance]] = []
    for prompt in corpus.load_prompts():
        run = greedy_run(target, tokenizer, prompt, limit)
        ids = tokenizer(prompt.text, add_special_tokens=False).input_ids + run.output
        runs.append(run)
        measured.append(measure(drafter, target, ids, run, budgets))
    return runs, measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("--budgets", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    runs, measured = evaluate(given.models, given.budgets, given.tokens)
    totals = [total(column) for column in zip(*measured, strict=True)]
    print("budget | accept length | against the chain | rounds that left the spine")
    for one in totals:
        name = "chain" if one.budget == 0 else str(one.budget)
        ratio, share = one.length / totals[0].length, one.off_spine / one.rounds
        print(f"{name:>6} | {one.length:13.3f} | {ratio:17.3f} | {share:.3f}")
    gaps = sorted(gap for run in runs for gap in run.gaps)
    marks = [f"{q}%: {gaps[int(len(gaps) * q / 100)]:.4f}" for q in (0, 1, 5, 10, 25, 50)]
    print("top-1 minus top-2 logit:", ", ".join(marks), f"of {len(gaps)} tokens")
    lengths = [run.prompt_tokens for run in runs]
    print(
        f"{len(runs)} prompts of {min(lengths)} to {max(lengths)} tokens, median "
        f"{statistics.median(lengths)}; {sum(run.ended for run in runs)} ended by themselves"
    )
    if given.json:
        rows = [asdict(one) | {"length": one.length} for one in totals]
        each = [
            asdict(run) | {"rounds": {one.budget: one.rounds for one in ones}}
            for run, ones in zip(runs, measured, strict=True)
        ]
        document = {"acceptance": rows, "runs": each}
        given.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
