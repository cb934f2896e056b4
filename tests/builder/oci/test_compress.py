from __future__ import annotations

import hashlib
import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import zstandard

from builder.oci import compress
from builder.oci.compress import BATCH_BYTES, JOB_BYTES, LayerSink


@pytest.fixture(scope="module")
def data() -> bytes:
    """A bit more than two jobs, compressible, with repeats beyond a job's end."""
    source = random.Random(1)  # noqa: S311
    block = source.randbytes(1 << 18)
    pieces = [source.choice((block, bytes(1 << 18), source.randbytes(1 << 18))) for _ in range(150)]
    joined = b"".join(pieces)
    assert len(joined) > 2 * JOB_BYTES
    return joined


def packed(data: bytes, threads: int, step: int, path: Path | None = None) -> LayerSink:
    sink = LayerSink(path, threads)
    for start in range(0, len(data), step):
        sink.write(data[start : start + step])
    sink.close()
    return sink


def test_the_output_depends_on_neither_threads_nor_the_size_of_writes(data: bytes) -> None:
    digests = {
        packed(data, threads, step).digest
        for threads, step in ((1, 1 << 20), (2, 1 << 20), (5, 99_991), (3, len(data)))
    }
    assert len(digests) == 1


def test_a_sink_names_what_it_wrote(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    sink = packed(data[: 1 << 20], 2, 1 << 16, path)
    blob = path.read_bytes()
    assert sink.digest == f"sha256:{hashlib.sha256(blob).hexdigest()}"
    assert sink.size == len(blob)
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(blob)
    assert plain == data[: 1 << 20]
    assert sink.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    assert sink.plain_size == len(plain)


def test_what_waits_to_be_hashed_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash that is slower than the compressor: the writer waits for it."""
    waiting, most = 0, 0
    lock = Lock()

    class Slow(ThreadPoolExecutor):
        def submit(self, run: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            nonlocal waiting, most
            with lock:
                waiting += 1
                most = max(most, waiting)

            def later() -> None:
                nonlocal waiting
                time.sleep(0.02)
                run(*args, **kwargs)
                with lock:
                    waiting -= 1

            return super().submit(later)

    with Slow(1) as pool:
        monkeypatch.setattr(compress, "_hasher", lambda: pool)
        sink = packed(bytes(20 * BATCH_BYTES), 2, BATCH_BYTES)
    assert most <= 1
    assert sink.diff_id == f"sha256:{hashlib.sha256(bytes(20 * BATCH_BYTES)).hexdigest()}"


def test_a_flipped_bit_is_found_by_whoever_unpacks(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    packed(random.Random(2).randbytes(1 << 16), 1, 1 << 16, path)  # noqa: S311
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 1
    with pytest.raises(zstandard.ZstdError, match="checksum"):
        zstandard.ZstdDecompressor().decompressobj().decompress(bytes(blob))
