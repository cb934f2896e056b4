"""A safetensors file's header against the file's size. Reads the header alone, so that a model of
hundreds of GiB on a slow disk costs one short read a shard.

Format: 8 bytes of length, little-endian; a JSON object {name: {dtype, shape, data_offsets}}; data.
The offsets tile the data without gap or overlap, and its end is the file's end.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ddtree_overlay.doctor.model import Finding
from ddtree_overlay.doctor.model_checks import codes
from ddtree_overlay.doctor.model_checks.source import Unusable, is_lfs_pointer

LARGEST_HEADER = 100_000_000
"""What the safetensors library itself reads, in bytes."""
_LENGTH = 8
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8"), 8),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True)
class Shard:
    """A sound file: tensor names and the bytes of data."""

    path: Path
    tensors: frozenset[str]
    data_bytes: int


def read_shard(path: Path) -> Shard:
    """Raises Unusable with what is wrong with the file; FileNotFoundError."""
    header, start, size = _read(path)
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    spans = sorted(_span(path, name, entry) for name, entry in tensors.items())
    end = 0
    for begin, stop, name in spans:
        if begin != end:
            what = "overlaps the one before" if begin < end else "leaves a gap before it"
            raise _damaged(path, f"tensor {name} {what}")
        end = stop
    if start + end != size:
        what = "is cut off" if size < start + end else "has bytes behind its end"
        raise Unusable(
            codes.TRUNCATED.found(f"{path} {what}: {size} bytes, its header states {start + end}")
        )
    return Shard(path, frozenset(tensors), end)


def _read(path: Path) -> tuple[dict[str, Any], int, int]:
    """(header, where the data starts, the file's size)."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            beginning = file.read(_LENGTH + 32)
            if is_lfs_pointer(beginning):
                raise Unusable(_pointer(path))
            if size < _LENGTH:
                what = "is empty" if size == 0 else f"has {size} bytes"
                raise Unusable(codes.TRUNCATED.found(f"{path} {what}"))
            length = int.from_bytes(beginning[:_LENGTH], "little")
            if length > LARGEST_HEADER:
                raise _damaged(path, f"a length of {length} bytes is stated")
            if _LENGTH + length > size:
                raise Unusable(
                    codes.TRUNCATED.found(
                        f"{path} is cut off: {size} bytes, the header alone has {length}"
                    )
                )
            file.seek(_LENGTH)
            raw = file.read(length)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unusable(
            codes.UNREADABLE.found(f"{path} cannot be read by UID {os.getuid()} ({error.strerror})")
        ) from None
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise _damaged(path, "it is not JSON") from None
    if not isinstance(header, dict):
        raise _damaged(path, "it is not a JSON object")
    return header, _LENGTH + length, size


def _span(path: Path, name: str, entry: Any) -> tuple[int, int, str]:
    try:
        bits = _BITS.get(entry["dtype"])
        begin, end = entry["data_offsets"]
        shape = [int(length) for length in entry["shape"]]
        if not (isinstance(begin, int) and isinstance(end, int)):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, f"the entry of tensor {name} is incomplete") from None
    if bits is None:
        raise _damaged(path, f"tensor {name} has unknown dtype {entry['dtype']}")
    needed = (prod(shape) * bits + 7) // 8
    if min([0, begin, *shape]) < 0 or end - begin != needed:
        raise _damaged(
            path, f"tensor {name} of {entry['dtype']}{shape} has {end - begin} bytes, not {needed}"
        )
    return begin, end, name


def _damaged(path: Path, why: str) -> Unusable:
    return Unusable(codes.BAD_HEADER.found(f"the header of {path} is damaged: {why}"))


def _pointer(path: Path) -> Finding:
    return codes.LFS_POINTER.found(f"{path} is a git-lfs pointer, not weights")
