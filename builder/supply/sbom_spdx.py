"""The bill of materials as SPDX 2.3 JSON (ISO/IEC 5962 is its 2.2.1), through spdx-tools.

Native files are packages here, with a file name and a SHA-256: an SPDX file needs a SHA-1 (8.4),
which nothing else in this project relies on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from license_expression import LicenseExpression  # type: ignore[import-untyped]
from spdx_tools.spdx.jsonschema.document_converter import DocumentConverter
from spdx_tools.spdx.model.actor import Actor, ActorType
from spdx_tools.spdx.model.checksum import Checksum, ChecksumAlgorithm
from spdx_tools.spdx.model.document import CreationInfo, Document
from spdx_tools.spdx.model.extracted_licensing_info import ExtractedLicensingInfo
from spdx_tools.spdx.model.package import (
    ExternalPackageRef,
    ExternalPackageRefCategory,
    Package,
    PackagePurpose,
)
from spdx_tools.spdx.model.relationship import Relationship, RelationshipType
from spdx_tools.spdx.model.spdx_no_assertion import SpdxNoAssertion

from builder.supply.components import Component
from builder.supply.expressions import NOASSERTION, licensing, references
from builder.supply.licences import Licence
from builder.supply.subject import Subject

PREDICATE_TYPE = "https://spdx.dev/Document"
_DOCUMENT = "SPDXRef-DOCUMENT"
_IMAGE = "SPDXRef-Image"
_MAX_TEXTS = 40  # places named for a LicenseRef that a hundred packages share
_PURPOSES = {
    "debian": PackagePurpose.LIBRARY,
    "python": PackagePurpose.LIBRARY,
    "embedded": PackagePurpose.LIBRARY,
    "native": PackagePurpose.FILE,
    "kernel": PackagePurpose.FILE,
    "archive": PackagePurpose.ARCHIVE,
}


def document(subject: Subject, parts: Sequence[Component]) -> Document:
    """The whole document; the same for the same image."""
    names = {part.ref: _spdx_id(part) for part in parts}
    relationships = [Relationship(_DOCUMENT, RelationshipType.DESCRIBES, _IMAGE)]
    for part in parts:
        parent = names[part.parent] if part.parent else _IMAGE
        relationships.append(Relationship(parent, RelationshipType.CONTAINS, names[part.ref]))
        relationships += [
            Relationship(names[part.ref], RelationshipType.DEPENDS_ON, names[ref])
            for ref in part.requires
        ]
    return Document(
        creation_info=CreationInfo(
            spdx_version="SPDX-2.3",
            spdx_id=_DOCUMENT,
            name=f"{subject.name}-{subject.tag}",
            document_namespace=(
                f"https://{subject.domain}/spdx/{subject.name}-{subject.uuid('spdx')}"
            ),
            creators=[Actor(ActorType.TOOL, f"{subject.name}-builder-{subject.version}")],
            created=subject.created.replace(tzinfo=None),  # spdx-tools appends the Z itself
        ),
        packages=[_image(subject), *(_package(names[part.ref], part) for part in parts)],
        relationships=relationships,
        extracted_licensing_info=_extracted(parts),
    )


def encode(subject: Subject, parts: Sequence[Component]) -> bytes:
    """The document's bytes: compact JSON with a newline at its end."""
    # Not through its writer: that removes duplicates by comparing each element with every other.
    converter = DocumentConverter()  # type: ignore[no-untyped-call]
    converted = converter.convert(document(subject, parts))
    return json.dumps(converted, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _image(subject: Subject) -> Package:
    return Package(
        spdx_id=_IMAGE,
        name=subject.name,
        version=subject.version,
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[_sha256(subject.digest.partition(":")[2])],
        license_concluded=SpdxNoAssertion(),
        license_declared=SpdxNoAssertion(),
        license_comment="each part has its own; our own code is Apache-2.0",
        copyright_text=SpdxNoAssertion(),
        external_references=[_reference(subject.purl)],
        primary_package_purpose=PackagePurpose.CONTAINER,
    )


def _package(spdx_id: str, part: Component) -> Package:
    comments = [f"{key}: {value}" for key, value in sorted(part.properties.items())]
    return Package(
        spdx_id=spdx_id,
        name=part.name,
        version=part.version or None,
        file_name=f"./{part.path}" if part.sha256 and part.path else None,
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[_sha256(part.sha256)] if part.sha256 else [],
        homepage=part.homepage if re.match(r"https?://[^\s]+$", part.homepage) else None,
        license_concluded=SpdxNoAssertion(),
        license_declared=_expression(part.licence),
        license_comment=_comment(part.licence),
        copyright_text=SpdxNoAssertion(),
        comment="; ".join(comments) or None,
        external_references=[_reference(part.purl)] if part.purl else [],
        primary_package_purpose=_PURPOSES[part.kind],
    )


def _expression(licence: Licence) -> LicenseExpression | SpdxNoAssertion:
    if licence.expression == NOASSERTION:
        return SpdxNoAssertion()
    return licensing().parse(licence.expression)


def _comment(licence: Licence) -> str:
    said = f" ({licence.stated!r})" if licence.stated else ""
    where = ", ".join(f"/{path}" for path in licence.texts) or "not in the image"
    return f"from {licence.origin}{said}; text: {where}"


def _extracted(parts: Sequence[Component]) -> list[ExtractedLicensingInfo]:
    """Each LicenseRef in use, with where its text lies instead of the text (10.2)."""
    places: dict[str, set[str]] = {}
    for part in parts:
        for name in references(part.licence.expression):
            places.setdefault(name, set()).update(part.licence.texts)
    found = []
    for name, paths in sorted(places.items()):
        shown = [f"/{path}" for path in sorted(paths)]
        rest = f" and {len(shown) - _MAX_TEXTS} more" if len(shown) > _MAX_TEXTS else ""
        where = ", ".join(shown[:_MAX_TEXTS]) + rest
        text = f"The text is in the image: {where}" if where else "The image holds no text of it."
        found.append(ExtractedLicensingInfo(name, text, name.removeprefix("LicenseRef-")))
    return found


def _spdx_id(part: Component) -> str:
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", part.name).strip("-")
    return f"SPDXRef-{part.kind}-{slug}-{hashlib.sha256(part.ref.encode()).hexdigest()[:12]}"


def _sha256(digest: str) -> Checksum:
    return Checksum(ChecksumAlgorithm.SHA256, digest)


def _reference(purl: str) -> ExternalPackageRef:
    return ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", purl)
