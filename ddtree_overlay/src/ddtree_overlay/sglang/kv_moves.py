"""Which buffers of SGLang's KV pools hold a row for each slot, and which slot that row has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, MHATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from ddtree_overlay import ops


class KvPoolUnsupportedError(RuntimeError):
    """The KV pool keeps rows in a way that accepted nodes cannot be moved by."""


@dataclass(frozen=True)
class KvRows:
    """Buffers [slots, ...] whose row of a token is that of its slot, or of `slot_map[slot]`."""

    buffers: list[torch.Tensor]
    slot_map: torch.Tensor | None = None


def kv_rows(pool: Any) -> tuple[KvRows, ...]:
    """All layers' K, V and scale buffers of a pool.

    By exact class, because a subclass may lay its rows out otherwise. Raises
    KvPoolUnsupportedError naming the class.
    """
    if type(pool) is MHATokenToKVPool and pool.page_size == 1:
        return (KvRows(pool._slot_move_pointer_buffers()),)
    if type(pool) is HybridLinearKVPool:
        return kv_rows(pool.full_kv_pool)
    if type(pool) is SWAKVPool:
        window = tuple(
            KvRows(rows.buffers, pool.full_to_swa_index_mapping)
            for rows in kv_rows(pool.swa_kv_pool)
        )
        return *kv_rows(pool.full_kv_pool), *window
    raise KvPoolUnsupportedError(
        f"DDTREE cannot move accepted tokens in a {type(pool).__name__} of page size "
        f"{getattr(pool, 'page_size', 'unknown')}: "
        "use --speculative-algorithm DFLASH, or report the flags that chose this KV pool."
    )


def compact_kv(pool: Any, slots: torch.Tensor, path: torch.Tensor, accepted: torch.Tensor) -> None:
    """Move the accepted nodes' rows to the front of their verify windows, in one launch a slot map.

    slots: int64 [batch, width], of the nodes in node order. path: int64 [batch, columns] and
    accepted: int64 [batch], as `ddtree::walk_tree` gives them. No host synchronisation.
    """
    for rows in kv_rows(pool):
        # The map may change before this runs, but not for slots whose tokens are still attended to.
        own = slots if rows.slot_map is None else rows.slot_map[slots].to(torch.int64)
        ops.compact_kv(rows.buffers, own, path, accepted)
