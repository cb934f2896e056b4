"""The documents about one image: two bills of materials and its provenance, as files.

Each is a predicate: what is signed is an in-toto statement around it that names the image's digest
(builder/supply/attach.py). The bills name the digest themselves as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import EvidenceError, HostFileError
from builder.files import sha256_file
from builder.lock.entries import parse_lock
from builder.oci.model import ImageLayout
from builder.pins import Target, all_targets
from builder.project import Project
from builder.supply import provenance, sbom_cyclonedx, sbom_spdx
from builder.supply.components import Component, components
from builder.supply.corrections import load_corrections
from builder.supply.subject import Subject, subject_of

SPDX_FILE = "sbom.spdx.json"
CYCLONEDX_FILE = "sbom.cdx.json"
PROVENANCE_FILE = "provenance.json"
_ELSEWHERE = "check out the commit that the image names (org.opencontainers.image.revision)"


@dataclass(frozen=True)
class Evidence:
    """Where the three documents lie."""

    spdx: Path
    cyclonedx: Path
    provenance: Path

    @property
    def predicates(self) -> dict[str, Path]:
        """Predicate type (in-toto) to file."""
        return {
            sbom_spdx.PREDICATE_TYPE: self.spdx,
            sbom_cyclonedx.PREDICATE_TYPE: self.cyclonedx,
            provenance.PREDICATE_TYPE: self.provenance,
        }


def write_evidence(
    project: Project,
    target: Target,
    inventory: Mapping[str, Any],
    layout: ImageLayout,
    folder: Path,
) -> Evidence:
    """Write the three files into `folder`, which is made.

    Raises:
        EvidenceError: the inventory, the image's labels and the repository contradict each other.
        HostFileError: the folder cannot be written.
    """
    subject = subject_of(target, layout)
    check_agreement(project, target, inventory, subject)
    parts = image_components(target, inventory)
    lock = parse_lock(target.lock_file(project).read_text("utf-8"))
    predicate = provenance.predicate(subject, target, inventory, lock)
    evidence = Evidence(folder / SPDX_FILE, folder / CYCLONEDX_FILE, folder / PROVENANCE_FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(evidence.spdx, sbom_spdx.encode(subject, parts))
        _write(evidence.cyclonedx, sbom_cyclonedx.encode(subject, parts))
        text = json.dumps(predicate, indent=2, sort_keys=True) + "\n"
        _write(evidence.provenance, text.encode())
    except OSError as exc:
        raise HostFileError(f"{folder}: {exc.strerror or exc}", "choose another folder") from None
    return evidence


def target_of(project: Project, inventory: Mapping[str, Any]) -> Target:
    """The target that an image was built for. Raises EvidenceError if this tree has none such."""
    name = inventory.get("name")
    for target in all_targets(project):
        if target.name == name:
            return target
    raise EvidenceError(f"this tree has no target {name!r}, which the image is of", _ELSEWHERE)


def image_components(target: Target, inventory: Mapping[str, Any]) -> list[Component]:
    """The parts of an image with their licences.

    Raises EvidenceError for a malformed inventory, and where the image was made from other sources
    than `target` pins: what an archive holds is known from its pin alone.
    """
    try:
        theirs = {(source["name"], source["sha256"]) for source in inventory["pins"]["sources"]}
        if theirs != {(source.name, source.sha256) for source in target.sources}:
            raise EvidenceError(
                f"the image was made from other sources than {target.name} pins here", _ELSEWHERE
            )
        return components(inventory, target, load_corrections())
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise EvidenceError(
            f"the inventory lacks or garbles {exc}", "build the image again with this builder"
        ) from None


def check_agreement(
    project: Project, target: Target, inventory: Mapping[str, Any], subject: Subject
) -> None:
    """Raise EvidenceError unless inventory, labels, pins and lock speak of one image."""
    versions = {d["name"]: d["version"] for d in inventory["python"]["distributions"]}
    lock = sha256_file(target.lock_file(project))
    pairs = [
        ("target", inventory["name"], target.name),
        ("version", inventory["version"], subject.labels.get("org.opencontainers.image.version")),
        ("build id", inventory["build_id"], subject.label("build-id")),
        ("variant", target.variant, subject.label("variant")),
        ("stand-in", "true" if target.stand_in else "false", subject.label("stand-in")),
        ("SGLang", versions.get("sglang"), subject.label("sglang")),
        ("torch", _public(versions.get("torch")), _public(subject.label("torch"))),
        ("base", "{kind}: {detail}".format_map(inventory["pins"]["base"]), subject.label("base")),
        ("lock", f"sha256:{inventory['pins']['lock_sha256']}", subject.label("lock")),
        ("date", inventory["source_date_epoch"], subject.epoch),
    ]
    for what, observed, said in pairs:
        if observed != said:
            raise EvidenceError(
                f"{what}: the inventory says {observed}, the image's labels {said or 'nothing'}",
                "the image was changed after it was built: build it again",
            )
    if inventory["pins"]["lock_sha256"] != lock:
        raise EvidenceError(
            f"the image was built with another lock than {target.lock_file(project).name} of "
            f"{target.name} here",
            _ELSEWHERE,
        )


def _public(version: str | None) -> str:
    """Without the local part: torch's metadata may lack the `+cu130` that its label has."""
    return (version or "").partition("+")[0]


def _write(path: Path, content: bytes) -> None:
    scratch = path.with_name(path.name + ".new")
    scratch.write_bytes(content)
    scratch.replace(path)
