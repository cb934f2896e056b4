"""The DDTREE worker: DFlash drafts a block, a tree of it is verified in one target forward.

Everything up to the drafter's hidden states is upstream's `DFlashWorkerV2` (prefill, draft runner,
draft KV, CUDA graphs, overlap scheduling). What differs is here: candidates instead of one token
per position, a tree instead of a chain, and the accepted path instead of a prefix of the block.
No step here waits for the device: candidates, tree, mask, walk and KV move are `ddtree::` ops, or
torch's where a sampled walk goes step by step, on its stream. (FlashInfer's plan of the verify does
wait, in every round and for DFLASH too.)

Widths: `block_size` is the drafter's; `width` = budget + 1 is what the target verifies;
`columns` = min(block_size, width) is the most that a round can commit.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func
from sglang.srt.distributed import get_tp_group
from sglang.srt.environ import envs
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.runtime_context import get_exec
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2, DraftedBlock
from sglang.srt.speculative.spec_utils import GrammarTree

from ddtree_overlay import ops
from ddtree_overlay.sglang.acceptance import constrain, walk_tree
from ddtree_overlay.sglang.kv_moves import compact_kv, kv_rows
from ddtree_overlay.sglang.metrics import TreeMetrics
from ddtree_overlay.sglang.ranking import head_slices, rank_block
from ddtree_overlay.sglang.rounds import DraftTree, GraphTreeBuilder, build_draft_tree
from ddtree_overlay.sglang.stats import TreeStats
from ddtree_overlay.sglang.verify import graph_padding, host_prefix_sum, tree_verify_input
from ddtree_overlay.tree.walk import Walk

logger = logging.getLogger(__name__)


class DDTreeWorker(DFlashWorkerV2):  # type: ignore[misc]
    """Verifies draft trees; the same constructor and scheduler interface as `DFlashWorkerV2`."""

    def __init__(
        self, server_args: Any, gpu_id: int, ps: Any, nccl_port: int, target_worker: Any
    ) -> None:
        super().__init__(server_args, gpu_id, ps, nccl_port, target_worker)
        target = self.target_worker.model_runner
        self.budget = int(server_args.speculative_ddtree_budget)
        self.width = self.budget + 1
        self.columns = min(int(self.block_size), self.width)
        # The scheduler's metrics read the verify width under this name.
        self.speculative_num_draft_tokens = self.width
        self._topk = min(int(server_args.speculative_ddtree_topk), target.model_config.vocab_size)
        self._context_len = int(target.model_config.context_len)
        tp = get_tp_group()
        self._tp = tp if tp.world_size > 1 else None
        self._head_slices = head_slices(
            getattr(target.model, "lm_head", None), tp.world_size, target.model_config.hidden_size
        )
        # Before any graph is captured, in which nothing can be loaded.
        ops.load_kernels(self.device)
        self._stats = TreeStats(self.device)
        self._metrics = TreeMetrics(self._stats, self.budget)
        if self.ps.tp_rank == 0:
            logger.info(
                "DDTREE worker ready: budget=%d (verify width %d), top-k=%d, block size=%d, "
                "at most %d tokens a round, %s.",
                *(self.budget, self.width, self._topk, int(self.block_size), self.columns),
                ops.describe(self.device),
            )

    @staticmethod
    def _configured_block_size(server_args: Any) -> int | None:
        return server_args.speculative_dflash_block_size  # type: ignore[no-any-return]

    def init_attention_backends(self) -> None:
        """As upstream; refuses a KV pool whose rows cannot be moved before it holds any."""
        super().init_attention_backends()
        kv_rows(self.target_worker.model_runner.token_to_kv_pool)

    def _validate_phase1_sampling_support(self, batch: Any) -> None:
        """Nothing to warn of: the tree is walked with the target's own sampler on every device."""

    def _maybe_build_draft_sampler(self) -> GraphTreeBuilder | None:
        """Upstream's hook for what runs in the draft CUDA graph after the drafter."""
        if envs.SGLANG_DFLASH_EAGER_DRAFT_SAMPLER.get():
            return None
        return GraphTreeBuilder(
            weight=self.target_worker.model_runner.model.lm_head.weight,
            slices=self._head_slices,
            block_size=int(self.block_size),
            topk=self._topk,
            budget=self.budget,
            max_batch=max(get_exec().graph.cuda_graph_config.decode.bs),
            tp=self._tp,
        )

    def _decode_batch(
        self, batch: Any, draft_input: Any, on_publish: Any, grammar_barrier: Any
    ) -> GenerationBatchResult:
        """One round of a non-empty decode batch."""
        prefix_lens = batch.seq_lens
        drafted = self._draft_block(batch, draft_input)
        tree = self._draft_tree(drafted)
        # Its copy to the host must start ahead of the verify launch, which it overlaps.
        grammar_tree = (
            GrammarTree.from_device(tree.first_child, tree.next_sibling, tree.tokens)
            if batch.has_grammar
            else None
        )

        cache_locs = self._verify_cache_locs(batch)
        logits_output, positions, can_run_cuda_graph = self._verify(
            batch, draft_input, tree, cache_locs
        )
        logits = logits_output.next_token_logits.view(len(prefix_lens), self.width, -1)
        constrain(logits, batch, grammar_tree, grammar_barrier)
        walk = self._walk(logits, tree, batch, positions)

        commit_lens = (walk.accepted + 1).to(torch.int32)
        # Overlap scheduling starts one more round of a request that has just reached its end, and
        # discards it: its prefix must not outgrow what buffers and masks are made for.
        new_seq_lens = (prefix_lens + commit_lens.to(prefix_lens.dtype)).clamp(
            max=self._context_len
        )
        if on_publish is not None:
            on_publish(new_seq_lens)
        self._commit(logits_output.hidden_states, walk, prefix_lens, cache_locs, commit_lens)
        if self._need_mamba_verify_commit:
            # Reached only with --speculative-ddtree-allow-hybrid-unsafe: upstream has scanned the
            # nodes as a chain, so the state of the last accepted node is right only on the spine.
            last = walk.path.gather(1, walk.accepted[:, None]).squeeze(1)
            self._update_target_mamba_state_after_verify(
                batch=batch, seq_lens_pre_verify=prefix_lens, commit_lens=last + 1
            )
        self._stats.add(tree, walk)

        # Avoid copying large hidden-state buffers to CPU in overlap scheduling.
        logits_output.hidden_states = None
        return GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=walk.tokens.reshape(-1),
            accept_lens=commit_lens,
            can_run_cuda_graph=can_run_cuda_graph,
            next_draft_input=self._make_next_draft_input_decode(
                bonus_tokens=walk.bonus, new_seq_lens=new_seq_lens
            ),
            speculative_num_draft_tokens=self.columns,
            new_seq_lens=new_seq_lens,
        )

    def report_trees(self, collector: Any) -> str:
        """Called by the scheduler once per decode log interval: see TreeMetrics.report."""
        return self._metrics.report(collector)

    def _draft_tree(self, drafted: DraftedBlock) -> DraftTree:
        """The tree of each request of a drafted block."""
        if self._draft_sampler is not None and drafted.draft_out.can_run_graph:
            return self._draft_sampler.tree(drafted.block_ids.shape[0])  # type: ignore[no-any-return]
        hidden = drafted.draft_out.logits_output.hidden_states
        if hidden is None:
            raise RuntimeError("DDTREE: the draft model returned no hidden states.")
        logprobs, ids = rank_block(
            *(hidden, int(self.block_size), drafted.lm_head.weight),
            *(self._head_slices, self._topk, self._tp),
        )
        return build_draft_tree(logprobs, ids, self.budget, drafted.block_ids[:, 0])

    def _verify_cache_locs(self, batch: Any) -> torch.Tensor:
        """KV slots of the tree's nodes, int64 [batch, width], in node order behind the prefix."""
        count = len(batch.seq_lens)
        locs = assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            end_offset=batch.seq_lens + self.width,
            batch_size=count,
            draft_token_num=self.width,
            device=self.device,
        )
        return locs.view(count, self.width)

    def _verify(
        self,
        batch: Any,
        draft_input: Any,
        tree: DraftTree,
        cache_locs: torch.Tensor,
    ) -> tuple[LogitsProcessorOutput, torch.Tensor, bool]:
        """The target's logits [batch * width, vocabulary] and tapped hidden states of all nodes,
        and the positions [batch, width] that it saw them at."""
        lens_cpu, lens_sum = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_sum = host_prefix_sum(batch, draft_input, self._context_len)
        if lens_cpu is not None:
            batch.seq_lens_cpu = lens_cpu + self.width
        elif draft_input.reserved_seq_lens_cpu is not None:
            batch.seq_lens_cpu = draft_input.reserved_seq_lens_cpu
        batch.out_cache_loc = cache_locs.reshape(-1)
        target = self.target_worker.model_runner
        verify_input = tree_verify_input(
            tree,
            batch.seq_lens,
            batch.seq_lens_sum,
            graph_padding(target.decode_cuda_graph_runner, len(batch.seq_lens), self.width),
            target.attn_backend.verify_mask,
        )
        positions = verify_input.positions.view(cache_locs.shape)
        forward_batch, _ = verify_input.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = lens_cpu, lens_sum
        out = self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        )
        if out.logits_output.hidden_states is None:
            raise RuntimeError("DDTREE: the target returned no hidden states for the drafter.")
        return out.logits_output, positions, out.can_run_cuda_graph

    def _walk(
        self, logits: torch.Tensor, tree: DraftTree, batch: Any, positions: torch.Tensor
    ) -> Walk:
        """The accepted path. The CPU proof path's observer stands here (cpu_proof/observer.py)."""
        sampler = self.target_worker.model_runner.sampler
        return walk_tree(
            logits, tree, positions, batch.sampling_info, sampler, self.columns, self._tp
        )

    def _commit(
        self,
        hidden_states: torch.Tensor,
        walk: Walk,
        prefix_lens: torch.Tensor,
        cache_locs: torch.Tensor,
        commit_lens: torch.Tensor,
    ) -> None:
        """Accepted KV to the front of the window, the drafter's KV in path order."""
        # This round's slots and not those of req_to_token, whose row may by now belong to another
        # request.
        pool = self.target_worker.model_runner.token_to_kv_pool
        compact_kv(pool, cache_locs, walk.path, walk.accepted)
        front = cache_locs[:, : self.columns].contiguous()
        steps = torch.arange(self.columns, device=front.device)
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=ops.gather_path(hidden_states[: cache_locs.numel()], walk.path),
            cache_loc=front.reshape(-1),
            cache_loc_2d=front,
            positions=(prefix_lens[:, None] + steps).reshape(-1),
            commit_lens=commit_lens,
        )
