"""Everything that DDTREE refuses at start, and what it fills in, before any weight loads.

Called by the argument handling patched into SGLang (`arg_groups/ddtree_hook.py`). What needs only
the flags themselves is checked there; what needs configurations, backends or memory is here and in
the `*_gate` modules. Every refusal is a ValueError of one line: flag, found value, reason, remedy.
"""

from __future__ import annotations

import logging
from typing import Any

from ddtree_overlay.sglang import (
    backend_gate,
    drafter_config,
    drafter_gate,
    memory_gate,
    server_gate,
    target_gate,
)
from ddtree_overlay.sglang.defaults import (
    MAX_BUDGET,
    MAX_TOPK,
    SizingInputs,
    hardware_of,
    size_tree,
)
from ddtree_overlay.sglang.refusal import refusal

logger = logging.getLogger(__name__)

UPSTREAM_RUNNING_REQUESTS = 48
"""SGLang's --max-running-requests for speculative decoding where none is given."""


def check_before_resolution(server_args: Any) -> None:
    """What has to be seen before SGLang resolves speculative arguments: it would read the drafter
    with a traceback, and drop a flag with a warning. Raises ValueError."""
    server_gate.check_adaptive(server_args)
    drafter_config.check_readable(server_args)


def resolve_and_check(server_args: Any) -> None:
    """Refuse what DDTREE cannot do exactly, then set what flags left open.

    Sets `speculative_dflash_block_size`, `speculative_ddtree_budget` and `speculative_ddtree_topk`,
    and declares an attention backend where none was given and the default takes no tree mask.

    Raises:
        ValueError: one line with flag, found value, reason and remedy.
    """
    _check_extension()
    server_gate.check_server(server_args)
    model_config = server_args.get_model_config()
    target_gate.check_target(
        model_config,
        allow_hybrid_unsafe=bool(server_args.speculative_ddtree_allow_hybrid_unsafe),
    )
    backend = backend_gate.check_backend(server_args)
    target_gate.check_windows(model_config, backend)
    drafter = drafter_gate.check_drafter(
        drafter_config.read_config(server_args),
        server_args.speculative_draft_model_path,
        server_args.speculative_dflash_block_size,
        drafter_gate.TargetShape(
            hidden_size=model_config.hidden_size,
            vocab_size=model_config.vocab_size,
            layers=model_config.num_hidden_layers,
            tp_size=server_args.tp_size,
        ),
    )
    _check_window(server_args.speculative_draft_window_size, drafter.block_size)
    memory = _memory_inputs(server_args, model_config, backend, drafter)
    sizing = size_tree(
        SizingInputs(
            block_size=drafter.block_size,
            block_size_given=server_args.speculative_dflash_block_size is not None,
            vocab_size=model_config.vocab_size,
            budget=server_args.speculative_ddtree_budget,
            topk=server_args.speculative_ddtree_topk,
            max_running_requests=server_args.max_running_requests,
            hardware=hardware_of(_capability(server_args.device)),
            memory_budget=memory_gate.largest_budget(memory),
        )
    )
    check_range(sizing.budget, sizing.topk, model_config.vocab_size)
    memory_gate.check_memory(memory, sizing.budget)
    _warn_of_refused_defaults(model_config)
    logger.info(sizing.explanation)
    logger.info(memory_gate.describe(memory, sizing.budget))
    server_args.speculative_dflash_block_size = drafter.block_size
    server_args.speculative_ddtree_budget = sizing.budget
    server_args.speculative_ddtree_topk = sizing.topk


def _check_extension() -> None:
    """The ops load for this torch and have kernels for every visible GPU; raises ValueError."""
    try:
        import ddtree_overlay.ops  # noqa: F401
    except ImportError as error:
        raise ValueError(f"DDTREE: {error}") from error


def check_range(budget: int, topk: int, vocab_size: int) -> None:
    """Raises ValueError for numbers that no tree has. A budget above the number of nodes that can
    exist is fine: the tree is then all of them."""
    if not 1 <= budget <= MAX_BUDGET:
        raise refusal(
            "speculative_ddtree_budget",
            budget,
            f"is outside 1..{MAX_BUDGET}",
            f"use at most {MAX_BUDGET}, or remove it for the default",
        )
    if topk > budget:
        raise refusal(
            "speculative_ddtree_topk",
            topk,
            f"is above the budget of {budget}, and a rank beyond it is never part of a tree",
            f"lower it, or set --speculative-ddtree-budget {topk} or more",
        )
    if topk > MAX_TOPK:
        raise refusal(
            "speculative_ddtree_topk",
            topk,
            f"is above {MAX_TOPK}, the candidates per position that the kernels keep",
            f"use at most {MAX_TOPK}, or remove it for the default",
        )
    if not 1 <= topk <= vocab_size:
        raise refusal(
            "speculative_ddtree_topk",
            topk,
            f"is outside 1..{vocab_size}, the vocabulary",
            "remove it for the default",
        )


def _check_window(window: int | None, block_size: int) -> None:
    if window is not None and window < block_size:
        raise refusal(
            "speculative_draft_window_size",
            window,
            f"is below the drafter's block size of {block_size}",
            f"use {block_size} or more, or remove it",
        )


def _memory_inputs(
    server_args: Any, model_config: Any, backend: str, drafter: drafter_gate.DrafterShape
) -> memory_gate.MemoryInputs:
    import torch
    from sglang.srt.model_executor.cuda_graph_config import Backend

    megabytes = _device_megabytes(server_args.device)
    if megabytes is None:
        logger.info("DDTREE: the device's memory is not known here; no budget is refused for it.")
    asked = str(server_args.kv_cache_dtype)
    itemsize = 1 if asked.startswith("fp8") else torch.empty(0, dtype=model_config.dtype).itemsize
    if asked in ("bf16", "bfloat16"):
        itemsize = 2
    target_values = (
        model_config.get_num_kv_heads(server_args.tp_size)
        * (model_config.head_dim + model_config.v_head_dim)
        * model_config.num_attention_layers
    )
    decode = server_args.cuda_graph_config.decode
    return memory_gate.MemoryInputs(
        block_size=drafter.block_size,
        batch=server_args.max_running_requests or UPSTREAM_RUNNING_REQUESTS,
        graph_batch=0 if decode.backend == Backend.DISABLED else int(decode.max_bs or 0),
        context=model_config.context_len,
        vocab_size=model_config.vocab_size,
        backend=backend,
        kv_bytes_per_token=itemsize * (target_values + drafter.kv_values_per_token),
        device_bytes=None if megabytes is None else int(megabytes * 2**20),
        kv_slots=server_args.max_total_tokens,
        split_bytes_per_token=_split_bytes(server_args, model_config, backend),
    )


def _split_bytes(server_args: Any, model_config: Any, backend: str) -> int:
    """Per verified token, of Triton's partial attention results; as its backend sizes them."""
    if backend != "triton":
        return 0
    splits = int(server_args.triton_attention_num_kv_splits)
    if server_args.enable_deterministic_inference:
        tile = int(server_args.triton_attention_split_tile_size or 256)
        splits = -(-model_config.context_len // tile)
    heads = model_config.num_attention_heads // server_args.tp_size
    return int(heads * splits * (model_config.v_head_dim + 1) * 4)


def _device_megabytes(device: str) -> float | None:
    from sglang.srt.utils.common import get_device_memory_capacity

    megabytes: float | None = get_device_memory_capacity(device)
    return megabytes


def _capability(device: str) -> tuple[int, int] | None:
    import torch

    if not device.startswith("cuda") or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return major, minor


def _warn_of_refused_defaults(model_config: Any) -> None:
    from ddtree_overlay.sglang.requests import unsupported_sampling

    found = unsupported_sampling(model_config.get_default_sampling_params())
    if found is not None:
        name, value, why = found
        logger.warning(
            "DDTREE: the target's generation_config.json sets %s=%s, which %s: OpenAI requests "
            "that do not set it themselves will be refused. Start with --sampling-defaults openai "
            "to ignore that file.",
            name,
            value,
            why,
        )
