"""csrc/rank_tokens.cu on emulated blocks against sorting in Python: keys, ids and maxima exactly,
sums and log-probabilities nearly. Every output element is checked, and guards behind them."""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.overlay.compiler import require_compiler
from tests.overlay.conftest import OVERLAY
from tests.overlay.native_rank import (
    WHOLE,
    Layout,
    NativeRank,
    check,
    check_normalisers,
    random_row,
)
from tests.overlay.rank_reference import (
    BF16,
    FP16,
    FP32,
    INFINITY,
    MINUS_ZERO,
    NAN,
    NEVER,
    Packed,
    Ranked,
    Row,
    encode,
    fp32_bits,
    reference,
    same_packed,
    same_ranked,
)
from tests.overlay.trees import seeded

KINDS = pytest.mark.parametrize("kind", [BF16, FP16, FP32], ids=["bf16", "fp16", "fp32"])


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeRank]:
    require_compiler()
    yield NativeRank.compile(OVERLAY / "csrc", tmp_path_factory.mktemp("rank"))


@pytest.mark.parametrize("kind", [BF16, FP16], ids=["bf16", "fp16"])
def test_every_half_converts_exactly(rank: NativeRank, kind: int) -> None:
    convert = rank.library.shim_value_bits
    for bits in range(1 << 16):
        want = fp32_bits(kind, bits)
        got = convert(kind, bits)
        is_nan = want & 0x7F800000 == 0x7F800000 and want & 0x7FFFFF
        assert got == want or (is_nan and got & 0x7FFFFF and got & 0x7F800000 == 0x7F800000)


def test_ordered_integers_have_the_order_of_the_values(rank: NativeRank) -> None:
    random_ = seeded("order")
    bits = [random_.randrange(1 << 32) for _ in range(5000)]
    bits += [0, 0x80000000, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF]
    pairs = []
    for word in bits:
        value = struct.unpack("<f", struct.pack("<I", word))[0]
        if not math.isnan(value):
            order = rank.library.shim_orderable(ctypes.c_uint(word))
            back = rank.library.shim_from_orderable(ctypes.c_uint(order))
            assert back == (0 if word == 0x80000000 else word)
            pairs.append((value, order))
    pairs.sort()
    for (value, order), (next_value, next_order) in itertools.pairwise(pairs):
        assert (value < next_value) == (order < next_order)


@KINDS
def test_random_rows(rank: NativeRank, kind: int) -> None:
    random_ = seeded(f"rows {kind}")
    for seed in range(150):
        columns = random_.choice([1, 2, 7, 8, 9, 31, 64, 65, 200, 500, 1500])
        segment_vectors = random_.choice([1 + columns // 40, 7 + columns // 8, WHOLE])
        check(
            rank,
            kind,
            [random_row(kind, columns, random_) for _ in range(random_.choice([1, 4, 8]))],
            random_.choice([1, 2, 7, 16, 63, 64]),
            segment_vectors=segment_vectors,
            id_offset=random_.choice([0, 1, 151936, (1 << 31) - columns]),
            layout=Layout(
                random_.randrange(8), random_.choice([1, 1, 1, 2, 5]), random_.randrange(9)
            ),
            seed=seed,
        )


LONG = 9000  # more than a round of bf16, three rounds of fp32
SHAPES: dict[str, Callable[[int], list[float]]] = {
    "all equal": lambda n: [1.5] * n,
    "all zero": lambda n: [0.0] * n,
    "ascending": lambda n: [float(i) / 64 for i in range(n)],
    "descending": lambda n: [-float(i) / 64 for i in range(n)],
    "sawtooth": lambda n: [float(i % 97) / 8 for i in range(n)],
    "two values": lambda n: [float(i % 2) for i in range(n)],
    "a plateau after a slope": lambda n: [min(float(i) / 8, n / 16) for i in range(n)],
    "one peak, last": lambda n: [-5.0] * (n - 1) + [5.0],
    "one peak, first": lambda n: [5.0] + [-5.0] * (n - 1),
    "far apart": lambda n: [-60000.0 if i % 3 else 60000.0 for i in range(n)],
    "one lane of each vector": lambda n: [float(i) / 16 if i % 8 == 3 else -1.0 for i in range(n)],
    "one thread has the best": lambda n: [
        9.0 + i / n if i // 8 % 256 == 77 else -float(i % 5) for i in range(n)
    ],
}


@KINDS
@pytest.mark.parametrize("name", SHAPES)
def test_adversarial(rank: NativeRank, kind: int, name: str) -> None:
    for columns, layout in ((40, Layout(3)), (LONG, Layout(5)), (LONG, Layout(0, 3))):
        row = encode(kind, SHAPES[name](columns))
        check(rank, kind, [row, row[::-1]], 64, layout=layout)
        check(rank, kind, [row], 1, segment_vectors=130, layout=layout, seed=1)
        check(rank, kind, [row], 40, segment_vectors=130, layout=layout, seed=2)


def bit_ascending(kind: int) -> Row:
    """As many different values as fit, ascending: each key is better than all before it."""
    return (
        range(1, 0x7C00 if kind == FP16 else 0x7F80)
        if kind != FP32
        else range(1 << 20, 1 << 21, 29)
    )


@KINDS
def test_input_that_fills_the_buffer(rank: NativeRank, kind: int) -> None:
    row = bit_ascending(kind)
    for seed in range(2):
        check(rank, kind, [row], 64, seed=seed)
        check(rank, kind, [row], 5, segment_vectors=2000, seed=seed)


@KINDS
def test_absent_tokens(rank: NativeRank, kind: int) -> None:
    never = NEVER[kind]
    check(rank, kind, [[never] * 300, [never] * 299 + [0], [0] + [never] * 299], 64)
    check(rank, kind, [[never] * 300, [never] * 299 + [0]], 3, segment_vectors=5)
    check(rank, kind, [encode(kind, [1.0, 2.0, 3.0])], 64, layout=Layout(7))
    check(rank, kind, [[never]], 1)


@KINDS
@pytest.mark.parametrize("columns", [1, 50, LONG])
def test_a_nan_or_infinity_anywhere_spoils_its_row_alone(
    rank: NativeRank, kind: int, columns: int
) -> None:
    good = encode(kind, [-float(i % 100) for i in range(columns)])
    for bad in (NAN[kind], NAN[kind] | MINUS_ZERO[kind], INFINITY[kind]):
        for where in sorted({0, columns // 2, columns - 1}):
            spoiled = list(good)
            spoiled[where] = bad
            for segment_vectors in (WHOLE, 1 + columns // 60):
                rows = [good, spoiled, good]
                check(rank, kind, rows, 5, segment_vectors=segment_vectors, layout=Layout(1))
    check(rank, kind, [[NAN[kind]] * columns, [INFINITY[kind]] * columns], 2)


def test_no_vocabulary(rank: NativeRank) -> None:
    parts = rank.rank(BF16, [[], []], 3, segment_vectors=WHOLE)
    assert [Packed.of(words) for words in parts[0]] == [Packed([0] * 3, -math.inf, 0.0)] * 2
    assert rank.merge(parts, 3) == [Ranked([-math.inf] * 3, [0] * 3)] * 2
    row = encode(BF16, [1.0, 3.0, 2.0])
    other = rank.rank(BF16, [row, row], 3, segment_vectors=WHOLE)
    for merged in rank.merge([parts[0], other[0]], 3):
        assert same_ranked(merged, reference(BF16, row, 3)[1])


@KINDS
def test_large_values_keep_their_precision(rank: NativeRank, kind: int) -> None:
    """At 50,000 the step of fp32 is 0.004; the log-probabilities must not be rounded to it."""
    if kind == FP32:
        check(rank, kind, [encode(kind, [50000.0 + i / 256 for i in range(700)])], 64)
    check(rank, kind, [encode(kind, [49152.0 + 256 * (i % 3) for i in range(700)])], 64)
    check(rank, kind, [encode(kind, [-50000.0] * 700)], 64)


@pytest.mark.parametrize("shards", [1, 2, 3, 8, 20, 64])
def test_a_split_vocabulary_gives_the_same(rank: NativeRank, shards: int) -> None:
    random_ = seeded(f"split {shards}")
    for seed in range(6):
        kind, columns = random_.randrange(3), random_.randrange(shards, 700)
        rows = [random_row(kind, columns, random_) for _ in range(3)]
        cuts = sorted([0, columns, *(random_.randrange(columns) for _ in range(shards - 1))])
        ranks = random_.choice([1, 4, 16, 64])
        k = min(64, shards * ranks, random_.choice([1, ranks, 64]))
        lists = []
        for begin, end in itertools.pairwise(cuts):
            part = [row[begin:end] for row in rows]
            lists += rank.rank(kind, part, ranks, segment_vectors=WHOLE, id_offset=begin)
        # With fewer ranks than k, what is beyond a shard's ranks cannot be seen.
        random_.shuffle(lists)
        ranked, joined = rank.merge(lists, k, seed=seed), rank.join(lists, k, seed=seed)
        for i, row in enumerate(rows):
            packed, want = reference(kind, row, k)
            seen = [key for part in lists for key in Packed.of(part[i]).keys]
            keys = sorted(seen, reverse=True)[:k]
            assert Packed.of(joined[i]).keys == keys
            if ranks >= k:
                assert same_packed(Packed.of(joined[i]), packed)
                assert same_ranked(ranked[i], want)
            assert ranked[i].ids == [0xFFFFFFFF - (key & 0xFFFFFFFF) if key else 0 for key in keys]


def test_normalisers_that_are_not_finite(rank: NativeRank) -> None:
    check_normalisers(rank)


def test_one_list_may_hold_all(rank: NativeRank) -> None:
    """The worst case of the merge's buffer: half of all keys pass its floor."""
    word = struct.unpack("<q", struct.pack("<ff", 64.0, 5.0))[0]
    lists = []
    for i in range(64):
        best = 3000 if i < 32 else 20
        keys = [(0x80000000 + best * 64 - i - 64 * j) << 32 | 7 * i + j for j in range(64)]
        lists.append([[key - (1 << 64) for key in keys] + [word]])
    keys = sorted((key for rows in lists for key in Packed.of(rows[0]).keys), reverse=True)
    assert Packed.of(rank.join(lists, 64)[0]).keys == keys[:64]
    assert Packed.of(rank.join(lists, 1)[0]).keys == keys[:1]


@pytest.mark.parametrize("processors", [1, 84, 132, 188])
def test_segments_cover_every_row_and_fill_the_device(rank: NativeRank, processors: int) -> None:
    for kind, lanes in ((BF16, 8), (FP16, 8), (FP32, 4)):
        for vocabulary in (0, 1, 8, 8191, 8192, 32000, 151669, 151936, 262143, 1048576):
            for rows in (1, 2, 15, 240, 4000, 100000):
                count, vectors = rank.segments(rows, vocabulary, kind, processors)
                # A misaligned row reaches lanes - 1 elements into its first vector.
                assert count * vectors * lanes >= vocabulary + lanes - 1
                assert 1 <= count <= 64
                assert count == 1 or vectors * lanes >= 8192
                assert count == 1 or (count - 1) * vectors * lanes < vocabulary + 2 * lanes
                if 151669 <= vocabulary <= 2**18 and rows * count < processors:
                    assert vectors * lanes < 2 * 8192
                # No second wave.
                assert count == 1 or rows * count <= 6 * processors


def test_shared_memory_needs_no_opt_in(rank: NativeRank) -> None:
    assert rank.library.shim_rank_shared() <= 48 * 1024
    assert rank.library.shim_merge_shared() <= 48 * 1024
