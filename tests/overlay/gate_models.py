"""Configurations without weights for the gates: what is refused at start reads nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.models import configs

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 256,
    "rms_norm_eps": 1e-6,
    "dtype": "bfloat16",
}
TARGET: dict[str, Any] = {
    **SHAPE,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 4,
}
DRAFTER: dict[str, Any] = {
    **SHAPE,
    "model_type": "qwen3",
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 1,
    "num_target_layers": 4,
    "block_size": 8,
    "dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 255},
}
# One target of each kind that is refused, in the shape that the drafter was trained for.
HYBRID_GDN: dict[str, Any] = {**configs.hybrid_gdn(), **SHAPE}
HYBRID_MAMBA: dict[str, Any] = {**configs.hybrid_mamba(), **SHAPE, "mamba_d_head": 16}
SLIDING: dict[str, Any] = {**configs.gemma3_swa(), **SHAPE}
HYBRID_SWA: dict[str, Any] = {**configs.hybrid_swa(), **SHAPE}
MLA: dict[str, Any] = {**configs.mla(), **SHAPE, "num_key_value_heads": 4}
DEEPSEEK_SPARSE: dict[str, Any] = {
    **MLA,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_topk": 64,
    "index_n_heads": 4,
    "index_head_dim": 32,
}
GLM_SPARSE: dict[str, Any] = {**DEEPSEEK_SPARSE, "architectures": ["GlmMoeDsaForCausalLM"]}
DEEPSEEK_V4: dict[str, Any] = {
    **DEEPSEEK_SPARSE,
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "sliding_window": 64,
    "compress_ratios": [0, 4, 4, 4],
}
MINIMAX_SPARSE: dict[str, Any] = {**TARGET, "architectures": ["MiniMaxM3SparseForCausalLM"]}
ENCODER_DECODER: dict[str, Any] = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "d_model": 64,
    "vocab_size": 256,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_target_positions": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    "dtype": "bfloat16",
}
WINDOWED: dict[str, Any] = {
    **SHAPE,
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "num_hidden_layers": 4,
    "sliding_window": 128,
}
M_ROPE: dict[str, Any] = {
    **TARGET,
    "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]},
}


def write_model(folder: Path, config: dict[str, Any], **changes: Any) -> Path:
    """`config` with top-level `changes` as `folder`/config.json; a change to None drops the key."""
    merged = {key: value for key, value in {**config, **changes}.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(merged), encoding="utf-8")
    return folder
