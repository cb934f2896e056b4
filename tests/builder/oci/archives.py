"""What `docker save` writes, made by hand: any order, times, flavour and compression."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import zstandard

EPOCH = 1_700_000_000
Flavour = Literal["docker", "oci"]
Packing = Literal["", "gzip", "zstd"]


@dataclass(frozen=True)
class Member:
    """One member of a layer; folders end in a slash, `link` is a hard link, `target` a symlink."""

    path: str
    content: bytes = b""
    link: str = ""
    target: str = ""
    mode: int = 0o644
    owner: tuple[int, int] = (0, 0)
    mtime: float = EPOCH + 5
    xattrs: dict[str, str] = field(default_factory=dict)

    def info(self) -> tarfile.TarInfo:
        info = tarfile.TarInfo(self.path.rstrip("/"))
        info.mode, (info.uid, info.gid), info.mtime = self.mode, self.owner, self.mtime
        if self.path.endswith("/"):
            info.type, info.mode = tarfile.DIRTYPE, 0o755
        elif self.link:
            info.type, info.linkname = tarfile.LNKTYPE, self.link
        elif self.target:
            info.type, info.linkname = tarfile.SYMTYPE, self.target
        else:
            info.size = len(self.content)
        info.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in self.xattrs.items()}
        return info


def layer(members: Sequence[Member], noise: random.Random | None = None) -> bytes:
    """A layer's tar; with `noise` in another order, with other times and names of owners."""
    chosen = list(members)
    if noise is not None:
        links = [m for m in chosen if m.link]
        chosen = [m for m in chosen if not m.link]
        noise.shuffle(chosen)
        chosen += links  # a hard link follows its target
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in chosen:
            info = member.info()
            if noise is not None:
                if info.mtime > EPOCH:
                    info.mtime = EPOCH + noise.random() * 1e6
                info.uname = info.gname = noise.choice(("", "root", "builder"))
                info.name = noise.choice(("", "./")) + info.name
                info.pax_headers = {
                    **info.pax_headers,
                    "atime": str(noise.random() * 1e6),
                    "LIBARCHIVE.creationtime": "7",
                }
            tar.addfile(info, io.BytesIO(member.content) if info.isreg() else None)
    return out.getvalue()


CONFIG: dict[str, Any] = {
    "Cmd": ["serve"],
    "Entrypoint": ["/bin/run"],
    "Env": ["PATH=/bin"],
    "Healthcheck": {"Test": ["CMD", "ok"], "Interval": 10},
    "Labels": {"a": "b"},
    "User": "10001:0",
}
HOST = {"Hostname": "host-of-the-build", "Image": "sha256:1", "Tty": False}


def save(
    layers: Sequence[Sequence[Member]],
    *,
    flavour: Flavour = "oci",
    packing: Packing = "",
    noise: random.Random | None = None,
    tag: str = "x:1",
    config: dict[str, Any] | None = None,
) -> bytes:
    """The whole archive."""
    plain = [layer(members, noise) for members in layers]
    created = f"20{noise.randint(20, 30) if noise else 26}-01-01T00:00:00Z"
    document = {
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "container": "ab" * 32 if noise else "",
        "docker_version": "1.2",
        "config": {**(config or CONFIG), **HOST},
        "history": [
            *({"created": created, "created_by": f"step {n}"} for n in range(len(plain))),
            {"created": created, "created_by": "CMD", "empty_layer": True},
        ],
        "rootfs": {"type": "layers", "diff_ids": [_sha(data) for data in plain]},
    }
    raw = json.dumps(document).encode()
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    names = []
    for number, data in enumerate(plain):
        packed = _pack(data, packing)
        if flavour == "oci":
            name = f"blobs/sha256/{_sha(packed)[7:]}"
        else:
            name = f"{number:064x}/layer.tar"
            files[f"{number:064x}/VERSION"] = b"1.0"
            equal = [other for other in files if files[other] == packed]
            if equal:
                links[name] = f"../{equal[0]}"
        names.append(name)
        if name not in links:
            files[name] = packed
    config_name = f"blobs/sha256/{_sha(raw)[7:]}" if flavour == "oci" else f"{_sha(raw)[7:]}.json"
    files[config_name] = raw
    manifest = [{"Config": config_name, "RepoTags": [tag], "Layers": names}]
    files["manifest.json"] = json.dumps(manifest).encode()
    order = [*files, *links]
    if noise is not None:
        noise.shuffle(order)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in order:
            info = tarfile.TarInfo(name)
            if name in links:
                info.type, info.linkname = tarfile.SYMTYPE, links[name]
                tar.addfile(info)
            else:
                info.size = len(files[name])
                tar.addfile(info, io.BytesIO(files[name]))
    return out.getvalue()


def _sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _pack(data: bytes, packing: Packing) -> bytes:
    if packing == "gzip":
        return gzip.compress(data)
    return zstandard.compress(data) if packing == "zstd" else data


@dataclass(frozen=True)
class Stream:
    """Gives the archive anew each time, in pieces of `size` bytes."""

    data: bytes
    size: int = 4096

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self.data), self.size):
            yield self.data[start : start + self.size]


def unpack(blob: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Members of a compressed layer, with their content."""
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(blob)
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        found = []
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            found.append((member, content.read() if content else b""))
        return found
