"""A round of the ops at serving shapes, as bodies that a CUDA graph can hold. Needs torch and the
overlay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import ddtree_overlay.ops  # noqa: F401  (registers the ops)
from ddtree_overlay.tree.mask import mask_numel

OPS = torch.ops.ddtree


@dataclass(frozen=True)
class Shape:
    """Sizes of a measurement; the defaults are those of the arithmetic. `accepted` < budget."""

    batch: int
    budget: int
    levels: int = 15
    vocabulary: int = 151_936
    topk: int = 64
    prefix: int = 8_192
    layers: int = 36
    heads: int = 8
    head_size: int = 128
    features: int = 4_096 * 5
    accepted: int = 7


class Round:
    """Inputs on a device and the ops on them.

    The drafter is sure enough for trees deeper than `accepted`, and the target agrees with it on so
    many tokens: walks have a usual length. The KV move gets a path of its own, the last nodes of
    the tree, so that every accepted row moves; a walk's own first nodes are often in place.
    """

    def __init__(self, shape: Shape, device: str) -> None:
        self.shape = shape
        batch, width = shape.batch, shape.budget + 1
        self.columns = min(shape.levels + 1, width)
        generator = torch.Generator(device).manual_seed(0)

        def normal(*sizes: int) -> Any:
            values = torch.empty(sizes, dtype=torch.bfloat16, device=device)
            return values.normal_(generator=generator)

        self.draft_logits = normal(batch * shape.levels, shape.vocabulary)
        likely = self.draft_logits.float().logsumexp(-1, keepdim=True) + 1.0
        at = self.draft_logits.argmax(-1, keepdim=True)
        self.draft_logits.scatter_(1, at, likely.to(torch.bfloat16))
        self.roots = torch.zeros(batch, dtype=torch.int64, device=device)
        self.prefixes = torch.full((batch,), shape.prefix, dtype=torch.int64, device=device)
        size = mask_numel(batch * shape.prefix, batch, width)
        self.mask = torch.empty(size, dtype=torch.bool, device=device)
        self.positions = torch.empty((batch, width), dtype=torch.int64, device=device)
        self.sums = torch.zeros(6, dtype=torch.int64, device=device)
        self.slots = torch.arange(batch * width, device=device).view(batch, width)
        row = (shape.heads, shape.head_size)
        last = range(width - shape.accepted, width)
        path = [0, *last, *range(shape.accepted + 1, self.columns)]
        self.moves = torch.tensor([path] * batch, device=device)
        self.moved = torch.full((batch,), shape.accepted, device=device)
        self.kv = [normal(batch * width, *row) for _ in range(2 * shape.layers)]
        self.hidden = normal(batch * width, shape.features)
        # SGLang verifies on fp32 logits.
        self.target_logits = normal(batch * width, shape.vocabulary).float().view(batch, width, -1)

        self.rank()
        self.build()
        self._agree()
        self.walk()
        found = int(self.walked[1].min())
        if found != shape.accepted:
            raise RuntimeError(f"the walks accept {found} tokens, not {shape.accepted}")

    def _agree(self) -> None:
        """Raises the target's logit of the first child on the first `accepted` levels of the path
        of first children, and elsewhere that of a token that no child has."""
        tokens, _, depths, first = self.tree[:4]
        child = tokens.gather(1, first.clamp(min=0))
        follows = (first >= 0) & (depths < self.shape.accepted)
        other = (tokens.amax(1, keepdim=True) + 1) % self.shape.vocabulary
        peak = torch.where(follows, child, other).unsqueeze(-1)
        self.target_logits.scatter_(2, peak, 100.0)

    def rank(self) -> None:
        self.ranked = OPS.rank_tokens(self.draft_logits, self.shape.topk)

    def build(self) -> None:
        table = [t.view(self.shape.batch, self.shape.levels, -1) for t in self.ranked]
        self.tree = OPS.build_tree(*table, self.shape.budget, None, self.roots)

    def place(self) -> None:
        OPS.place_tree(self.tree[5], self.tree[2], self.prefixes, self.mask, self.positions)

    def walk(self) -> None:
        self.walked = OPS.walk_greedy(self.tree[0], self.tree[1], self.target_logits, self.columns)

    def count(self) -> None:
        _, parents, _, first, _, _, counts, _, exact = self.tree
        OPS.count_round(parents, first, counts, exact, *self.walked[:2], self.sums)

    def compact(self) -> None:
        OPS.compact_kv(self.kv, self.slots, self.moves, self.moved)

    def gather(self) -> None:
        self.gathered = OPS.gather_path(self.hidden, self.walked[0])

    def parts(self) -> dict[str, Callable[[], None]]:
        """What is measured: each op, the sum that has a target, and the whole."""
        ops = {
            "rank_tokens": self.rank,
            "build_tree": self.build,
            "place_tree": self.place,
            "walk_greedy": self.walk,
            "count_round": self.count,
            "compact_kv": self.compact,
            "gather_path": self.gather,
        }

        def in_turn(*names: str) -> Callable[[], None]:
            def body() -> None:
                for name in names:
                    ops[name]()

            return body

        return {
            **ops,
            "build+walk+compact": in_turn("build_tree", "walk_greedy", "compact_kv"),
            "round": in_turn(*ops),
        }
