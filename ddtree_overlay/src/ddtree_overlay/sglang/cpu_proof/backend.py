"""The attention backend `ddtree_cpu`: plain torch on a CPU, with tree masks.

Supports decoder models with one KV pool: prefill with a cached prefix, decode, and TARGET_VERIFY as
a chain, as a tree (`spec_info.custom_mask`) and as a DFlash drafter's block. In TARGET_VERIFY the
sequence lengths do not count the new tokens, and the new tokens' KV lies at `out_cache_loc` (as
`sglang/srt/layers/attention/triton_backend.py` reads them); in the other modes all keys of a
request lie at its row of `req_to_token`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from sglang.srt.layers.attention.base_attn_backend import (  # type: ignore[import-not-found, unused-ignore]
    AttentionBackend,
)
from sglang.srt.layers.radix_attention import (  # type: ignore[import-not-found, unused-ignore]
    AttentionType,
)
from sglang.srt.mem_cache.memory_pool import (  # type: ignore[import-not-found, unused-ignore]
    MHATokenToKVPool,
)
from sglang.srt.model_executor.forward_batch_info import (  # type: ignore[import-not-found, unused-ignore]
    ForwardMode,
)

from ddtree_overlay.sglang.cpu_proof.attention import (
    attend,
    block_rows,
    branching_rows,
    chain_rows,
    split_tree_mask,
    tree_rows,
)
from ddtree_overlay.sglang.cpu_proof.shims import BACKEND
from ddtree_overlay.sglang.cpu_proof.trace import VerifyTrace

NAME = BACKEND


@dataclass
class _Request:
    """What one request attends to in one forward."""

    first_row: int
    rows: int
    prefix: int  # keys older than the first row
    locations: Any  # int64 [prefix + rows], KV slots in position order, new rows last
    tree: Any = None  # bool [rows, prefix + rows]
    visible: dict[tuple[bool, int | None], Any] = field(default_factory=dict)

    def may_see(self, everyone: bool, window: int | None) -> Any:
        """Who sees whom, bool [rows, prefix + rows]; the same for all layers of a kind."""
        key = (everyone, window)
        if key not in self.visible:
            if everyone:
                rows = block_rows(self.prefix, self.rows)
            elif self.tree is not None:
                rows = tree_rows(self.tree, self.prefix, window)
            else:
                rows = chain_rows(self.prefix, self.rows, window)
            self.visible[key] = rows
        return self.visible[key]


class CpuTreeAttnBackend(AttentionBackend):  # type: ignore[misc, unused-ignore]
    """See the module's docstring.

    Raises:
        NotImplementedError: at construction, a model or pool that this backend cannot serve.
    """

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        if type(self.token_to_kv_pool) is not MHATokenToKVPool or runner.use_mla_backend:
            raise NotImplementedError(
                f"{NAME} reads one plain KV pool, not {type(self.token_to_kv_pool).__name__}"
            )
        self._trace = (
            VerifyTrace(None) if runner.is_draft_worker else VerifyTrace.from_environment()
        )
        self._requests: list[_Request] = []

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Lay out the batch: the KV slots of every request, and its tree.

        Raises:
            TreeMaskLengthError: a tree mask too short for the batch.
            NotImplementedError: a forward mode of another kind of speculation.
        """
        mode = forward_batch.forward_mode
        if mode.is_target_verify():
            self._requests = self._lay_out_verify(forward_batch)
        elif mode.is_decode():
            totals = forward_batch.seq_lens.tolist()
            self._requests = self._lay_out(
                forward_batch, [n - 1 for n in totals], [1] * len(totals)
            )
        elif mode in (ForwardMode.EXTEND, ForwardMode.MIXED):
            self._requests = self._lay_out(
                forward_batch,
                forward_batch.extend_prefix_lens.tolist(),
                forward_batch.extend_seq_lens.tolist(),
            )
        elif mode.is_idle():
            self._requests = []
        else:
            raise NotImplementedError(f"{NAME} does not serve {mode.name} forwards")

    def _lay_out(self, batch: Any, prefixes: list[int], news: list[int]) -> list[_Request]:
        requests, row = [], 0
        slots = batch.req_pool_indices.tolist()
        for slot, prefix, new in zip(slots, prefixes, news, strict=True):
            locations = self.req_to_token_pool.req_to_token[slot, : prefix + new].long()
            requests.append(_Request(row, new, prefix, locations))
            row += new
        return requests

    def _lay_out_verify(self, batch: Any) -> list[_Request]:
        width = int(batch.spec_info.draft_token_num)
        prefixes = batch.seq_lens.tolist()
        if batch.out_cache_loc.numel() != width * len(prefixes):
            raise ValueError(
                f"a verify of {len(prefixes)} requests, {width} wide, came with "
                f"{batch.out_cache_loc.numel()} KV slots"
            )
        mask = batch.spec_info.custom_mask
        trees = [None] * len(prefixes) if mask is None else split_tree_mask(mask, prefixes, width)
        cached = self._lay_out(batch, prefixes, [0] * len(prefixes))
        drafted = batch.out_cache_loc.long().split(width)
        requests = [
            _Request(i * width, width, old.prefix, torch.cat((old.locations, drafted[i])), trees[i])
            for i, old in enumerate(cached)
        ]
        if self._trace.on:
            self._trace.write(
                batch=len(prefixes),
                width=width,
                masked=mask is not None,
                branching_rows=[
                    0 if tree is None else branching_rows(tree, prefix)
                    for tree, prefix in zip(trees, prefixes, strict=True)
                ],
            )
        return requests

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> Any:
        """One new token per request; arguments and result as in `forward_extend`."""
        return self.forward_extend(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> Any:
        """Attention of one layer over the batch that `init_forward_metadata` laid out.

        Args:
            q: [tokens, heads * dim].
            k: [tokens, kv_heads, dim], or None where the layer reads another layer's KV.
            v: as `k`.
            layer: SGLang's RadixAttention.
            forward_batch: SGLang's ForwardBatch; only `out_cache_loc` is read here.
            save_kv_cache: write `k` and `v` to the pool first.

        Returns:
            [tokens, heads * value_dim] in the dtype of `q`.

        Raises:
            NotImplementedError: a kind of attention that this backend does not compute.
        """
        everyone = _sees_everyone(layer)
        if save_kv_cache and k is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        window = layer.sliding_window_size if layer.sliding_window_size > -1 else None
        output = query.new_empty((query.shape[0], layer.tp_q_head_num, layer.v_head_dim))
        done = 0
        for request in self._requests:
            rows = slice(request.first_row, request.first_row + request.rows)
            output[rows] = attend(
                query[rows],
                keys[request.locations],
                values[request.locations],
                request.may_see(everyone, window),
                layer.scaling,
            )
            done += request.rows
        if done != query.shape[0]:
            raise ValueError(f"{query.shape[0]} queries came for {done} laid-out rows")
        return output.view(query.shape[0], -1)


def _sees_everyone(layer: Any) -> bool:
    """Whether new tokens see each other in both directions."""
    if layer.is_cross_attention or layer.logit_cap:
        raise NotImplementedError(f"{NAME} has neither cross attention nor logit capping")
    if layer.attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
        raise NotImplementedError(f"{NAME} does not compute {layer.attn_type} attention")
    return bool(layer.attn_type == AttentionType.ENCODER_ONLY)
