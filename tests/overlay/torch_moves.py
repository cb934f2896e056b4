"""What the torch tests of compact_kv and gather_path share: KV pools of any layout, random walks'
indices, and the moves in plain torch. Needs torch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

# dtype, a row's shape, elements between rows, elements before the first row
LAYOUTS: dict[str, tuple[Any, tuple[int, ...], int, int]] = {
    "bf16 heads": (torch.bfloat16, (2, 16), 0, 0),
    "bf16 of four dimensions": (torch.bfloat16, (2, 3, 4), 0, 0),
    "fp16 in padded rows": (torch.float16, (2, 8), 8, 0),
    "fp16 misaligned": (torch.float16, (3, 5), 1, 1),
    "fp8": (torch.float8_e4m3fn, (4, 16), 0, 0),
    "fp8 misaligned": (torch.float8_e4m3fn, (7,), 4, 3),
    "fp8 e5m2": (torch.float8_e5m2, (2, 6), 0, 2),
    "uint8 scales": (torch.uint8, (1,), 0, 1),
    "fp32 scales": (torch.float32, (2,), 1, 1),
    "a number per slot": (torch.int64, (), 0, 0),
    "wider than a block": (torch.bfloat16, (9, 128), 0, 0),
}


@dataclass(frozen=True)
class Pool:
    """A buffer of KV rows as a view into `storage`, the bytes around it included."""

    storage: Any
    rows: Any


def pool(slots: int, layout: str, seed: int, device: str = "cpu") -> Pool:
    dtype, shape, gap, before = LAYOUTS[layout]
    row = 1
    strides: list[int] = []
    for size in reversed(shape):
        strides.insert(0, row)
        row *= size
    numel = before + slots * (row + gap) + 5
    generator = torch.Generator().manual_seed(seed)
    size = numel * torch.empty((), dtype=dtype).element_size()
    storage = torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8).to(device)
    view = storage.view(dtype).as_strided((slots, *shape), (row + gap, *strides), before)
    return Pool(storage, view)


def like(given: Pool) -> Pool:
    """A copy, bytes around the rows included."""
    storage = given.storage.clone()
    rows = storage.view(given.rows.dtype).as_strided(
        given.rows.shape, given.rows.stride(), given.rows.storage_offset()
    )
    return Pool(storage, rows)


@dataclass(frozen=True)
class Indices:
    """int64: slots [batch, width], path [batch, columns], accepted [batch]; `pool_slots` rows."""

    slots: Any
    path: Any
    accepted: Any
    pool_slots: int

    def to(self, device: str) -> Indices:
        slots, path, accepted = (t.to(device) for t in (self.slots, self.path, self.accepted))
        return Indices(slots, path, accepted, self.pool_slots)


def walk_path(random_: random.Random, width: int, columns: int) -> tuple[list[int], int]:
    """A walk's path and how many nodes it accepted."""
    accepted = random_.choice([random_.randrange(columns), columns - 1])
    nodes = sorted(random_.sample(range(1, width), accepted))
    return [0, *nodes, *range(accepted + 1, columns)], accepted


def indices(random_: random.Random, batch: int, width: int, columns: int) -> Indices:
    walks = [walk_path(random_, width, columns) for _ in range(batch)]
    count = batch * width + 3
    order = list(range(count))
    if random_.random() < 0.7:
        random_.shuffle(order)
    return Indices(
        torch.tensor(order[: batch * width], dtype=torch.int64).view(batch, width),
        torch.tensor([path for path, _ in walks], dtype=torch.int64).view(batch, columns),
        torch.tensor([accepted for _, accepted in walks], dtype=torch.int64),
        count,
    )


def move(pools: Sequence[Pool], given: Indices) -> list[Pool]:
    """Copies of the pools after the move, each row taken from what was there before."""
    moved = [like(p) for p in pools]
    slots, path = given.slots.tolist(), given.path.tolist()
    for before, after in zip(pools, moved, strict=True):
        for request, accepted in enumerate(given.accepted.tolist()):
            for step in range(1, accepted + 1):
                source, target = slots[request][path[request][step]], slots[request][step]
                after.rows[target] = before.rows[source]
    return moved
