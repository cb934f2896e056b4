"""One engine at a time on a data root."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder import console


def _holder(lock: Path) -> str:
    with contextlib.suppress(OSError):
        return f" (builder process {lock.read_text().strip() or 'unknown'})"
    return ""


@contextmanager
def exclusive(lock: Path, held: str = "the private engine") -> Iterator[int]:
    """Hold the lock file; says which process is waited for.

    A private engine inherits the descriptor: free means that all of it is gone.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.warn(f"{held} of {lock.parent} is in use{_holder(lock)}; waiting for its end")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def is_free(lock: Path) -> bool:
    """False while a builder, or anything of its engine, holds the data root."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
