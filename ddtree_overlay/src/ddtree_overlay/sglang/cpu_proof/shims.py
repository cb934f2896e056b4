"""What SGLang 0.5.17 cannot do on a CPU without its CPU kernels, in plain torch."""

from __future__ import annotations

import functools
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ddtree_overlay.sglang.cpu_proof.hooks import Shim
from ddtree_overlay.sglang.cpu_proof.matmul import lm_head_logits, unquantized_linear

BACKEND = "ddtree_cpu"


def _require_cpu(server_args: Any) -> None:
    if server_args.device != "cpu":
        raise ValueError(
            f"--device (got {server_args.device}) must be cpu while DDTREE_CPU_PROOF=1: "
            "pass --device cpu, or unset DDTREE_CPU_PROOF."
        )


def dflash_arguments(original: Any, server_args: Any) -> Any:
    """DFLASH's argument rules without its device gate, for comparison runs."""
    _require_cpu(server_args)
    device = server_args.device
    server_args.device = "cuda"  # the gate is the only reader
    try:
        return original(server_args)
    finally:
        server_args.device = device


def ddtree_device(_original: Any, server_args: Any) -> None:
    """DDTREE's device gate: here only a CPU passes."""
    _require_cpu(server_args)


def draft_attention_backend(original: Any, server_args: Any) -> None:
    """Take our backend for the drafter too, which upstream would replace with flashinfer."""
    from sglang.srt.arg_groups.overrides import (  # type: ignore[import-not-found, unused-ignore]
        attention_backends_of,
        resolved_view,
    )

    asked = server_args.speculative_draft_attention_backend
    if asked is None:
        asked, _ = attention_backends_of(resolved_view(server_args))
    if asked == BACKEND:
        server_args.speculative_draft_attention_backend = asked
    else:
        original(server_args)


def support_triton(original: Any, backend: str) -> bool:
    """Our backend runs where Triton does not."""
    return backend != BACKEND and bool(original(backend))


def assign_req_to_token_pool(
    _original: Any,
    req_pool_indices: Any,
    req_to_token: Any,
    start_offset: Any,
    end_offset: Any,
    out_cache_loc: Any,
    batch_size: int,
) -> None:
    """Write each request's new KV slots into [start, end) of its row; slots lie end to end."""
    spans = _spans(req_pool_indices, start_offset, end_offset, batch_size)
    used = 0
    for slot, start, end in spans:
        taken = out_cache_loc[used : used + end - start]
        req_to_token[slot, start:end] = taken.to(req_to_token.dtype)
        used += end - start


def assign_extend_cache_locs(
    _original: Any,
    req_pool_indices: Any,
    req_to_token: Any,
    start_offset: Any,
    end_offset: Any,
    batch_size: int,
    draft_token_num: int,
    device: Any,
) -> Any:
    """Read the KV slots [start, end) of each request's row: int64 [batch * draft_token_num]."""
    spans = _spans(req_pool_indices, start_offset, end_offset, batch_size)
    found = torch.cat([req_to_token[slot, start:end].long() for slot, start, end in spans])
    if found.numel() != batch_size * draft_token_num:
        raise ValueError(
            f"{found.numel()} KV slots were read for {batch_size} requests of {draft_token_num}"
        )
    return found


def _spans(slots: Any, starts: Any, ends: Any, batch_size: int) -> list[tuple[int, int, int]]:
    columns = (slots.tolist(), starts.tolist(), ends.tolist())
    return list(zip(*(column[:batch_size] for column in columns), strict=True))


def extend_forward_kwargs(
    original: Any, runner: Any, forward_batch: Any, pp_proxy_tensors: Any
) -> Any:
    """Keep a drafter's input embeddings in the model's dtype; upstream casts them to bfloat16."""
    kwargs = original(runner, forward_batch, pp_proxy_tensors)
    embeddings = forward_batch.input_embeds
    if embeddings is not None and forward_batch.replace_embeds is None:
        kwargs["input_embeds"] = embeddings.to(runner.dtype)
    return kwargs


def no_kv_copy_kernel(_original: Any, pool: Any) -> None:
    """No warm-up of the Triton copy: SGLANG_NATIVE_MOVE_KV_CACHE moves KV by indexing."""
    pool._kv_copy_config = None


def no_batch_invariant_kernels(_original: Any, runner: Any) -> None:
    """--enable-deterministic-inference without its Triton kernels, which need an accelerator."""


def allocate_token_bitmask(_original: Any, vocab_size: int, batch_size: int) -> Any:
    """xgrammar's bitmask, all allowed: int32 [batch, ceil(vocab / 32)], in pageable memory."""
    return torch.full((batch_size, (vocab_size + 31) // 32), -1, dtype=torch.int32)


def apply_vocab_mask(_original: Any, _grammar: Any, logits: Any, vocab_mask: Any) -> None:
    """Set the logits [rows, vocab] of tokens whose bit is 0 to -inf, in place."""
    token = torch.arange(logits.shape[1])
    words = vocab_mask[:, token // 32]
    allowed = (words >> (token % 32).to(torch.int32)) & 1
    logits.masked_fill_(allowed == 0, float("-inf"))


def groups_without_nccl(original: Any, *arguments: Any, **named: Any) -> Any:
    """Tensor-parallel groups over gloo alone; upstream makes an NCCL communicator on any device."""
    return original(*arguments, **{**named, "use_pynccl": False})


def gather_without_custom_op(_original: Any, group: Any, output: Any, shard: Any) -> None:
    """torch's own all-gather; upstream's op around it has no CPU kernel."""
    group._all_gather_into_tensor(output, shard)


def patch_record_stream() -> None:
    """CPU memory belongs to no stream; torch refuses instead of doing nothing."""
    original = torch.Tensor.record_stream

    @functools.wraps(original)
    def record_stream(tensor: Any, stream: Any) -> None:
        if tensor.device.type != "cpu":
            original(tensor, stream)

    torch.Tensor.record_stream = record_stream


SHIMS = (
    Shim(
        "sglang.srt.arg_groups.speculative_hook._handle_dflash",
        ("server_args",),
        dflash_arguments,
    ),
    Shim(
        "sglang.srt.arg_groups.ddtree_hook._check_ddtree_device",
        ("server_args",),
        ddtree_device,
    ),
    Shim(
        "sglang.srt.arg_groups.speculative_hook._resolve_dflash_draft_attention_backend",
        ("server_args",),
        draft_attention_backend,
    ),
    Shim("sglang.srt.utils.common.support_triton", ("backend",), support_triton),
    Shim(
        "sglang.srt.distributed.parallel_state.init_model_parallel_group",
        (
            *("group_ranks", "local_rank", "backend", "use_pynccl", "use_custom_allreduce"),
            *("use_message_queue_broadcaster", "group_name", "use_mscclpp_allreduce"),
            *("use_torch_symm_mem_allreduce", "recovered_rank", "rank_offset", "max_world_size"),
        ),
        groups_without_nccl,
    ),
    Shim(
        "sglang.srt.distributed.parallel_state.GroupCoordinator.all_gather_into_tensor",
        ("self", "output", "input"),
        gather_without_custom_op,
    ),
    Shim(
        "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func",
        (
            *("req_pool_indices", "req_to_token", "start_offset", "end_offset"),
            *("out_cache_loc", "batch_size"),
        ),
        assign_req_to_token_pool,
    ),
    Shim(
        "sglang.kernels.ops.speculative.cache_locs.assign_extend_cache_locs_func",
        (
            *("req_pool_indices", "req_to_token", "start_offset", "end_offset"),
            *("batch_size", "draft_token_num", "device"),
        ),
        assign_extend_cache_locs,
    ),
    Shim(
        "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs",
        ("self", "forward_batch", "pp_proxy_tensors"),
        extend_forward_kwargs,
    ),
    Shim(
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._init_kv_copy_and_warmup",
        ("self",),
        no_kv_copy_kernel,
    ),
    Shim(
        "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode",
        ("self",),
        no_batch_invariant_kernels,
    ),
    Shim(
        "sglang.srt.constrained.xgrammar_backend._allocate_token_bitmask",
        ("vocab_size", "batch_size"),
        allocate_token_bitmask,
    ),
    Shim(
        "sglang.srt.constrained.xgrammar_backend.XGrammarGrammar.apply_vocab_mask",
        ("self", "logits", "vocab_mask"),
        apply_vocab_mask,
    ),
    Shim(
        "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply",
        ("self", "layer", "x", "bias"),
        unquantized_linear,
    ),
    Shim(
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
        ("self", "hidden_states", "lm_head", "embedding_bias"),
        lm_head_logits,
    ),
)
