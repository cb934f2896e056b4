"""Tensors of one DDTREE round, on any device. Imports no SGLang."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddtree_overlay import ops


@dataclass(frozen=True)
class DraftTree:
    """`ddtree::build_tree`'s outputs for a batch, with the committed token at the root.

    tokens, parents, depths, first_child, next_sibling: int64 [batch, budget + 1].
    ancestors: int64 [batch, budget + 1, words]. counts: int64 [batch], nodes without the root.
    exact: bool [batch], the truncation certificate.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    first_child: torch.Tensor
    next_sibling: torch.Tensor
    ancestors: torch.Tensor
    counts: torch.Tensor
    exact: torch.Tensor


def build_draft_tree(
    logprobs: torch.Tensor, token_ids: torch.Tensor, budget: int, roots: torch.Tensor
) -> DraftTree:
    """The tree of each request on the device of its candidates.

    logprobs fp32 and token_ids int64: [batch, block_size - 1, top-k], ranked. roots: int64
    [batch], the tokens to verify from.
    """
    device = logprobs.device
    # The op has no CUDA implementation yet, so a GPU's candidates go through the host.
    built = ops.build_tree(logprobs.cpu(), token_ids.cpu(), budget)
    tokens, parents, depths, first, sibling, ancestors, counts, _, exact = (
        tensor.to(device, non_blocking=True) for tensor in built
    )
    tokens[:, 0] = roots
    return DraftTree(tokens, parents, depths, first, sibling, ancestors, counts, exact)


def committed_rows(hidden: torch.Tensor, path: torch.Tensor, width: int) -> torch.Tensor:
    """Rows of the walked path, in path order.

    hidden: [batch * width, features], in node order. path: int64 [batch, columns]. Returns
    [batch * columns, features]; row r of a request is that of position prefix + r.
    """
    offsets = torch.arange(path.shape[0], device=path.device)[:, None] * width
    return hidden.index_select(0, (path + offsets).reshape(-1))
