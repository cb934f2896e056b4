"""The image that evidence is about: its digest, its labels, and the names derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from uuid import UUID, uuid5

from packageurl import PackageURL

from builder.oci.model import ImageLayout
from builder.pins import Target

# Of the names below: any fixed UUID serves (RFC 9562, 5.5); this one is of the project alone.
_NAMESPACE = UUID("6f0e7c54-9f5b-5f0a-8a62-4d5d54726565")


@dataclass(frozen=True)
class Subject:
    """An exported image. `digest` is its manifest's, `sha256:` and 64 hex digits."""

    name: str
    version: str
    tag: str
    digest: str
    labels: Mapping[str, str]
    epoch: int
    prefix: str  # of our own labels, a reverse DNS name

    @property
    def created(self) -> datetime:
        """source_date_epoch, UTC."""
        return datetime.fromtimestamp(self.epoch, tz=timezone.utc)

    @property
    def domain(self) -> str:
        """The prefix as a DNS name: `ddtree.dev` of `dev.ddtree`."""
        return ".".join(reversed(self.prefix.split(".")))

    @property
    def purl(self) -> str:
        """Package URL of type `oci`, which names the digest."""
        qualifiers = {"arch": "amd64", "tag": self.tag}
        return PackageURL("oci", None, self.name, self.digest, qualifiers).to_string()

    def uuid(self, what: str) -> UUID:
        """The same for the same digest and purpose."""
        return uuid5(_NAMESPACE, f"{what} {self.digest}")

    def label(self, key: str) -> str:
        """One of ours without its prefix; empty when it is missing."""
        return self.labels.get(f"{self.prefix}.{key}", "")


def subject_of(target: Target, layout: ImageLayout) -> Subject:
    """Of an exported image: the labels of its configuration."""
    config: dict[str, Any] = layout.config().get("config") or {}
    labels = {str(key): str(value) for key, value in (config.get("Labels") or {}).items()}
    project = target.shared.project
    build_id = labels.get(f"{project.label_prefix}.build-id", "")
    return Subject(
        name=project.image_name,
        version=project.version,
        tag=f"{project.version}-{target.name}-{build_id}",
        digest=layout.manifest.digest,
        labels=labels,
        epoch=target.shared.source_date_epoch,
        prefix=project.label_prefix,
    )
