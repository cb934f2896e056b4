"""Reading a configuration as SGLang does: the part of it that is the language model's, the head
counts under their many names, the context that it was made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
_KV_NAMES = (
    *("n_head_kv", "num_kv_heads", "num_key_value_heads"),
    *("multi_query_group_num", "num_attention_groups"),
)
_HEAD_NAMES = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_CONTEXT_NAMES = (
    *("max_sequence_length", "seq_length", "max_seq_len", "model_max_length"),
    "max_position_embeddings",
)
_EXPERT_NAMES = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_DEFAULT_CONTEXT = 2048


def architecture(config: Config) -> str | None:
    """The first architecture; None where there is none."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else None


def text_config(config: Config) -> Config:
    """The language model's part, in SGLang's order of precedence."""
    name = architecture(config) or ""
    if name.startswith("Llava") and name.endswith("ForCausalLM"):
        return config
    thinker = config.get("thinker_config")
    if isinstance(thinker, dict):
        inner = thinker.get("text_config")
        return inner if isinstance(inner, dict) else thinker
    for key in ("llm_config", "language_config", "text_config"):
        inner = config.get(key)
        if isinstance(inner, dict):
            return inner
    return config


def number(config: Config, *names: str) -> int | None:
    """The first of the names that has a whole number."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def attention_heads(text: Config) -> int | None:
    """Query heads of a layer."""
    return number(text, *_HEAD_NAMES)


def kv_heads(text: Config) -> int | None:
    """Key and value heads of a layer; the query heads where none are stated."""
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):
        return 1
    return number(text, *_KV_NAMES) or attention_heads(text)


def experts(text: Config) -> int | None:
    """Routed experts of a layer; None for a dense model."""
    return number(text, *_EXPERT_NAMES) or None


def context_length(text: Config) -> int:
    """Tokens, with rope scaling: what SGLang derives. Of the two places where Transformers keeps
    the scaling the more generous one counts: what is refused here is refused for sure."""
    length = number(text, *_CONTEXT_NAMES)
    factor = max(_factor(text.get(key)) for key in ("rope_scaling", "rope_parameters"))
    return int(factor * (_DEFAULT_CONTEXT if length is None else length))


def _factor(scaling: Any) -> float:
    if not isinstance(scaling, dict) or "original_max_position_embeddings" in scaling:
        return 1
    if scaling.get("rope_type", scaling.get("type")) == "llama3":
        return 1
    factor = scaling.get("factor", 1)
    return factor if isinstance(factor, (int, float)) and factor > 0 else 1
