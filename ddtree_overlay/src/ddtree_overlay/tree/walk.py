"""The walk down a verified tree, for a batch, on any torch device and without a host sync.

The target has scored every node; the walk follows the child that carries the target's token, and
where there is none that token is the *bonus token*, the root of the next round. With one draw from
the target per visited node this is lossless: every emitted token is a draw from the target's
distribution after its own prefix, whatever the drafter proposed (Ringel & Romano,
arXiv 2604.12989).

Nothing here depends on data on the host (no `.item()`, no boolean-mask indexing, no shapes taken
from values), so that a walk can be captured in a CUDA graph and enqueued ahead of its round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

__all__ = ["Draw", "Walk", "walk_greedy", "walk_sampled"]

Draw = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Walk:
    """What a batch of walks accepted. All tensors are int64 on the tree's device.

    path:     [batch, columns]  node index at step r: the root (0), then the accepted nodes;
                                path[r] = r beyond them
    accepted: [batch]           accepted drafted nodes n, the root not counted, at most columns - 1
    tokens:   [batch, columns]  the n accepted tokens, the bonus token in column n, 0 beyond
    bonus:    [batch]           the token at which the walk left the tree

    Moving row path[r] of the verify window to row r for all r as one gather followed by one scatter
    puts the root and the accepted rows in front: parents precede children in node order, so the
    path ascends and path[r] >= r; destinations are distinct, rows beyond the path move onto
    themselves, and even a move in steps of ascending r never reads a row it has overwritten.
    """

    path: Tensor
    accepted: Tensor
    tokens: Tensor
    bonus: Tensor


def walk_greedy(tokens: Tensor, parents: Tensor, target_ids: Tensor, columns: int) -> Walk:
    """The walk by the target's argmax.

    tokens, parents  int64 [batch, width]: as `ddtree::build_tree` gives them. The root's token is
                     not read, so the caller may have put the committed token there.
    target_ids       int64 [batch, width]: the target's argmax at each node; ignored in padding
    columns          tree depth + 1: min(block size, budget + 1), in 1..width

    Of siblings with one token the first in node order is followed. Raises ValueError for shapes or
    dtypes that do not fit.
    """
    _check(tokens, parents, columns)
    _check_like("target_ids", target_ids, tokens)
    batch, width = tokens.shape
    nodes = torch.arange(width, device=tokens.device)
    has_parent = parents >= 0
    followed = has_parent & (tokens == target_ids.gather(1, parents.clamp(min=0)))

    # `width` stands for "the walk has ended". Its own successor is itself, so the steps below need
    # no mask. Nodes without a parent write there, and only that value.
    successor = tokens.new_full((batch, width + 1), width)
    successor.scatter_reduce_(
        1,
        parents.masked_fill(~has_parent, width),
        torch.where(followed, nodes, width),
        "amin",
    )
    visited = [tokens.new_zeros((batch, 1))]
    for _ in range(columns - 1):
        visited.append(successor.gather(1, visited[-1]))
    path = torch.cat(visited, 1)
    return _result(path, target_ids.gather(1, path % width), width)


def walk_sampled(tokens: Tensor, parents: Tensor, draw: Draw, columns: int) -> Walk:
    """The walk by one draw from the target per visited node.

    tokens, parents, columns  as for `walk_greedy`
    draw(nodes, step)         one token id per request, any integer dtype, [batch], drawn from the
                              target at `nodes` (int64 [batch]) of each request. Called once for
                              each step 0..columns-1; a request whose walk has ended is asked at its
                              root and the answer ignored.

    The draws must be independent of each other: one that is repeated for each child, or again for
    the bonus token, makes the output biased. Raises ValueError for shapes or dtypes that do not
    fit.
    """
    _check(tokens, parents, columns)
    batch, width = tokens.shape
    nodes = torch.arange(width, device=tokens.device)
    path, drawn = [tokens.new_zeros((batch,))], []
    for step in range(columns):
        # `width` stands for "the walk has ended": no node has it as its parent, so it stays.
        token = draw(path[-1] % width, step)
        drawn.append(token)
        if step + 1 < columns:
            child = (parents == path[-1].unsqueeze(1)) & (tokens == token.unsqueeze(1))
            path.append(torch.where(child, nodes, width).amin(1))
    return _result(torch.stack(path, 1), torch.stack(drawn, 1).to(torch.int64), width)


def _result(path: Tensor, drawn: Tensor, width: int) -> Walk:
    """From nodes and the target's tokens per step; node `width` is beyond the end of a walk."""
    ended = path == width
    accepted = (~ended).sum(1) - 1
    tokens = drawn.masked_fill(ended, 0)
    return Walk(
        path=torch.where(ended, torch.arange(path.shape[1], device=path.device), path),
        accepted=accepted,
        tokens=tokens,
        bonus=tokens.gather(1, accepted.unsqueeze(1)).squeeze(1),
    )


def _check(tokens: Tensor, parents: Tensor, columns: int) -> None:
    if tokens.dim() != 2 or tokens.dtype != torch.int64:
        raise ValueError(
            f"tokens is {tokens.dtype} {list(tokens.shape)}; the walk needs int64 [batch, width]"
        )
    _check_like("parents", parents, tokens)
    if not 1 <= columns <= tokens.shape[1]:
        raise ValueError(
            f"columns is {columns} for a tree of width {tokens.shape[1]}; "
            "it must be tree depth + 1 = min(block size, budget + 1)"
        )


def _check_like(name: str, tensor: Tensor, tokens: Tensor) -> None:
    if tensor.shape != tokens.shape or tensor.dtype != torch.int64:
        raise ValueError(
            f"{name} is {tensor.dtype} {list(tensor.shape)}; "
            f"the walk needs int64 {list(tokens.shape)}, the shape of tokens"
        )
