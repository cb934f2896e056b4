"""The one vLLM symbol that SGLang 0.5.17 imports on a CPU, in plain torch.

`sglang/srt/layers/rotary_embedding/base.py` takes `vllm._custom_ops.rotary_embedding` where it
knows no kernel of its own. vLLM is not installed; two module objects stand in for it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

from ddtree_overlay.sglang.cpu_proof.errors import CpuProofError


def _rotate(states: Any, cosine: Any, sine: Any, head_size: int, neox: bool) -> None:
    """Rotate `states` [tokens, heads * head_size] in place by angles of [tokens, rot / 2]."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    heads = states.view(cosine.shape[0], -1, head_size)
    rotary = 2 * cosine.shape[-1]
    part = heads[..., :rotary].float()
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    if neox:  # first half pairs with second half
        left, right = part.chunk(2, dim=-1)
        turned = torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
    else:  # neighbours pair up
        left, right = part[..., 0::2], part[..., 1::2]
        pairs = (left * cosine - right * sine, right * cosine + left * sine)
        turned = torch.stack(pairs, dim=-1).flatten(-2)
    heads[..., :rotary] = turned.to(states.dtype)


def rotary_embedding(
    positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool
) -> None:
    """Apply rotary embedding to query and key in place (RoFormer, arXiv 2104.09864, section 3.4).

    Args:
        positions: int64 [tokens], absolute positions.
        query: [tokens, heads * head_size], or with more dimensions of the same contiguous data.
        key: as `query` with its own number of heads, or None.
        head_size: elements of one head.
        cos_sin_cache: [positions, rot], the cosines of rot / 2 angles and then their sines.
        is_neox: whether element i pairs with i + rot / 2 (else 2i with 2i + 1).
    """
    cosine, sine = cos_sin_cache[positions.flatten()].float().chunk(2, dim=-1)
    for states in (query, key):
        if states is not None:
            _rotate(states, cosine, sine, head_size, is_neox)


def provide_vllm() -> None:
    """Put `vllm._custom_ops` with `rotary_embedding` into `sys.modules`.

    Raises:
        CpuProofError: a vLLM is installed, so that SGLang would behave in ways nobody looked at.
    """
    if "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None:
        raise CpuProofError(
            "a package vllm is importable, which the CPU proof path stands in for",
            "remove it from the environment or PYTHONPATH of the proof",
        )
    package, operators = types.ModuleType("vllm"), types.ModuleType("vllm._custom_ops")
    for module in (package, operators):
        # find_spec() raises on a module in sys.modules without a spec.
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    operators.rotary_embedding = rotary_embedding  # type: ignore[attr-defined]
    package._custom_ops = operators  # type: ignore[attr-defined]
    sys.modules |= {"vllm": package, "vllm._custom_ops": operators}
