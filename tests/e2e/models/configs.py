"""Tiny config.json files of targets that DDTREE must refuse, and of an MHA one that it must not.

No weights: the gates decide before they load. Each is recognised by SGLang 0.5.17 as what its name
says (tests/e2e/test_models_inside.py asks SGLang itself).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYERS = 4
_COMMON: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "dtype": "float32",
}


def dense() -> dict[str, Any]:
    """A Qwen3: plain attention in every layer."""
    return _COMMON | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


def hybrid_gdn() -> dict[str, Any]:
    """A Qwen3-Next: three gated-delta-net layers to each one of attention."""
    return _COMMON | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "full_attention_interval": LAYERS,
        "partial_rotary_factor": 0.25,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        **_EXPERTS,
    }


def hybrid_mamba() -> dict[str, Any]:
    """A Granite 4: Mamba 2 layers and one of attention."""
    return _COMMON | {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba"] * (LAYERS - 1) + ["attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 256,
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 64,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.17,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    }


def hybrid_swa() -> dict[str, Any]:
    """A gpt-oss: sliding and full attention in turn, a KV pool of two kinds."""
    return _COMMON | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
        "sliding_window": 128,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "swiglu_limit": 7.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": True,
    }


def gemma3_swa() -> dict[str, Any]:
    """A Gemma 3: sliding layers, but one KV pool, so `is_hybrid_swa` is False in 0.5.17."""
    return _COMMON | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention"] * (LAYERS - 1) + ["full_attention"],
        "sliding_window": 128,
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 32,
        "tie_word_embeddings": True,
    }


def mla() -> dict[str, Any]:
    """A DeepSeek-V2: latent attention."""
    return _COMMON | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_key_value_heads": 4,
        "kv_lora_rank": 64,
        "q_lora_rank": None,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": LAYERS,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "moe_layer_freq": 1,
    }


_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}

MAKERS: dict[str, Callable[[], dict[str, Any]]] = {
    "dense": dense,
    "hybrid-gdn": hybrid_gdn,
    "hybrid-mamba": hybrid_mamba,
    "hybrid-swa": hybrid_swa,
    "gemma3-swa": gemma3_swa,
    "mla": mla,
}


def drafter(target: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A DFlash drafter's config that fits `target`; `changes` replace fields, None removes one.

    `dflash_config` is merged field by field in the same way.
    """
    dflash = {"target_layer_ids": [0, LAYERS - 2], "mask_token_id": 3}
    config = dense() | {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 2,
        "hidden_size": target["hidden_size"],
        "vocab_size": target["vocab_size"],
        "block_size": 16,
        "num_target_layers": target["num_hidden_layers"],
        "dflash_config": dflash,
    }
    dflash |= changes.pop("dflash_config", {})
    config |= changes
    config["dflash_config"] = _present(dflash)
    return _present(config)


def write(folder: Path, config: dict[str, Any]) -> Path:
    """Write `folder`/config.json (made if absent) and return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return folder


def make_all(out: Path) -> dict[str, Path]:
    """Write every config under `out`, a folder each, and return the folders by name."""
    return {name: write(out / name, maker()) for name, maker in MAKERS.items()}


def _present(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not None or key in _COMMON}
