"""Mirrors: other addresses for pinned files. The hash pins make any mirror safe."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from builder.errors import MirrorOptionError

ENVIRONMENT = "DDTREE_MIRRORS"
_MIRROR = re.compile(r"(https?://[^\s=]+)=(https?://[^\s]+)")


def parse_mirrors(options: Iterable[str]) -> dict[str, str]:
    """`PREFIX=URL` strings, those of $DDTREE_MIRRORS (space separated) first.

    Raises MirrorOptionError for anything else.
    """
    mirrors: dict[str, str] = {}
    for origin, text in [
        *((ENVIRONMENT, text) for text in os.environ.get(ENVIRONMENT, "").split()),
        *(("--mirror", text) for text in options),
    ]:
        match = _MIRROR.fullmatch(text)
        if match is None:
            raise MirrorOptionError(
                f"{origin}: {text!r} is not PREFIX=URL",
                "write it like https://download.pytorch.org/whl=https://mirror.example/pytorch",
            )
        mirrors[match[1].rstrip("/")] = match[2].rstrip("/")
    return mirrors


def mirrored(url: str, mirrors: Mapping[str, str]) -> str:
    """The address to fetch `url` from: the longest prefix that ends at a path segment wins."""
    for prefix in sorted(mirrors, key=len, reverse=True):
        if url.startswith(prefix + "/"):
            return mirrors[prefix] + url[len(prefix) :]
    return url
