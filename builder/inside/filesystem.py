"""The finished file system: sizes, modes, hashes and every ELF file, each file read once."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from builder.inside.contents import Contents, inspect
from builder.inside.distributions import Distribution, read_distributions
from builder.inside.elf import ElfFile, NotElfError, is_elf, read_elf

SITES = "opt/ddtree/venv/lib/python3.*/site-packages"
_PSEUDO = ("proc", "sys", "dev")
_BATCH = 200  # files that a process takes at once
# Text that is never ELF and makes up most of the files.
_TEXT = (
    *(".py", ".pyc", ".pyi", ".h", ".hpp", ".cuh", ".inl", ".cu", ".json", ".txt", ".md", ".typed"),
    *(".gz", ".xz", ".list", ".md5sums", ".js", ".css", ".csv", ".npy", ".npz", ".a", ".pxd"),
)


class LayoutError(Exception):
    """The root holds no appliance: no site-packages where it belongs, or broken metadata."""


@dataclass(frozen=True)
class FileSystem:
    """A scanned root. All paths are relative to it, without a leading slash."""

    root: Path
    site: str
    sizes: dict[str, int]  # a hard-linked file counts once
    links: frozenset[str]
    elves: tuple[ElfFile, ...]
    damaged: tuple[str, ...]  # ELF magic, but unreadable
    distributions: tuple[Distribution, ...]
    entries: int  # files and folders whose mode was looked at; links have none of their own
    risky_modes: tuple[tuple[str, int], ...]  # (path, st_mode), see is_risky
    digests: dict[str, str]  # `sha256=...` as in a RECORD; empty unless contents were read
    secrets: tuple[tuple[str, str], ...]  # (path, what it seems to hold)

    @property
    def site_path(self) -> Path:
        return self.root / self.site

    @property
    def total(self) -> int:
        """Sum of the sizes of all regular files, in bytes."""
        return sum(self.sizes.values())

    def below_site(self, path: str) -> str:
        """The path inside site-packages, or empty when it lies elsewhere."""
        prefix = self.site + "/"
        return path[len(prefix) :] if path.startswith(prefix) else ""

    def distribution(self, name: str) -> Distribution | None:
        """By normalised name."""
        return next((d for d in self.distributions if d.name == name), None)


def is_risky(mode: int) -> bool:
    """Set-ID or world-writable; of folders only world-writable ones that are not sticky."""
    if stat.S_ISDIR(mode):
        return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
    return bool(mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH))


def scan(root: Path, ignore: frozenset[str] = frozenset(), *, contents: bool = True) -> FileSystem:
    """Walk `root`, without other mounts and without `ignore`. Raises LayoutError.

    Without `contents` nothing but the linkage of ELF files is read: for who needs only sizes.
    """
    sites = sorted(root.glob(SITES))
    if len(sites) != 1:
        raise LayoutError(f"{root}: one {SITES} expected, found {len(sites)}")
    skip = ignore | mounts_below(root)
    sizes: dict[str, int] = {}
    links: set[str] = set()
    found: dict[str, Contents] = {}
    whole: list[tuple[Path, str]] = []
    seen: set[tuple[int, int]] = set()
    entries = 0
    risky: list[tuple[str, int]] = []
    for entry, name in _walk(root, "", skip):
        if entry.is_symlink():
            links.add(name)
            continue
        status = entry.stat(follow_symlinks=False)
        entries += 1
        if is_risky(status.st_mode):
            risky.append((name, status.st_mode))
        if not stat.S_ISREG(status.st_mode):
            continue
        if status.st_nlink > 1:
            identity = (status.st_dev, status.st_ino)
            size = 0 if identity in seen else status.st_size
            seen.add(identity)
        else:
            size = status.st_size
        sizes[name] = size
        if contents:
            whole.append((Path(entry.path), name))
        elif status.st_size >= 64 and not name.endswith(_TEXT) and is_elf(Path(entry.path)):
            found[name] = _linkage(Path(entry.path), name)
    found.update(_read(whole))
    try:
        distributions = read_distributions(root, sites[0])
    except ValueError as exc:
        raise LayoutError(str(exc)) from None
    return FileSystem(
        root=root,
        site=str(sites[0].relative_to(root)),
        sizes=sizes,
        links=frozenset(links),
        elves=tuple(c.elf for _, c in sorted(found.items()) if c.elf is not None),
        damaged=tuple(sorted(c.damage for c in found.values() if c.damage)),
        distributions=tuple(distributions),
        entries=entries,
        risky_modes=tuple(risky),
        digests={name: c.digest for name, c in found.items() if c.digest},
        secrets=tuple((name, c.secret) for name, c in sorted(found.items()) if c.secret),
    )


def _read(files: Sequence[tuple[Path, str]]) -> dict[str, Contents]:
    """Every file's contents by name, by as many processes as help.

    Threads do not: half of the time is Python's own (ELF structures, searches for secrets).
    Raises OSError and LayoutError.
    """
    paths, names = [path for path, _ in files], [name for _, name in files]
    processes = min(8, len(os.sched_getaffinity(0)), 1 + len(files) // _BATCH)
    if processes == 1:
        return dict(zip(names, map(inspect, paths, names), strict=True))
    try:
        with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
            read = pool.map(inspect, paths, names, chunksize=_BATCH)
            return dict(zip(names, read, strict=True))
    except BrokenProcessPool:
        raise LayoutError("a process that read files was killed (out of memory?)") from None


def _linkage(path: Path, name: str) -> Contents:
    try:
        return Contents("", read_elf(path, name))
    except NotElfError as exc:
        return Contents("", damage=str(exc))


def mounts_below(root: Path) -> frozenset[str]:
    """What a build stage mounts (tools, target.json, caches) is no part of the image."""
    if root != Path("/"):
        return frozenset(_PSEUDO)
    table = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    points = {line.split()[4].lstrip("/") for line in table}
    return frozenset(point for point in points if point) | frozenset(_PSEUDO)


def outputs(root: Path, paths: list[Path]) -> frozenset[str]:
    """Folders below `root` that a build stage itself writes to: no part of the image."""
    found = set()
    for folder in {path.resolve().parent for path in paths}:
        try:
            found.add(str(folder.relative_to(root.resolve())))
        except ValueError:
            continue
    return frozenset(found - {"."})


def _walk(root: Path, prefix: str, skip: frozenset[str]) -> list[tuple[os.DirEntry[str], str]]:
    found: list[tuple[os.DirEntry[str], str]] = []
    pending = [prefix]
    while pending:
        folder = pending.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if name in skip:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(name)
                found.append((entry, name))
    return sorted(found, key=lambda pair: pair[1])
