"""An OCI image layout with one image in it (OCI image specification 1.1, image-layout.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"

# On the manifest: a hash of every path that a container sees, with its content, mode, owner and
# links but no times. Equal for an image on an engine and for the layout exported from it.
ROOTFS_ANNOTATION = "dev.ddtree.rootfs"


@dataclass(frozen=True)
class Descriptor:
    """What a digest names: `sha256:` and 64 hex digits; size in bytes."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As the specification writes it."""
        body: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.annotations:
            body["annotations"] = dict(sorted(self.annotations.items()))
        return body

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Descriptor:
        """Raises KeyError, TypeError or ValueError for what is not a descriptor."""
        return cls(
            str(raw["mediaType"]),
            str(raw["digest"]),
            int(raw["size"]),
            {str(key): str(value) for key, value in raw.get("annotations", {}).items()},
        )


@dataclass(frozen=True)
class ImageLayout:
    """A folder with `oci-layout`, `index.json` and `blobs/sha256/`, and the one image in it."""

    folder: Path
    manifest: Descriptor

    def blob(self, digest: str) -> Path:
        """Where the content of a digest lies."""
        algorithm, _, value = digest.partition(":")
        return self.folder / "blobs" / algorithm / value

    def document(self) -> dict[str, Any]:
        """The manifest."""
        return dict(json.loads(self.blob(self.manifest.digest).read_bytes()))

    def config(self) -> dict[str, Any]:
        """The image configuration."""
        return dict(json.loads(self.blob(self.document()["config"]["digest"]).read_bytes()))

    def layers(self) -> tuple[Descriptor, ...]:
        """Base first."""
        return tuple(Descriptor.parse(raw) for raw in self.document()["layers"])

    @property
    def rootfs(self) -> str:
        """Hash of the files that a container sees (ROOTFS_ANNOTATION); `sha256:...`."""
        return str(self.document()["annotations"][ROOTFS_ANNOTATION])
