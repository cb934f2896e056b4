"""The identity of a file system: what a container sees, without times (ROOTFS_ANNOTATION)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from builder.oci.entries import FILE
from builder.oci.tree import Tree

Fields = dict[str, object]


def listing(tree: Tree) -> dict[str, Fields]:
    """Path to what it is, in canonical order: type, mode, owner, content or target, links.

    A further name of a file has `link`, its first name, and nothing else.
    """
    first: dict[int, str] = {}
    found: dict[str, Fields] = {}
    for path, inode in tree.ordered():
        earlier = first.setdefault(id(inode), path)
        if earlier != path:
            found[path] = {"link": earlier}
            continue
        entry = inode.entry
        fields: Fields = {
            "type": entry.kind,
            "mode": f"{entry.mode:04o}",
            "owner": f"{entry.uid}:{entry.gid}",
        }
        if entry.kind == FILE:
            fields |= {"size": entry.size, "sha256": entry.digest}
        if entry.target:
            fields["target"] = entry.target
        if entry.device != (0, 0):
            fields["device"] = list(entry.device)
        if entry.xattrs:
            fields["xattrs"] = dict(entry.xattrs)
        found[path] = fields
    return found


def rootfs_hash(files: Iterable[tuple[str, Fields]]) -> str:
    """`sha256:` over one line of JSON for each path of a `listing`."""
    digest = hashlib.sha256()
    for path, fields in files:
        line = json.dumps([path, fields], sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return f"sha256:{digest.hexdigest()}"
