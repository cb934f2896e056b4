"""Matrix products whose rows do not depend on how many rows there are.

A float32 product of 1 or 2 rows takes another routine on a CPU than one of 5 or more and differs
by about 1e-6: enough to flip a near-tie between plain decoding at batch 1 and a verify. Computed
in float64 and rounded once, as in `.attention`, the rows are the same bits.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]


def linear(states: Any, weight: Any, bias: Any = None) -> Any:
    """`states` [..., in] times `weight` [out, in], plus `bias` [out] or None.

    Returns:
        [..., out] in the dtype of `states`, rounded once.
    """
    wide = None if bias is None else bias.double()
    result = torch.nn.functional.linear(states.double(), weight.double(), wide)
    return result.to(states.dtype)


def unquantized_linear(_original: Any, _method: Any, layer: Any, x: Any, bias: Any = None) -> Any:
    """In place of `UnquantizedLinearMethod.apply`."""
    return linear(x, layer.weight, bias)


def lm_head_logits(
    original: Any, processor: Any, hidden_states: Any, lm_head: Any, embedding_bias: Any = None
) -> Any:
    """In place of `LogitsProcessor._compute_lm_head`, for a plain head."""
    from sglang.srt.layers.logits_processor import (  # type: ignore[import-not-found, unused-ignore]
        should_apply_lm_head_quant_method,
    )

    method = getattr(lm_head, "quant_method", None)
    if (
        hasattr(lm_head, "set_lora")
        or not hasattr(lm_head, "weight")
        or processor.use_fp32_lm_head
        or processor.rl_on_policy_target is not None
        or should_apply_lm_head_quant_method(lm_head, method)
    ):
        return original(processor, hidden_states, lm_head, embedding_bias)
    return linear(hidden_states.to(lm_head.weight.dtype), lm_head.weight)
