"""What is attached to an image, whoever signed it: read without cosign.

`verify` believes none of it. It tells an attestation that is missing from one that is there and was
not signed by the key, was altered, or is of another image.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from builder.errors import ImageAbsentError, TamperedError
from builder.oci.model import Descriptor
from builder.registry.client import Registry
from builder.registry.documents import parse_json
from builder.registry.reference import is_digest
from builder.supply.cosign import statement

_ENVELOPE = "application/vnd.dsse.envelope.v1+json"
_MOST = 500  # attestations of one image
_LARGEST_TOTAL = 256 << 20  # bytes of all: they are held in memory
_LARGEST = 64 << 20  # bytes of one: what Registry.read_blob takes


@dataclass(frozen=True)
class Found:
    """One attestation as it lies in the registry."""

    kind: str
    """Predicate type: of the statement, or of the annotation where that cannot be read."""
    statement: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    """Why there is no statement."""


def read_attached(registry: Registry, digest: str) -> list[Found]:
    """All attestations in cosign's tag `sha256-<hex>.att`. Raises TamperedError."""
    tag = f"{digest.replace(':', '-')}.att"
    found = registry.manifest(tag)
    if found is None:
        return []
    try:
        layers = [Descriptor.parse(raw) for raw in parse_json(found[1])["layers"]]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise TamperedError(
            f"{registry.reference.name}:{tag} is no manifest of attestations",
            "have the image attested again",
        ) from None
    envelopes = [blob for blob in layers if blob.media_type == _ENVELOPE]
    total = sum(min(max(0, blob.size), 1 << 63) for blob in envelopes)
    if len(envelopes) > _MOST or total > _LARGEST_TOTAL:
        raise TamperedError(
            f"{registry.reference.name}:{tag} lists {len(envelopes)} attestations of "
            f"{total >> 20} MiB: more than anybody makes",
            "delete that tag and have the image attested again",
        )
    return [_read(registry, blob) for blob in envelopes]


def _read(registry: Registry, blob: Descriptor) -> Found:
    kind = blob.annotations.get("predicateType", "")
    if not is_digest(blob.digest) or not 0 <= blob.size <= _LARGEST:
        return Found(kind, problem="its descriptor is malformed")
    try:
        body = statement(parse_json(registry.read_blob(blob)))
    except (TamperedError, ImageAbsentError) as exc:
        return Found(kind, problem=exc.what)
    except ValueError:
        return Found(kind, problem="it is not JSON")
    return Found(str(body["predicateType"]), body)
