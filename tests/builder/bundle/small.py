"""A layout made by hand, with the labels of an image of ours and two small layers."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

from builder.oci.model import (
    CONFIG,
    INDEX,
    LAYER_ZSTD,
    MANIFEST,
    ROOTFS_ANNOTATION,
    Descriptor,
    ImageLayout,
)
from tests.builder.bundle.hello import hello

BUILD_ID = "0123456789abcdef"
NAME = f"ddtree-appliance:0.1.0-cu130-{BUILD_ID}"
EPOCH = 1788134400
LABELS = {
    "dev.ddtree.variant": "cu130",
    "dev.ddtree.stand-in": "false",
    "dev.ddtree.build-id": BUILD_ID,
    "org.opencontainers.image.version": "0.1.0",
    "org.opencontainers.image.revision": "1" * 40,
}


def layer_tar(files: dict[str, bytes]) -> bytes:
    """An uncompressed layer."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@dataclass
class SmallImage:
    """What goes into a layout; a test changes a field and makes it anew."""

    layers: list[bytes] = field(
        default_factory=lambda: [
            layer_tar({"etc/base": b"base\n" * 5000}),
            layer_tar({"bin/hello": hello("it runs\n"), "opt/app": bytes(range(256)) * 40}),
        ]
    )
    labels: dict[str, str] = field(default_factory=lambda: dict(LABELS))
    media_type: str = LAYER_ZSTD
    command: tuple[str, ...] = ("/bin/hello",)

    def make(self, folder: Path) -> ImageLayout:
        """Write it."""
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True)

        def put(media_type: str, data: bytes) -> Descriptor:
            digest = hashlib.sha256(data).hexdigest()
            (blobs / digest).write_bytes(data)
            return Descriptor(media_type, f"sha256:{digest}", len(data))

        compressor = zstandard.ZstdCompressor()
        packed = [put(self.media_type, compressor.compress(layer)) for layer in self.layers]
        diff_ids = ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in self.layers]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": self.labels, "Cmd": list(self.command)},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
        manifest = put(
            MANIFEST,
            json.dumps(
                {
                    "schemaVersion": 2,
                    "mediaType": MANIFEST,
                    "config": put(CONFIG, json.dumps(config).encode()).document(),
                    "layers": [layer.document() for layer in packed],
                    "annotations": {ROOTFS_ANNOTATION: "sha256:" + "5" * 64},
                }
            ).encode(),
        )
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest.document()]}
        (folder / "index.json").write_text(json.dumps(index))
        return ImageLayout(folder, manifest)
