"""Which layers an image gets, and what is in each, known before a byte of content is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from builder.oci.entries import FILE, FOLDER, LINK, Entry, sort_key
from builder.oci.split import assign, part_order
from builder.oci.tree import Inode, Tree

Source = tuple[int, int]
"""Where content comes from: number of the saved layer, and of the member in it."""


@dataclass(frozen=True)
class Item:
    """One member of a layer to be; `source` is set where content has to come from the stream."""

    path: str
    kind: str
    target: str
    entry: Entry
    source: Source | None


@dataclass(frozen=True)
class PlannedLayer:
    """`origin`: number of the layer on the engine that it comes from; `part`: its name if that one
    is cut into several; items in canonical order, each after the folders that it lies in."""

    origin: int
    part: str
    items: tuple[Item, ...]


def plan(tree: Tree) -> tuple[PlannedLayer, ...]:
    """Base first. Every layer repeats the folders that its paths lie in, as they are in the end."""
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for path, inode in tree.ordered():
        if inode.entry.kind != FOLDER or tree.is_empty_folder(path):
            # All names of a file go where its first one goes.
            names.setdefault(first.setdefault(id(inode), path), []).append(path)
    by_origin: dict[int, list[str]] = {}
    for path in names:
        by_origin.setdefault(tree.paths[path].layer, []).append(path)
    layers = []
    for origin, paths in sorted(by_origin.items()):
        parts: dict[str, list[str]] = {}
        chosen = assign((path, tree.paths[path].entry.size) for path in paths)
        for path in paths:
            parts.setdefault(chosen[path], []).append(path)
        for part in sorted(parts, key=part_order):
            layers.append(PlannedLayer(origin, part, _items(tree, parts[part], names)))
    return tuple(layers)


def _items(tree: Tree, paths: list[str], names: dict[str, list[str]]) -> tuple[Item, ...]:
    items: dict[str, Item] = {}
    for path in paths:
        inode = tree.paths[path]
        items[path] = _item(path, inode)
        for name in names[path][1:]:
            items[name] = replace(items[path], path=name, kind=LINK, target=path, source=None)
        for name in names[path]:
            folder = name.rpartition("/")[0]
            while folder and folder not in items:
                items[folder] = _item(folder, tree.paths[folder])
                folder = folder.rpartition("/")[0]
    return tuple(items[path] for path in sorted(items, key=sort_key))


def _item(path: str, inode: Inode) -> Item:
    entry = inode.entry
    wanted = entry.kind == FILE and entry.size > 0
    return Item(
        path, entry.kind, entry.target, entry, (inode.layer, inode.member) if wanted else None
    )
