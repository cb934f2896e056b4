"""The few facts of a model's config.json that configuration follows from; lenient by design.

Whether the folder is right is the doctor's business: what cannot be read is None here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 8 * 2**20


@dataclass(frozen=True)
class ModelFacts:
    """None: not stated, or not readable. `context`: tokens the model was made for."""

    heads: int | None = None
    experts: int | None = None
    context: int | None = None
    block_size: int | None = None
    readable: bool = False


def model_facts(folder: str | None) -> ModelFacts:
    """Of a local folder (not of a name to be downloaded). Raises nothing."""
    document = _read(folder)
    if document is None:
        return ModelFacts()
    # Models of several modalities nest the language model's part.
    text = next(
        (
            part
            for key in ("text_config", "llm_config", "language_config")
            if isinstance(part := document.get(key), dict)
        ),
        document,
    )
    experts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return ModelFacts(
        heads=_number(text, "num_attention_heads", "n_head"),
        experts=_number(text, *experts),
        context=_number(text, "max_position_embeddings", "max_sequence_length"),
        block_size=_number(document, "block_size") or _nested_block(document),
        readable=True,
    )


def _read(folder: str | None) -> dict[str, Any] | None:
    if not folder:
        return None
    path = Path(folder) / "config.json"
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _number(document: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = document.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _nested_block(document: dict[str, Any]) -> int | None:
    nested = document.get("dflash_config")
    return _number(nested, "block_size") if isinstance(nested, dict) else None
