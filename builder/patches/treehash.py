"""Identity of a file tree: what is in it, not when, where or by whom it was written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_EXECUTE = 0o111


@dataclass(frozen=True)
class TreeFile:
    """Content of a file and whether any execute bit is set."""

    data: bytes
    executable: bool = False


Tree = Mapping[str, TreeFile]
"""A file tree in memory: POSIX path relative to its root -> file."""


def hash_tree(tree: Tree) -> str:
    """Hex SHA-256 over (kind, content hash, path) of each file, in byte order of the paths.

    Empty folders, times, owners and the other mode bits do not count.
    """
    return _digest(
        (path, "x" if file.executable else "-", hashlib.sha256(file.data).hexdigest())
        for path, file in tree.items()
    )


def tree_hash(root: Path) -> str:
    """`hash_tree` of the files below `root`; a symbolic link counts by its target's name."""
    entries = []
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            target = hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
            entries.append((name, "l", target))
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        entries.append((name, "x" if path.stat().st_mode & _EXECUTE else "-", digest))
    return _digest(entries)


def write_tree(tree: Tree, root: Path) -> None:
    """Write every file of `tree` below `root`; other files there are left alone."""
    for name, file in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(0o755 if file.executable else 0o644)


def _files(root: Path) -> list[Path]:
    # Path.rglob follows links to folders on some Python versions; os.walk does not.
    found = []
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        found += [here / name for name in names]
        found += [here / name for name in folders if (here / name).is_symlink()]
    return found


def _digest(entries: Iterable[tuple[str, str, str]]) -> str:
    digest = hashlib.sha256()
    for name, kind, content in sorted(entries, key=lambda entry: os.fsencode(entry[0])):
        digest.update(f"{kind} {content} ".encode() + os.fsencode(name) + b"\0")
    return digest.hexdigest()
