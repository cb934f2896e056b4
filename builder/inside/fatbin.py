"""Device code inside a file: the fat binaries that nvcc and NVIDIA's libraries embed.

A fat binary is a container (magic 0xBA55ED50, version 1) of entries, each a cubin, PTX or LTO-IR
for one architecture, compressed or not. NVIDIA documents no layout; the offsets here are those of
files made by CUDA 12.8, 12.9 and 13.0, and architectures and counts agree with what `cuobjdump`
lists for them. Only headers are read, so nothing has to be unpacked. Standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap

_MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the entries
# kind, version, bytes of the header, bytes of the payload, 8 bytes, PTX ISA minor and major,
# architecture, 8 bytes, flags
_ENTRY = struct.Struct("<HHIQ8xHHI8xQ")
_ENTRY_VERSION = 0x101
# Beyond these the magic number is an operand in the runtime's own code, no header.
_MAX_VERSION, _MAX_HEADER = 0xFF, 0x400
_EXACT, _FAMILY = 0x100000, 0x200000  # sm_120a, sm_120f
_KINDS = {1: "ptx", 2: "cubin", 8: "lto"}
_PIECE = 1 << 20
_PREFIX = {"ptx": "compute_", "cubin": "sm_", "lto": "lto_"}


class FatbinError(Exception):
    """A container that cannot be read: code that is overlooked would look absent."""


@dataclass(frozen=True, order=True)
class Code:
    """Entries of one kind for one architecture in one file.

    `kind` is `cubin`, `ptx`, `lto` or `kind-N`; `suffix` is empty, `a` or `f`; `isa` is the PTX ISA
    version, (0, 0) for what is no PTX; `size` counts bytes as they lie in the file.
    """

    kind: str
    number: int
    suffix: str
    isa: tuple[int, int]
    count: int
    size: int

    @property
    def name(self) -> str:
        """`sm_120a`, `compute_120`, `lto_75`."""
        return f"{_PREFIX.get(self.kind, self.kind + '-')}{self.number}{self.suffix}"

    def native(self, device: int) -> bool:
        """Machine code that a device of compute capability `device` (120 for 12.0) runs as it is.

        A cubin runs on its own major from its own minor on; `a` binds it to exactly one
        architecture, `f` to one family (CUDA C++ programming guide, "Compute capability").
        """
        if self.kind != "cubin":
            return False
        if self.suffix == "a":
            return self.number == device
        return self.number // 10 == device // 10 and self.number <= device

    def jit(self, device: int) -> bool:
        """PTX that the driver can compile for `device`, if it knows the PTX ISA version."""
        if self.kind != "ptx":
            return False
        if self.suffix == "a":
            return self.number == device
        if self.suffix == "f":
            return self.number // 10 == device // 10 and self.number <= device
        return self.number <= device


def device_code(data: bytes | mmap) -> tuple[Code, ...]:
    """Everything in a file's fat binaries, summed up by architecture. Raises FatbinError."""
    found: dict[tuple[str, int, str, tuple[int, int]], tuple[int, int]] = {}
    for kind, number, flags, isa, size in _entries(data):
        suffix = "a" if flags & _EXACT else "f" if flags & _FAMILY else ""
        name = _KINDS.get(kind, f"kind-{kind}")
        key = (name, number, suffix, isa if name == "ptx" else (0, 0))
        count, total = found.get(key, (0, 0))
        found[key] = (count + 1, total + size)
    return tuple(sorted(Code(*key, *sums) for key, sums in found.items()))


def find(data: bytes | mmap, what: bytes, start: int = 0) -> int:
    """`data.find(what, start)`, for a mapping as well.

    mmap.find looks one byte past the end (CPython searches as in a bytes object, which has a NUL
    there): where a file ends with a page and nothing is mapped behind it, the process dies.
    """
    while start < len(data):
        at = data[start : start + _PIECE + len(what) - 1].find(what)
        if at >= 0:
            return start + at
        start += _PIECE
    return -1


def _entries(data: bytes | mmap) -> Iterator[tuple[int, int, int, tuple[int, int], int]]:
    start = find(data, _MAGIC)
    while start >= 0:
        end = start + len(_MAGIC)
        if start + _CONTAINER.size <= len(data):
            _, version, header, size = _CONTAINER.unpack_from(data, start)
            if version == 1 and header == _CONTAINER.size and _is_entry(data, start + header):
                end = start + header + size
                if end > len(data):
                    raise FatbinError(f"the fat binary at byte {start} is cut off")
                yield from _walk(data, start + header, end)
            elif _is_unknown(data, start, version, header):
                raise FatbinError(f"the fat binary at byte {start} is of an unknown version")
        start = find(data, _MAGIC, end)


def _is_entry(data: bytes | mmap, at: int) -> bool:
    """Whether an entry starts here: the magic number alone also occurs in code."""
    if at + _ENTRY.size > len(data):
        return False
    _, version, header, *_ = _ENTRY.unpack_from(data, at)
    return bool(version == _ENTRY_VERSION and _ENTRY.size <= header <= _MAX_HEADER)


def _is_unknown(data: bytes | mmap, start: int, version: int, header: int) -> bool:
    """Whether a container of another version starts here, or one with entries of another."""
    if not (1 <= version <= _MAX_VERSION and _CONTAINER.size <= header <= _MAX_HEADER):
        return False
    if (version, header) != (1, _CONTAINER.size):
        return True
    if start + header + _ENTRY.size > len(data):
        return False
    _, entry, size, *_ = _ENTRY.unpack_from(data, start + header)
    return bool(entry >> 8 == _ENTRY_VERSION >> 8 and _ENTRY.size <= size <= _MAX_HEADER)


def _walk(
    data: bytes | mmap, at: int, end: int
) -> Iterator[tuple[int, int, int, tuple[int, int], int]]:
    while at + _ENTRY.size <= end:
        kind, _, header, size, minor, major, number, flags = _ENTRY.unpack_from(data, at)
        if not _is_entry(data, at) or at + header + size > end:
            raise FatbinError(f"the fat binary's entry at byte {at} is damaged")
        yield kind, number, flags, (major, minor), size
        at += header + size
