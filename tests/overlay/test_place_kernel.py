"""csrc/place_tree.cu on emulated blocks: every cell of the mask, by reachability in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.overlay.compiler import require_compiler
from tests.overlay.conftest import OVERLAY
from tests.overlay.native_place import Case, NativePlace, random_case
from tests.overlay.native_tree import holds, mutated
from tests.overlay.trees import seeded


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativePlace]:
    require_compiler()
    yield NativePlace(OVERLAY / "csrc", tmp_path_factory.mktemp("place"))


def right(native: NativePlace, case: Case, *, blocks: int | None = None, seed: int = 0) -> bool:
    return native.run(case, blocks=blocks, seed=seed) == (case.mask(), case.positions())


def chain(width: int) -> list[int]:
    return list(range(-1, width - 1))


def test_random_batches(place: NativePlace) -> None:
    random_ = seeded(1)
    for seed in range(1000):
        case = random_case(random_)
        assert right(place, case, blocks=random_.choice((None, 1, 3)), seed=seed), case


@pytest.mark.parametrize("width", [63, 64, 65, 129, 257])
def test_words_of_the_packed_ancestors(place: NativePlace, width: int) -> None:
    random_ = seeded(width)
    for _ in range(3):
        assert right(place, random_case(random_, widths=(width,)))


@pytest.mark.parametrize("alignment", range(16))
def test_every_alignment_and_offset_of_a_row(place: NativePlace, alignment: int) -> None:
    """Prefixes around the width of a store move rows and tree cells over all its offsets."""
    for prefix in range(36):
        assert right(place, Case([chain(5)], [prefix], alignment, extra=prefix % 3))


def test_a_long_prefix_over_many_blocks(place: NativePlace) -> None:
    case = Case([chain(17), [-1] * 17], [20_011, 3], alignment=9, extra=100)
    assert place.blocks(case.numel, 2) > 8
    assert right(place, case)


def test_a_batch_larger_than_a_warp(place: NativePlace) -> None:
    """Each lane adds up several prefix lengths."""
    random_ = seeded(2)
    prefixes = [random_.randrange(40) for _ in range(150)]
    assert right(place, Case([chain(3)] * 150, prefixes, alignment=5, wide=False))


def test_an_empty_batch_is_all_visible(place: NativePlace) -> None:
    assert place.run(Case([], [], alignment=3, extra=70)) == ([1] * 70, [])


def test_nothing_is_written_outside_a_mask_that_is_too_short(place: NativePlace) -> None:
    """The op cannot see the lengths on a GPU; the guards hold, and what fits is right
    unless a single length is beyond the mask."""
    random_ = seeded(3)
    for _ in range(200):
        case = random_case(random_)
        missing = random_.randrange(1, case.numel - case.extra + 1)
        short = Case(case.parents, case.prefixes, case.alignment, extra=-missing)
        mask, positions = place.run(short)
        if all(prefix <= short.numel for prefix in short.prefixes):
            assert mask == short.mask()
        assert positions == short.positions()


@pytest.mark.parametrize("length", [-1, -(2**62), 2**62, 2**31, 10**6])
def test_nothing_is_written_outside_for_a_length_out_of_range(
    place: NativePlace, length: int
) -> None:
    for alignment in (0, 7):
        case = Case([chain(5)] * 3, [20, 3, 11], alignment)
        for at in range(3):
            lengths = [*case.prefixes[:at], length, *case.prefixes[at + 1 :]]
            mask, _ = place.run(case, lengths=lengths)
            assert set(mask) <= {0, 1, 0x5A}


def test_blocks_cover_the_mask_once_in_bounded_turns(place: NativePlace) -> None:
    """Blocks x 256 threads x 4 stores x 16 bytes; the grid stays small for small masks."""
    assert place.blocks(0, 0) == place.blocks(1, 1) == place.blocks(16_384, 1) == 1
    assert place.blocks(16_385, 1) == 2
    for numel, batch in ((2_136_000, 1), (68_000_000, 32), (2**31 - 1, 1), (2**31 - 1, 256)):
        assert 0 <= place.blocks(numel, batch) * batch * 16_384 - numel < batch * 16_384


MUTATIONS = {
    "own length in the offset": ("i < request; i +=", "i <= request; i +="),
    "lengths beyond a warp left out": (
        "i < request; i += kWarp",
        "i < request && i < kWarp; i += kWarp",
    ),
    "a row ends early": ("column == columns", "column + 1 == columns"),
    "tree cells that begin in a piece missed": (
        "cell.column + ddtree::kPieceBytes > prefix",
        "cell.column >= prefix",
    ),
    "ancestors of the next row": ("request, cell.row, cell", "request, cell.row + 1, cell"),
    "last piece stored whole": (
        "from >= 0 && from + ddtree::kPieceBytes <= length",
        "from >= 0",
    ),
    "not aligned": ("i * ddtree::kPieceBytes - lead, length", "i * ddtree::kPieceBytes, length"),
    "nothing beyond the requests": (
        "if (begin >= end) return;",
        "if (begin >= end || request == args.batch) return;",
    ),
    "depth left out": ("args.position(request, node, given)", "given"),
    "end of the mask not kept": (
        "if (begin + size < end) end = begin + size;",
        "end = begin + size;",
    ),
    "a length out of range kept": (
        "prefix < 0 ? 0 : prefix > args.numel ? args.numel : prefix",
        "prefix",
    ),
}


def passes(native: NativePlace) -> bool:
    random_ = seeded(1)
    cases = [random_case(random_) for _ in range(30)]
    cases += [Case([chain(3)] * 40, [5] * 40), Case([chain(5)], [20], extra=-40)]
    if not all(right(native, case) for case in cases):
        return False
    native.run(cases[0], lengths=[-60] * len(cases[0].prefixes))
    native.run(cases[-1], lengths=[2**40])
    return True


def test_what_a_broken_kernel_must_fail_passes(place: NativePlace) -> None:
    assert passes(place)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_seen(name: str, tmp_path: Path) -> None:
    sources = mutated(OVERLAY / "csrc", tmp_path, "place_tree.cu", *MUTATIONS[name])
    broken = NativePlace(sources, tmp_path)
    assert not holds(lambda: passes(broken))
