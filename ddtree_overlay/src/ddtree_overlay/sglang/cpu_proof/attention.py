"""Attention over explicit key sets, in plain torch, and who may see whom.

Plain decoding, a chain verify and a tree verify must choose the same token where the same keys are
visible, whatever the batch and the width beside them. All arithmetic is therefore in float64 and
rounded once to the query's dtype: the order in which a matrix product sums, which depends on its
shape, then moves the result by about 1e-16 relative, 1e-9 of a float32 step, and almost never
across a rounding boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]


class TreeMaskLengthError(ValueError):
    """A flat tree mask does not hold a row for each query of each request."""


def attend(query: Any, keys: Any, values: Any, visible: Any, scale: float) -> Any:
    """Softmax attention of every query over the keys that it may see.

    Args:
        query: [rows, heads, dim], float32, bfloat16 or float16.
        keys: [n, kv_heads, dim]; head h of the query reads head h // (heads // kv_heads).
        values: [n, kv_heads, value_dim].
        visible: bool [rows, n], at least one key per row.
        scale: factor of the dot products.

    Returns:
        [rows, heads, value_dim] in the query's dtype.

    Raises:
        ValueError: a row sees nothing.
    """
    if not bool(visible.any(dim=1).all()):
        raise ValueError("a query row sees no key at all, not even itself")
    rows, heads, dim = query.shape
    kv_heads = keys.shape[1]
    grouped = query.double().view(rows, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("rkgd,nkd->kgrn", grouped, keys.double()) * scale
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    result = torch.einsum("kgrn,nkd->rkgd", weights, values.double())
    return result.reshape(rows, heads, values.shape[2]).to(query.dtype)


def chain_rows(prefix: int, width: int, window: int | None) -> Any:
    """Who sees whom where each new token follows the one before it.

    Args:
        prefix: cached tokens, all older.
        width: new tokens.
        window: None, or how many tokens back a token sees (SGLang's `sliding_window_size`).

    Returns:
        bool [width, prefix + width].
    """
    chain = torch.ones((width, width), dtype=torch.bool).tril()
    return _in_window(torch.cat((_all_true(width, prefix), chain), dim=1), prefix, window)


def block_rows(prefix: int, width: int) -> Any:
    """Everyone sees the prefix and the whole block: bool [width, prefix + width], all true."""
    return _all_true(width, prefix + width)


def tree_rows(mask: Any, prefix: int, window: int | None) -> Any:
    """A request's rows of the tree mask, narrowed to the window.

    Args:
        mask: bool [width, prefix + width], ancestors and self of every node.
        prefix: cached tokens, all older.
        window: as in `chain_rows`, counted in depth, not in node order.

    Returns:
        bool [width, prefix + width].
    """
    return _in_window(mask, prefix, window)


def split_tree_mask(custom_mask: Any, prefixes: Sequence[int], width: int) -> list[Any]:
    """Cut the flat FULL_MASK layout into one [width, prefix + width] mask per request.

    Args:
        custom_mask: bool [numel], request after request, row after row; may be longer than needed.
        prefixes: cached tokens of each request.
        width: queries of each request.

    Returns:
        Views of the mask.

    Raises:
        TreeMaskLengthError: the mask is not flat, not bool or too short.
    """
    needed = sum(width * (prefix + width) for prefix in prefixes)
    if custom_mask.dtype != torch.bool or custom_mask.dim() != 1 or custom_mask.numel() < needed:
        raise TreeMaskLengthError(
            f"the tree mask is {custom_mask.dtype} {tuple(custom_mask.shape)}, but width {width} "
            f"with prefixes {list(prefixes)} needs at least {needed} flat bool elements"
        )
    sizes = [width * (prefix + width) for prefix in prefixes]
    parts = custom_mask[:needed].split(sizes)
    return [part.view(width, prefix + width) for part, prefix in zip(parts, prefixes, strict=True)]


def branching_rows(mask: Any, prefix: int) -> int:
    """How many rows of a request's mask [width, prefix + width] a chain would not have."""
    width = mask.shape[0]
    chain = torch.ones((width, width), dtype=torch.bool).tril()
    return int((mask[:, prefix:] != chain).any(dim=1).sum())


def _all_true(rows: int, columns: int) -> Any:
    return torch.ones((rows, columns), dtype=torch.bool)


def _in_window(visible: Any, prefix: int, window: int | None) -> Any:
    if window is None:
        return visible
    # A node's depth is the number of its ancestors among the new tokens.
    depths = visible[:, prefix:].sum(dim=1) - 1
    positions = torch.cat((torch.arange(prefix), prefix + depths))
    distance = (prefix + depths)[:, None] - positions[None, :]
    return visible & (distance <= window)
