"""Small OCI layouts, written as builder/oci/model.py describes them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path

from builder.oci.model import (
    CONFIG,
    INDEX,
    LAYER_ZSTD,
    MANIFEST,
    ROOTFS_ANNOTATION,
    Descriptor,
    ImageLayout,
)


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that no two positions of a blob share by accident."""
    return random.Random(seed).randbytes(size)  # noqa: S311 - content, not a key


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def add_blob(folder: Path, content: bytes, media_type: str) -> Descriptor:
    digest = digest_of(content)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    (blobs / digest.removeprefix("sha256:")).write_bytes(content)
    return Descriptor(media_type, digest, len(content))


def make_layout(folder: Path, layers: Sequence[bytes], *, note: str = "") -> ImageLayout:
    """An image of these layers; `note` makes its configuration, so its digest, another one."""
    blobs = [add_blob(folder, layer, LAYER_ZSTD) for layer in layers]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": {"note": note}},
        "rootfs": {"type": "layers", "diff_ids": [blob.digest for blob in blobs]},
    }
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": add_blob(folder, json.dumps(config).encode(), CONFIG).document(),
        "layers": [blob.document() for blob in blobs],
        "annotations": {ROOTFS_ANNOTATION: digest_of(b"".join(layers))},
    }
    manifest = add_blob(folder, json.dumps(document).encode(), MANIFEST)
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest.document()]}
    (folder / "index.json").write_text(json.dumps(index))
    return ImageLayout(folder, manifest)
