"""The verify input of DDTREE: one target forward over the tree's nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.speculative.dflash_info import DFlashVerifyInput


class TreeMaskLengthError(RuntimeError):
    """The tree mask does not have the length that the attention backend will read."""


@dataclass
class DDTreeVerifyInput(DFlashVerifyInput):  # type: ignore[misc]
    """`DFlashVerifyInput` whose queries are tree nodes.

    draft_token int64 [batch * width], positions int64 [batch * width] (prefix length + depth),
    custom_mask bool [mask numel] in SGLang's FULL_MASK layout (see tree.mask).

    Stays a DFLASH_VERIFY input, which is what backends branch on, but its mask is exact: a backend
    that reads another length would attend to tokens of another branch or request, and upstream
    fills a short mask with True.

    batch: requests of this round. padding_elements: mask elements appended for the requests that
    a CUDA graph pads the batch with.
    """

    batch: int = 0
    padding_elements: int = 0

    def generate_attn_arg_prefill(
        self,
        req_pool_indices: torch.Tensor,
        paged_kernel_lens: torch.Tensor,
        paged_kernel_lens_sum: int,
        req_to_token: torch.Tensor,
        kv_start_idx: torch.Tensor | None = None,
    ) -> Any:
        """As upstream; raises TreeMaskLengthError instead of padding the mask."""
        batch, width = len(req_pool_indices), int(self.draft_token_num)
        needed = width * (int(paged_kernel_lens_sum) + batch * width)
        mask = self.custom_mask
        found = -1 if mask is None else mask.numel()
        allowed = {needed} if batch != self.batch else {needed, needed + self.padding_elements}
        if found not in allowed:
            raise TreeMaskLengthError(
                f"the tree mask has {found} elements and {batch} requests of width {width} over "
                f"{int(paged_kernel_lens_sum)} cached tokens need {needed}: this is a bug in "
                "DDTREE; use --speculative-algorithm DFLASH and report it."
            )
        return super().generate_attn_arg_prefill(
            req_pool_indices, paged_kernel_lens, paged_kernel_lens_sum, req_to_token, kv_start_idx
        )
