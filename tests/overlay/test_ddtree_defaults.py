"""The tree's size where flags leave it open, and what it costs in memory: plain numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtree_overlay.sglang.defaults import (
    MAX_BUDGET,
    Hardware,
    SizingInputs,
    hardware_of,
    size_tree,
)
from ddtree_overlay.sglang.memory_gate import (
    RESERVE_FRACTION,
    SCRATCH_FRACTION,
    MemoryInputs,
    check_memory,
    fits,
    largest_batch,
    largest_budget,
    memory_use,
)

PRO_6000 = hardware_of((12, 0))
GIB = 2**30
QWEN3_8B = SizingInputs(block_size=16, block_size_given=False, vocab_size=151936, hardware=PRO_6000)
# Qwen3-8B in bf16: 36 layers of 8 KV heads of 128 each way, and a drafter of 5 such layers.
ON_96_GIB = MemoryInputs(
    block_size=16,
    batch=48,
    graph_batch=48,
    context=40960,
    vocab_size=151936,
    backend="flashinfer",
    kv_bytes_per_token=2 * (36 + 5) * 8 * 2 * 128,
    device_bytes=96 * GIB,
)
SMALL = replace(
    ON_96_GIB,
    batch=4,
    context=512,
    vocab_size=256,
    kv_bytes_per_token=1024,
    device_bytes=32 * 2**20,
)


def test_rtx_pro_6000_verifies_about_280_tokens_at_the_cost_of_reading_the_weights() -> None:
    assert PRO_6000 is not None
    assert 270 <= PRO_6000.ridge_tokens <= 290


def test_an_unlisted_gpu_gets_the_lowest_ridge_and_a_cpu_none() -> None:
    unlisted = hardware_of((13, 1))
    assert unlisted is not None
    assert "sm_131" in unlisted.name
    listed = [hardware_of(c) for c in ((8, 0), (8, 9), (9, 0), (10, 0), (12, 0))]
    assert unlisted.ridge_tokens == min(h.ridge_tokens for h in listed if h is not None)
    assert hardware_of(None) is None


@pytest.mark.parametrize(
    ("block_size", "requests", "budget"),
    [
        (16, None, 16),  # no limit given: low concurrency
        (16, 1, 16),
        (16, 16, 16),  # 16 x 17 = 272 tokens, below the ridge of 279
        (16, 17, 15),  # 17 x 17 = 289 would pass it: the drafted positions, and no fewer
        (16, 200, 15),
        (10, 16, 16),
        (10, 20, 12),  # 20 x 13 = 260
        (10, 48, 9),
        (8, 48, 7),
        (32, 1, 31),  # a long block: one node per position
        (2, 1, 16),
        (2, 1000, 1),
    ],
)
def test_the_default_budget(block_size: int, requests: int | None, budget: int) -> None:
    inputs = replace(QWEN3_8B, block_size=block_size, max_running_requests=requests)
    sizing = size_tree(inputs)
    assert sizing.budget == budget
    assert sizing.topk == min(budget, 64)


@pytest.mark.parametrize("block_size", [2, 8, 10, 16, 17, 32])
@pytest.mark.parametrize("requests", [None, 1, 8, 48, 256, 4096])
@pytest.mark.parametrize("capability", [None, (8, 0), (9, 0), (12, 0), (13, 0)])
def test_a_default_never_drops_the_greedy_path_nor_widens_verification_past_the_ridge(
    block_size: int, requests: int | None, capability: tuple[int, int] | None
) -> None:
    hardware = hardware_of(capability)
    sizing = size_tree(
        replace(QWEN3_8B, block_size=block_size, max_running_requests=requests, hardware=hardware)
    )
    drafted = block_size - 1
    assert sizing.budget >= drafted
    if sizing.budget > max(drafted, 1) and requests is not None and hardware is not None:
        assert requests * (sizing.budget + 1) <= hardware.ridge_tokens


def test_memory_lowers_the_default_only() -> None:
    sizing = size_tree(replace(QWEN3_8B, memory_budget=4))
    assert sizing.budget == 4 and "memory carries" in sizing.explanation
    assert size_tree(replace(QWEN3_8B, memory_budget=4, budget=64)).budget == 64
    assert size_tree(replace(QWEN3_8B, memory_budget=0)).budget == 1


def test_topk_is_the_smallest_of_budget_kernel_limit_and_vocabulary() -> None:
    assert size_tree(replace(QWEN3_8B, budget=32)).topk == 32
    assert size_tree(replace(QWEN3_8B, budget=256)).topk == 64
    assert size_tree(replace(QWEN3_8B, budget=256, vocab_size=50)).topk == 50
    assert size_tree(replace(QWEN3_8B, topk=3)).topk == 3


def test_the_explanation_is_one_line_with_every_number_and_its_source() -> None:
    said = size_tree(replace(QWEN3_8B, max_running_requests=48)).explanation
    assert "\n" not in said
    for part in (
        *("budget 15 (chosen", "48 running requests", "279 tokens", "RTX PRO 6000"),
        *("verify width 16", "top-k 15", "block size 16 (from the drafter's config)"),
        *("--speculative-ddtree-budget", "--speculative-ddtree-topk"),
    ):
        assert part in said, part
    said = size_tree(replace(QWEN3_8B, budget=8, topk=4, block_size_given=True)).explanation
    assert "budget 8 (as set)" in said and "block size 16 (as set)" in said
    assert "top-k 4 (as set; below the budget" in said
    assert "below the budget" not in size_tree(QWEN3_8B).explanation
    assert "below the budget" in size_tree(replace(QWEN3_8B, budget=128)).explanation


def test_a_ridge_is_operations_per_byte() -> None:
    assert Hardware("", 100, 2.0).ridge_tokens == 50


# Memory


def test_bytes_of_a_tree() -> None:
    use = memory_use(ON_96_GIB, 16)
    assert use.mask == 2 * 48 * 17 * (40960 + 17)  # the round's and the graphs'
    assert memory_use(replace(ON_96_GIB, graph_batch=0), 16).mask == 48 * 17 * (40960 + 17)
    assert use.indices == 48 * (17 + 16) * 40960 * 4
    # 32 heads of 128 on one GPU, 8 splits: 48 x 65 rows are 412 MB.
    triton = replace(ON_96_GIB, backend="triton", split_bytes_per_token=32 * 8 * 129 * 4)
    assert memory_use(triton, 64).splits == 48 * 65 * 32 * 8 * 129 * 4
    assert (
        memory_use(triton, 64).scratch
        - memory_use(replace(triton, split_bytes_per_token=0), 64).scratch
        == memory_use(triton, 64).splits
    )
    assert use.logits == 48 * 17 * 151936 * 4
    assert use.slots == 34
    assert use.reserve == 48 * 34 * ON_96_GIB.kv_bytes_per_token
    assert use.scratch == use.mask + use.indices + use.splits + use.logits
    # The drafter's block uses the same slots in turn.
    assert memory_use(ON_96_GIB, 4).slots == 32
    assert memory_use(replace(ON_96_GIB, backend="triton"), 16).indices == 2 * use.indices
    assert memory_use(replace(ON_96_GIB, graph_batch=0), 16).indices == 0


def test_the_defaults_fit_the_appliances_gpu() -> None:
    assert fits(ON_96_GIB, 16)
    assert fits(replace(ON_96_GIB, batch=16), 64)
    # 256 nodes for 48 requests: 7.5 GB of logits beside mask and indices.
    assert memory_use(ON_96_GIB, 256).logits > 7.4e9
    assert not fits(ON_96_GIB, 256)


def test_largest_budget_and_batch_are_the_largest() -> None:
    for inputs in (ON_96_GIB, replace(ON_96_GIB, backend="triton", batch=7), SMALL):
        budget = largest_budget(inputs)
        assert 0 < budget <= MAX_BUDGET
        assert fits(inputs, budget)
        assert budget == MAX_BUDGET or not fits(inputs, budget + 1)
        batch = largest_batch(inputs, 200)
        assert fits(replace(inputs, batch=batch), 200)
        assert batch == inputs.batch or not fits(replace(inputs, batch=batch + 1), 200)
    assert largest_budget(replace(SMALL, device_bytes=1000)) == 0
    assert largest_budget(replace(SMALL, device_bytes=None)) == MAX_BUDGET


def test_each_limit_is_the_stated_fraction() -> None:
    scratch = replace(ON_96_GIB, kv_bytes_per_token=0)
    reserve = replace(ON_96_GIB, kv_bytes_per_token=2**30)
    for inputs, amount, fraction in (
        (scratch, memory_use(scratch, 16).scratch, SCRATCH_FRACTION),
        (reserve, memory_use(reserve, 16).reserve, RESERVE_FRACTION),
    ):
        assert fits(replace(inputs, device_bytes=int(amount / fraction * 1.001)), 16)
        assert not fits(replace(inputs, device_bytes=int(amount / fraction * 0.999)), 16)


def test_a_refusal_states_bytes_and_what_would_fit() -> None:
    with pytest.raises(ValueError, match="--speculative-ddtree-budget") as caught:
        check_memory(ON_96_GIB, 256)
    said = str(caught.value)
    use = memory_use(ON_96_GIB, 256)
    assert "\n" not in said
    for number in (use.mask, use.indices, use.logits, use.scratch, use.reserve, 96 * GIB):
        assert str(number) in said, number
    assert f"use --speculative-ddtree-budget {largest_budget(ON_96_GIB)}" in said
    assert f"--max-running-requests {largest_batch(ON_96_GIB, 256)}" in said
    check_memory(ON_96_GIB, largest_budget(ON_96_GIB))


def test_a_kv_pool_smaller_than_one_requests_reserve_is_refused() -> None:
    check_memory(replace(ON_96_GIB, kv_slots=35), 16)
    with pytest.raises(ValueError, match="above 34"):
        check_memory(replace(ON_96_GIB, kv_slots=34), 16)


@pytest.mark.parametrize("backend", ["flashinfer", "triton"])
def test_a_mask_that_cannot_be_counted_is_refused(backend: str) -> None:
    wide = replace(ON_96_GIB, context=2**20, graph_batch=0, vocab_size=256, device_bytes=None)
    wide = replace(wide, backend=backend)
    assert memory_use(wide, 64).mask > 2**31
    assert not fits(wide, 64)
    with pytest.raises(ValueError, match=rf"ddtree-budget \(got 64\).*and {backend} counts"):
        check_memory(wide, 64)
    assert memory_use(wide, largest_budget(wide)).mask < 2**31
