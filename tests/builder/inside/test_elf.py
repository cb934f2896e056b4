"""Architecture and compiler of cubins, by headers that NVRTC 12.8.93 and 13.0.88 really write."""

from __future__ import annotations

import struct

import pytest

from builder.inside.elf import (
    NotElfError,
    cubin_architecture,
    cubin_compiler,
    read_elf,
    read_symbols,
)
from tests.builder.inside.tree import Tree, cubin


@pytest.mark.parametrize(
    ("abi", "flags", "architecture"),
    [
        (7, 0x5A055A, "sm_90"),  # 12.8.93 up to sm_90
        (7, 0x5A0D5A, "sm_90a"),
        (7, 0x4B054B, "sm_75"),
        (8, 0x6007802, "sm_120"),  # 12.8.93 from sm_100 on, 13.0.88 always
        (8, 0x600780A, "sm_120a"),
        (8, 0x6006402, "sm_100"),
        (8, 0x6005A04, "sm_90"),
        (8, 0x6007902, "sm_121"),
    ],
)
def test_architecture_in_the_header(abi: int, flags: int, architecture: str) -> None:
    assert cubin_architecture(cubin("sm_120", abi=abi, flags=flags)[:64]) == architecture


@pytest.mark.parametrize("architecture", ["sm_120", "sm_120a", "sm_120f"])
def test_cuda_13_keeps_the_suffix_in_a_note_only(architecture: str) -> None:
    assert cubin_architecture(cubin(architecture, flags=0x6007802)) == architecture


@pytest.mark.parametrize("code", [b"", b"\x7fELF", b"x" * 100, b"\x7fELF" + b"\0" * 100])
def test_what_is_no_cubin_is_refused(code: bytes) -> None:
    with pytest.raises(NotElfError):
        cubin_architecture(code)


def test_compiler_by_note_or_by_header() -> None:
    assert cubin_compiler(cubin("sm_120", "13.0.88")) == "13.0.88"
    old = bytearray(cubin("sm_90", abi=7)[:64])
    struct.pack_into("<I", old, 20, 128)  # e_version, as 12.8 writes it up to sm_90
    assert cubin_compiler(bytes(old)) == "12.8"
    assert cubin_compiler(cubin("sm_120")[:64]) == ""


def test_linkage_and_symbols(tree: Tree) -> None:
    tree.library(
        "x.so",
        needed=["liba.so.1", "libb.so"],
        defined=["mine"],
        undefined=["theirs"],
        runpath="$ORIGIN/lib:/opt/lib",
    )
    elf = read_elf(tree.site / "x.so", "x.so")
    assert elf.needed == ("liba.so.1", "libb.so")
    assert elf.search == ("$ORIGIN/lib", "/opt/lib")
    symbols = read_symbols(tree.site / "x.so", "x.so")
    assert "mine" in symbols.defined
    assert symbols.undefined == {"theirs"}


def test_weak_symbols_may_stay_unresolved(tree: Tree) -> None:
    tree.library("x.so", weak=["optional_one"])
    assert read_symbols(tree.site / "x.so", "x.so").undefined == frozenset()


@pytest.mark.parametrize("keep", [8, 40, 70, 200, 1000])
def test_a_cut_file_is_refused_in_one_way(tree: Tree, keep: int) -> None:
    path = tree.site / "torch/lib/libc10.so"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(NotElfError):
        read_elf(path, "libc10.so")
