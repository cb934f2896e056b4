"""What one path of a layer is, as layers of the OCI image specification describe it (layer.md)."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

CHUNK = 1 << 20

FILE, LINK, SYMLINK, CHARACTER, BLOCK, FOLDER, FIFO = "0", "1", "2", "3", "4", "5", "6"
_KINDS = {
    tarfile.REGTYPE: FILE,
    tarfile.AREGTYPE: FILE,
    tarfile.CONTTYPE: FILE,
    tarfile.LNKTYPE: LINK,
    tarfile.SYMTYPE: SYMLINK,
    tarfile.CHRTYPE: CHARACTER,
    tarfile.BLKTYPE: BLOCK,
    tarfile.DIRTYPE: FOLDER,
    tarfile.FIFOTYPE: FIFO,
}
_XATTR = "SCHILY.xattr."
# Everything else (security.selinux, trusted.overlay.*) belongs to the machine that built.
_KEPT_XATTRS = ("security.capability", "user.")


@dataclass(frozen=True)
class Entry:
    """One member of a layer. Names are relative, without `./`; bytes that are not UTF-8 are
    surrogates. `mtime` in seconds; `digest` is the SHA-256 of a file's content, in hex."""

    path: str
    kind: str
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    digest: str = ""
    target: str = ""
    device: tuple[int, int] = (0, 0)
    xattrs: Mapping[str, str] = field(default_factory=dict)


def sort_key(path: str) -> tuple[bytes, ...]:
    """Canonical order: a folder, then what is in it, names by their bytes: the order in which
    engines walk a tree, so that their layers need no sorting."""
    return tuple(path.encode("utf-8", "surrogateescape").split(b"/"))


def clean(path: str) -> str:
    """`./usr/` -> `usr`; empty for the root. Raises ValueError for a path that leaves it."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{path!r} leaves the root")
    return "/".join(parts)


def read_entry(member: tarfile.TarInfo, content: BinaryIO | None) -> Entry:
    """From a member, with its content hashed if there is one. Raises ValueError."""
    kind = _KINDS.get(member.type)
    if kind is None or member.issparse():
        raise ValueError(f"{member.name!r} is of a kind that layers do not have")
    digest = ""
    if kind == FILE and content is not None:
        hasher = hashlib.sha256()
        while chunk := content.read(CHUNK):
            hasher.update(chunk)
        digest = hasher.hexdigest()
    target = clean(member.linkname) if kind == LINK else member.linkname
    return Entry(
        path=clean(member.name),
        kind=kind,
        mode=member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        mtime=int(member.mtime),
        size=member.size if kind == FILE else 0,
        digest=digest,
        target=target if kind in (LINK, SYMLINK) else "",
        device=(member.devmajor, member.devminor) if kind in (CHARACTER, BLOCK) else (0, 0),
        xattrs={
            key[len(_XATTR) :]: value
            for key, value in sorted(member.pax_headers.items())
            if key.startswith(_XATTR) and key[len(_XATTR) :].startswith(_KEPT_XATTRS)
        },
    )
