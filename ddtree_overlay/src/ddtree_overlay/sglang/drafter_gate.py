"""Whether the drafter fits the target, told from their configurations alone.

What SGLang 0.5.17 loads as a DFlash drafter is a backbone of DFlash's shape; it takes embedding and
head from the target and ignores what a successor adds to the same architecture (Domino's projector,
DFlash2's selector, DSpark's Markov head, a vocabulary of the drafter's own). Such a pairing runs
and accepts nothing, so it is refused here. A causal drafter (`is_causal`, or sliding-window layers)
is let through: its positions see fewer mask tokens and are still drafted without one another's
tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ddtree_overlay.sglang.drafter_config import PATH
from ddtree_overlay.sglang.refusal import refusal

MAX_BLOCK_SIZE = 64
"""`ddtree::build_tree` takes 63 drafted positions."""

ARCHITECTURES = frozenset({"DFlashDraftModel", "DFlashLagunaForCausalLM"})
"""Of `sglang.srt.models.dflash`; a test compares."""
_PAIR = "use the DFlash drafter that was trained for this target"
_PLAIN_PROJECTORS = (None, "dflash")
_SUCCESSORS = ("selector", "markov", "gru_hidden", "sample_from_anchor", "shift_label")
"""Beginnings of keys that only drafters of another family set."""


@dataclass(frozen=True)
class TargetShape:
    """Of the target: hidden size, vocabulary, decoder layers; and the tensor-parallel size."""

    hidden_size: int
    vocab_size: int
    layers: int
    tp_size: int


@dataclass(frozen=True)
class DrafterShape:
    """Of a drafter that fits. `kv_values_per_token`: K and V of all its layers on one rank."""

    block_size: int
    kv_values_per_token: int


def check_drafter(
    config: Any,
    path: str,
    block_flag: int | None,
    target: TargetShape,
    parse: Callable[[Any], Any] | None = None,
) -> DrafterShape:
    """What the worker needs of a drafter that fits.

    Args:
        config: its Hugging Face configuration.
        path: --speculative-draft-model-path, for messages.
        block_flag: --speculative-dflash-block-size.
        target: what it has to fit.
        parse: reads block size, layers and mask token out of `config` (`drafter_fields.parse`
            where SGLang is not to be imported); SGLang's own where none is given.

    Raises:
        ValueError: it does not fit.
    """
    _check_family(config, path)
    try:
        parsed = (parse or _sglang_parse)(config)
    except ValueError as error:
        raise refusal(PATH, path, f"has an invalid configuration ({error})", _PAIR) from None
    block_size = _block_size(parsed.block_size, path, block_flag)
    _check_layers(parsed, path, target)
    _check_vocabulary(config, parsed, path, target)
    text = getattr(config, "text_config", None) or config
    if text.hidden_size != target.hidden_size:
        raise _misfit(path, "hidden_size", text.hidden_size, target.hidden_size)
    return DrafterShape(block_size, _kv_values(text, path, target))


def _sglang_parse(config: Any) -> Any:
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

    return parse_dflash_draft_config(draft_hf_config=config)


def _check_family(config: Any, path: str) -> None:
    architectures = list(getattr(config, "architectures", None) or [])
    if not ARCHITECTURES.intersection(architectures[:1]):
        raise refusal(
            PATH,
            f"{path}, architectures {architectures}",
            f"is not a DFlash drafter ({', '.join(sorted(ARCHITECTURES))})",
            f"{_PAIR}, or the drafter's own --speculative-algorithm",
        )
    own = getattr(config, "dflash_config", None)
    if not own:
        raise refusal(PATH, path, "has no dflash_config in its config.json", _PAIR)
    found = dict(own)
    projector = found.get("projector_type", getattr(config, "projector_type", None))
    foreign = [key for key, value in found.items() if value and key.startswith(_SUCCESSORS)]
    if projector not in _PLAIN_PROJECTORS:
        foreign.append(f"projector_type={projector}")
    if foreign:
        raise refusal(
            PATH,
            f"{path}, dflash_config {', '.join(sorted(foreign))}",
            "is of another family than DFlash, whose additions SGLang 0.5.17 would ignore",
            _PAIR,
        )


def _block_size(trained: int | None, path: str, block_flag: int | None) -> int:
    block_size = trained if block_flag is None else block_flag
    if block_size is None:
        raise refusal(
            "speculative_dflash_block_size",
            None,
            f"is unset, and the drafter {path} states no block_size",
            "set it to the block size that the drafter was trained with",
        )
    if trained is not None and trained != block_size:
        raise refusal(
            "speculative_dflash_block_size",
            block_size,
            f"is not what the drafter {path} was trained with ({trained})",
            "remove it to take the drafter's",
        )
    if block_size < 2:
        raise refusal(
            PATH, path, f"has block_size {block_size}, which leaves nothing to draft", _PAIR
        )
    if block_size > MAX_BLOCK_SIZE:
        raise refusal(
            PATH,
            path,
            f"has block_size {block_size}, above the {MAX_BLOCK_SIZE} that a tree is built for",
            _PAIR,
        )
    return block_size


def _check_layers(parsed: Any, path: str, target: TargetShape) -> None:
    trained = parsed.num_target_layers
    if trained is not None and trained != target.layers:
        raise _misfit(path, "num_target_layers", trained, target.layers, "num_hidden_layers")
    tapped = parsed.target_layer_ids
    if tapped is None:
        raise refusal(
            PATH,
            path,
            "states no target_layer_ids, the target's layers whose hidden states it was trained on",
            "add dflash_config.target_layer_ids from the drafter's training to its config.json",
        )
    # SGLang takes a layer's output at the entry of the next one: the last layer has no next.
    last = target.layers - 2
    if min(tapped) < 0 or max(tapped) > last:
        raise refusal(
            PATH,
            f"{path}, target_layer_ids {tapped}",
            f"taps layers that SGLang cannot capture from this target (it can from 0..{last})",
            _PAIR,
        )
    if any(left >= right for left, right in pairwise(tapped)):
        raise refusal(
            PATH,
            f"{path}, target_layer_ids {tapped}",
            "is not in ascending order, and the target hands its layers over in that order",
            _PAIR,
        )


def _check_vocabulary(config: Any, parsed: Any, path: str, target: TargetShape) -> None:
    text = getattr(config, "text_config", None) or config
    vocabulary = getattr(text, "vocab_size", None)
    if vocabulary is not None and vocabulary != target.vocab_size:
        raise _misfit(path, "vocab_size", vocabulary, target.vocab_size)
    own = dict(config.dflash_config).get(
        "draft_vocab_size", getattr(config, "draft_vocab_size", None)
    )
    if own is not None and own != target.vocab_size:
        raise _misfit(path, "draft_vocab_size", own, target.vocab_size, "vocab_size")
    mask = parsed.mask_token_id
    if mask is None:
        raise refusal(
            PATH,
            path,
            "states no mask_token_id, the token that stands for a position to draft",
            "add dflash_config.mask_token_id from the drafter's training to its config.json",
        )
    if mask >= target.vocab_size:
        raise refusal(
            PATH,
            f"{path}, mask_token_id {mask}",
            f"is outside the target's vocabulary of {target.vocab_size} tokens",
            _PAIR,
        )


def _kv_values(text: Any, path: str, target: TargetShape) -> int:
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    ranks = target.tp_size
    for name, count in (("num_attention_heads", heads), ("num_key_value_heads", kv_heads)):
        replicated = name == "num_key_value_heads" and ranks % count == 0
        if count % ranks and not replicated:
            raise refusal(
                "tp_size",
                ranks,
                f"does not divide the {name} of the drafter {path} ({count})",
                "choose a --tp-size that does",
            )
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    values: int = 2 * max(1, kv_heads // ranks) * head_dim * text.num_hidden_layers
    return values


def _misfit(
    path: str, key: str, found: Any, needed: Any, target_key: str | None = None
) -> ValueError:
    return refusal(
        PATH,
        f"{path}, {key} {found}",
        f"was not trained for this target, whose {target_key or key} is {needed}",
        _PAIR,
    )
