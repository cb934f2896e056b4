"""Accepted rows in SGLang's own KV pools. Runs inside the image (needs SGLang and the op)."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool  # noqa: E402
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool  # noqa: E402

from ddtree_overlay.sglang.kv_moves import (  # noqa: E402
    KvPoolUnsupportedError,
    compact_kv,
    kv_rows,
)

SLOTS, WIDTH, COLUMNS, BATCH = 60, 9, 5, 4


def fill(pool: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    for buffer in (*pool.k_buffer, *pool.v_buffer):
        buffer.copy_(torch.randn(buffer.shape, generator=generator))


def plain_pool(dtype: Any = torch.float32, page_size: int = 1) -> Any:
    pool = MHATokenToKVPool(
        size=SLOTS,
        page_size=page_size,
        dtype=dtype,
        head_num=2,
        head_dim=8,
        layer_num=3,
        device="cpu",
        enable_memory_saver=False,
    )
    fill(pool)
    return pool


def window_pool() -> Any:
    pool = SWAKVPool(
        size=SLOTS,
        size_swa=SLOTS,
        dtype=torch.float32,
        head_num=2,
        head_dim=8,
        page_size=1,
        swa_attention_layer_ids=[1],
        full_attention_layer_ids=[0, 2],
        device="cpu",
    )
    fill(pool.full_kv_pool)
    fill(pool.swa_kv_pool)
    order = torch.randperm(SLOTS + 1, generator=torch.Generator().manual_seed(1))
    pool.register_mapping(order.to(torch.int64))
    return pool


def walked(seed: int) -> tuple[Any, Any, Any]:
    """Slots, ascending paths and their lengths."""
    pick = random.Random(seed)  # noqa: S311 - test data
    slots = torch.tensor(pick.sample(range(1, SLOTS), BATCH * WIDTH)).view(BATCH, WIDTH)
    path = torch.arange(COLUMNS).repeat(BATCH, 1)
    accepted = torch.tensor([pick.randrange(COLUMNS) for _ in range(BATCH)])
    for row, count in enumerate(accepted.tolist()):
        nodes = sorted(pick.sample(range(1, WIDTH), count))
        path[row, 1 : count + 1] = torch.tensor(nodes, dtype=torch.int64)
    return slots, path, accepted


@pytest.mark.parametrize("make", [plain_pool, window_pool])
@pytest.mark.parametrize("seed", range(8))
def test_moves_what_upstream_moves_step_by_step(make: Any, seed: int) -> None:
    ours, theirs = make(), make()
    slots, path, accepted = walked(seed)
    compact_kv(ours, slots, path, accepted)
    for row, count in enumerate(accepted.tolist()):
        for step in range(1, count + 1):
            one = (slots[row, step].view(1), slots[row, path[row, step]].view(1))
            for pool in inner(theirs):
                window = pool is getattr(theirs, "swa_kv_pool", None)
                target, source = (
                    (theirs.full_to_swa_index_mapping[s] for s in one) if window else one
                )
                for buffer in (*pool.k_buffer, *pool.v_buffer):
                    buffer[target] = buffer[source].clone()
    for mine, reference in zip(inner(ours), inner(theirs), strict=True):
        for a, b in zip(
            (*mine.k_buffer, *mine.v_buffer),
            (*reference.k_buffer, *reference.v_buffer),
            strict=True,
        ):
            assert torch.equal(a, b)


def inner(pool: Any) -> list[Any]:
    return [pool.full_kv_pool, pool.swa_kv_pool] if isinstance(pool, SWAKVPool) else [pool]


def test_every_layer_is_moved() -> None:
    (rows,) = kv_rows(plain_pool())
    assert len(rows.buffers) == 2 * 3 and rows.slot_map is None
    full, window = kv_rows(window_pool())
    assert len(full.buffers) == 2 * 2 and len(window.buffers) == 2
    assert window.slot_map is not None


def test_a_pool_that_nobody_has_looked_at_is_refused_by_name() -> None:
    class Relaid(MHATokenToKVPool):  # type: ignore[misc, unused-ignore]
        pass

    relaid = object.__new__(Relaid)
    relaid.page_size = 1
    with pytest.raises(KvPoolUnsupportedError, match="a Relaid of page size 1"):
        kv_rows(relaid)
    with pytest.raises(KvPoolUnsupportedError, match="a SimpleNamespace of page size unknown"):
        kv_rows(SimpleNamespace())
    with pytest.raises(KvPoolUnsupportedError, match="MHATokenToKVPool of page size 4"):
        kv_rows(plain_pool(page_size=4))
