"""Reading a file that somebody named: never a pipe or a device, and never more than a bound.

A FIFO in the place of a file would block for ever, before any probe answers; /dev/zero never ends.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_CONFIGURATION = 2**20
"""Bytes of a configuration file or a profile: whatever is larger is another file."""


def read_regular(path: str | Path, limit: int) -> bytes:
    """The content. Raises OSError, whose strerror says why, also for more than `limit` bytes, for a
    name that no file can have, and for what is no regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:
        raise OSError(errno.EINVAL, "its name has a zero byte") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
        with os.fdopen(os.dup(descriptor), "rb") as stream:
            content = stream.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes")
    return content
