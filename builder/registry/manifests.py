"""Reading a registry's answers: manifests, checked by digest, and lists of tags."""

from __future__ import annotations

import hashlib
import re

import requests

from builder.errors import TamperedError
from builder.oci.model import INDEX, MANIFEST, Descriptor
from builder.registry import failures
from builder.registry.documents import parse_json
from builder.registry.reference import is_digest

ACCEPT = ", ".join(
    (
        MANIFEST,
        INDEX,
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
LARGEST = 4 << 20  # bytes; what the specification asks registries to take
_NEXT = re.compile(r'\s*<([^>]+)>\s*;\s*rel="?next"?')


def digest_of(content: bytes) -> str:
    """`sha256:` and the hash."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read(response: requests.Response, where: str, asked: str) -> tuple[Descriptor, bytes]:
    """The manifest in an answer to `asked` (a tag or digest). Raises TamperedError.

    A digest that was asked for must be that of the bytes; for a tag, so must the one that the
    registry states.
    """
    content = response.content
    digest = digest_of(content)
    stated = response.headers.get("Docker-Content-Digest", "")
    if is_digest(asked) and digest != asked:
        raise _tampered(where, asked, f"bytes of {digest}")
    if is_digest(stated) and digest != stated:
        raise _tampered(where, asked, f"bytes of {digest}, which it states as {stated}")
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
    try:
        media_type = str(parse_json(content).get("mediaType") or media_type or MANIFEST)
    except (ValueError, AttributeError):
        raise _tampered(where, asked, "what is not a manifest") from None
    return Descriptor(media_type, digest, len(content)), content


def read_tags(response: requests.Response, where: str) -> tuple[list[str], str]:
    """Tags of one page, and the address of the next one (empty: it was the last)."""
    try:
        names = [str(name) for name in parse_json(response.content).get("tags") or ()]
    except (ValueError, AttributeError, TypeError):
        raise failures.refused(response, where, "listing tags") from None
    link = _NEXT.match(response.headers.get("Link", ""))
    return names, link[1] if link else ""


def _tampered(where: str, asked: str, what: str) -> TamperedError:
    return TamperedError(
        f"{where} answers for {asked} with {what}",
        "do not use this registry's copy; push the image again from a good one",
    )
