"""What depends on the host: profile, tensor parallelism, drafting, memory, graphs, caches.

A value that somebody gave stays; the rest is computed, and its source says from what.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddtree_overlay.serve.caches import cache_variables
from ddtree_overlay.serve.catalogue import TREE_ALGORITHMS
from ddtree_overlay.serve.choice import choose_profile
from ddtree_overlay.serve.consistency import check
from ddtree_overlay.serve.drafting import choose_drafting, drop_speculation
from ddtree_overlay.serve.manifest import read_manifest
from ddtree_overlay.serve.model_config import ModelFacts, model_facts
from ddtree_overlay.serve.peer_to_peer import NCCL_SWITCH, adopt_nccl_switch, without_nvlink
from ddtree_overlay.serve.plan import Flag, Plan, Value
from ddtree_overlay.serve.profiles import load_profile, profile_folder
from ddtree_overlay.serve.resolve import (
    COMPUTED,
    DEFAULT,
    apply_profile,
    put_flag,
    said_dests,
    set_values,
)

if TYPE_CHECKING:
    from ddtree_overlay.doctor.model import Hardware

GIB = 2**30
# Beside weights and KV: activations and graphs (as SGLang reserves, 10 GiB of 96), and what a draft
# adds (sglang/memory_gate.py: SCRATCH_FRACTION).
FIXED_GIB, PART, DRAFT_PART = 6.0, 0.04, 0.05
_GRAPHS = {
    *("cuda_graph_max_bs_decode", "cuda_graph_bs_decode", "cuda_graph_backend_decode"),
    *("cuda_graph_config", "disable_cuda_graph", "disable_decode_cuda_graph"),
}
_ENVIRONMENT = {
    # NVML counts GPUs by bus, and what the doctor says of GPU 3 must be CUDA's GPU 3.
    "CUDA_DEVICE_ORDER": ("PCI_BUS_ID", "so that GPUs count as in nvidia-smi"),
    "NCCL_DEBUG": ("WARN", "so that a fault of a link is named in the log"),
}


def derive(
    plan: Plan,
    hardware: Hardware,
    *,
    environment: Mapping[str, str] | None = None,
    build_id: str | None = None,
    profiles: Path | None = None,
    need_model: bool = True,
) -> Plan:
    """The whole plan for this host; only the verdict on peer-to-peer is still to come.

    environment: of the container, whose own NCCL and cache variables stay; os.environ.
    build_id: names the folder of compiled kernels; the manifest's.
    profiles: folder of mounted profiles; as for `resolve`.

    Raises ConflictError, ProfileError and what reading the profile chosen raises.
    """
    environment = os.environ if environment is None else environment
    if build_id is None:
        build_id = read_manifest(environment).text("build_id")
    # Once each: where a mount does not answer, every reading would wait for its bound.
    facts, draft = model_facts(plan.get("model")), model_facts(plan.get("draft_model"))
    folder = profiles or profile_folder(environment)
    if plan.profile:
        profile = load_profile(plan.profile, folder)
    else:
        name, why = choose_profile(plan, hardware, facts)
        profile = load_profile(name, folder)
        plan = replace(plan, notes=(*plan.notes, f"profile {name}: {why}"))
        plan = apply_profile(plan, profile, COMPUTED + why)
    gpus = len(hardware.gpus) if plan.get("device") == "cuda" else 0
    plan = adopt_nccl_switch(plan, environment)
    plan = _tensor_parallel(plan, gpus, facts, draft)
    plan = _expert_parallel(plan, facts)
    plan = _note_idle(plan, gpus)
    plan = choose_drafting(plan, profile, draft)
    plan = _context(plan, facts, draft)
    if plan.get("device") == "cuda":
        plan = _gpu_values(plan, hardware)
    check(plan, need_model=need_model, complete=True)
    plan = drop_speculation(plan)
    return _environment_of(plan, build_id, environment)


def _compute(plan: Plan, name: str, value: Any, why: str) -> Plan:
    """Sets a value that nothing has set."""
    if plan.settings[name].value is not None or plan.settings[name].source != DEFAULT:
        return plan
    return set_values(plan, {name: Value(value, COMPUTED + why)})


def _tensor_parallel(plan: Plan, gpus: int, facts: ModelFacts, draft: ModelFacts) -> Plan:
    """The largest power of two that the GPUs carry and that divides the attention heads of the
    model and of its drafter."""
    if not gpus:
        why = "no GPU is visible" if plan.get("device") == "cuda" else "one CPU process"
        return _compute(plan, "tp", plan.get("nnodes"), why)
    room = gpus * plan.get("nnodes") // (plan.get("pp") * plan.replicas)
    heads = [facts.heads, draft.heads]
    size = 1
    while size * 2 <= room and not any(count and count % (size * 2) for count in heads):
        size *= 2
    why = _gpus_in_words(plan, gpus)
    limiting = sorted({count for count in heads if count and count % (size * 2)})
    if size * 2 <= room and limiting:
        why += f", and {limiting[0]} attention heads divide by no more"
    elif size < room:
        why += ", and tensor parallelism takes a power of two"
    setting = plan.settings["tp"]
    bound = setting.value
    if plan.settings["profile"].source.startswith(COMPUTED) and setting.source == (
        f"profile {plan.profile}"
    ):
        # Nobody asked for this profile, and its number of ranks does not divide this model.
        uneven = [count for count in heads if count and count % bound]
        if uneven and gpus * plan.get("nnodes") >= bound:
            why += f", and {uneven[0]} attention heads do not divide by {bound} ({setting.source})"
            return set_values(plan, {"tp": Value(min(size, bound), COMPUTED + why)})
    return _compute(plan, "tp", size, why)


def _note_idle(plan: Plan, gpus: int) -> Plan:
    used = plan.get("tp") * plan.get("pp") * plan.replicas // plan.get("nnodes")
    if used >= gpus:
        return plan
    size = plan.settings["tp"]
    note = f"{gpus - used} of {gpus} GPUs stay idle: tp is {size.value} ({size.source})"
    return replace(plan, notes=(*plan.notes, note))


def _expert_parallel(plan: Plan, facts: ModelFacts) -> Plan:
    """The least --ep-size under which a rank keeps whole blocks of block-quantised experts, as
    SGLang demands: Qwen3-235B-A22B-FP8's are 1536 wide, 192 on each of 8 ranks, blocks are 128."""
    block, width, experts = facts.quantisation_block, facts.expert_width, facts.experts
    tp = plan.get("tp")
    if not block or not width or not experts or {"ep_size", "moe_dp_size"} & said_dests(plan):
        return plan
    sizes = [ep for ep in range(1, tp + 1) if tp % ep == 0 and experts % ep == 0]
    whole = [ep for ep in sizes if width % (tp // ep * block) == 0]
    if not whole or whole[0] == 1:
        return plan
    why = f"{COMPUTED}experts {width} wide in blocks of {block} cannot be cut into {tp}"
    return put_flag(plan, Flag("--ep-size", (str(whole[0]),), why))


def _gpus_in_words(plan: Plan, gpus: int) -> str:
    words = "1 GPU is visible" if gpus == 1 else f"{gpus} GPUs are visible"
    for name, word in (("nnodes", "on each of {} hosts"), ("pp", "pp {}"), ("dp", "dp {}")):
        if plan.get(name) != 1:
            words += ", " + word.format(plan.get(name))
    return words


def _context(plan: Plan, facts: ModelFacts, draft: ModelFacts) -> Plan:
    """A profile's context is an upper bound: SGLang refuses more than the model was made for, and
    runs the drafter with as much."""
    setting = plan.settings["context_length"]
    if not setting.source.startswith("profile "):
        return plan
    stated = [(facts.context, "model")]
    if plan.get("algorithm") in TREE_ALGORITHMS:
        stated.append((draft.context, "drafter"))
    known = [(size, whose) for size, whose in stated if size]
    size, whose = min(known, default=(setting.value, ""))
    if setting.value <= size:
        return plan
    why = f"{setting.source} allows {setting.value}, the {whose}'s config.json {size}"
    return set_values(plan, {"context_length": Value(size, COMPUTED + why)})


def _gpu_values(plan: Plan, hardware: Hardware) -> Plan:
    if hardware.gpus:
        smallest = min(gpu.memory_total for gpu in hardware.gpus) / GIB
        fraction, why = memory_fraction(smallest, drafting=plan.get("algorithm") is not None)
        plan = _compute(plan, "memory_fraction", fraction, why)
    said = said_dests(plan)
    requests = plan.settings["max_running_requests"]
    if requests.value and not said & _GRAPHS:
        # Whole replicas run so many each; replicas of attention alone share them.
        shared = plan.get("dp") if plan.flag("--enable-dp-attention") is not None else 1
        per_replica = -(-requests.value // shared)
        why = f"{COMPUTED}as many as max_running_requests ({requests.source})"
        plan = put_flag(plan, Flag("--cuda-graph-max-bs-decode", (str(per_replica),), why))
    return without_nvlink(plan, hardware)


def memory_fraction(gib: float, *, drafting: bool) -> tuple[float, str]:
    """The part of a GPU of that many GiB for weights and KV cache, and why."""
    kept = FIXED_GIB + gib * (PART + (DRAFT_PART if drafting else 0))
    fraction = max(0.3, int((1 - kept / gib) * 100) / 100)
    beside = "activations, graphs and drafting" if drafting else "activations and graphs"
    return fraction, f"{kept:.1f} of {gib:.0f} GiB are left to {beside}"


def _environment_of(plan: Plan, build_id: str, environment: Mapping[str, str]) -> Plan:
    variables = cache_variables(plan.get("cache_dir"), build_id, environment)
    if plan.get("device") == "cuda":
        for name, (value, why) in _ENVIRONMENT.items():
            given = environment.get(name)
            variables[name] = (
                Value(given, f"environment {name}") if given else Value(value, COMPUTED + why)
            )
    # What the container's environment says outranks files and profiles, as for settings.
    for name in plan.environment:
        if environment.get(name) and name != NCCL_SWITCH:  # that one follows peer_to_peer
            variables[name] = Value(environment[name], f"environment {name}")
        else:
            variables[name] = plan.environment[name]
    return replace(plan, environment=variables)
