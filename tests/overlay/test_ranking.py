"""Vocabulary-parallel candidates against a plain log-softmax. Runs inside the image (needs the op)."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

from ddtree_overlay.sglang.ranking import (  # noqa: E402
    CHUNK_ROWS,
    HeadSlice,
    HeadUnsupportedError,
    drafted_rows,
    head_slices,
    rank_tokens,
)

NEVER = float("-inf")


class Ranks:
    """A tensor-parallel group of threads: each rank's gather waits for all of them."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._barrier = threading.Barrier(world_size, timeout=60)
        self._parts: list[Any] = [None] * world_size
        self._rank = threading.local()

    def all_gather_into_tensor(self, gathered: Any, local: Any) -> None:
        assert local.is_contiguous()
        self._parts[self._rank.value] = local
        self._barrier.wait()
        gathered.copy_(torch.cat(self._parts))
        self._barrier.wait()

    def run(self, body: Any) -> list[Any]:
        results: list[Any] = [None] * self.world_size

        def one(rank: int) -> None:
            self._rank.value = rank
            results[rank] = body(rank)

        threads = [threading.Thread(target=one, args=(r,)) for r in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def head(vocabulary: int, rows: int, seed: int = 0) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, 16, generator=generator),
        torch.randn(vocabulary, 16, generator=generator),
    )


def expected(hidden: Any, weight: Any, topk: int) -> tuple[Any, Any]:
    top = torch.log_softmax((hidden @ weight.T).float(), -1).topk(topk, -1)
    return top.values, top.indices


@pytest.mark.parametrize("rows", [1, 5, CHUNK_ROWS, CHUNK_ROWS + 3])
@pytest.mark.parametrize("topk", [1, 7, 40])
def test_one_rank_is_a_log_softmax(rows: int, topk: int) -> None:
    hidden, weight = head(40, rows)
    logprobs, ids = rank_tokens(hidden, weight, (HeadSlice(0, 40, 0),), topk, None)
    values, indices = expected(hidden, weight, topk)
    torch.testing.assert_close(logprobs, values)
    assert torch.equal(ids, indices)
    assert logprobs.dtype == torch.float32 and ids.dtype == torch.int64


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("topk", [3, 16])
def test_ranks_agree_with_one_another_and_with_one_rank(ranks: int, topk: int) -> None:
    # 42 tokens on 4 ranks: the last shard is short and padded, as SGLang pads it.
    hidden, weight = head(42, 9)
    per_rank = -(-42 // ranks)
    group = Ranks(ranks)

    def one(rank: int) -> Any:
        first = rank * per_rank
        own = weight[first : first + per_rank]
        padded = torch.cat([own, torch.full((per_rank - len(own) + 2, 16), 99.0)])
        return rank_tokens(hidden, padded, (HeadSlice(0, len(own), first),), topk, group)

    results = group.run(one)
    values, indices = expected(hidden, weight, topk)
    for logprobs, ids in results:
        torch.testing.assert_close(logprobs, values)
        assert torch.equal(ids, indices)
        assert torch.equal(logprobs, results[0][0])


def test_a_rank_without_tokens_takes_part() -> None:
    hidden, weight = head(6, 3)
    group = Ranks(2)
    results = group.run(
        lambda rank: rank_tokens(hidden, weight, (HeadSlice(0, 6 * (1 - rank), 0),), 4, group)
    )
    for logprobs, ids in results:
        torch.testing.assert_close(logprobs, expected(hidden, weight, 4)[0])
        assert torch.equal(ids, expected(hidden, weight, 4)[1])


def test_added_tokens_behind_padding_keep_their_ids() -> None:
    hidden, weight = head(12, 20)
    # Rows: 8 tokens, 3 of padding that would win, 4 added tokens whose ids start at 100.
    local = torch.cat([weight[:8], torch.full((3, 16), 50.0), weight[8:]])
    slices = (HeadSlice(0, 8, 0), HeadSlice(11, 4, 100))
    logprobs, ids = rank_tokens(hidden, local, slices, 12, None)
    values, indices = expected(hidden, weight, 12)
    torch.testing.assert_close(logprobs, values)
    assert torch.equal(ids, torch.where(indices < 8, indices, indices + 92))


def test_added_tokens_of_one_rank_alone() -> None:
    hidden, weight = head(12, 5)
    group = Ranks(2)
    results = group.run(
        lambda rank: rank_tokens(
            hidden,
            weight[:8] if rank == 0 else weight[8:],
            (HeadSlice(0, 4, 0), HeadSlice(4, 4, 4))
            if rank == 0
            else (HeadSlice(0, 4, 8), HeadSlice(4, 0, 12)),
            9,
            group,
        )
    )
    for logprobs, ids in results:
        torch.testing.assert_close(logprobs, expected(hidden, weight, 9)[0])
        assert torch.equal(ids, expected(hidden, weight, 9)[1])


def test_equal_logits_rank_by_token_id_whatever_the_shard() -> None:
    hidden = torch.ones(1, 2)
    weight = torch.zeros(10, 2)
    alone = rank_tokens(hidden, weight, (HeadSlice(0, 10, 0),), 10, None)[1]
    assert alone[0].tolist() == list(range(10))
    group = Ranks(2)
    for _, ids in group.run(
        lambda r: rank_tokens(hidden, weight[:5], (HeadSlice(0, 5, 5 * r),), 10, group)
    ):
        assert ids[0].tolist() == list(range(10))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_has_no_candidates_and_harms_no_other(bad: float) -> None:
    hidden, weight = head(20, 4)
    hidden[2, 3] = bad
    logprobs, _ = rank_tokens(hidden, weight, (HeadSlice(0, 20, 0),), 5, None)
    assert logprobs[2].tolist() == [NEVER] * 5
    good = [0, 1, 3]
    torch.testing.assert_close(logprobs[good], expected(hidden[good], weight, 5)[0])


def test_a_certain_token_has_log_probability_zero_and_not_more() -> None:
    # bf16 weights and a large logit: value - normaliser may round above 0, which is no probability.
    weight = torch.zeros(30, 4, dtype=torch.bfloat16)
    weight[17] = 100.0
    logprobs, ids = rank_tokens(torch.ones(2, 4), weight, (HeadSlice(0, 30, 0),), 3, None)
    assert ids[:, 0].tolist() == [17, 17]
    assert (logprobs <= 0).all() and (logprobs[:, 0] == 0).all()


def test_no_rows() -> None:
    logprobs, ids = rank_tokens(torch.empty(0, 4), torch.ones(5, 4), (HeadSlice(0, 5, 0),), 3, None)
    assert logprobs.shape == ids.shape == (0, 3)


def test_drafted_rows_leave_out_the_bonus_token_of_each_block() -> None:
    hidden = torch.arange(8).view(8, 1)
    assert drafted_rows(hidden, 4).flatten().tolist() == [1, 2, 3, 5, 6, 7]


def test_slices_of_a_plain_and_of_a_sharded_head() -> None:
    plain = SimpleNamespace(weight=torch.ones(9, 2))
    assert head_slices(plain, 1, 2) == (HeadSlice(0, 9, 0),)
    shard = SimpleNamespace(
        num_org_elements=5,
        org_vocab_start_index=10,
        num_org_elements_padded=8,
        num_added_elements=2,
        added_vocab_start_index=40,
    )
    sharded = SimpleNamespace(weight=torch.ones(12, 2), shard_indices=shard)
    assert head_slices(sharded, 4, 2) == (HeadSlice(0, 5, 10), HeadSlice(8, 2, 40))
    # This rank has none of the added tokens; another has.
    shard.num_added_elements, sharded.num_added_embeddings = 0, 3
    assert head_slices(sharded, 4, 2) == (HeadSlice(0, 5, 10), HeadSlice(8, 0, 40))
    sharded.num_added_embeddings = 0
    assert head_slices(sharded, 4, 2) == (HeadSlice(0, 5, 10),)


@pytest.mark.parametrize(
    ("lm_head", "tp_size", "says"),
    [
        (SimpleNamespace(weight=torch.ones(3, 2, dtype=torch.int8)), 1, "torch.int8"),
        # A floating-point type to torch, and stored transposed by SGLang.
        (SimpleNamespace(weight=torch.ones(3, 2).to(torch.float8_e4m3fn)), 1, "float8"),
        (SimpleNamespace(weight=torch.ones(2, 3)), 1, r"\[2, 3\]"),
        (SimpleNamespace(), 1, "missing"),
        (None, 1, "missing"),
        (SimpleNamespace(weight=torch.ones(3, 2)), 8, "--tp-size 8"),
    ],
)
def test_a_head_that_cannot_rank_is_refused(lm_head: Any, tp_size: int, says: str) -> None:
    with pytest.raises(HeadUnsupportedError, match=says):
        head_slices(lm_head, tp_size, 2)
