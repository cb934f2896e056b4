"""`rotary_embedding` in plain torch, with the in-place contract that SGLang's RotaryEmbedding uses."""

from __future__ import annotations

from typing import Any

import torch


def _rotate(
    states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, head_size: int, neox: bool
) -> None:
    """Rotate `states` [tokens, heads * head_size] in place by per-token angles [tokens, rot / 2]."""
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
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    *_unused: Any,
) -> None:
    """Apply rotary embedding to query and key in place (RoFormer, arXiv 2104.09864, section 3.4)."""
    cosine, sine = cos_sin_cache[positions.flatten()].float().chunk(2, dim=-1)
    for states in (query, key):
        if states is not None:
            _rotate(states, cosine, sine, head_size, is_neox)
