"""Cache folders: writable, executable, on a fit file system, with space, without the past."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ddtree_overlay.doctor.model import Check, Code, Finding, Severity, Subject
from ddtree_overlay.doctor.procfs import mib, mount_of
from ddtree_overlay.serve.manifest import UNKNOWN

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING
# Triton, Inductor and FlashInfer fill 1 to 3 GiB when the cache is empty; a warm one needs next to
# nothing, so only a volume that is full is an error.
LEAST_BYTES = 64 << 20
COMFORTABLE_BYTES = 5 << 30
_NETWORK = ("nfs", "cifs", "smb", "ceph", "lustre", "glusterfs", "beegfs", "afs", "9p", "fuse.")
_FILES_COUNTED = 200_000
_COUNT_SECONDS = 5.0
_BUILD = re.compile(r"[0-9a-f]{16}|dev")  # what serve/caches.py names folders after

NOT_WRITABLE = Code(
    "CAC001",
    _ERROR,
    "A cache folder cannot be written, and kernels compiled at run time have nowhere to go.",
    "mount a volume at /var/cache/ddtree that the container's user may write",
)
FOREIGN = Code(
    "CAC002",
    _ERROR,
    "A cache folder belongs to another user and cannot be written.",
    "on the host give it to the container's user (chown -R UID:GID FOLDER), or start with --user "
    "of its owner",
)
NOT_EXECUTABLE = Code(
    "CAC003",
    _ERROR,
    "The cache's file system is mounted noexec: compiled kernels cannot be loaded from it.",
    "mount the cache volume without noexec (a tmpfs: add the option exec)",
)
LITTLE_SPACE = Code(
    "CAC004",
    _WARNING,
    "Little space is left for compiled kernels.",
    "free space on the cache volume, or remove caches of other builds in it",
)
UNFIT = Code(
    "CAC005",
    _WARNING,
    "The cache is on a file system that is slow for it, or that is lost with the container.",
    "mount a volume on a local disk at /var/cache/ddtree (-v ddtree-cache:/var/cache/ddtree)",
)
STALE = Code(
    "CAC006",
    Severity.INFO,
    "The cache volume holds caches of other builds of the image.",
    "remove those folders when you do not mean to go back to those builds",
)


def check_write(subject: Subject) -> Iterator[Finding]:
    """Creates each folder, and in it a file; syncs it, maps it executable, removes it."""
    executable = True
    for folder in dict.fromkeys((subject.cache_root, *subject.cache_folders)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            executable = _try_file(folder) and executable
        except OSError as error:
            yield _softened(_why_not(folder, error), folder, subject)
            if folder == subject.cache_root:
                return
    mount = mount_of(subject.root, subject.cache_root)
    if not executable or (mount is not None and "noexec" in mount.options):
        where = f" ({mount.point}, {mount.kind})" if mount else ""
        yield NOT_EXECUTABLE.found(f"{subject.cache_root}{where} is mounted noexec")


def _try_file(folder: Path) -> bool:
    """Whether files of the folder may be mapped executable. Raises OSError if one cannot be
    written."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".ddtree-write-test-") as file:
        file.write(b"\0" * mmap.PAGESIZE)
        file.flush()
        os.fsync(file.fileno())
        try:
            # Private, as the loader maps a library: some file systems refuse the shared kind.
            flags, prot = mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC
            mmap.mmap(file.fileno(), mmap.PAGESIZE, flags, prot).close()
        except PermissionError:
            return False
    return True


def _softened(finding: Finding, folder: Path, subject: Subject) -> Finding:
    """A Hub cache on a read-only mount serves what it holds, unless a model's code is unpacked in
    it."""
    reading = str(folder) == subject.environment.get("HF_HOME") and not subject.trust_remote_code
    if not reading or os.path.realpath(folder) == os.path.realpath(subject.cache_root):
        return finding
    return replace(
        finding,
        severity=Severity.WARNING,
        remedy="nothing to do while the models are local; else set HF_HOME to a writable folder",
    )


def _why_not(folder: Path, error: OSError) -> Finding:
    nearest = _nearest(folder)
    owner, own = nearest.stat().st_uid, os.geteuid()
    if error.errno in {errno.EACCES, errno.EPERM} and owner != own:
        return FOREIGN.found(
            f"{nearest} belongs to uid {owner}, this container runs as uid {own}",
            remedy=f"on the host: chown -R {own}:{os.getegid()} the folder mounted there, or start "
            f"with --user {owner}",
        )
    reason = error.strerror or str(error)
    if error.errno == errno.EROFS:
        return NOT_WRITABLE.found(f"{folder}: read-only file system")
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        remedy = "free space (or inodes, or quota) on the cache volume"
        return NOT_WRITABLE.found(f"{folder}: {reason}", remedy=remedy)
    return NOT_WRITABLE.found(f"{folder}: {reason}")


def _nearest(folder: Path) -> Path:
    """The folder, or the first above it that is there and can be reached."""
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110 - Path.exists raises for a folder that is closed to us


def check_disk(subject: Subject) -> Iterator[Finding]:
    """Space and kind of the file system that holds the cache, or will when it is created."""
    folder = subject.cache_root
    nearest = _nearest(folder)
    free = shutil.disk_usage(nearest).free
    if free < COMFORTABLE_BYTES:
        yield LITTLE_SPACE.found(
            f"{mib(free)} free at {folder}, {mib(COMFORTABLE_BYTES)} are advised",
            severity=_ERROR if free < LEAST_BYTES else None,
        )
    mount = mount_of(subject.root, folder)
    kind = mount.kind if mount else ""
    if kind.startswith(_NETWORK):
        yield UNFIT.found(f"{folder} is on a network file system ({kind})")
    elif kind == "overlay":
        yield UNFIT.found(f"{folder} is not a volume: it is lost with the container")
    elif kind in {"tmpfs", "ramfs"}:
        yield UNFIT.found(f"{folder} is in memory ({kind}): it is lost with the container")


def check_stale(subject: Subject) -> Iterator[Finding]:
    """Folders beside this build's own; not asked for where the build is unknown."""
    build = subject.manifest.text("build_id")
    base = subject.cache_root.parent if subject.cache_root.name == build else subject.cache_root
    if build == UNKNOWN or not base.is_dir():
        return
    others = sorted(
        path
        for path in base.iterdir()
        if path.name != build and _BUILD.fullmatch(path.name) and path.is_dir()
    )
    if others:
        size, whole = _size(others)
        names = ", ".join(path.name for path in others[:4])
        yield STALE.found(
            f"{len(others)} other caches in {base} ({names}), "
            f"{'' if whole else 'more than '}{mib(size)}"
        )


def _size(folders: list[Path]) -> tuple[int, bool]:
    """(bytes, whether all were counted): a cache may hold millions of files."""
    total = files = 0
    deadline = time.monotonic() + _COUNT_SECONDS
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                files += 1
                if files > _FILES_COUNTED or time.monotonic() > deadline:
                    return total, False
                try:
                    total += (Path(place) / name).lstat().st_size
                except OSError:
                    continue
    return total, True


CHECKS = (
    Check(
        "cache-write",
        "caches can be written",
        (NOT_WRITABLE, FOREIGN, NOT_EXECUTABLE),
        check_write,
    ),
    Check("cache-disk", "space and file system of caches", (LITTLE_SPACE, UNFIT), check_disk),
    Check("cache-stale", "caches of other builds", (STALE,), check_stale),
)
