"""Compressing a layer so that the same bytes go out on every machine.

zstd with several workers cuts its input into jobs of a fixed size and compresses each alike, so the
output depends on level and job size, not on how many workers there were. With none it takes
another path: there is always at least one.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import BinaryIO

import zstandard

LEVEL = 6
JOB_BYTES = 16 << 20
BATCH_BYTES = 1 << 20


def compressor(threads: int) -> zstandard.ZstdCompressor:
    """Level, window and job size fixed; a checksum of the content at each frame's end."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        threads=max(1, threads),
        job_size=JOB_BYTES,
        overlap_log=0,
        write_checksum=1,
        write_content_size=0,
        write_dict_id=0,
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


def default_threads() -> int:
    """One worker for each CPU that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


@cache
def _hasher() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "hasher")


class LayerSink:
    """Takes a layer's tar; knows its digest plain (diff id) and compressed, and both sizes.

    Without a `path` nothing is kept. What is written is hashed in another thread while it is
    compressed; digests and sizes are there after `close`.
    """

    def __init__(self, path: Path | None, threads: int) -> None:
        self.plain_size = 0
        self.size = 0
        self._plain = hashlib.sha256()
        self._packed = hashlib.sha256()
        self._compressor = compressor(threads).compressobj()
        self._file: BinaryIO | None = path.open("wb") if path else None
        # Headers and small files come in bits: a call for each would cost more than its work.
        self._waiting: list[bytes] = []
        self._waiting_size = 0
        self._hashed: Future[None] | None = None

    def write(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_size += len(data)
        if self._waiting_size >= BATCH_BYTES:
            self._send()

    def close(self) -> None:
        """End the frame; on the disk when this returns."""
        self._send()
        if self._hashed is not None:
            self._hashed.result()
        self._put(self._compressor.flush())
        if self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        self.abandon()

    def abandon(self) -> None:
        if self._file:
            self._file.close()

    def _send(self) -> None:
        data = b"".join(self._waiting)
        self._waiting, self._waiting_size = [], 0
        if self._hashed is not None:
            self._hashed.result()  # or they would pile up in memory
        self._hashed = _hasher().submit(self._plain.update, data)
        self.plain_size += len(data)
        self._put(self._compressor.compress(data))

    def _put(self, data: bytes) -> None:
        self.size += len(data)
        self._packed.update(data)
        if self._file:
            self._file.write(data)

    @property
    def diff_id(self) -> str:
        return f"sha256:{self._plain.hexdigest()}"

    @property
    def digest(self) -> str:
        return f"sha256:{self._packed.hexdigest()}"
