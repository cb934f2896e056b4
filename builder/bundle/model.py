"""One file of a bundle, known by its hash before it is written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.errors import TamperedError
from builder.files import CHUNK, sha256_file

CHECKSUMS = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"


@dataclass(frozen=True)
class Entry:
    """A path below the bundle's root, and where its bytes come from; size in bytes."""

    path: str
    sha256: str
    size: int
    source: Path | bytes
    executable: bool = False

    @classmethod
    def of_bytes(cls, path: str, data: bytes) -> Entry:
        """A file that the builder writes."""
        return cls(path, hashlib.sha256(data).hexdigest(), len(data), data)

    @classmethod
    def of_file(cls, path: str, source: Path, *, executable: bool = False) -> Entry:
        """A file of the repository or of the cache. Raises OSError."""
        return cls(path, sha256_file(source), source.stat().st_size, source, executable)

    @property
    def mode(self) -> int:
        return 0o755 if self.executable else 0o644

    def chunks(self) -> Iterator[bytes]:
        """The bytes. Raises TamperedError after the last one if they are not those of `sha256`."""
        if isinstance(self.source, bytes):
            yield self.source
            return
        digest, size = hashlib.sha256(), 0
        with self.source.open("rb") as handle:
            while chunk := handle.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
                yield chunk
        if digest.hexdigest() != self.sha256 or size != self.size:
            raise TamperedError(
                f"{self.source} is not what its digest says (sha256:{self.sha256})",
                "remove it and make the bundle again; if that recurs, check the disk",
            )


def checksums(entries: Iterable[Entry]) -> bytes:
    """SHA256SUMS over all entries, sorted by path, as `sha256sum` writes it."""
    lines = sorted((entry.path, entry.sha256) for entry in entries)
    return "".join(f"{digest}  {path}\n" for path, digest in lines).encode()
