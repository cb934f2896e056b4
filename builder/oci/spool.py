"""The engine's first answer, kept on our disk for the second reading where there is room for it.

The classic image store gathers the whole image below its data root before the first byte of an
answer: a second one costs it reading and writing all of it again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from builder import console
from builder.oci.entries import CHUNK

# Of the same disk others live too: engine, build cache, log.
SPARE_BYTES = 2 << 30


class Spool:
    """`stream`, which gives the same chunks each time it is iterated, asked once if possible.

    The answer is kept if `folder` has room for `size` bytes (roughly the answer's) and `further`
    ones. If the disk fills up all the same, what was kept goes, and `stream` is asked again.
    """

    def __init__(self, stream: Iterable[bytes], folder: Path, *, size: int, further: int) -> None:
        self._stream = stream
        self._path = folder / "saved.tar"
        free = shutil.disk_usage(folder).free
        self._room = free >= size + size // 16 + further + SPARE_BYTES
        self._whole = False

    def __iter__(self) -> Iterator[bytes]:
        if self._whole:
            return self._kept()
        return self._keeping() if self._room else iter(self._stream)

    def close(self) -> None:
        """Drop what is kept."""
        self._whole = False
        self._path.unlink(missing_ok=True)

    def _kept(self) -> Iterator[bytes]:
        with self._path.open("rb") as handle:
            while chunk := handle.read(CHUNK):
                yield chunk

    def _keeping(self) -> Iterator[bytes]:
        handle = self._path.open("wb", buffering=0)
        try:
            for chunk in self._stream:
                if self._room:
                    try:
                        _write(handle.fileno(), chunk)
                    except OSError as exc:
                        console.warn(f"the engine's answer is not kept: {exc.strerror}")
                        self._room = False
                        handle.truncate(0)
                yield chunk
            self._whole = self._room
        finally:
            handle.close()
            if not self._whole:
                self._path.unlink(missing_ok=True)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
