"""Uploads under way, kept on disk: a run that was killed is gone on with by the next one.

A registry that still knows an upload says how much of it arrived; where it does not, the blob
starts anew, so nothing here needs to be true. An address may carry a registry's signed state: mode
0600.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

_KEPT = 7 * 24 * 3600.0  # seconds; registries purge uploads after days
_LONGEST = 16384  # bytes of an address


class Session:
    """The place of one upload. Held by one process at a time; others then have none."""

    def __init__(self, folder: Path | None, name: str) -> None:
        """`name`: repository and digest. `folder` None: nothing is kept."""
        self._handle: int | None = None
        self._path = Path()
        if folder is None:
            return
        self._path = folder / hashlib.sha256(name.encode()).hexdigest()[:32]
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # it is of help only
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return
        self._handle = handle

    def location(self) -> str:
        """Where an earlier run was sending; empty if nowhere."""
        if self._handle is None:
            return ""
        return os.pread(self._handle, _LONGEST, 0).decode(errors="replace").strip()

    def save(self, location: str) -> None:
        """Where the next request of this upload goes."""
        if self._handle is not None and len(location) <= _LONGEST:
            with suppress(OSError):
                # A shorter one over a longer one, cut between the two calls, is no address that any
                # registry knows.
                os.ftruncate(self._handle, 0)
                os.pwrite(self._handle, location.encode(), 0)

    def close(self, *, done: bool) -> None:
        """`done`: there is nothing left to go on with."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if done:
            self._path.unlink(missing_ok=True)
        os.close(handle)


def forget_old(folder: Path) -> None:
    """Drop what no registry knows any more."""
    with suppress(OSError):
        for path in folder.iterdir():
            if time.time() - path.stat().st_mtime > _KEPT:
                path.unlink(missing_ok=True)
