"""What the checks look at, taken from the resolved configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from ddtree_overlay.doctor.host_checks.network import PROBES
from ddtree_overlay.doctor.model import Hardware, Subject
from ddtree_overlay.serve.caches import UNKNOWN_BUILD, cache_folders
from ddtree_overlay.serve.catalogue import NO_ALGORITHM
from ddtree_overlay.serve.launch import HOST_ROOT_VARIABLE
from ddtree_overlay.serve.manifest import UNKNOWN, Manifest
from ddtree_overlay.serve.plan import Plan
from ddtree_overlay.serve.profiles import Requires, load_profile, profile_folder

_SHRINKS = ("--quantization", "--torchao-config", "--cpu-offload-gb")
"""Flags under which less than the files' size comes to lie on a GPU."""


def subject_of(
    plan: Plan,
    hardware: Hardware,
    manifest: Manifest,
    environment: Mapping[str, str],
    *,
    serving: bool = False,
) -> Subject:
    """The subject of a derived plan. The plan's own variables (caches, NCCL) are laid over
    `environment`, as the server will have them."""
    algorithm = plan.get("algorithm")
    tp, pp, dp = (plan.get(name) or 1 for name in ("tp", "pp", "dp"))
    nnodes = plan.get("nnodes") or 1
    on_cpu = plan.get("device") == "cpu"
    build = manifest.text("build_id")
    cache = Path(plan.get("cache_dir"))
    values = {name: str(value.value) for name, value in plan.environment.items()}
    return Subject(
        root=Path(environment.get(HOST_ROOT_VARIABLE) or "/"),
        environment={**environment, **values},
        manifest=manifest,
        hardware=hardware,
        device=plan.get("device"),
        serving=serving,
        model=plan.get("model"),
        draft_model=plan.get("draft_model"),
        algorithm=None if algorithm == NO_ALGORITHM else algorithm,
        allow_hybrid_unsafe=plan.flag("--speculative-ddtree-allow-hybrid-unsafe") is not None,
        trust_remote_code=plan.flag("--trust-remote-code") is not None,
        tp=tp,
        pp=pp,
        dp=dp,
        nnodes=nnodes,
        node_rank=plan.get("node_rank") or 0,
        dist_init_addr=plan.get("dist_init_addr"),
        ep=_number(plan.flag("--ep-size")) or 1,
        gpus_needed=0 if on_cpu else math.ceil(tp * pp * plan.replicas / nnodes),
        first_gpu=_number(plan.flag("--base-gpu-id")) or 0,
        gpu_step=_number(plan.flag("--gpu-id-step")) or 1,
        profile=plan.profile,
        requires=_requires(plan, environment),
        revision=plan.flag("--revision"),
        tokenizer=(
            "" if plan.flag("--skip-tokenizer-init") is not None else plan.flag("--tokenizer-path")
        ),
        dummy_weights=plan.flag("--load-format") == "dummy",
        shrinks_weights=any(plan.flag(name) is not None for name in _SHRINKS),
        memory_fraction=plan.get("memory_fraction"),
        attention_backend=plan.get("attention_backend"),
        context_length=plan.get("context_length"),
        block_size=_number(plan.flag("--speculative-dflash-block-size")),
        ports={
            "API": (plan.get("host"), plan.get("port")),
            PROBES: (plan.get("probe_host"), plan.get("probe_port")),
        },
        cache_root=cache / (UNKNOWN_BUILD if build == UNKNOWN else build),
        cache_folders=cache_folders(plan.environment),
        peer_to_peer=plan.get("peer_to_peer"),
    )


def _requires(plan: Plan, environment: Mapping[str, str]) -> Requires:
    if not plan.profile:
        return Requires()
    return load_profile(plan.profile, profile_folder(environment)).requires


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
