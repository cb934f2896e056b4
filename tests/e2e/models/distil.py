"""Training of the drafter on the target's own continuations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from torch.nn import functional as F  # type: ignore[import-not-found, unused-ignore]  # noqa: N812

from tests.e2e.models.drafter import Drafter, target_features
from tests.e2e.models.optimise import optimise
from tests.e2e.models.target import continue_greedily

CONTINUATION = 128
# Slots over which the loss's weight falls by e.
DECAY = 4.0


def continuations(
    target: Any, stream: Any, plan: Sequence[tuple[int, int, float]], *, seed: int
) -> list[Any]:
    """One int64 [rows, prefix + CONTINUATION] per (prefix, rows, temperature) of `plan`."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number, (prefix, rows, temperature) in enumerate(plan):
        starts = torch.randint(0, len(stream) - prefix, (rows, 1), generator=generator)
        prefixes = stream[starts + torch.arange(prefix)]
        found.append(
            continue_greedily(target, prefixes, CONTINUATION, temperature, seed=seed + number)
        )
    return found


@dataclass(frozen=True)
class Blocks:
    """Draft blocks of several anchors in one forward, each blind to the others.

    ids, places:  int64 [rows, anchors * size]: block tokens and their positions
    labels:       int64 [rows, anchors, size]: the true tokens; slot 0 is the bonus token itself
    mask:         bool [rows, 1, anchors * size, tokens + anchors * size], True: may be seen
    """

    ids: Any
    places: Any
    labels: Any
    mask: Any


def blocks_at(tokens: Any, starts: Any, size: int, mask_id: int) -> Blocks:
    """The blocks whose bonus tokens stand at `starts` [rows, anchors] of `tokens` [rows, length].

    A block sees the context before its bonus token and all of itself.
    """
    rows, anchors = starts.shape
    slots, length = torch.arange(size), tokens.shape[1]
    places = (starts[..., None] + slots).reshape(rows, -1)
    labels = torch.gather(tokens, 1, places).view(rows, anchors, size)
    ids = torch.full_like(labels, mask_id)
    ids[..., 0] = labels[..., 0]
    block = torch.arange(anchors).repeat_interleave(size)
    sees_context = torch.arange(length) < starts.repeat_interleave(size, 1)[..., None]
    sees_block = (block[:, None] == block).expand(rows, -1, -1)
    mask = torch.cat([sees_context, sees_block], -1)[:, None]
    return Blocks(ids.view(rows, -1), places, labels, mask)


def train_drafter(
    drafter: Drafter,
    target: Any,
    sets: Sequence[Any],
    *,
    steps: int,
    tokens_per_step: int,
    anchors: int,
    seed: int,
) -> None:
    """Cross-entropy of block slots 1.. with the tokens that follow, earlier slots weighing more.

    Three anchors (bonus tokens) in four stand in the continuation, one in the prefix: real text
    teaches what the target's own text lacks.
    """
    generator = torch.Generator().manual_seed(seed)
    size = drafter.shape.block_size
    embed, head = target.model.embed_tokens.weight.detach(), target.lm_head.weight.detach()
    weights = torch.exp(-torch.arange(size - 1) / DECAY)
    in_prefix = torch.arange(anchors) % 4 == 0

    def loss_of(step: int) -> Any:
        pool = sets[step % len(sets)]
        length = pool.shape[1]
        rows = max(2, tokens_per_step // length)
        tokens = pool[torch.randint(0, len(pool), (rows,), generator=generator)]
        # The token after the prefix is the first that the target chose itself.
        first = length - CONTINUATION
        drawn = torch.randint(first, length - size + 1, (rows, anchors), generator=generator)
        early = torch.randint(1, first + 1, (rows, anchors), generator=generator)
        starts = torch.where(in_prefix, early, drawn)

        blocks = blocks_at(tokens, starts, size, drafter.shape.mask_id)
        features = target_features(target, tokens, drafter.shape.taps)
        context = drafter.context(features, torch.arange(length)[None])
        hidden = drafter(F.embedding(blocks.ids, embed), blocks.places, context, blocks.mask)
        hidden = hidden.view(rows, anchors, size, -1)[:, :, 1:]
        losses = F.cross_entropy(
            F.linear(hidden, head).flatten(0, 2), blocks.labels[..., 1:].flatten(), reduction="none"
        )
        return (losses.view(-1, size - 1) * weights).sum() / (weights.sum() * rows * anchors)

    optimise(drafter, steps, loss_of, "drafter")
