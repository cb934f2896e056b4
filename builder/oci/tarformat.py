"""Tar headers with one spelling for each entry (POSIX.1-2001, pax interchange format).

A header is a plain `ustar` block; what does not fit one (long or non-ASCII names, large numbers,
extended attributes) goes into a pax header before it, keys sorted. No times but mtime, no names of
owners. Written here, not by `tarfile`, so that the bytes do not depend on the Python that runs.
"""

from __future__ import annotations

from builder.oci.entries import BLOCK, CHARACTER, FILE, FOLDER, LINK, Entry

BLOCK_SIZE = 512
END = bytes(2 * BLOCK_SIZE)
_PAX = "x"
_NAME, _ID, _SIZE = 100, 0o7777777, 0o77777777777


def header(entry: Entry, *, path: str, kind: str, target: str, mtime: int) -> bytes:
    """All header blocks of an entry under this name; the content and `padding` follow."""
    name = _bytes(path + ("/" if kind == FOLDER else ""))
    link = _bytes(target)
    size = entry.size if kind == FILE else 0
    records: dict[str, bytes] = {
        f"SCHILY.xattr.{key}": _bytes(value) for key, value in entry.xattrs.items() if kind != LINK
    }
    if not _plain(name):
        records["path"] = name
    if not _plain(link):
        records["linkpath"] = link
    for key, value, limit in (
        ("size", size, _SIZE),
        ("mtime", mtime, _SIZE),
        ("uid", entry.uid, _ID),
        ("gid", entry.gid, _ID),
    ):
        if value > limit:
            records[key] = str(value).encode()
    blocks = b""
    if records:
        body = b"".join(_record(key, value) for key, value in sorted(records.items()))
        blocks = _block(b"./PaxHeaders/entry", _PAX, 0o644, 0, 0, len(body), 0, b"", None)
        blocks += body + bytes(padding(len(body)))
    device = entry.device if kind in (CHARACTER, BLOCK) else None
    return blocks + _block(
        _ascii(name),
        kind,
        entry.mode,
        entry.uid if entry.uid <= _ID else 0,
        entry.gid if entry.gid <= _ID else 0,
        size if size <= _SIZE else 0,
        mtime if mtime <= _SIZE else 0,
        _ascii(link),
        device,
    )


def padding(size: int) -> int:
    """Zero bytes after content of `size` bytes."""
    return -size % BLOCK_SIZE


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _plain(value: bytes) -> bool:
    return len(value) <= _NAME and value.isascii()


def _ascii(value: bytes) -> bytes:
    """What readers that know no pax show; the pax header has the real name."""
    return bytes(byte if byte < 128 else ord("_") for byte in value[:_NAME])


def _record(key: str, value: bytes) -> bytes:
    """`<length> <key>=<value>\\n`, where the length counts itself."""
    rest = b" " + key.encode() + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def _octal(value: int, width: int) -> bytes:
    return f"{value:0{width - 1}o}".encode() + b"\0"


def _block(
    name: bytes,
    kind: str,
    mode: int,
    uid: int,
    gid: int,
    size: int,
    mtime: int,
    link: bytes,
    device: tuple[int, int] | None,
) -> bytes:
    parts = [
        name.ljust(100, b"\0"),
        _octal(mode, 8),
        _octal(uid, 8),
        _octal(gid, 8),
        _octal(size, 12),
        _octal(mtime, 12),
        b" " * 8,  # the checksum, counted as blanks
        kind.encode(),
        link.ljust(100, b"\0"),
        b"ustar\0" + b"00",
        bytes(64),
        b"".join(_octal(number, 8) for number in device) if device else bytes(16),
        bytes(167),
    ]
    checksum = f"{sum(b''.join(parts)):06o}".encode() + b"\0 "
    parts[6] = checksum
    return b"".join(parts)
