"""SEC: nothing in the image lends or takes rights that no part of the appliance needs."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from builder.inside.audit.model import Context, Finding


def modes(context: Context) -> Iterator[Finding]:
    """SEC001: no setuid or setgid file, nothing that anybody may write but sticky folders.

    A setgid folder only hands its group down, as the cache of the appliance does.
    """
    context.count("SEC001", context.files.entries)
    for name, mode in context.files.risky_modes:
        octal = f"{stat.S_IMODE(mode):04o}"
        if stat.S_ISDIR(mode):
            yield Finding(
                "SEC001",
                name,
                f"a folder of mode {octal}: anybody may replace files in it",
                "make it sticky, or take the others' write permission in the Dockerfile",
            )
            continue
        if mode & (stat.S_ISUID | stat.S_ISGID):
            yield Finding(
                "SEC001",
                name,
                f"mode {octal}: runs with its owner's or group's rights",
                "take the bits with chmod ug-s in the Dockerfile's stage `system`",
            )
        if mode & stat.S_IWOTH:
            yield Finding(
                "SEC001",
                name,
                f"mode {octal}: anybody may write to it",
                "remove it, or take the others' write permission in the Dockerfile",
            )
