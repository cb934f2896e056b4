"""The model's sizes against tensor parallelism, pipeline parallelism and the context length.

What SGLang 0.5.17's layers assert when they are built, minutes after the start:
query heads divide by the ranks; key and value heads divide, or are fewer and divide the ranks
(then they are replicated); a layer's width divides; block-quantised experts keep whole blocks a
rank. The vocabulary is padded, and does not have to divide.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddtree_overlay.doctor.model import Check, Finding, Subject
from ddtree_overlay.doctor.model_checks import codes
from ddtree_overlay.doctor.model_checks.configuration import (
    Config,
    attention_heads,
    context_length,
    experts,
    kv_heads,
    number,
    text_config,
)
from ddtree_overlay.doctor.model_checks.source import configured

TREES = frozenset({"DDTREE", "DFLASH"})
_LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_REQUIRED = ("hidden_size", "num_hidden_layers", "vocab_size")


def check_shapes(subject: Subject) -> Iterable[Finding]:
    """Of target and drafter."""
    found = configured(subject)
    for role, (_, config) in found.items():
        text = text_config(config)
        yield from _check_stated(role, text)
        # With DP attention the heads divide by tp / dp; whether it is on is SGLang's to say. The
        # heads of a drafter for trees are the drafter check's.
        trees = subject.algorithm == "DDTREE"
        if (trees and role == "model") or (not trees and subject.dp == 1):
            yield from head_findings(role, text, subject.tp)
        yield from layer_findings(role, config, subject.tp, subject.ep)
    if subject.algorithm in TREES and subject.pp > 1:
        yield codes.PIPELINE.found(f"--pp-size {subject.pp} with {subject.algorithm}")
    yield from _check_context(subject, {role: config for role, (_, config) in found.items()})


def head_findings(role: str, text: Config, tp: int) -> Iterable[Finding]:
    """Query heads, and key and value heads with their replication."""
    heads, kv = attention_heads(text), kv_heads(text)
    if heads is not None and heads % tp:
        yield codes.HEADS.found(
            f"the {role} has {heads} attention heads, which {tp} GPUs do not divide",
            remedy=_sizes(heads, kv, tp),
        )
    elif heads is not None and kv and kv % tp and tp % kv:
        yield codes.HEADS.found(
            f"the {role} has {kv} key-value heads, which {tp} GPUs neither divide nor replicate",
            remedy=_sizes(heads, kv, tp),
        )


def layer_findings(role: str, config: Config, tp: int, ep: int) -> Iterable[Finding]:
    """The width of feed-forward layers, experts against ranks, and the blocks of a block-quantised
    checkpoint."""
    text = text_config(config)
    count = experts(text)
    width = number(text, "moe_intermediate_size") if count else None
    width = width or number(text, "intermediate_size")
    if count and ep > 1 and count % ep:
        yield codes.EXPERTS.found(f"the {role} has {count} experts, no multiple of --ep-size {ep}")
        return
    ranks = max(1, tp // ep) if count else tp
    if count and tp > count:
        yield codes.EXPERTS.found(f"the {role} has {count} experts, fewer than {tp} ranks")
    elif width and width % ranks:
        yield codes.EXPERTS.found(
            f"the {role} has layers of width {width}, which {ranks} ranks do not divide"
        )
    elif width and count:
        # Dense layers of such a checkpoint are checked by SGLang with exceptions of its own.
        block = _block(config, text)
        if block > 1 and (width // ranks) % block:
            yield codes.BLOCKS.found(
                f"the {role}'s experts have width {width}, {width // ranks} on each of {ranks} "
                f"ranks, which is no multiple of the quantisation's block of {block}",
                remedy=_spread(count, width, block, tp),
            )


def _spread(experts_: int, width: int, block: int, tp: int) -> str | None:
    """The least expert parallelism under which a rank keeps whole blocks."""
    for ep in range(2, tp + 1):
        if tp % ep == 0 and experts_ % ep == 0 and (width // (tp // ep)) % block == 0:
            return f"add --ep-size {ep} (then {tp // ep} ranks share an expert)"
    return None


def _check_stated(role: str, text: Config) -> Iterable[Finding]:
    if text.get("d_model") is not None or text.get("n_embd") is not None:
        return  # of a family with names of its own
    missing = [name for name in _REQUIRED if number(text, name) is None]
    zero = [name for name in _REQUIRED if name not in missing and (number(text, name) or 0) < 1]
    if attention_heads(text) is not None and (attention_heads(text) or 0) < 1:
        zero.append("num_attention_heads")
    # Some families have defaults for what they leave out; a config with none of these has no
    # language model in it.
    if len(missing) == len(_REQUIRED):
        yield codes.NO_SHAPE.found(f"the {role}'s config.json states no {', '.join(missing)}")
    elif zero:
        yield codes.NO_SHAPE.found(f"the {role}'s config.json states a {zero[0]} below 1")


def _check_context(subject: Subject, configs: dict[str, Config]) -> Iterable[Finding]:
    target = configs.get("model")
    if target is None:
        return
    if subject.environment.get(_LONGER_CONTEXT, "").lower() in ("1", "true", "yes", "y"):
        return
    made_for = context_length(text_config(target))
    wanted = subject.context_length
    if wanted is not None and wanted > made_for:
        yield codes.CONTEXT.found(
            f"--context-length {wanted} is above the {made_for} tokens of the model"
        )
        return
    draft = configs.get("draft model")
    if draft is None or subject.algorithm not in TREES:
        return
    # The drafter's worker is started with the target's context length.
    runs_with = wanted if wanted is not None else made_for
    drafts_for = context_length(text_config(draft))
    if runs_with > drafts_for:
        yield codes.CONTEXT.found(
            f"the drafter was made for {drafts_for} tokens and the target runs with {runs_with}",
            remedy=f"set --context-length {drafts_for}, or {_LONGER_CONTEXT}=1 if you know that "
            "the drafter's rotary embedding goes on",
        )


def _block(config: Config, text: Config) -> int:
    for holder in (config, text):
        quantisation = holder.get("quantization_config")
        if isinstance(quantisation, dict):
            block = quantisation.get("weight_block_size")
            if isinstance(block, list) and block and isinstance(block[0], int):
                return block[0]
    return 1


def _sizes(heads: int, kv: int | None, tp: int) -> str:
    """The next smaller size that would do."""
    for size in range(tp - 1, 0, -1):
        fits = kv is None or kv % size == 0 or (kv < size and size % kv == 0)
        if heads % size == 0 and fits:
            return f"use --tp-size {size}, or another number of GPUs that divides them"
    return "use --tp-size 1"


CHECKS = (
    Check(
        "model-shapes",
        "Heads, layers and context fit the parallelism",
        (
            codes.HEADS,
            codes.EXPERTS,
            codes.BLOCKS,
            codes.CONTEXT,
            codes.PIPELINE,
            codes.NO_SHAPE,
        ),
        check_shapes,
        needs="model",
    ),
)
