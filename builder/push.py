"""`push`: the image of a target into a registry, its evidence with it, its tag last."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder import console
from builder.engine import Engine
from builder.local_image import LocalImage
from builder.oci.model import ImageLayout
from builder.pins import SharedPins, Target
from builder.project import Project
from builder.receipts import Receipt, receipts_of_export
from builder.registry.client import Registry
from builder.registry.layout import Progress, blob_bytes, push_layout
from builder.registry.reference import Reference
from builder.supply.attach import Attached, EvidenceFiles, attach
from builder.supply.cosign import Cosign
from builder.supply.keys import SigningKey


@dataclass(frozen=True)
class Signing:
    """A cosign and a key of which it has been seen that they go together."""

    cosign: Cosign
    key: SigningKey


@dataclass(frozen=True)
class Evidence:
    """SBOMs and provenance as files, and the receipts of this very image."""

    files: EvidenceFiles
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True)
class PushResult:
    """What is there now, and what it took. Sizes in bytes."""

    reference: str
    """By digest: what a host pulls."""
    digest: str
    tag: str
    """NAME:TAG."""
    tag_set: bool
    """False: it named this image already."""
    image_id: str
    build_id: str
    revision: str
    signed: bool
    attached: tuple[str, ...]
    bytes_total: int
    bytes_sent: int
    """On the wire, so more than the blobs' size where a connection broke."""
    bytes_skipped: int
    blobs_sent: int
    blobs_skipped: int
    seconds: float

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "pull": f"docker pull {self.reference}"}


def open_registry(project: Project, reference: Reference) -> Registry:
    """A registry that answers and lets us push. Raises the registry errors."""
    registry = Registry(reference, sessions=project.cache / "uploads")
    registry.ping()
    registry.check_writable()
    return registry


def ready_to_sign(project: Project, shared: SharedPins, key: SigningKey) -> Signing:
    """Open the key once, so that a wrong password is found before anything is sent.

    Raises SigningError, ToolMissingError.
    """
    cosign = Cosign.obtain(project, shared)
    with tempfile.TemporaryDirectory(prefix="ddtree-sign-") as folder:
        cosign.public_key(key, Path(folder) / "cosign.pub")
    return Signing(cosign, key)


def push(
    project: Project,
    target: Target,
    engine: Engine,
    image: LocalImage,
    registry: Registry,
    signing: Signing | None,
) -> PushResult:
    """Export, send, sign, attest, and tag; each step is left out where it was done before.

    Raises TagTakenError before anything is sent, and the errors of each step. Whatever breaks off,
    the tag is not there, and the next run does the rest.
    """
    begin = time.monotonic()
    name = registry.reference
    with console.step(f"exporting {image.reference}"):
        layout = export_layout(project, target, engine, image)
    registry.check_tag(image.tag, layout.manifest.digest)
    by_digest = name.with_digest(layout.manifest.digest)
    progress = Progress(blob_bytes(layout))
    attached = None
    with tempfile.TemporaryDirectory(prefix="ddtree-evidence-") as scratch:
        evidence = None
        if signing is not None:
            evidence = write_evidence_of(project, target, engine, image, layout, Path(scratch))
        with console.step(f"pushing to {name.name} ({progress.total / 1e9:.2f} GB in all)"):
            pushed = push_layout(layout, registry, progress)
        if signing is not None and evidence is not None:
            attached = attach_evidence(signing, by_digest, evidence, registry)
    tag_set = registry.tag(image.tag, pushed)
    return PushResult(
        reference=str(by_digest),
        digest=pushed.digest,
        tag=str(name.with_tag(image.tag)),
        tag_set=tag_set,
        image_id=image.id,
        build_id=image.build_id,
        revision=image.revision,
        signed=signing is not None,
        attached=(*attached.added, *attached.present) if attached else (),
        bytes_total=progress.total,
        bytes_sent=progress.sent_bytes,
        bytes_skipped=progress.skipped_bytes,
        blobs_sent=progress.blobs_sent,
        blobs_skipped=progress.blobs_skipped,
        seconds=round(time.monotonic() - begin, 1),
    )


def export_layout(
    project: Project, target: Target, engine: Engine, image: LocalImage
) -> ImageLayout:
    """By id: the local name may move to another build meanwhile."""
    from builder.oci.export import export_image

    return export_image(project, engine, image.id, epoch=target.shared.source_date_epoch)


def write_evidence_of(
    project: Project,
    target: Target,
    engine: Engine,
    image: LocalImage,
    layout: ImageLayout,
    folder: Path,
) -> Evidence:
    """What is to be attested. Raises EvidenceError."""
    from builder.supply.evidence import write_evidence
    from builder.supply.inventory import read_inventory

    with console.step("writing SBOMs and provenance"):
        files = write_evidence(project, target, read_inventory(engine, image.id), layout, folder)
    receipts = receipts_of_export(project, image.build_id, image.id, layout)
    console.info(f"receipts: {', '.join(r.level for r in receipts) or 'none of this image'}")
    return Evidence(files, tuple(receipts))


def attach_evidence(
    signing: Signing, by_digest: Reference, evidence: Evidence, registry: Registry
) -> Attached:
    """Sign the digest and attest. Raises SigningError and the registry errors."""
    return attach(
        signing.cosign,
        by_digest,
        evidence.files,
        evidence.receipts,
        signing.key,
        registry=registry,
    )
