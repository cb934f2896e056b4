"""What kind of target a configuration describes, told from config.json alone.

`ddtree_overlay.sglang.target_gate` asks SGLang itself when the server starts; this says the same
within a second and without torch. A test compares the two, and these lists with SGLang's.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddtree_overlay.doctor.model_checks.configuration import Config, architecture, text_config

RECURRENT_TYPES = frozenset(
    {
        *("bailing_hybrid", "falcon_h1", "nemotron_h", "nemotron_h_puzzle", "lfm2", "lfm2_moe"),
        *("lfm2_vl", "lfm2-vl", "zaya", "NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3"),
        *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        *("intern_s2_preview", "jet_nemotron", "jet_vlm", "kimi_linear", "kimi_k3"),
        *("inkling_model", "inkling_mm_model"),
    }
)
"""`model_type` of `sglang.srt.configs.hybrid_arch`'s classes, but Granite's, which may be dense."""
_RECURRENT_FIELDS = ("linear_attn_config", "mamba_d_state", "ssm_state_size", "ssm_cfg")
_GRANITE_HYBRID = "granitemoehybrid"
SLIDING_ARCHITECTURES = frozenset(
    {
        *("Llama4ForConditionalGeneration", "DeepseekV4ForCausalLM", "DeepseekV4ForCausalLMNextN"),
        *("DeepseekV4ForCausalLMDSpark", "GptOssForCausalLM", "MiMoV2ForCausalLM"),
        *("MiMoV2FlashForCausalLM", "MiMoV2MTP", "Step3p5ForCausalLM", "Step3p5MTP"),
        *("Step3p7ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
        *("Gemma4UnifiedForConditionalGeneration", "LagunaForCausalLM", "MellumForCausalLM"),
        *("InklingForConditionalGeneration", "InklingForConditionalGenerationMTP"),
        "UnlimitedOCRForCausalLM",
    }
)
MLA_ARCHITECTURES = frozenset(
    {
        *("DeepseekV2ForCausalLM", "DeepseekV32ForCausalLM", "DeepseekV3ForCausalLM"),
        *("DeepseekV3ForCausalLMNextN", "Glm4MoeLiteForCausalLM", "Glm4MoeLiteForCausalLMNextN"),
        *("GlmMoeDsaForCausalLM", "GlmMoeDsaForCausalLMNextN", "LongcatFlashForCausalLM"),
        *("LongcatFlashForCausalLMNextN", "DotsVLMForCausalLM", "MistralLarge3ForCausalLM"),
        *("MistralLarge3ForCausalLMEagle", "KimiK25ForConditionalGeneration"),
        *("Eagle3DeepseekV2ForCausalLM", "MiniCPM3ForCausalLM", "KimiVLForConditionalGeneration"),
        *("KimiLinearForCausalLM", "KimiK3ForConditionalGeneration", "BailingMoeV2_5ForCausalLM"),
        *("BailingMoeForCausalLMNextN", "SarvamMLAForCausalLM"),
    }
)
SPARSE_ARCHITECTURES = frozenset(
    {
        *("DeepseekV4ForCausalLM", "DeepseekV4ForCausalLMNextN", "DeepseekV4ForCausalLMDSpark"),
        *("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
    }
)
INDEXED_ARCHITECTURES = frozenset(
    {
        *("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "DeepseekV3ForCausalLMNextN"),
        *("MistralLarge3ForCausalLM", "PixtralForConditionalGeneration", "GlmMoeDsaForCausalLM"),
        *("GlmMoeDsaForCausalLMNextN", "LongcatFlashForCausalLM", "LongcatFlashForCausalLMNextN"),
    }
)
ENCODER_DECODERS = frozenset(
    {
        *("WhisperForConditionalGeneration", "MllamaForConditionalGeneration"),
        "MossVLForConditionalGeneration",
    }
)
NOT_GENERATING = frozenset(
    {
        *("LlamaEmbeddingModel", "MistralModel", "LlamaForSequenceClassification"),
        *("LlamaForSequenceClassificationWithNormal_Weights", "InternLM2ForRewardModel"),
        *("Qwen2ForRewardModel", "Qwen3ForRewardModel", "Qwen2ForSequenceClassification"),
        *("Qwen3ForSequenceClassification", "Qwen3Model", "CLIPModel", "BertModel", "Contriever"),
        *(
            "BertForSequenceClassification",
            "XLMRobertaModel",
            "XLMRobertaForSequenceClassification",
        ),
        *("Gemma2ForSequenceClassification", "Lfm2BidirectionalModel"),
    }
)
FULL = frozenset({"full_attention", "attention", "global", "global_attention"})
LOCAL = frozenset({"sliding_attention", "chunked_attention", "local_attention", "sliding_window"})


@dataclass(frozen=True)
class Kind:
    """`final`: why no tree can be verified whatever is allowed. `recurrent`, `local`: layers for
    which it is not proven. None where there is nothing of the sort."""

    final: str | None = None
    recurrent: str | None = None
    local: str | None = None


def kind_of(config: Config) -> Kind:
    """The kind of a target."""
    text = text_config(config)
    return Kind(_final(config, text), _recurrent(config, text), _local(config, text))


def _final(config: Config, text: Config) -> str | None:
    names = {str(name) for name in config.get("architectures") or ()}
    first = architecture(config)
    indexed = first in INDEXED_ARCHITECTURES and config.get("index_topk") is not None
    if names & NOT_GENERATING:
        return "is not a generation model and decodes nothing"
    if names & ENCODER_DECODERS:
        return "attends to an encoder, for which tree verification is not proven"
    if indexed or first in SPARSE_ARCHITECTURES:
        return "selects attended tokens by position (sparse attention), which no tree mask reaches"
    if names & MLA_ARCHITECTURES or _is_other_mla(names, text):
        return "uses MLA, whose attention backends take no tree mask"
    if config.get("use_ngram_embedding"):
        return "embeds n-grams of the preceding tokens, which differ from node to node"
    return None


def _is_other_mla(names: set[str], text: Config) -> bool:
    if "PixtralForConditionalGeneration" in names:
        return text.get("kv_lora_rank") is not None
    return "DeepseekVL2ForCausalLM" in names and text.get("use_mla", True) is not False


def _recurrent(config: Config, text: Config) -> str | None:
    kinds = _layer_kinds(text)
    for part in (config, text):
        model_type = part.get("model_type")
        dense_granite = model_type == _GRANITE_HYBRID and "mamba" not in kinds
        stated = [key for key in _RECURRENT_FIELDS if part.get(key)]
        if model_type in RECURRENT_TYPES or (stated and not dense_granite):
            return "recurrent layers (Mamba, GDN or linear attention)"
    if text.get("model_type") == _GRANITE_HYBRID and "mamba" in kinds:
        return "recurrent layers (Mamba, GDN or linear attention)"
    unknown = sorted(kinds - FULL - LOCAL)
    return f"layers of type {', '.join(unknown)}" if unknown else None


def _local(config: Config, text: Config) -> str | None:
    names = {str(name) for name in config.get("architectures") or ()}
    windowless_laguna = "LagunaForCausalLM" in names and not text.get("sliding_window")
    if (names & SLIDING_ARCHITECTURES and not windowless_laguna) or text.get("is_hybrid_swa"):
        return "sliding-window layers"
    local = sorted(_layer_kinds(text, ("layer_types",)) & LOCAL)
    if local:
        return f"layers of type {', '.join(local)}"
    if text.get("attention_chunk_size"):
        return f"chunked local attention (attention_chunk_size {text['attention_chunk_size']})"
    for key in ("sliding_window_size", "sliding_window", "window_size"):
        window = text.get(key)
        if window is not None:
            # Qwen's configuration classes drop a window that is not switched on.
            on = window and text.get("use_sliding_window", not _is_qwen(text)) is not False
            return f"a sliding window of {window} tokens" if on else None
    return None


def _is_qwen(text: Config) -> bool:
    return str(text.get("model_type")).startswith(("qwen2", "qwen3"))


def _layer_kinds(
    text: Config, keys: tuple[str, ...] = ("layer_types", "layers_block_type")
) -> set[str]:
    return {
        str(kind)
        for key in keys
        for kind in (text.get(key) if isinstance(text.get(key), list) else ()) or ()
    }
