"""Downloading one pinned file: resumed, retried, size and hash checked, moved into place whole."""

from __future__ import annotations

import fcntl
import http.client
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder import console
from builder.errors import HashMismatchError, SourceUnreachableError, TruncatedDownloadError
from builder.files import CHUNK, sha256_file
from builder.sources.http import Answer, HttpError, failure_reason, get

READ_SECONDS = 30.0
TRIES = 5  # in a row that bring no new byte
_REPORT_SECONDS = 5.0
_PAUSES = (0.5, 1.0, 2.0, 4.0)
_RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True)
class Wanted:
    """A file by address and hash; `size` in bytes where the pin states it."""

    name: str
    url: str
    sha256: str
    size: int | None


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One downloader at a time in a folder; a second builder waits and finds the file there."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def download(wanted: Wanted, dest: Path, *, pause: Callable[[float], None] = time.sleep) -> Path:
    """Fetch into `dest`; an interrupted download is resumed from `dest`.part.

    Raises SourceUnreachableError, TruncatedDownloadError or HashMismatchError; `dest` then does
    not exist. `pause` waits (seconds) between tries.
    """
    dest.parent.mkdir(parents=True, exist_ok=True)
    part = dest.with_name(dest.name + ".part")
    with _alone_in(dest.parent):
        if dest.is_file() and sha256_file(dest) == wanted.sha256:
            return dest
        dest.unlink(missing_ok=True)
        resumed = _size(part) > 0
        _fetch(wanted, part, pause)
        if resumed and sha256_file(part) != wanted.sha256:
            # What lay there may have been of another file: once more from the first byte.
            part.unlink()
            _fetch(wanted, part, pause)
        got = sha256_file(part)
        if got != wanted.sha256:
            part.unlink()
            raise _other_file(wanted, f"has SHA-256 {got}, the pin says {wanted.sha256}")
        return part.replace(dest)


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _fetch(wanted: Wanted, part: Path, pause: Callable[[float], None]) -> None:
    """Bring `part` to the whole size of the file, or raise."""
    furthest = _size(part)
    fruitless = 0
    while True:
        try:
            _attempt(wanted, part)
            return
        except HttpError as exc:
            have = _size(part)
            fruitless = 0 if have > furthest else fruitless + 1
            furthest = max(furthest, have)
            if exc.permanent or fruitless >= TRIES:
                raise _give_up(wanted, have, exc) from None
            console.info(f"{wanted.name}: {exc.reason}; trying again at byte {have}")
            pause(_PAUSES[min(fruitless, len(_PAUSES) - 1)])


def _attempt(wanted: Wanted, part: Path) -> None:
    """One request, appended to `part`. Raises HttpError unless the file is whole after it."""
    have = _size(part)
    if wanted.size is not None and have > wanted.size:
        part.unlink()
        have = 0
    if have and have == wanted.size:
        return
    try:
        answer = get(wanted.url, first=have, timeout=READ_SECONDS)
    except HttpError as exc:
        if have and exc.status == _RANGE_NOT_SATISFIABLE:
            return  # nothing follows what we have; the hash decides
        raise
    with closing(answer.body):
        _check_announced(wanted, answer.total)
        _read(wanted, answer, part)
    have = _size(part)
    if answer.total is not None and have < answer.total:
        raise HttpError(f"the transfer ended at {have} of {answer.total} bytes")


def _check_announced(wanted: Wanted, total: int | None) -> None:
    if wanted.size is None or total is None or total == wanted.size:
        return
    if total > wanted.size:
        raise _other_file(wanted, f"is {total} bytes long, the pin says {wanted.size}")
    raise TruncatedDownloadError(
        f"{wanted.name}: {wanted.url} is only {total} bytes long, the pin says {wanted.size}",
        "the file is incomplete at its source: use another mirror",
    )


def _read(wanted: Wanted, answer: Answer, part: Path) -> None:
    done = answer.start
    begin = shown = time.monotonic()
    with part.open("r+b" if part.exists() else "wb") as out:
        out.truncate(done)  # a server that ignores ranges starts over at 0
        out.seek(done)
        while True:
            try:
                chunk = answer.body.read(CHUNK)
            except (OSError, http.client.HTTPException) as exc:
                raise HttpError(failure_reason(exc, READ_SECONDS)) from None
            if not chunk:
                return
            out.write(chunk)
            done += len(chunk)
            now = time.monotonic()
            if now - shown >= _REPORT_SECONDS:
                shown = now
                rate = (done - answer.start) / (now - begin) / 1e6
                of = f" of {answer.total / 1e6:.0f}" if answer.total else ""
                console.info(f"{wanted.name}: {done / 1e6:.0f}{of} MB ({rate:.1f} MB/s)")


def _other_file(wanted: Wanted, how: str) -> HashMismatchError:
    return HashMismatchError(
        f"{wanted.name}: {wanted.url} {how}",
        "do not use this source or mirror; compare the pin with its evidence in images/",
    )


def _give_up(
    wanted: Wanted, have: int, failure: HttpError
) -> SourceUnreachableError | TruncatedDownloadError:
    if have:
        return TruncatedDownloadError(
            f"{wanted.name}: {wanted.url}: {failure.reason}",
            "run the command again: it resumes where it stopped; or use another --mirror",
        )
    return SourceUnreachableError(
        f"{wanted.name}: {wanted.url}: {failure.reason}",
        "use --mirror PREFIX=URL, or a wheelhouse filled elsewhere (--wheelhouse DIR)",
    )
