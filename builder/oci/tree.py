"""The file system that a stack of layers makes (OCI image specification, layer.md, "Applying").

Only what is there in the end counts: what a later layer replaced or deleted is gone, so there are
no whiteouts, and a file's history of copies does not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from builder.oci.entries import FOLDER, LINK, Entry, sort_key

_WHITEOUT, _OPAQUE, _AUFS = ".wh.", ".wh..wh..opq", ".wh..wh."


@dataclass(frozen=True)
class Inode:
    """A file, folder or other thing; hard links are several names of one.

    `layer`: number of the layer that it comes from, base first; `member`: its place in there
    (-1: implied by what lies in it).
    """

    entry: Entry
    layer: int
    member: int


class Tree:
    """Path to inode. Raises ValueError for layers that do not fit each other."""

    def __init__(self) -> None:
        self.paths: dict[str, Inode] = {}
        self._names: dict[str, set[str]] = {"": set()}

    def apply(self, layer: int, entries: list[Entry]) -> None:
        """One more layer on top: its deletions first, which mean what lies below alone."""
        for entry in entries:
            folder, _, name = entry.path.rpartition("/")
            if name == _OPAQUE:
                for child in sorted(self._names.get(folder, ())):
                    self._remove(_join(folder, child))
            elif name.startswith(_WHITEOUT) and not name.startswith(_AUFS):
                self._remove(_join(folder, name[len(_WHITEOUT) :]))
        for number, entry in enumerate(entries):
            if entry.path and not entry.path.rpartition("/")[2].startswith(_WHITEOUT):
                self._add(entry, layer, number)

    def _add(self, entry: Entry, layer: int, number: int) -> None:
        self._parents(entry.path, layer)
        inode = Inode(entry, layer, number)
        if entry.kind == LINK:
            found = self.paths.get(entry.target)
            if found is None or found.entry.kind == FOLDER:
                raise ValueError(f"{entry.path!r} links to {entry.target!r}, which is no file")
            inode = found
        old = self.paths.get(entry.path)
        if old is not None and not (old.entry.kind == entry.kind == FOLDER):
            self._remove(entry.path)
        self._put(entry.path, inode)

    def _parents(self, path: str, layer: int) -> None:
        at = path.find("/")
        while at >= 0:
            parent = path[:at]
            found = self.paths.get(parent)
            if found is None:
                self._put(parent, Inode(Entry(parent, FOLDER), layer, -1))
            elif found.entry.kind != FOLDER:
                raise ValueError(f"{path!r} lies below {parent!r}, which is no folder")
            at = path.find("/", at + 1)

    def _put(self, path: str, inode: Inode) -> None:
        self.paths[path] = inode
        folder, _, name = path.rpartition("/")
        self._names[folder].add(name)
        if inode.entry.kind == FOLDER:
            self._names.setdefault(path, set())

    def _remove(self, path: str) -> None:
        if path not in self.paths:
            return
        for child in sorted(self._names.pop(path, ())):
            self._remove(_join(path, child))
        del self.paths[path]
        folder, _, name = path.rpartition("/")
        if folder in self._names:
            self._names[folder].discard(name)

    def ordered(self) -> Iterator[tuple[str, Inode]]:
        """Every path in canonical order."""
        for path in sorted(self.paths, key=sort_key):
            yield path, self.paths[path]

    def is_empty_folder(self, path: str) -> bool:
        return not self._names.get(path)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
