"""The body of an upload: part of a file, counted as it goes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from builder.errors import TamperedError
from builder.registry.failures import StoppedError

_BLOCK = 64 << 10


class Meter(Protocol):
    """Who counts what goes out."""

    def sent(self, count: int) -> None:
        """`count` bytes went out (again, after a broken connection)."""

    def skipped(self, count: int) -> None:
        """`count` bytes were there already."""


class NoMeter:
    """Nobody counts."""

    def sent(self, count: int) -> None: ...
    def skipped(self, count: int) -> None: ...


class Part:
    """Bytes `first`..`first + size` of a file, as the body of one request."""

    def __init__(
        self, path: Path, first: int, size: int, meter: Meter, stopped: Callable[[], bool]
    ) -> None:
        self._path, self._first, self._size = path, first, size
        self._meter, self._stopped = meter, stopped

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        left = self._size
        with self._path.open("rb") as handle:
            handle.seek(self._first)
            while left:
                if self._stopped():
                    raise StoppedError
                block = handle.read(min(_BLOCK, left))
                if not block:
                    raise TamperedError(
                        f"{self._path} became shorter while it was sent", "run the command again"
                    )
                yield block
                left -= len(block)
                self._meter.sent(len(block))
