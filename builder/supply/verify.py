"""`verify`: what an image in a registry is, checked from its digest upwards.

Everything is checked of one digest: a tag is resolved once. The digest fixes manifest,
configuration and layers; the signature fixes the digest; the attestations are signed for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import (
    BuilderError,
    ImageAbsentError,
    ImageReferenceError,
    RegistryRefusedError,
    TamperedError,
    UnsignedError,
)
from builder.oci.model import MANIFEST
from builder.registry.client import Registry
from builder.registry.reference import Reference
from builder.supply.attach import CYCLONEDX, PROVENANCE, RECEIPT, SPDX, concerns, signed_name
from builder.supply.attached import Found, read_attached
from builder.supply.cosign import Cosign
from builder.supply.evidence_checks import Attestations, check_provenance, check_receipts
from builder.supply.image_checks import (
    Image,
    check_config,
    check_labels,
    check_layers,
    check_layers_present,
    check_manifest,
    check_tag,
)
from builder.supply.report import Report, Row, failed, one_line, passed, skipped
from builder.supply.sbom_checks import check_cyclonedx, check_spdx

_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True)
class Demand:
    """What to check beyond what is always checked."""

    scratch: Path
    """A folder with room for the largest layer; used with `layers`."""
    layers: bool = False
    """Download and hash every layer."""
    receipts: tuple[str, ...] = ()
    """Levels (builder/receipts.py) that must be there."""
    signed_as: str = ""
    """The repository that the signature names, where the image was copied from there."""


@dataclass(frozen=True)
class Signer:
    """Whose signatures count."""

    cosign: Cosign
    public: str


def verify(
    reference: Reference, signer: Signer | None, demand: Demand, *, label_prefix: str
) -> Report:
    """Check an image; without a signer all but its authenticity.

    Raises ImageAbsentError, ImageReferenceError (it names several images) and the registry errors;
    everything else is a row of the report.
    """
    asked = reference.digest or reference.tag
    if not asked:
        raise ImageReferenceError(f"{reference} has neither tag nor digest", "name one, best both")
    registry = Registry(reference)
    try:
        found = registry.manifest(asked)
    except TamperedError as exc:
        row = failed("manifest", one_line(exc.what), TamperedError)
        rest = skipped("the rest", "there is no manifest that could be believed")
        return Report(str(reference), reference.digest, signer is not None, (row, rest))
    if found is None:
        with suppress(RegistryRefusedError):  # what refuses is a registry
            registry.ping()  # any web server says 404
        raise ImageAbsentError(f"{reference} does not exist", "check the name; `build.py push` it")
    descriptor, content = found
    if descriptor.media_type not in (MANIFEST, _DOCKER_MANIFEST):
        raise ImageReferenceError(
            f"{reference} is {one_line(descriptor.media_type, 80)}, not one image",
            "name the image's own digest",
        )
    image = Image(descriptor, content, label_prefix)
    by_digest = reference.with_digest(descriptor.digest)
    rows = [
        check_manifest(image),
        check_config(image, registry),
        check_labels(image),
        check_tag(image, reference.tag),
        check_layers(image, registry, demand.scratch)
        if demand.layers
        else check_layers_present(image, registry),
    ]
    signature = _signature(by_digest, signer, demand.signed_as)
    rows.append(signature)
    rows += _evidence(by_digest, registry, image, signer, signature, demand.receipts)
    return Report(str(reference), descriptor.digest, signer is not None, tuple(rows))


def _signature(image: Reference, signer: Signer | None, signed_as: str) -> Row:
    if signer is None:
        return skipped("signature", "NOT CHECKED: no key was given")
    try:
        claims = signer.cosign.verify(image, signer.public)
    except (UnsignedError, TamperedError) as exc:
        return failed("signature", one_line(exc.what, 400), type(exc))
    names = sorted({signed_name(claim) for claim in claims})
    wanted = signed_as or image.name
    if wanted not in names:
        return failed(
            "signature",
            f"by this key, but for {one_line(', '.join(names))}, not for {wanted} "
            "(--signed-as NAME, if the image was copied from there)",
            UnsignedError,
        )
    return passed("signature", f"by this key, of this digest, for {wanted}")


def _evidence(
    image_name: Reference,
    registry: Registry,
    image: Image,
    signer: Signer | None,
    signature: Row,
    required: Sequence[str],
) -> list[Row]:
    rows = []
    attached: list[Found] = []
    try:
        attached = read_attached(registry, image.manifest.digest)
    except TamperedError as exc:
        rows.append(failed("attestations", one_line(exc.what), TamperedError))
    signed: dict[str, list[dict[str, Any]]] = {}
    for kind in (SPDX, CYCLONEDX, PROVENANCE, RECEIPT):
        try:
            signed[kind] = _counting(image_name, image, signer, kind, attached)
        except TamperedError as exc:
            rows.append(failed("attestations", one_line(exc.what), TamperedError))
    unsigned: type[BuilderError] = UnsignedError if signature.error else TamperedError
    attestations = Attestations(attached, signed, signer is not None, unsigned)
    rows += [
        attestations.row("SBOM SPDX", SPDX, image, check_spdx),
        attestations.row("SBOM CycloneDX", CYCLONEDX, image, check_cyclonedx),
        attestations.row("provenance", PROVENANCE, image, check_provenance),
    ]
    return rows + check_receipts(attestations, image, required)


def _counting(
    name: Reference, image: Image, signer: Signer | None, kind: str, attached: Sequence[Found]
) -> list[dict[str, Any]]:
    """Statements of a kind that count: the key's, or without a key those of this digest."""
    present = [found for found in attached if found.kind == kind]
    if signer is None:
        digest = image.manifest.digest
        return [found.statement for found in present if concerns(found.statement, digest)]
    if not present:  # cosign would find what we found
        return []
    return signer.cosign.attestations(name, signer.public, kind)
