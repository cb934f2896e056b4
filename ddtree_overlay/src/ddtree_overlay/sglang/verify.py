"""The verify input of DDTREE: one target forward over the tree's nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.eagle_utils import TreeMaskMode

from ddtree_overlay import ops
from ddtree_overlay.sglang.rounds import DraftTree
from ddtree_overlay.tree.mask import mask_numel


class VerifyMaskLengthError(RuntimeError):
    """The tree mask does not have the length that the attention backend will read."""


@dataclass
class DDTreeVerifyInput(DFlashVerifyInput):  # type: ignore[misc]
    """`DFlashVerifyInput` whose queries are tree nodes.

    draft_token int64 [batch * width], positions int64 [batch * width] (prefix length + depth),
    custom_mask bool or uint8 [mask numel] in SGLang's FULL_MASK layout (see tree.mask).

    Stays a DFLASH_VERIFY input, which is what backends branch on, but its mask is exact: a backend
    that reads another length would attend to tokens of another branch or request, and upstream
    fills a short mask with True.

    batch: requests of this round. padding_elements: mask elements appended for the requests that
    a CUDA graph pads the batch with.
    """

    batch: int = 0
    padding_elements: int = 0

    def prepare_for_verify(self, batch: Any, target_worker: Any) -> Any:
        """As upstream; raises VerifyMaskLengthError where `batch` and the mask do not agree, for
        those backends too that do not ask `generate_attn_arg_prefill`."""
        needed = self._needed(len(batch.seq_lens), int(batch.seq_lens_sum))
        self._require({needed + self.padding_elements}, int(batch.seq_lens_sum))
        return super().prepare_for_verify(batch, target_worker)

    def generate_attn_arg_prefill(
        self,
        req_pool_indices: torch.Tensor,
        paged_kernel_lens: torch.Tensor,
        paged_kernel_lens_sum: int,
        req_to_token: torch.Tensor,
        kv_start_idx: torch.Tensor | None = None,
    ) -> Any:
        """As upstream; raises VerifyMaskLengthError instead of padding the mask."""
        batch, prefix_sum = len(req_pool_indices), int(paged_kernel_lens_sum)
        needed = self._needed(batch, prefix_sum)
        # A padded batch reads the elements for its padding too, another one does not.
        spare = self.padding_elements if batch == self.batch else 0
        self._require({needed, needed + spare}, prefix_sum)
        return super().generate_attn_arg_prefill(
            req_pool_indices, paged_kernel_lens, paged_kernel_lens_sum, req_to_token, kv_start_idx
        )

    def _needed(self, batch: int, prefix_sum: int) -> int:
        return mask_numel(prefix_sum, batch, int(self.draft_token_num))

    def _require(self, allowed: set[int], prefix_sum: int) -> None:
        found = -1 if self.custom_mask is None else self.custom_mask.numel()
        if found not in allowed:
            raise VerifyMaskLengthError(
                f"the tree mask has {found} elements and must have {min(allowed)} ({self.batch} "
                f"requests of width {self.draft_token_num} over {prefix_sum} cached tokens): this "
                "is a bug in DDTREE; use --speculative-algorithm DFLASH and report it."
            )


def tree_verify_input(
    tree: DraftTree,
    prefix_lens: torch.Tensor,
    prefix_sum: int,
    padding_elements: int,
    own_mask: Any = None,
) -> DDTreeVerifyInput:
    """The verify input of a batch of trees.

    prefix_lens: [batch] on the device. prefix_sum: on the host, the sum of prefix_lens or a bound
    of it. padding_elements: see `graph_padding`. own_mask: the target's attention backend's
    `verify_mask`.
    """
    count, width = tree.tokens.shape
    numel = mask_numel(prefix_sum, count, width) + padding_elements
    mask = mask_tensor(own_mask, numel, prefix_lens.device)
    positions = torch.empty_like(tree.depths)
    ops.place_tree(tree.ancestors, tree.depths, prefix_lens, mask.view(torch.bool), positions)
    return DDTreeVerifyInput(
        draft_token=tree.tokens.reshape(-1),
        positions=positions.reshape(-1),
        draft_token_num=width,
        custom_mask=mask,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        batch=count,
        padding_elements=padding_elements,
    )


def mask_tensor(own: Any, numel: int, device: Any) -> torch.Tensor:
    """Where a mask of `numel` elements is to be written, bool or uint8 [numel].

    own: SGLang's `VerifyMask`, the buffer that a backend's captured graphs read, or None. A mask
    that is written there, in its type, needs no copy before the replay: torch skips one onto
    itself.
    """
    fits = (
        own is not None
        and own.is_read
        and own.mode == TreeMaskMode.FULL_MASK
        and own.buffer.dtype in (torch.bool, torch.uint8)
        and own.buffer.numel() >= numel
    )
    if fits:
        return own.buffer[:numel]
    return torch.empty(numel, dtype=torch.bool, device=device)


def graph_padding(runner: Any, count: int, width: int) -> int:
    """Mask elements of the requests that a CUDA graph pads a batch of `count` with.

    runner: the target's decode graph runner, None without graphs.
    """
    if runner is None or count > runner.max_bs:
        return 0
    padded = runner._pad_to_bucket(count, runner.capture_bs)
    return int((padded - count) * width * (runner.seq_len_fill_value + width))


def host_prefix_sum(batch: Any, draft_input: Any, context_len: int) -> int:
    """The sum of the prefix lengths as far as the host knows it: exact or, with overlap scheduling
    and a backend that does not need more, an upper bound. No prefix outgrows the context."""
    if batch.seq_lens_cpu is not None:
        known = int(batch.seq_lens_cpu.sum())
    elif draft_input.reserved_seq_lens_cpu is not None:
        known = int(draft_input.reserved_seq_lens_sum)
    else:
        known = int(batch.seq_lens.sum())
    return min(known, len(batch.seq_lens) * context_len)
