"""`torch.ops.ddtree.rank_tokens`, `rank_shard` and `merge_shards` as an installed wheel gives them,
on CPU tensors, against log_softmax in double precision and a stable sort. Needs torch and the wheel.
"""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

from ddtree_overlay import ops  # noqa: E402

OPS = torch.ops.ddtree
assert ops  # importing it loads the extension
INFINITY = float("inf")
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)


def random_logits(rows: int, vocabulary: int, dtype: Any, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, vocabulary, generator=generator)).to(dtype)


def expected(logits: Any, k: int, id_offset: int = 0) -> tuple[Any, Any]:
    """Values by descending order, equal ones by ascending id; -inf and id 0 where there are none."""
    values = logits.to(torch.float64)
    order = torch.sort(values, dim=1, descending=True, stable=True)
    logprobs = torch.log_softmax(values, 1).gather(1, order.indices[:, :k])
    ids = order.indices[:, :k] + id_offset
    spare = k - logprobs.shape[1]
    logprobs = torch.nn.functional.pad(logprobs, (0, spare), value=-INFINITY)
    ids = torch.nn.functional.pad(ids, (0, spare))
    absent = ~torch.isfinite(logprobs)
    return logprobs.masked_fill(absent, -INFINITY), ids.masked_fill(absent, 0)


def check_ranked(got: tuple[Any, Any], want: tuple[Any, Any]) -> None:
    logprobs, ids = got
    assert (logprobs.dtype, ids.dtype) == (torch.float32, torch.int64)
    assert logprobs.is_contiguous()
    assert ids.is_contiguous()
    assert torch.equal(ids, want[1])
    torch.testing.assert_close(logprobs.to(torch.float64), want[0], rtol=2e-7, atol=2e-5)
    assert bool((logprobs <= 0).all())
    assert bool((logprobs[:, :-1] >= logprobs[:, 1:]).all())


def check(logits: Any, k: int, id_offset: int = 0) -> None:
    want = expected(logits, k, id_offset)
    check_ranked(OPS.rank_tokens(logits, k, id_offset), want)
    packed = OPS.rank_shard(logits, k, id_offset)
    assert packed.dtype == torch.int64
    assert packed.shape == (logits.shape[0], k + 1)
    assert packed.is_contiguous()
    check_ranked(OPS.merge_shards(packed.unsqueeze(0), k), want)


@DTYPES
@pytest.mark.parametrize("k", [1, 2, 8, 63, 64])
@pytest.mark.parametrize("vocabulary", [1, 2, 63, 64, 65, 1000])
def test_equals_log_softmax(dtype: Any, k: int, vocabulary: int) -> None:
    check(random_logits(5, vocabulary, dtype), k)
    check(random_logits(5, vocabulary, dtype).round(), k, id_offset=151936)


@DTYPES
def test_equals_topk_where_values_differ(dtype: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.stack([torch.randperm(200, generator=generator) for _ in range(4)]).to(dtype)
    top = torch.log_softmax(logits.double(), 1).topk(16, 1)
    check_ranked(OPS.rank_tokens(logits, 16), (top.values, top.indices))


@DTYPES
def test_a_serving_vocabulary(dtype: Any) -> None:
    check(random_logits(2, 151936, dtype), 64)


@DTYPES
def test_any_strides(dtype: Any) -> None:
    base = random_logits(12, 301, dtype)
    check(base[1:, 3:], 9)
    check(base[::3], 9)
    check(base[:, ::2], 9)
    check(base[2:7, 5:280:7], 64)
    check(base.t(), 9)
    check(base[:1].expand(4, 301), 9)
    check(base[:, :1].expand(12, 50), 9)
    for start in range(8):
        check(base.flatten()[start : start + 900].view(3, 300), 9)


@DTYPES
def test_ties_zeros_and_absent_tokens(dtype: Any) -> None:
    check(torch.zeros(3, 100, dtype=dtype), 64)
    check(torch.tensor([[0.0, -0.0, 0.0, -0.0, -1.0]], dtype=dtype), 4)
    logits = random_logits(4, 40, dtype)
    logits[0, 5:] = -INFINITY
    logits[1, ::2] = -INFINITY
    logits[2] = torch.finfo(dtype).max
    logits[3] = torch.finfo(dtype).min
    check(logits, 33)
    check(logits, 64)


@DTYPES
@pytest.mark.parametrize("bad", [float("nan"), INFINITY, None], ids=["nan", "inf", "all -inf"])
def test_a_row_without_a_finite_normaliser_has_no_candidates(dtype: Any, bad: float | None) -> None:
    logits = random_logits(3, 50, dtype)
    if bad is None:
        logits[1] = -INFINITY
    else:
        logits[1, 7] = bad
    logprobs, ids = OPS.rank_tokens(logits, 6)
    assert torch.equal(logprobs[1], torch.full((6,), -INFINITY))
    assert torch.equal(ids[1], torch.zeros(6, dtype=torch.int64))
    others = logits[::2]
    check_ranked((logprobs[::2].contiguous(), ids[::2].contiguous()), expected(others, 6))
    # A part of the row that is fine by itself does not make up for it.
    parts = [OPS.rank_shard(logits[:, :25], 6), OPS.rank_shard(logits[:, 25:], 6, 25)]
    merged = OPS.merge_shards(torch.stack(parts), 6)
    assert torch.equal(merged[0][1], logprobs[1])
    assert torch.equal(merged[1], ids)


@pytest.mark.parametrize("shards", range(1, 9))
@pytest.mark.parametrize("k", [1, 7, 64])
def test_a_split_vocabulary_gives_the_same(shards: int, k: int) -> None:
    logits = random_logits(6, 1003, torch.bfloat16, seed=shards)
    logits[3, 200:] = -INFINITY
    want = OPS.rank_tokens(logits, k, 10)
    parts, begin = [], 0
    for part in torch.tensor_split(logits, shards, 1):
        parts.append(OPS.rank_shard(part, k, 10 + begin))
        begin += part.shape[1]
    for candidates in (torch.stack(parts), torch.stack(parts[::-1], 2).permute(2, 0, 1)):
        logprobs, ids = OPS.merge_shards(candidates, k)
        assert torch.equal(ids, want[1])
        torch.testing.assert_close(logprobs, want[0], rtol=2e-7, atol=2e-6)
        check_ranked((logprobs, ids), expected(logits, k, 10))


def test_merging_fewer_ranks_than_wanted() -> None:
    """Two shards of 3 ranks give at most 6."""
    logits = torch.tensor([[5.0, 4.0, 3.0, -9.0, 2.0, 1.0, 0.0, -9.0]])
    halves = [OPS.rank_shard(logits[:, :4], 3), OPS.rank_shard(logits[:, 4:], 3, 4)]
    logprobs, ids = OPS.merge_shards(torch.stack(halves), 6)
    assert ids.tolist() == [[0, 1, 2, 4, 5, 6]]
    torch.testing.assert_close(logprobs, torch.log_softmax(logits, 1)[:, ids[0]])


def test_the_words_of_packed_candidates() -> None:
    """The exchange format: values and ids in the keys, the maximum and sum in the last word."""
    packed = OPS.rank_shard(torch.tensor([[-2.0, 1.0, -0.0, -INFINITY, 1.0]]), 5, 100)
    want = []
    for value, token in ((1.0, 101), (1.0, 104), (0.0, 102), (-2.0, 100)):
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        order = ~bits & 0xFFFFFFFF if bits >> 31 else bits | 0x80000000
        want.append(order << 32 | 0xFFFFFFFF - token)
    assert [word & (1 << 64) - 1 for word in packed[0, :5].tolist()] == [*want, 0]
    total, top = struct.unpack("<ff", struct.pack("<q", packed[0, 5].item()))
    assert top == 1.0
    exact = torch.tensor([-3.0, 0.0, -1.0, 0.0], dtype=torch.float64).exp().sum()
    assert total == pytest.approx(exact.item(), rel=1e-7)


def test_empty_inputs() -> None:
    logprobs, ids = OPS.rank_tokens(torch.empty(0, 50), 4)
    assert logprobs.shape == ids.shape == (0, 4)
    assert OPS.rank_shard(torch.empty(0, 50), 4).shape == (0, 5)
    assert OPS.merge_shards(torch.empty(2, 0, 5, dtype=torch.int64), 4)[0].shape == (0, 4)
    nothing = OPS.rank_shard(torch.empty(2, 0), 3)
    assert nothing[:, :3].eq(0).all()
    logprobs, ids = OPS.rank_tokens(torch.empty(2, 0), 3)
    assert torch.equal(logprobs, torch.full((2, 3), -INFINITY))
    assert torch.equal(ids, torch.zeros(2, 3, dtype=torch.int64))
    logits = random_logits(2, 30, torch.float32)
    merged = OPS.merge_shards(torch.stack([nothing, OPS.rank_shard(logits, 3)]), 3)
    check_ranked(merged, expected(logits, 3))


def test_the_largest_ids() -> None:
    check(random_logits(2, 64, torch.float32), 64, id_offset=(1 << 31) - 64)
    check(torch.zeros(1, 1048576, dtype=torch.bfloat16), 3)


BAD_LOGITS: dict[str, tuple[Any, int, int, str]] = {
    "double": (torch.zeros(2, 3, dtype=torch.float64), 1, 0, "logits must be .*got Double"),
    "integer": (torch.zeros(2, 3, dtype=torch.int64), 1, 0, "logits must be .*got Long"),
    "one dimension": (torch.zeros(3), 1, 0, r"logits must have shape .*got \[3\]"),
    "three dimensions": (torch.zeros(1, 2, 3), 1, 0, r"logits must have shape .*got \[1, 2, 3\]"),
    "k of 0": (torch.zeros(2, 3), 0, 0, "k must be 1..64, got 0"),
    "k of 65": (torch.zeros(2, 3), 65, 0, "k must be 1..64, got 65"),
    "vocabulary": (
        torch.zeros(1, 1).expand(1, 1048577),
        *(1, 0, "vocabulary .*must be 0..1048576, got 1048577"),
    ),
    "negative offset": (torch.zeros(2, 3), 1, -1, "id_offset must be 0..2147483645, got -1"),
    "ids too large": (torch.zeros(2, 3), 1, (1 << 31) - 2, "id_offset must be .*got 2147483646"),
}


@pytest.mark.parametrize("name", BAD_LOGITS)
@pytest.mark.parametrize("op", ["rank_tokens", "rank_shard"])
def test_bad_logits_are_refused(op: str, name: str) -> None:
    logits, k, id_offset, message = BAD_LOGITS[name]
    with pytest.raises(RuntimeError, match=f"ddtree::{op}: {message}"):
        getattr(OPS, op)(logits, k, id_offset)


def candidates(*sizes: int) -> Any:
    return torch.zeros(sizes, dtype=torch.int64)


BAD_CANDIDATES: dict[str, tuple[Any, int, str]] = {
    "dtype": (torch.zeros(1, 2, 3), 1, "candidates must be Long, got Float"),
    "dimensions": (candidates(2, 3), 1, r"candidates must have shape .*got \[2, 3\]"),
    "no shard": (candidates(0, 2, 3), 1, r"shards \(.*must be 1..64, got 0"),
    "65 shards": (candidates(65, 2, 3), 1, r"shards \(.*must be 1..64, got 65"),
    "no ranks": (candidates(2, 2, 1), 1, r"ranks \(.*must be 1..64, got 0"),
    "no words": (candidates(2, 2, 0), 1, r"ranks \(.*must be 1..64, got -1"),
    "65 ranks": (candidates(2, 2, 66), 1, r"ranks \(.*must be 1..64, got 65"),
    "k of 0": (candidates(2, 2, 3), 0, "k must be 1..4, got 0"),
    "k beyond the shards": (candidates(2, 2, 3), 5, "k must be 1..4, got 5"),
    "k of 65": (candidates(2, 2, 65), 65, "k must be 1..64, got 65"),
}


@pytest.mark.parametrize("name", BAD_CANDIDATES)
def test_bad_candidates_are_refused(name: str) -> None:
    tensor, k, message = BAD_CANDIDATES[name]
    with pytest.raises(RuntimeError, match=f"ddtree::merge_shards: {message}"):
        OPS.merge_shards(tensor, k)


def test_opcheck() -> None:
    logits = random_logits(3, 90, torch.bfloat16)
    packed = torch.stack([OPS.rank_shard(logits, 8), OPS.rank_shard(logits, 8, 90)])
    samples = [
        (OPS.rank_tokens.default, (logits, 8), {}),
        (OPS.rank_tokens.default, (logits[:, ::3], 64), {"id_offset": 5}),
        (OPS.rank_shard.default, (logits, 8, 90), {}),
        (OPS.rank_shard.default, (logits[:0], 8), {}),
        (OPS.merge_shards.default, (packed, 11), {}),
        (OPS.merge_shards.default, (packed[:, ::2], 16), {}),
    ]
    for op, arguments, keywords in samples:
        torch.library.opcheck(op, arguments, keywords)
