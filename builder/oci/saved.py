"""Reading what `docker save` writes, as it comes.

Two flavours: the docker-archive of engines before 25 (`<id>/layer.tar`, links between equal layers)
and an OCI layout with `manifest.json` beside it. Members come in any order, the manifest mostly
last, layers plain or compressed; so every member is judged by its first bytes, and nothing of a
layer is held in memory.
"""

from __future__ import annotations

import gzip
import io
import json
import posixpath
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import zstandard

from builder.errors import TamperedError
from builder.oci.entries import CHUNK

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SMALL = 16 << 20  # no manifest or configuration is larger
_READ = 64 << 10  # `tarfile` copies the rest of what it read with each header
_REMEDY = "save the image anew; if it happens again, look at the engine's log"


@dataclass(frozen=True)
class SavedImage:
    """The configuration, and the names of the layers' members in the stream, base first."""

    config: dict[str, Any]
    layers: tuple[str, ...]


class ChunkReader(io.RawIOBase):
    """A readable file over chunks of bytes (an HTTP answer)."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class _Ahead(io.RawIOBase):
    """A file with its first bytes put back."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._body = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._head[: len(buffer)] or self._body.read(len(buffer))
        self._head = self._head[len(data) :]
        buffer[: len(data)] = data
        return len(data)


def members(stream: BinaryIO) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Members of a tar stream, without the list that `tarfile` would grow.

    Names are UTF-8 whatever this machine's locale says, or the digest would depend on it.
    """
    with tarfile.open(
        fileobj=stream,
        mode="r|",
        bufsize=_READ,
        errorlevel=2,
        encoding="utf-8",
        errors="surrogateescape",
    ) as tar:
        while (member := tar.next()) is not None:
            yield member, tar
            tar.members = []  # type: ignore[attr-defined]


def decompressed(head: bytes, stream: BinaryIO) -> BinaryIO:
    """A layer's tar, whatever packed it; `head` are its first bytes, taken already."""
    whole = io.BufferedReader(_Ahead(head, stream), CHUNK)
    if head.startswith(_GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=whole))
    if head.startswith(_ZSTD):
        reader = zstandard.ZstdDecompressor().stream_reader(whole, read_across_frames=True)
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, reader), CHUNK))
    return whole


def read_saved(chunks: Iterable[bytes], on_layer: Callable[[str, BinaryIO], None]) -> SavedImage:
    """Call `on_layer(name, tar)` for each layer as it passes. Raises TamperedError."""
    documents: dict[str, bytes] = {}
    links: dict[str, str] = {}
    try:
        source = cast(BinaryIO, io.BufferedReader(ChunkReader(chunks), CHUNK))
        for member, tar in members(source):
            if member.issym() or member.islnk():
                base = posixpath.dirname(member.name) if member.issym() else ""
                links[member.name] = posixpath.normpath(posixpath.join(base, member.linkname))
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                continue
            head = content.read(BLOCK)
            # A tar's header has zero bytes, JSON none: the first file of a layer may be named `[`.
            if head[:1] in b"{[" and 0 not in head and member.size <= _SMALL:
                documents[member.name] = head + content.read()
            elif head.startswith((_GZIP, _ZSTD)) or head[257:262] == b"ustar" or not any(head):
                if len(head) == BLOCK:
                    on_layer(member.name, decompressed(head, cast(BinaryIO, content)))
                elif head.startswith((_GZIP, _ZSTD)):  # compressed, and tiny
                    on_layer(member.name, decompressed(head, io.BytesIO()))
        while source.read(CHUNK):  # to the end, so that the engine drops what it gathered
            pass
        config, layers = _manifest(documents)
    except (tarfile.TarError, EOFError, OSError, zstandard.ZstdError, ValueError) as exc:
        if isinstance(exc, OSError) and exc.errno:
            raise  # of our disk, not of what was read
        raise TamperedError(f"the saved image cannot be read: {exc}", _REMEDY) from None
    except (KeyError, IndexError, TypeError) as exc:
        raise TamperedError(f"the saved image has no usable manifest: {exc!r}", _REMEDY) from None
    return SavedImage(config, tuple(_follow(name, links) for name in layers))


BLOCK = 512


def _follow(name: str, links: dict[str, str]) -> str:
    for _ in range(len(links)):
        if name not in links:
            break
        name = links[name]
    return name


def _manifest(documents: dict[str, bytes]) -> tuple[dict[str, Any], list[str]]:
    """Configuration and layers of the one image; docker's own manifest before the OCI index."""
    if "manifest.json" in documents:
        (image,) = json.loads(documents["manifest.json"])
        return json.loads(documents[image["Config"]]), [str(name) for name in image["Layers"]]
    (entry,) = json.loads(documents["index.json"])["manifests"]
    document = json.loads(documents[_blob(entry["digest"])])
    config = json.loads(documents[_blob(document["config"]["digest"])])
    return config, [_blob(layer["digest"]) for layer in document["layers"]]


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/", 1)
