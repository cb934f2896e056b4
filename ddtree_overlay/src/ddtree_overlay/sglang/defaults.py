"""The tree's size where flags leave it open, and one line that says where each number is from.

Plain numbers in and out: neither torch nor SGLang is imported.

Budget. 16 nodes is where published runs with CUDA graphs on peak at low concurrency (Qwen3-4B and
8B, Qwen3.6-27B). It shrinks with the number of requests, because verification is almost free only
while requests x (budget + 1) tokens stay below the GPU's ridge, the number of tokens at which a
forward's arithmetic takes as long as reading the weights. It never shrinks below the drafted
positions (block size - 1): with fewer nodes than positions best-first selection drops the drafter's
own greedy path, and at that size the verify width is no larger than DFLASH's. It also never exceeds
what memory carries.

Top-k. `min(budget, 64, vocabulary)`. A rank beyond the budget can never belong to the tree. With
top-k below the budget the tree is still the best one in every round whose nodes leave the last rank
unused. The other rounds are counted as truncated: they may accept less, and emit nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_BUDGET = 1024
"""What `ddtree::build_tree` takes."""
MAX_TOPK = 64
"""Ranks per drafted position that the selection kernels are written for."""
SWEET_SPOT = 16


@dataclass(frozen=True)
class Hardware:
    """A device's dense bf16 rate in TFLOP/s and memory rate in TB/s, as its data sheet has them."""

    name: str
    tflops: float
    terabytes: float

    @property
    def ridge_tokens(self) -> int:
        """Tokens a forward may hold before arithmetic outlasts reading the weights.

        A weight costs 2 bytes of reading and, per token, 2 operations; with fp8 weights both rates
        and bytes halve and the ratio stays. Weights of 4 bits and mixtures of experts reach it
        earlier: lower the budget there by measurement.
        """
        return int(self.tflops / self.terabytes)


_KNOWN = {
    (8, 0): Hardware("sm_80, as A100", 312, 2.04),
    (8, 9): Hardware("sm_89, as L40S", 362, 0.86),
    (9, 0): Hardware("sm_90, as H200", 989, 4.8),
    (10, 0): Hardware("sm_100, as B200", 2250, 8.0),
    (12, 0): Hardware("sm_120, as RTX PRO 6000", 500, 1.79),
}


def hardware_of(capability: tuple[int, int] | None) -> Hardware | None:
    """Rates for a CUDA compute capability; the lowest ridge known for one not listed; None for a
    device that is not CUDA, where no limit follows."""
    if capability is None:
        return None
    lowest = min(_KNOWN.values(), key=lambda hardware: hardware.ridge_tokens)
    unlisted = Hardware(f"sm_{capability[0]}{capability[1]}, not listed", *_rates(lowest))
    return _KNOWN.get(capability, unlisted)


def _rates(hardware: Hardware) -> tuple[float, float]:
    return hardware.tflops, hardware.terabytes


@dataclass(frozen=True)
class SizingInputs:
    """What a tree's size follows from. None for `budget`, `topk`, `max_running_requests`: not given
    by a flag. `memory_budget`: the largest budget that memory carries, from `memory_gate`."""

    block_size: int
    block_size_given: bool
    vocab_size: int
    budget: int | None = None
    topk: int | None = None
    max_running_requests: int | None = None
    hardware: Hardware | None = None
    memory_budget: int = MAX_BUDGET


@dataclass(frozen=True)
class Sizing:
    """A tree's size and the line that explains it. The verify width is `budget + 1`."""

    budget: int
    topk: int
    explanation: str


def size_tree(inputs: SizingInputs) -> Sizing:
    """Budget and top-k: what flags set is kept as it is, the rest is chosen. Raises nothing: ranges
    and memory are the gates' business."""
    if inputs.budget is not None:
        budget, budget_why = inputs.budget, "as set"
    else:
        budget, budget_why = _default_budget(inputs)
    if inputs.topk is not None:
        topk, topk_why = inputs.topk, "as set"
    else:
        topk = min(budget, MAX_TOPK, inputs.vocab_size)
        topk_why = (
            "the smallest of budget, 64 and vocabulary; override with --speculative-ddtree-topk"
        )
    if topk < min(budget, inputs.vocab_size):
        topk_why += "; below the budget: a round that uses the last rank may not have the best tree"
    block_why = "as set" if inputs.block_size_given else "from the drafter's config"
    return Sizing(
        budget=budget,
        topk=topk,
        explanation=(
            f"DDTREE tree: budget {budget} ({budget_why}), verify width {budget + 1}, "
            f"top-k {topk} ({topk_why}), block size {inputs.block_size} ({block_why})."
        ),
    )


def _default_budget(inputs: SizingInputs) -> tuple[int, str]:
    drafted = inputs.block_size - 1
    budget = max(SWEET_SPOT, drafted)
    why = f"{SWEET_SPOT} is the published optimum at low concurrency"
    if drafted > SWEET_SPOT:
        why = f"one node per drafted position, {drafted}, so that the greedy path always fits"
    requests, hardware = inputs.max_running_requests, inputs.hardware
    if requests is not None and hardware is not None:
        carried = hardware.ridge_tokens // requests - 1
        if carried < budget:
            budget = max(drafted, carried)
            why = (
                f"{requests} running requests share the {hardware.ridge_tokens} tokens that "
                f"{hardware.name} verifies at the cost of one, and no fewer than the {drafted} "
                "drafted positions"
            )
    if inputs.memory_budget < budget:
        budget = max(1, inputs.memory_budget)
        why = "the most that memory carries"
    return budget, f"chosen: {why}; override with --speculative-ddtree-budget"
