"""Deliberate breakages of the overlay, each with the test that must see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Breakage:
    """`old`, which occurs once in `file` of the package ddtree_overlay, becomes `new`.

    test: a pytest node in tests/overlay, or "quick:NAME", a check of quick.py
    """

    name: str
    file: str
    old: str
    new: str
    test: str


WORKER, WALK = "sglang/worker.py", "tree/walk.py"
ROUNDS, RANKING = "sglang/rounds.py", "sglang/ranking.py"
ACCEPTANCE, VERIFY = "sglang/acceptance.py", "sglang/verify.py"

# What is broken inside the kernels is seen by tests/overlay/test_*_kernel.py and test_tree_core.py.
BREAKAGES = (
    Breakage(
        "mask row off by one",
        VERIFY,
        "ops.place_tree(tree.ancestors, tree.depths",
        "ops.place_tree(tree.ancestors.roll(1, 1), tree.depths",
        "tests/overlay/test_verify.py::test_mask_and_positions_are_the_trees",
    ),
    Breakage(
        "prefix not visible",
        VERIFY,
        "custom_mask=mask,",
        "custom_mask=~mask,",
        "quick:tokens",
    ),
    Breakage(
        "positions in node order",
        VERIFY,
        "positions=positions.reshape(-1),",
        "positions=(positions[:, :1] + torch.arange(width, device=mask.device)).reshape(-1),",
        "quick:tokens",
    ),
    Breakage(
        "KV not moved",
        WORKER,
        "compact_kv(pool, cache_locs, walk.path, walk.accepted)",
        "pass",
        "quick:tokens",
    ),
    Breakage(
        "KV moved for the first accepted node alone",
        WORKER,
        "compact_kv(pool, cache_locs, walk.path, walk.accepted)",
        "compact_kv(pool, cache_locs, walk.path, walk.accepted.clamp(max=1))",
        "quick:tokens",
    ),
    Breakage(
        "draft KV in node order",
        WORKER,
        "gather_path(hidden_states[: cache_locs.numel()], walk.path)",
        "gather_path(hidden_states[: cache_locs.numel()], steps.expand_as(walk.path))",
        "quick:acceptance",
    ),
    Breakage(
        "every node drawn for as if it were the root",
        ACCEPTANCE,
        "positions[first : first + many].flatten(),",
        "positions[first : first + many, :1].expand(-1, width).flatten(),",
        "tests/overlay/test_acceptance.py::test_one_call_and_many_draw_the_same_for_a_seed",
    ),
    Breakage(
        "every step drawn for as if it were the first",
        ACCEPTANCE,
        "positions[:, 0] + step",
        "positions[:, 0]",
        "tests/overlay/test_acceptance.py::test_one_call_and_many_draw_the_same_for_a_seed",
    ),
    Breakage(
        "nodes drawn for with another request's parameters",
        ACCEPTANCE,
        "value[first:end].repeat_interleave(width, dim=0)",
        "value[first:end].repeat(width, *[1] * (value.dim() - 1))",
        "tests/overlay/test_acceptance.py::test_one_call_and_many_draw_the_same_for_a_seed",
    ),
    Breakage(
        "the bonus token's row ranked as a draft",
        RANKING,
        "view(-1, block_size, width)[:, 1:]",
        "view(-1, block_size, width)[:, :-1]",
        "quick:acceptance",
    ),
    Breakage(
        "commit length off by one",
        WORKER,
        "commit_lens = (walk.accepted + 1)",
        "commit_lens = walk.accepted.clamp(min=1)",
        "quick:tokens",
    ),
    Breakage(
        "bonus token from the root",
        WALK,
        "bonus=tokens.gather(1, accepted.unsqueeze(1)).squeeze(1)",
        "bonus=tokens[:, 0]",
        "tests/overlay/test_walk.py::test_equals_the_dictionary_walk_on_any_legal_tree",
    ),
    Breakage(
        "output stride of the verify width",
        WORKER,
        "speculative_num_draft_tokens=self.columns,",
        "speculative_num_draft_tokens=self.width,",
        "quick:tokens",
    ),
    Breakage(
        "padding nodes are children of the root",
        WALK,
        "child = (parents == path[-1].unsqueeze(1))",
        "child = (parents.clamp(min=0) == path[-1].unsqueeze(1))",
        "tests/overlay/test_walk.py::test_neither_padding_nor_the_root_is_a_child",
    ),
    Breakage(
        "the block's KV slots serve the tree",
        WORKER,
        "return locs.view(count, self.width)",
        "return locs.view(count, self.width)[:, torch.arange(self.width) % int(self.block_size)]",
        "quick:tokens",
    ),
    Breakage(
        "a sampled walk draws again for what it emits",
        WALK,
        "drawn.append(token)",
        "drawn.append(draw(path[-1] % width, step))",
        "tests/overlay/test_sampling.py::test_rounds_emit_what_the_target_emits",
    ),
    Breakage(
        "the root's token is not the committed one",
        ROUNDS,
        "ops.build_tree(logprobs, token_ids, budget, None, roots)",
        "ops.build_tree(logprobs, token_ids, budget, None, None)",
        "tests/overlay/test_rounds.py::test_the_root_carries_the_committed_token",
    ),
    Breakage(
        "nor in a graph's tree",
        ROUNDS,
        "None, blocks[:, 0], *self",
        "None, None, *self",
        "tests/overlay/test_rounds.py::"
        "test_the_graph_tree_builder_leaves_what_the_eager_round_builds",
    ),
    Breakage(
        "no grammar mask on the nodes",
        ACCEPTANCE,
        "mask.apply(logits.flatten(0, 1))",
        "pass",
        "quick:grammar",
    ),
    Breakage(
        "logit bias forgotten",
        ACCEPTANCE,
        "logits.add_(info.logit_bias[:, None].to(logits))",
        "pass",
        "quick:bias",
    ),
    Breakage(
        "no mask elements for the requests that a graph pads with",
        VERIFY,
        "return int((padded - count) * width * (runner.seq_len_fill_value + width))",
        "return 0",
        "tests/overlay/test_verify.py::test_a_padded_graph_batch_reads_a_mask_of_its_own_length",
    ),
    Breakage(
        "a graph's mask buffer of another layout is taken",
        VERIFY,
        "own.mode == TreeMaskMode.FULL_MASK",
        "own.mode is not None",
        "tests/overlay/test_verify.py::test_a_buffer_that_graphs_do_not_read_so_is_left_alone",
    ),
    Breakage(
        "a mask of another length is accepted",
        VERIFY,
        "if found not in allowed:",
        "if False:",
        "tests/overlay/test_verify.py::test_a_mask_of_another_length_is_an_error_for_every_backend",
    ),
    Breakage(
        "the grammar's tree without siblings",
        WORKER,
        "GrammarTree.from_device(tree.first_child, tree.next_sibling, tree.tokens)",
        "GrammarTree.from_device(\n"
        "                tree.first_child, torch.full_like(tree.next_sibling, -1), tree.tokens\n"
        "            )",
        "quick:grammar",
    ),
    Breakage(
        "a run is looked at as a whole",
        "sglang/finish.py",
        "if run_length <= 1 or req.finished() or req.to_finish:",
        "if True:",
        "tests/overlay/test_finish.py::test_every_run_ends_as_its_tokens_one_by_one",
    ),
)
