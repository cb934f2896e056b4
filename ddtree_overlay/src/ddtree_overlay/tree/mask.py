"""The tree as an attention mask, in the flat layout that SGLang calls FULL_MASK.

For each request `width` rows (the nodes) of prefix + width columns, request after request, True
where the node may attend: the whole prefix, its ancestors, itself. Offsets follow from the prefix
lengths on the device, and the readers in SGLang 0.5.17 compute the same ones:

- triton (`layers/attention/triton_backend.py`): `mask_indptr` is the running sum of
  width * (prefix + width); the extend kernel reads row i, column prefix + j of a request at
  start + i * (prefix + width) + prefix + j, and by default takes the prefix as visible unread.
- FlashInfer (`plan(custom_mask=)`): the same sums from `qo_indptr` and `kv_indptr`, as int32, so a
  mask must stay below 2**31 elements; it packs each request's segment, prefix columns included.
- `eagle_utils.build_tree_kernel_efficient` writes this layout, into as many elements as
  `mask_numel`.

None of them reads beyond the exact size.
"""

from __future__ import annotations

import torch  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

__all__ = ["full_mask", "mask_numel", "unpack_ancestors"]

WORD_BITS = 64


def mask_numel(prefix_sum: int, batch: int, width: int) -> int:
    """Elements (= bytes) of a FULL_MASK; `prefix_sum` is the sum of the prefix lengths in tokens,
    or an upper bound of it, which gives an upper bound."""
    return width * (prefix_sum + batch * width)


def unpack_ancestors(ancestors: Tensor, width: int) -> Tensor:
    """bool [batch, width, width]: row i may see column j, from `ddtree::build_tree`'s packed int64
    [batch, width, words]. Raises ValueError if the words are not those of `width`."""
    _check_ancestors(ancestors, width)
    bits = torch.arange(WORD_BITS, device=ancestors.device)
    unpacked = ancestors.unsqueeze(-1) >> bits & 1
    return unpacked.flatten(-2)[..., :width].bool()


def full_mask(ancestors: Tensor, prefix_lens: Tensor, numel: int) -> Tensor:
    """The flat mask, bool [numel], without a host sync: what `ddtree::place_tree` is held to.

    ancestors    int64 [batch, width, words]: packed, as `ddtree::build_tree` gives them
    prefix_lens  integer [batch], on the same device: tokens in the KV cache before the root
    numel        elements to return: `mask_numel` of the exact sum of prefix_lens or of any bound
                 of it (overlap scheduling knows no more). What is beyond the exact size is True: it
                 is read only for the requests that a CUDA graph pads a batch with, whose rows must
                 see something or their softmax is NaN.

    One pass writes True; a scatter then writes the batch * width**2 tree cells, with 8 bytes of
    index for each. A formulation per element would need its index, request and column: 24 bytes for
    each of prefix * width cells, nearly all of which are True.

    Raises ValueError for shapes that do not fit. A `numel` below the exact size is an index out of
    bounds: an IndexError or RuntimeError on a CPU, a device-side assertion on a GPU, never a
    shorter mask.
    """
    batch, width = ancestors.shape[:2]
    if prefix_lens.shape != (batch,):
        raise ValueError(
            f"prefix_lens is {list(prefix_lens.shape)} for a batch of {batch}; "
            "give one length per request"
        )
    visible = unpack_ancestors(ancestors, width)
    prefixes = prefix_lens.to(torch.int64)
    sizes = (prefixes + width) * width
    ends = sizes.cumsum(0)

    mask = torch.ones(numel, dtype=torch.bool, device=ancestors.device)
    nodes = torch.arange(width, device=ancestors.device)
    rows = (ends - sizes).unsqueeze(1) + nodes * (prefixes + width).unsqueeze(1)
    cells = (rows + prefixes.unsqueeze(1)).unsqueeze(2) + nodes
    return mask.scatter_(0, cells.reshape(-1), visible.reshape(-1))


def _check_ancestors(ancestors: Tensor, width: int) -> None:
    words = (width + WORD_BITS - 1) // WORD_BITS
    if ancestors.dtype != torch.int64 or ancestors.shape[1:] != (width, words):
        raise ValueError(
            f"ancestors is {ancestors.dtype} {list(ancestors.shape)}; "
            f"a tree of width {width} needs int64 [batch, {width}, {words}]"
        )
