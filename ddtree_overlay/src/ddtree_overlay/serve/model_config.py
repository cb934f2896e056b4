"""The few facts of a model's config.json that configuration follows from; lenient by design.

Whether the folder is right is the doctor's business: what cannot be read is None here.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_overlay.serve.regular_file import read_regular

MAX_BYTES = 8 * 2**20
READ_SECONDS = 15.0


@dataclass(frozen=True)
class ModelFacts:
    """None: not stated, or not readable. `context`: tokens the model was made for; `expert_width`:
    of an expert's inner layer; `quantisation_block`: rows of a block that shares a scale."""

    heads: int | None = None
    experts: int | None = None
    context: int | None = None
    block_size: int | None = None
    expert_width: int | None = None
    quantisation_block: int | None = None
    readable: bool = False


def model_facts(folder: str | None) -> ModelFacts:
    """Of a local folder (not of a name to be downloaded). Raises nothing."""
    document = _read(folder)
    if document is None:
        return ModelFacts()
    # Models of several modalities nest the language model's part, those that also speak twice.
    thinker = document.get("thinker_config")
    outer = thinker if isinstance(thinker, dict) else document
    text = next(
        (
            part
            for key in ("text_config", "llm_config", "language_config")
            if isinstance(part := outer.get(key), dict)
        ),
        outer,
    )
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    experts = _number(text, *names)
    # One expert is a dense layer by another name.
    experts = experts if experts and experts > 1 else None
    return ModelFacts(
        heads=_number(text, "num_attention_heads", "n_head"),
        experts=experts,
        context=_number(text, "max_position_embeddings", "max_sequence_length"),
        block_size=_number(document, "block_size") or _nested_block(document),
        expert_width=_number(text, "moe_intermediate_size", "intermediate_size")
        if experts
        else None,
        quantisation_block=_quantisation_block(text) or _quantisation_block(document),
        readable=True,
    )


def _read(folder: str | None) -> dict[str, Any] | None:
    if not folder:
        return None
    path, found = Path(folder) / "config.json", []

    def read() -> None:
        with suppress(OSError, ValueError, RecursionError):
            found.append(json.loads(read_regular(path, MAX_BYTES).decode("utf-8")))

    # A network mount that is gone blocks a read for ever. That is the doctor's to say, whose checks
    # have a bound too; here nothing may hang before it speaks.
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(READ_SECONDS)
    return found[0] if found and isinstance(found[0], dict) else None


def _number(document: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = document.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _quantisation_block(document: dict[str, Any]) -> int | None:
    quantisation = document.get("quantization_config")
    block = quantisation.get("weight_block_size") if isinstance(quantisation, dict) else None
    rows = block[0] if isinstance(block, list) and block else None
    return rows if isinstance(rows, int) and not isinstance(rows, bool) and rows > 0 else None


def _nested_block(document: dict[str, Any]) -> int | None:
    nested = document.get("dflash_config")
    return _number(nested, "block_size") if isinstance(nested, dict) else None
