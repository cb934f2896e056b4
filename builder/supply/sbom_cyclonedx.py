"""The bill of materials as CycloneDX 1.6 JSON (ECMA-424), through cyclonedx-python-lib."""

from __future__ import annotations

from collections.abc import Sequence

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashType, Property, XsUri
from cyclonedx.model import HashAlgorithm as Algorithm
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component as CdxComponent
from cyclonedx.model.component import ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import LicenseAcknowledgement, LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from builder.supply.components import Component
from builder.supply.expressions import NOASSERTION
from builder.supply.subject import Subject

PREDICATE_TYPE = "https://cyclonedx.org/bom"
_TYPES = {
    "debian": ComponentType.LIBRARY,
    "python": ComponentType.LIBRARY,
    "embedded": ComponentType.LIBRARY,
    "native": ComponentType.FILE,
    "kernel": ComponentType.FILE,
    "archive": ComponentType.LIBRARY,
}


def document(subject: Subject, parts: Sequence[Component]) -> Bom:
    """The whole document; the same for the same image. Parts lie inside those that carry them."""
    made = {part.ref: _component(subject.prefix, part) for part in parts}
    top: list[CdxComponent] = []
    for part in parts:
        if part.parent:
            made[part.parent].components.add(made[part.ref])
        else:
            top.append(made[part.ref])
    image = CdxComponent(
        name=subject.name,
        version=subject.version,
        type=ComponentType.CONTAINER,
        bom_ref="image",
        purl=PackageURL.from_string(subject.purl),
        hashes=[HashType(alg=Algorithm.SHA_256, content=subject.digest.partition(":")[2])],
    )
    builder = CdxComponent(
        name=f"{subject.name}-builder", version=subject.version, type=ComponentType.APPLICATION
    )
    outer = [part for part in parts if not part.parent]
    return Bom(
        serial_number=subject.uuid("cyclonedx"),
        metadata=BomMetaData(
            component=image,
            timestamp=subject.created,
            tools=ToolRepository(components=[builder]),
        ),
        components=top,
        dependencies=[
            Dependency(image.bom_ref, [Dependency(made[part.ref].bom_ref) for part in outer]),
            *(
                Dependency(
                    made[part.ref].bom_ref,
                    [Dependency(made[ref].bom_ref) for ref in part.requires],
                )
                for part in outer
            ),
        ],
    )


def encode(subject: Subject, parts: Sequence[Component]) -> bytes:
    """The document's bytes: JSON with a newline at its end."""
    outputter = make_outputter(document(subject, parts), OutputFormat.JSON, SchemaVersion.V1_6)
    return outputter.output_as_string().encode() + b"\n"


def _component(prefix: str, part: Component) -> CdxComponent:
    licence = part.licence
    known = licence.expression != NOASSERTION
    properties = {**part.properties, "licence.from": licence.origin}
    if licence.stated:
        properties["licence.stated"] = licence.stated
    if licence.texts:
        properties["licence.text"] = ", ".join(f"/{path}" for path in licence.texts)
    if part.path:
        properties["path"] = f"/{part.path}"
    return CdxComponent(
        name=part.name,
        version=part.version or None,
        type=_TYPES[part.kind],
        bom_ref=part.ref,
        purl=PackageURL.from_string(part.purl) if part.purl else None,
        hashes=[HashType(alg=Algorithm.SHA_256, content=part.sha256)] if part.sha256 else [],
        licenses=(
            [LicenseExpression(licence.expression, acknowledgement=LicenseAcknowledgement.DECLARED)]
            if known
            else []
        ),
        external_references=(
            [ExternalReference(type=ExternalReferenceType.WEBSITE, url=XsUri(part.homepage))]
            if part.homepage.startswith(("http://", "https://"))
            else []
        ),
        properties=[
            Property(name=f"{prefix}:{key}", value=value)
            for key, value in sorted(properties.items())
        ],
    )
