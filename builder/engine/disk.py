"""Room for a build, checked before anything is started."""

from __future__ import annotations

import shutil
from pathlib import Path

from builder import console
from builder.errors import DiskSpaceError

_GIB = 2**30


def free_gib(path: Path) -> float:
    """GiB free for us on the file system that `path` is, or will be, on."""
    existing = path
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free / _GIB


def check_disk(data_root: Path, need_gib: int, remedy: str) -> None:
    """Raises DiskSpaceError, stating need and room, if `data_root` has less than `need_gib`."""
    free = free_gib(data_root)
    if free < need_gib:
        raise DiskSpaceError(
            f"the build needs {need_gib} GiB for the engine's data in {data_root}, "
            f"{free:.1f} GiB are free",
            remedy,
        )


def check_existing(data_root: str, url: str, need_gib: int) -> None:
    """The same for an engine that somebody else runs, where its disk can be seen from here."""
    path = Path(data_root)
    if not url.startswith(("unix://", "http+unix://")) or not path.is_dir():
        console.info(
            f"the engine at {url} keeps its data elsewhere: the {need_gib} GiB that a build needs "
            "are not checked"
        )
        return
    check_disk(path, need_gib, f"free space below {data_root} (`docker system prune`)")
