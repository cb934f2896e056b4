"""What SGLang 0.5.17 reads out of a DFlash drafter's configuration, without importing it.

For the doctor, which runs before torch is loaded; the server's own gate uses SGLang's parser
(`sglang.srt.speculative.dflash_utils.parse_dflash_draft_config`), and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class DrafterFields:
    """As SGLang's `DFlashDraftConfig`; None for what is not stated."""

    num_target_layers: int | None
    block_size: int | None
    target_layer_ids: list[int] | None
    mask_token_id: int | None


def as_object(config: Mapping[str, Any]) -> SimpleNamespace:
    """A config.json as the gates read a Hugging Face configuration: by attribute."""
    fields = dict(config)
    text = fields.get("text_config")
    if isinstance(text, dict):
        fields["text_config"] = SimpleNamespace(**text)
    return SimpleNamespace(**fields)


def parse(config: Any) -> DrafterFields:
    """Raises ValueError for a value that SGLang refuses."""
    own = _own(config)
    text = getattr(config, "text_config", None) or config
    _positive(getattr(text, "num_hidden_layers", None), "num_hidden_layers")
    return DrafterFields(
        num_target_layers=_positive(_stated(own, config, "num_target_layers"), "num_target_layers"),
        block_size=_positive(_stated(own, config, "block_size"), "block_size"),
        target_layer_ids=_layers(_stated(own, config, "target_layer_ids")),
        mask_token_id=_mask_token(own),
    )


def _own(config: Any) -> Mapping[str, Any]:
    own = getattr(config, "dflash_config", None)
    return own if isinstance(own, Mapping) else {}


def _stated(own: Mapping[str, Any], config: Any, name: str) -> Any:
    return own[name] if name in own else getattr(config, name, None)


def _positive(value: Any, name: str) -> int | None:
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} is {value!r}") from None
    if number < 1:
        raise ValueError(f"{name} is {number}, and must be positive")
    return number


def _layers(value: Any) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("target_layer_ids is not a list of layers")
    try:
        return [int(layer) for layer in value]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"target_layer_ids is {value!r}") from None


def _mask_token(own: Mapping[str, Any]) -> int | None:
    token = own.get("mask_token")
    if token is not None and (not isinstance(token, str) or not token):
        raise ValueError(f"mask_token is {token!r}")
    value = own.get("mask_token_id")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"mask_token_id is {value!r}")
    return value
