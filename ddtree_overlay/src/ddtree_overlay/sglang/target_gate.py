"""Targets on which a tree cannot be verified, told from the model's configuration alone.

`--speculative-ddtree-allow-hybrid-unsafe` lifts two of these, as its help text says: recurrent
layers (a node's state must be loaded from its tree parent, and SGLang scans the nodes as one chain)
and sliding-window or chunked local attention (a window counts positions, and the backends count it
in node order). Both give WRONG output, not slow output. Everything else here is final.

Multimodal targets with M-RoPE are let through: at verification SGLang derives the three position
rows from the verify input's depth positions plus the request's offset, which is what a chain gets.
"""

from __future__ import annotations

import logging
from typing import Any

from ddtree_overlay.sglang.refusal import refusal

logger = logging.getLogger(__name__)

_ANOTHER = "use a target with full attention in every layer, or another --speculative-algorithm"
_FULL = frozenset({"full_attention", "attention", "global", "global_attention"})
_LOCAL = frozenset({"sliding_attention", "chunked_attention", "local_attention", "sliding_window"})


def check_target(model_config: Any, *, allow_hybrid_unsafe: bool) -> None:
    """Raises ValueError for a target that a tree cannot be verified on.

    Args:
        model_config: SGLang's `ModelConfig` of the target.
        allow_hybrid_unsafe: warn instead, for recurrent and sliding-window layers.
    """
    _check_kind(model_config)
    for found in (_recurrent_layers(model_config), _local_attention(model_config)):
        if found is None:
            continue
        if not allow_hybrid_unsafe:
            raise refusal(
                "--model-path",
                _name(model_config),
                f"has {found}, for which tree verification is not proven",
                f"{_ANOTHER}; --speculative-ddtree-allow-hybrid-unsafe lifts this for experiments, "
                "and then output can be wrong",
            )
        logger.warning(
            "DDTREE: --speculative-ddtree-allow-hybrid-unsafe is set and the target %s has %s: "
            "output may be WRONG, not slow. Do not serve with it.",
            _name(model_config),
            found,
        )


def _check_kind(model_config: Any) -> None:
    from sglang.srt.configs.model_config import (
        AttentionArch,
        is_deepseek_dsa,
        is_deepseek_v4,
        is_encoder_decoder_model,
        is_minimax_sparse,
    )

    config = model_config.hf_config
    why = None
    if not model_config.is_generation:
        why = "is not a generation model and decodes nothing"
    elif is_encoder_decoder_model(config.architectures):
        why = "attends to an encoder, for which tree verification is not proven"
    elif is_deepseek_dsa(config) or is_deepseek_v4(config) or is_minimax_sparse(config):
        why = "selects attended tokens by position (sparse attention), which no tree mask reaches"
    elif model_config.attention_arch == AttentionArch.MLA:
        why = "uses MLA, whose attention backends take no tree mask"
    elif getattr(model_config, "use_ngram_embedding", False):
        why = "embeds n-grams of the preceding tokens, which differ from node to node"
    if why is not None:
        raise refusal("--model-path", _name(model_config), why, _ANOTHER)


def _recurrent_layers(model_config: Any) -> str | None:
    from sglang.srt.configs.hybrid_arch import mambaish_config

    text = model_config.hf_text_config
    if mambaish_config(model_config) is not None:
        return "recurrent layers (Mamba, GDN or linear attention)"
    # What SGLang's list of classes does not name: a new model that states its layers.
    for key in ("layer_types", "layers_block_type"):
        kinds = {str(kind) for kind in getattr(text, key, None) or ()}
        unknown = sorted(kinds - _FULL - _LOCAL)
        if unknown:
            return f"layers of type {', '.join(unknown)}"
    return None


def check_windows(model_config: Any, backend: str) -> None:
    """What even --speculative-ddtree-allow-hybrid-unsafe does not lift: FlashInfer reads the mask
    once per window, of a length that a tree's mask does not have, and the server would stop.

    Raises:
        ValueError: local attention with the flashinfer backend.
    """
    local = _local_attention(model_config)
    if local is not None and backend == "flashinfer":
        raise refusal(
            "attention_backend",
            backend,
            f"cannot verify a tree of a target with {local}",
            "use --attention-backend triton",
        )


def _local_attention(model_config: Any) -> str | None:
    from sglang.srt.configs.model_config import is_hybrid_swa_model

    text = model_config.hf_text_config
    # Not model_config.is_hybrid_swa: --disable-hybrid-swa-memory clears it and the window stays.
    if is_hybrid_swa_model(model_config.hf_config.architectures, text):
        return "sliding-window layers"
    local = sorted({str(kind) for kind in getattr(text, "layer_types", None) or ()} & _LOCAL)
    if local:
        return f"layers of type {', '.join(local)}"
    if getattr(text, "attention_chunk_size", None):
        return f"chunked local attention (attention_chunk_size {text.attention_chunk_size})"
    window = model_config.sliding_window_size
    if window and getattr(text, "use_sliding_window", True) is not False:
        return f"a sliding window of {window} tokens"
    return None


def _name(model_config: Any) -> str:
    architectures = model_config.hf_config.architectures or ["unknown architecture"]
    return f"{model_config.model_path}, {architectures[0]}"
