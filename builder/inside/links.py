"""Symbolic links as they lead inside the image, wherever its root lies while it is read."""

from __future__ import annotations

from pathlib import Path

_MOST = 40  # links in one path, as Linux follows them (path_resolution(7))


def follow(root: Path, path: str) -> str | None:
    """Where `path` leads, relative to `root`; None for a loop and for what is not there.

    An absolute link begins at `root` and `..` ends there, as after a chroot: a folder that an image
    was unpacked into must not be told by the files of the machine it lies on.
    """
    done: list[str] = []
    left = path.split("/")[::-1]
    followed = 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = done[:-1]
            continue
        place = root.joinpath(*done, part)
        try:
            if not place.is_symlink():
                place.lstat()
                done.append(part)
                continue
            target = str(place.readlink())
        except OSError:
            return None
        followed += 1
        if followed > _MOST:
            return None
        if target.startswith("/"):
            done = []
        left += target.split("/")[::-1]
    return "/".join(done)
