"""The attention backend that verifies the target's tree must take a tree mask.

SGLang resolves backends before speculative arguments. TARGET_VERIFY runs on the prefill backend, or
on the decode backend under `--speculative-attention-mode decode`; `--attention-backend` stands for
whichever of the two is unset. Unset on sm_120 it resolves to flashinfer; on sm_90 to fa3, which
takes no mask: there, and only where no backend flag was given, a backend that does is declared.
"""

from __future__ import annotations

import logging
from typing import Any

from ddtree_overlay.sglang.refusal import flag, refusal

logger = logging.getLogger(__name__)

TREE_MASK_BACKENDS = ("flashinfer", "triton")
"""Of SGLang 0.5.17, for targets that are not MLA."""
CPU_PROOF_BACKEND = "ddtree_cpu"


def check_backend(server_args: Any) -> str:
    """The backend that verifies trees; declares one where no backend flag was given.

    Raises:
        ValueError: it takes no tree mask.
    """
    from sglang.srt.arg_groups.overrides import run_post_process_pass

    field, found = verify_backend(server_args)
    if found in _supported():
        _check_kv_dtype(server_args, found)
        return found
    if server_args.is_attention_backend_not_set():
        run_post_process_pass(server_args, _declare_tree_mask_backend)
        chosen_field, chosen = verify_backend(server_args)
        if chosen in _supported():
            logger.info(
                "DDTREE: %s instead of the default %s attention backend, which takes no tree mask.",
                chosen,
                found,
            )
            _check_kv_dtype(server_args, chosen)
            return chosen
        field, found = chosen_field, chosen
    raise refusal(
        field,
        found,
        "verifies the target and takes no tree mask",
        f"{flag(field)} flashinfer or triton",
    )


def verify_backend(server_args: Any) -> tuple[str, str]:
    """The argument that decides which backend runs the target's TARGET_VERIFY, and that backend."""
    from sglang.srt.arg_groups.overrides import attention_backends_of, resolved_view

    view = resolved_view(server_args)
    prefill, decode = attention_backends_of(view)
    on_decode = view.speculative_attention_mode == "decode"
    split = "decode_attention_backend" if on_decode else "prefill_attention_backend"
    field = split if getattr(view, split) else "attention_backend"
    return field, str(decode if on_decode else prefill)


def _check_kv_dtype(server_args: Any, backend: str) -> None:
    """Triton's verify reads the tree's own K and V before they are quantised, plain decoding after:
    with an fp8 cache the two would differ by more than rounding."""
    dtype = str(server_args.kv_cache_dtype)
    if backend == "triton" and dtype.startswith("fp8"):
        raise refusal(
            "kv_cache_dtype",
            dtype,
            "would give other tokens than plain decoding with the triton backend",
            "use --attention-backend flashinfer, or --kv-cache-dtype auto",
        )


def _supported() -> tuple[str, ...]:
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES

    # A choice only in a process where the CPU proof path is active.
    if CPU_PROOF_BACKEND in ATTENTION_BACKEND_CHOICES:
        return (*TREE_MASK_BACKENDS, CPU_PROOF_BACKEND)
    return TREE_MASK_BACKENDS


def _declare_tree_mask_backend(view: Any) -> dict[str, str]:
    from sglang.srt.utils.common import is_flashinfer_available

    # FlashInfer has no attention sinks.
    sinks = view.get_model_config().has_attention_sinks
    backend = "flashinfer" if is_flashinfer_available() and not sinks else "triton"
    return {"attention_backend": backend}
