"""Fat binaries as CUDA 12.8 and 13.0 write them, and what a GPU can do with them."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import pytest

from builder.inside import prune
from builder.inside.contents import inspect
from builder.inside.fatbin import Code, FatbinError, device_code, find
from tests.builder.inside.tree import fatbin

EXACT, FAMILY = 0x100000, 0x200000
PAGE, PIECE = mmap.PAGESIZE, 1 << 20
# The first entry of libnccl.so.2 2.28.9 (CUDA 13.0), as it lies in the file: PTX ISA 9.0 for
# sm_120, compressed, with a header of 112 bytes.
NCCL_PTX = struct.pack("<HHIQIIHHIIIQ", 1, 0x101, 112, 16, 3772, 64, 0, 9, 120, 0, 0, 0x8011)


def _longer_than_its_container() -> bytes:
    data = bytearray(fatbin((2, 120, 0)) + bytes(64))
    struct.pack_into("<Q", data, 16 + 8, 17)  # the payload's size
    return bytes(data)


def test_an_entry_of_a_real_library() -> None:
    body = NCCL_PTX.ljust(112, b"\0") + b"x" * 16
    data = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
    assert device_code(b"\0" * 64 + data) == (Code("ptx", 120, "", (9, 0), 1, 16),)


def test_entries_are_summed_up_by_architecture() -> None:
    data = fatbin((2, 90, 0), (2, 120, 0), (2, 120, EXACT), (1, 120, 0))
    data += b"pad" + fatbin((2, 120, 0), (8, 75, 0), (2, 100, FAMILY))
    found = {code.name: (code.count, code.size, code.isa) for code in device_code(data)}
    assert found == {
        "sm_90": (1, 16, (0, 0)),
        "sm_100f": (1, 16, (0, 0)),
        "sm_120": (2, 32, (0, 0)),
        "sm_120a": (1, 16, (0, 0)),
        "compute_120": (1, 16, (9, 0)),
        "lto_75": (1, 16, (0, 0)),
    }


@pytest.mark.parametrize(
    ("kind", "number", "suffix", "native", "jit"),
    [
        ("cubin", 120, "", True, False),
        ("cubin", 120, "a", True, False),
        ("cubin", 120, "f", True, False),
        ("cubin", 121, "", False, False),
        ("cubin", 121, "f", False, False),
        ("cubin", 100, "", False, False),
        ("cubin", 90, "a", False, False),
        ("ptx", 120, "", False, True),
        ("ptx", 120, "a", False, True),
        ("ptx", 120, "f", False, True),
        ("ptx", 90, "", False, True),
        ("ptx", 90, "a", False, False),
        ("ptx", 100, "f", False, False),
        ("ptx", 121, "", False, False),
        ("lto", 120, "", False, False),
        ("kind-9", 120, "", False, False),
    ],
)
def test_what_compute_capability_12_0_runs(
    kind: str, number: int, suffix: str, native: bool, jit: bool
) -> None:
    code = Code(kind, number, suffix, (9, 0), 1, 1)
    assert code.native(120) is native
    assert code.jit(120) is jit


def test_the_minor_counts_within_a_major() -> None:
    assert Code("cubin", 120, "", (0, 0), 1, 1).native(121)
    assert not Code("cubin", 120, "a", (0, 0), 1, 1).native(121)
    assert Code("cubin", 120, "f", (0, 0), 1, 1).native(121)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x50\xed\x55\xba",
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40),  # ends here
        struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 7) + b"x" * 100,  # an operand of an instruction
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 160) + b"x" * 200,
        struct.pack("<IHHQ", 0xBA55ED50, 0x940F, 0xC3C0, 7) + b"x" * 100,
    ],
)
def test_the_magic_number_alone_is_no_fat_binary(data: bytes) -> None:
    assert device_code(data) == ()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (fatbin((2, 120, 0))[:-1], "cut off"),
        (fatbin((2, 120, 0), version=2), "unknown version"),
        (fatbin((2, 120, 0), header=24), "unknown version"),
        (fatbin((2, 120, 0), entry_version=0x102), "unknown version"),
        (_longer_than_its_container(), "damaged"),
        (fatbin((2, 120, 0), (2, 90, 0))[:-80] + b"y" * 80, "damaged"),
    ],
)
def test_code_that_cannot_be_read_is_no_absence(data: bytes, words: str) -> None:
    with pytest.raises(FatbinError, match=words):
        device_code(data)


# -- mappings ------------------------------------------------------------------------------------


class Guarded(mmap.mmap):
    """The searches of a mapping look one byte past its end, where nothing need be mapped."""

    def find(self, *_: object) -> int:
        raise AssertionError("a mapping's own search may kill the process")

    rfind = find


@pytest.mark.parametrize("before", [0, PAGE - 2, PIECE - 2, PIECE - 1, PIECE, 2 * PIECE + 5])
def test_what_straddles_pieces_is_found(before: int, tmp_path: Path) -> None:
    content = b"x" * before + b"MARK" + b"y" * 7 + b"MARK"
    path = tmp_path / "file"
    path.write_bytes(content)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for start in (0, before, before + 1, before + 20):
            assert find(data, b"MARK", start) == content.find(b"MARK", start)
        assert find(data, b"NONE") == -1


def test_no_mapping_is_searched_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of whole pages, as they end where a neighbour may be missing."""
    monkeypatch.setattr(mmap, "mmap", Guarded)
    elf = tmp_path / "lib.so"
    elf.write_bytes((b"\x7fELF" + b"\0" * PAGE)[:PAGE])
    text = tmp_path / "text"
    text.write_bytes(b"-----BEGIN PRIVATE KEY-----\n" + b"A" * PAGE)
    for path in (elf, text):
        inspect(path, path.name)
    big = tmp_path / "site/pkg/big.so"
    big.parent.mkdir(parents=True)
    big.write_bytes(elf.read_bytes())
    with pytest.raises(prune.PruneError, match="no device code"):
        prune.prune(big.parents[1], [prune.Rule(("pkg/*",), "x", no_code_for="sm_120")], "cu130")
