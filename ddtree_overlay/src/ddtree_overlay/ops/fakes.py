"""Shapes and dtypes of the ops' outputs, for tracing: `torch.compile`, `torch.export`, opcheck.

Importing this module registers them; the extension must be loaded. Outputs are contiguous, as the
ops make them, and on the device of the tensor that they are made from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

Function = Callable[..., Any]


def _fake_of(op: str) -> Callable[[Function], Function]:
    register: Callable[[Function], Function] = torch.library.register_fake(f"ddtree::{op}")
    return register


@_fake_of("rank_tokens")
def _rank_tokens(logits: Any, k: int, id_offset: int = 0) -> tuple[Any, Any]:
    return _ranked(logits, logits.shape[0], k)


@_fake_of("rank_shard")
def _rank_shard(logits: Any, k: int, id_offset: int = 0) -> Any:
    return logits.new_empty((logits.shape[0], k + 1), dtype=torch.int64)


@_fake_of("merge_shards")
def _merge_shards(candidates: Any, k: int) -> tuple[Any, Any]:
    return _ranked(candidates, candidates.shape[1], k)


@_fake_of("build_tree")
def _build_tree(
    logprobs: Any, token_ids: Any, budget: int, budgets: Any = None, roots: Any = None
) -> tuple[Any, ...]:
    batch, width = logprobs.shape[0], budget + 1
    return (
        *(token_ids.new_empty((batch, width)) for _ in range(5)),
        token_ids.new_empty((batch, width, budget // 64 + 1)),
        token_ids.new_empty((batch,)),
        logprobs.new_empty((batch, width)),
        token_ids.new_empty((batch,), dtype=torch.bool),
    )


@_fake_of("walk_tree")
def _walk_tree(tokens: Any, parents: Any, target_ids: Any, columns: int) -> tuple[Any, ...]:
    return _walk(tokens, columns)


@_fake_of("walk_greedy")
def _walk_greedy(tokens: Any, parents: Any, logits: Any, columns: int) -> tuple[Any, ...]:
    return _walk(tokens, columns)


@_fake_of("gather_path")
def _gather_path(rows: Any, path: Any) -> Any:
    return rows.new_empty((path.shape[0] * path.shape[1], rows.shape[1]))


@_fake_of("build_tree_out")
def _build_tree_out(*arguments: Any) -> None:
    """Writes into its arguments and returns nothing; so do those below."""


@_fake_of("place_tree")
def _place_tree(ancestors: Any, depths: Any, prefix_lens: Any, mask: Any, positions: Any) -> None:
    pass


@_fake_of("count_round")
def _count_round(
    parents: Any, first_child: Any, counts: Any, exact: Any, path: Any, accepted: Any, sums: Any
) -> None:
    pass


@_fake_of("compact_kv")
def _compact_kv(buffers: Any, slots: Any, path: Any, accepted: Any) -> None:
    pass


def _ranked(like: Any, rows: Any, k: int) -> tuple[Any, Any]:
    return (
        like.new_empty((rows, k), dtype=torch.float32),
        like.new_empty((rows, k), dtype=torch.int64),
    )


def _walk(tokens: Any, columns: int) -> tuple[Any, ...]:
    batch = tokens.shape[0]
    return (
        tokens.new_empty((batch, columns)),
        tokens.new_empty((batch,)),
        tokens.new_empty((batch, columns)),
        tokens.new_empty((batch,)),
    )
