"""One case for each op and path through it: inputs by seed, the call, which outputs are floats.

Inputs are made on the CPU, with one set of shapes for all seeds of a batch size, so that a graph can
be replayed with others. Odd seeds are full of ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

import ddtree_overlay.ops  # noqa: F401  (registers the ops)
from ddtree_overlay.tree.mask import mask_numel
from tests.overlay.torch_moves import LAYOUTS, indices, pool
from tests.overlay.trees import seeded

OPS = torch.ops.ddtree
SENTINEL = 0x5A


@dataclass(frozen=True)
class Case:
    """`inputs(seed, batch)` gives CPU tensors; `call(*inputs)` the outputs, among them what the op
    writes into its inputs. Outputs whose index is in `close` are sums of floats, the rest must be
    identical bit for bit. Inputs whose index is in `strided` may have any strides."""

    inputs: Callable[[int, int], list[Any]]
    call: Callable[..., Sequence[Any]]
    batch: int
    close: frozenset[int] = frozenset()
    strided: frozenset[int] = frozenset()


def normal(*shape: int, seed: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def logits(*shape: int, seed: int, dtype: Any) -> Any:
    values = 3 * normal(*shape, seed=seed)
    return (values.round() if seed % 2 else values).to(dtype)


def rank(rows: int, vocabulary: int, k: int, dtype: Any) -> Case:
    return Case(
        inputs=lambda seed, batch: [logits(batch * rows, vocabulary, seed=seed, dtype=dtype)],
        call=lambda given: OPS.rank_tokens(given, k, 7),
        batch=1,
        close=frozenset({0}),
        strided=frozenset({0}),
    )


def shards(k: int, sizes: Sequence[int]) -> Case:
    def inputs(seed: int, batch: int) -> list[Any]:
        whole = logits(batch * 5, sum(sizes), seed=seed, dtype=torch.bfloat16)
        return list(whole.split(list(sizes), dim=1))

    def call(*given: Any) -> list[Any]:
        first = [sum(sizes[:i]) for i in range(len(sizes))]
        ranked = [OPS.rank_shard(part, k, at) for part, at in zip(given, first, strict=True)]
        # The last word holds the normaliser, whose sum has an order of its own on each device.
        maxima = [part[:, k] >> 32 for part in ranked]
        return [*OPS.merge_shards(torch.stack(ranked), k), *[p[:, :k] for p in ranked], *maxima]

    return Case(inputs, call, batch=3, close=frozenset({0}), strided=frozenset(range(len(sizes))))


def candidates(seed: int, batch: int, levels: int, ranks: int) -> list[Any]:
    """Ranked log-probabilities and token ids."""
    top = torch.log_softmax(2 * normal(batch, levels, 300, seed=seed), -1).topk(ranks, -1)
    values = (2 * top.values).round() / 2 if seed % 2 else top.values
    return [values, top.indices]


def budgets_and_roots(seed: int, batch: int, budget: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(-1, budget + 2, (batch,), generator=generator),
        torch.randint(0, 300, (batch,), generator=generator),
    ]


def build(levels: int, ranks: int, budget: int, *, options: bool) -> Case:
    def inputs(seed: int, batch: int) -> list[Any]:
        given = candidates(seed, batch, levels, ranks)
        return given + (budgets_and_roots(seed, batch, budget) if options else [])

    def call(logprobs: Any, ids: Any, *rest: Any) -> Sequence[Any]:
        built: Sequence[Any] = OPS.build_tree(logprobs, ids, budget, *rest)
        return built

    return Case(inputs, call, batch=5, strided=frozenset({0, 1}))


def tree_outputs(batch: int, budget: int) -> list[Any]:
    """Buffers for build_tree_out, full of what it must overwrite."""
    per_node = [torch.full((batch, budget + 1), SENTINEL) for _ in range(5)]
    words = budget // 64 + 1
    return [
        *per_node,
        torch.full((batch, budget + 1, words), SENTINEL),
        torch.full((batch,), SENTINEL),
        torch.full((batch, budget + 1), float(SENTINEL)),
        torch.ones(batch, dtype=torch.bool),
    ]


def build_out(levels: int, ranks: int, budget: int) -> Case:
    def inputs(seed: int, batch: int) -> list[Any]:
        return [
            *candidates(seed, batch, levels, ranks),
            *budgets_and_roots(seed, batch, budget),
            *tree_outputs(batch, budget),
        ]

    def call(*given: Any) -> Sequence[Any]:
        OPS.build_tree_out(*given)
        return given[4:]

    return Case(inputs, call, batch=5, strided=frozenset({0, 1}))


def tree(seed: int, batch: int, budget: int) -> tuple[Any, ...]:
    """build_tree's outputs on the CPU."""
    built: tuple[Any, ...] = OPS.build_tree(*candidates(seed, batch, 7, 16), budget)
    return built


def place(budget: int, dtype: Any) -> Case:
    most = 700

    def inputs(seed: int, batch: int) -> list[Any]:
        built = tree(seed, batch, budget)
        prefixes = [(131 * seed + 257 * i) % most for i in range(batch)]
        width = budget + 1
        mask = torch.full((mask_numel(most * batch, batch, width),), False)
        return [
            *(built[5], built[2], torch.tensor(prefixes, dtype=dtype)),
            *(mask, torch.full((batch, width), SENTINEL)),
        ]

    def call(*given: Any) -> Sequence[Any]:
        OPS.place_tree(*given)
        return given[3:]

    return Case(inputs, call, batch=3, strided=frozenset({0, 1, 2}))


def targets(built: Sequence[Any], seed: int) -> Any:
    """A target's token per node: the first child's for most nodes that have one."""
    children = built[0].gather(1, built[3].clamp(min=0))
    lucky = (normal(*children.shape, seed=seed + 1000) > -0.7) & (built[3] >= 0)
    return torch.where(lucky, children, (children + 1) % 300)


def walk(budget: int) -> Case:
    def inputs(seed: int, batch: int) -> list[Any]:
        built = tree(seed, batch, budget)
        return [built[0], built[1], targets(built, seed)]

    return Case(
        inputs,
        lambda *given: OPS.walk_tree(*given, min(8, budget + 1)),
        batch=9,
        strided=frozenset({0, 1, 2}),
    )


def walk_logits(batch: int, budget: int, vocabulary: int, dtype: Any) -> Case:
    def inputs(seed: int, batch: int) -> list[Any]:
        built = tree(seed, batch, budget)
        wanted = targets(built, seed).unsqueeze(-1)
        scores = logits(batch, budget + 1, vocabulary, seed=seed, dtype=torch.float32)
        peak = scores.amax(-1, keepdim=True) if batch else scores[..., :1]
        # A tie with another token, now and then at a lower index.
        scores.scatter_(2, wanted, peak + (0 if seed % 2 else 1))
        return [built[0], built[1], scores.to(dtype)]

    return Case(
        inputs,
        lambda *given: OPS.walk_greedy(*given, min(8, budget + 1)),
        batch=batch,
        strided=frozenset({0, 1}),
    )


def count() -> Case:
    budget = 33

    def inputs(seed: int, batch: int) -> list[Any]:
        built = tree(seed, batch, budget)
        path, accepted, _, _ = OPS.walk_tree(built[0], built[1], targets(built, seed), 8)
        counts = built[6].clone()
        counts[seed % 3 :: 3] = -5  # faults
        sums = torch.arange(6) * seed
        return [built[1], built[3], counts, built[8], path, accepted, sums]

    def call(*given: Any) -> Sequence[Any]:
        OPS.count_round(*given)
        return given[6:]

    return Case(inputs, call, batch=40, strided=frozenset(range(6)))


def compact(layouts: Sequence[str], width: int) -> Case:
    def inputs(seed: int, batch: int) -> list[Any]:
        given = indices(seeded(seed), batch, width, min(16, width))
        pools = [pool(given.pool_slots, name, seed + i).rows for i, name in enumerate(layouts)]
        return [given.slots, given.path, given.accepted, *pools]

    def call(slots: Any, path: Any, accepted: Any, *buffers: Any) -> Sequence[Any]:
        OPS.compact_kv(list(buffers), slots, path, accepted)
        return buffers

    return Case(inputs, call, batch=5, strided=frozenset({0, 1, 2}))


def gather(features: int, dtype: Any) -> Case:
    def inputs(seed: int, batch: int) -> list[Any]:
        given = indices(seeded(seed), batch, 17, 8)
        return [normal(batch * 17, features, seed=seed).to(dtype), given.path]

    return Case(inputs, lambda *given: [OPS.gather_path(*given)], batch=5, strided=frozenset({1}))


CASES: dict[str, Case] = {
    "rank_tokens bf16": rank(5, 5003, 64, torch.bfloat16),
    "rank_tokens fp16": rank(5, 4096, 17, torch.float16),
    "rank_tokens fp32": rank(5, 70, 64, torch.float32),
    "rank_tokens few": rank(5, 3, 64, torch.bfloat16),
    "rank_tokens qwen3": rank(15, 151936, 64, torch.bfloat16),
    "rank_shard and merge_shards": shards(32, (700, 1, 0, 900)),
    "build_tree 16": build(15, 4, 16, options=False),
    "build_tree 64": build(15, 64, 64, options=True),
    "build_tree 256": build(31, 64, 256, options=True),
    "build_tree_out 64": build_out(15, 64, 64),
    "place_tree 16": place(16, torch.int64),
    "place_tree 64": place(64, torch.int32),
    "walk_tree 4": walk(4),
    "walk_tree 64": walk(64),
    "walk_greedy all rows": walk_logits(2, 16, 1003, torch.bfloat16),
    "walk_greedy visited rows": walk_logits(64, 64, 509, torch.bfloat16),
    "walk_greedy fp32": walk_logits(2, 4, 300, torch.float32),
    "count_round": count(),
    "compact_kv": compact(list(LAYOUTS), 33),
    "compact_kv in three launches": compact(["bf16 heads", "uint8 scales"] * 165, 9),
    "gather_path bf16": gather(640, torch.bfloat16),
    "gather_path fp32": gather(7, torch.float32),
}
