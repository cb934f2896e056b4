"""Which profile is taken where none is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddtree_overlay.serve.catalogue import TREE_ALGORITHMS
from ddtree_overlay.serve.model_config import ModelFacts
from ddtree_overlay.serve.plan import Plan

if TYPE_CHECKING:
    from ddtree_overlay.doctor.model import Hardware

FULL_HOST = 8
FULL_MEMORY_GIB = 90
"""For which the profiles of a full host state their numbers, as their [requires]."""
GIB = 2**30


def choose_profile(plan: Plan, hardware: Hardware, facts: ModelFacts) -> tuple[str, str]:
    """A profile's name, and why it."""
    algorithm = plan.settings["algorithm"]
    if plan.get("device") == "cpu":
        return "cpu", "device is cpu"
    if algorithm.source != "default" and algorithm.value not in TREE_ALGORITHMS:
        return "nospec", f"algorithm is {algorithm.value or 'NONE'} ({algorithm.source})"
    if algorithm.value is None and not plan.get("draft_model"):
        missing = "draft_model is named, so decoding is plain; set it to use draft trees"
        return "nospec", f"no {missing}" if plan.get("model") else "no model is named"
    if algorithm.value == "DFLASH":
        return "dflash", f"algorithm is DFLASH ({algorithm.source})"
    return _by_gpus(plan, hardware, facts)


def _by_gpus(plan: Plan, hardware: Hardware, facts: ModelFacts) -> tuple[str, str]:
    count, hosts = len(hardware.gpus), plan.get("nnodes")
    if hosts > 1:
        return "multi-gpu", f"{count} GPUs on each of {hosts} hosts"
    if count == 1:
        return "single-gpu", "one GPU is visible"
    if count < FULL_HOST:
        return "multi-gpu", f"{count or 'no'} GPUs are visible"
    small = min(gpu.memory_total for gpu in hardware.gpus) / GIB
    if small < FULL_MEMORY_GIB:
        return "multi-gpu", f"{count} GPUs are visible, the smallest of {small:.0f} GiB"
    if facts.experts:
        return "moe-8gpu", f"{count} GPUs are visible and the model has {facts.experts} experts"
    kind = "has no experts" if facts.readable else "cannot be looked at (no readable config.json)"
    return "dense-8gpu", f"{count} GPUs are visible and the model {kind}"
