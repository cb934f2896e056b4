"""What one file holds, read once: its hash, and what the audit asks of ELF files and of text.

The file is mapped, hashed, and looked through while its pages are in memory: the image has seven
gigabytes, and reading them again for every rule would be most of the audit's time.
"""

from __future__ import annotations

import base64
import hashlib
import mmap
import re
from dataclasses import dataclass, replace
from pathlib import Path

from builder.inside.elf import MAGIC, ElfFile, NotElfError, parse_elf
from builder.inside.fatbin import FatbinError, device_code

# Mangled names in the namespaces of torch: functions, methods, vtables, type information, guards.
_TORCH_SYMBOL = re.compile(
    r"_Z(?:T[ISVT]|GV)?N?[KVrRO]*(?:3c10|4c10d|2at|5torch|6caffe2)|(?:aoti_)?torch_[a-z]"
)
# Secrets are short; larger files are data and libraries.
_TEXT_LIMIT = 4 << 20
_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:\s|\\n|\\r)+"
    rb"(?:[A-Za-z-]+: [^\n]*\n\s*)*[A-Za-z0-9+/=]{40}"
)
# A mark that is searched for first, cheaply, and the form that makes it a secret.
_SECRETS = (
    (b"PRIVATE KEY", _KEY, "a private key"),
    (b"AKIA", re.compile(rb"\bAKIA(?![A-Z0-9]*EXAMPLE)[A-Z0-9]{16}\b"), "an AWS access key"),
    (b"hf_", re.compile(rb"\bhf_[A-Za-z0-9]{34}\b"), "a Hugging Face token"),
    (b"ghp_", re.compile(rb"\bghp_[A-Za-z0-9]{36}\b"), "a GitHub token"),
    (b"github_pat_", re.compile(rb"\bgithub_pat_[A-Za-z0-9_]{60,}\b"), "a GitHub token"),
    (b"glpat-", re.compile(rb"\bglpat-[A-Za-z0-9_-]{20}\b"), "a GitLab token"),
    (b"AIza", re.compile(rb"\bAIza[A-Za-z0-9_-]{35}\b"), "a Google API key"),
    (b"xox", re.compile(rb"\bxox[abprs]-[0-9]{8,}-[A-Za-z0-9-]{16,}"), "a Slack token"),
)


@dataclass(frozen=True)
class Contents:
    """One file. `digest` is written as in a RECORD: `sha256=` and unpadded URL-safe base64."""

    digest: str
    elf: ElfFile | None = None
    damage: str = ""  # ELF magic, but unreadable; or a fat binary that is
    secret: str = ""  # what it seems to hold


def is_torch_symbol(name: str) -> bool:
    """Whether a symbol must come from libtorch, libc10 or a sibling."""
    return _TORCH_SYMBOL.match(name) is not None


def inspect(path: Path, name: str) -> Contents:
    """Read one regular file. Raises OSError."""
    with path.open("rb") as handle:
        size = path.stat().st_size
        if not size:
            return Contents(record_digest(b""))
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            digest = record_digest(data)
            if data[:4] != MAGIC:
                return Contents(digest, secret=_secret(data[:]) if size <= _TEXT_LIMIT else "")
            try:
                elf = parse_elf(handle, name, is_torch_symbol)
                return Contents(digest, replace(elf, code=device_code(data)))
            except NotElfError as exc:
                return Contents(digest, damage=str(exc))
            except FatbinError as exc:
                return Contents(digest, elf, damage=f"{name}: {exc}")


def record_digest(data: bytes | mmap.mmap) -> str:
    """As a RECORD writes it (PyPA specifications, "Recording installed projects")."""
    value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={value.decode()}"


def _secret(data: bytes) -> str:
    for mark, form, what in _SECRETS:
        if mark in data and form.search(data):
            return what
    return ""
