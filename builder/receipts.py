"""Receipts: what was shown of one image, when, on what machine, by which suites.

Three levels, each with a receipt of its own: `built` (audited, and run once), `cpu-verified` (the
suites of tests/image and tests/e2e), `gpu-qualified` (the image's self-test on GPUs that it has
kernels for). A receipt names the image by the engine's id; where they are known also by the digest
of its manifest and by the hash of its files (builder/oci/model.py), which survives an export.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from builder import console
from builder.errors import EvidenceError
from builder.files import write_atomically
from builder.oci.model import ImageLayout
from builder.project import Project

SCHEMA = 1
LEVELS = ("built", "cpu-verified", "gpu-qualified")
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"


@dataclass(frozen=True)
class Count:
    """Tests of one suite. A skipped one is neither passed nor failed."""

    passed: int
    failed: int
    skipped: int


@dataclass(frozen=True)
class ImageId:
    """The image that was looked at. `id` is the engine's; sizes in bytes, unpacked."""

    id: str
    reference: str
    size_bytes: int
    rootfs: str | None = None
    digest: str | None = None


@dataclass(frozen=True)
class Receipt:
    """One level of one image. `date` is UTC (RFC 3339); `revision` the commit of its label."""

    level: str
    image: ImageId
    target: str
    build_id: str
    revision: str
    date: str
    machine: Mapping[str, Any]
    suites: Mapping[str, Count]

    @property
    def result(self) -> str:
        """in-toto's words: FAILED, WARNED where a test was skipped or none ran, else PASSED."""
        counts = self.suites.values()
        if any(count.failed for count in counts):
            return "FAILED"
        clean = counts and all(count.passed and not count.skipped for count in counts)
        return "PASSED" if clean else "WARNED"

    @property
    def total(self) -> Count:
        """Over all suites."""
        counts = self.suites.values()
        return Count(
            sum(c.passed for c in counts),
            sum(c.failed for c in counts),
            sum(c.skipped for c in counts),
        )

    def concerns(self, *, image_id: str = "", rootfs: str = "", digest: str = "") -> bool:
        """Whether it is of that image: the same id, the same files, or the same digest."""
        own = (self.image.id, self.image.rootfs, self.image.digest)
        return any(a and a == b for a, b in zip(own, (image_id, rootfs, digest), strict=True))

    def bound(self, *, digest: str, rootfs: str) -> Receipt:
        """The same, naming the manifest's digest and the files' hash as well.

        Raises EvidenceError if it names another digest or other files already.
        """
        for name, own, given in (
            ("digest", self.image.digest, digest),
            ("files' hash", self.image.rootfs, rootfs),
        ):
            if own is not None and own != given:
                raise EvidenceError(
                    f"the {self.level} receipt of {self.build_id} is of another image: {name} "
                    f"{own}, not {given}",
                    "test this image, or attach the receipt to the image that it is of",
                )
        return replace(self, image=replace(self.image, digest=digest, rootfs=rootfs))

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"schema": SCHEMA, **asdict(self)}


def parse_receipt(raw: Any, where: str) -> Receipt:
    """From JSON. Raises EvidenceError naming `where` for what is no receipt."""
    try:
        receipt = Receipt(
            level=str(raw["level"]),
            image=ImageId(**raw["image"]),
            target=str(raw["target"]),
            build_id=str(raw["build_id"]),
            revision=str(raw["revision"]),
            date=str(raw["date"]),
            machine=dict(raw["machine"]),
            suites={str(name): Count(**count) for name, count in raw["suites"].items()},
        )
        image = receipt.image
        texts = (image.id, image.reference, image.rootfs or "", image.digest or "")
        numbers = [n for c in receipt.suites.values() for n in (c.passed, c.failed, c.skipped)]
        valid = (
            raw["schema"] == SCHEMA
            and receipt.level in LEVELS
            and re.fullmatch(r"[0-9a-f]{16}", receipt.build_id)
            and datetime.strptime(receipt.date, "%Y-%m-%dT%H:%M:%SZ")
            and all(type(n) is int and n >= 0 for n in [*numbers, image.size_bytes])
            and all(isinstance(text, str) for text in texts)
            and set(raw) == {"schema", *receipt.__dataclass_fields__}
        )
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise EvidenceError(
            f"{where}: not a receipt: {type(exc).__name__} {exc}", "write it anew: build, then test"
        ) from None
    if not valid:
        raise EvidenceError(
            f"{where}: not a receipt of schema {SCHEMA}", "write it anew: build, then test"
        )
    return receipt


def to_predicate(receipt: Receipt) -> dict[str, Any]:
    """The predicate of an attestation (in-toto attestation, predicates/test-result.md v0.1).

    A suite with a skipped test is in warnedTests, never in passedTests. `receipt` is ours.
    """
    commit = receipt.revision.removesuffix("-dirty")
    source: dict[str, Any] = {"name": f"revision {receipt.revision}"}
    if re.fullmatch(r"[0-9a-f]{40}", receipt.revision):
        source["digest"] = {"gitCommit": commit}
    failed = [name for name, count in receipt.suites.items() if count.failed]
    passed = [
        name
        for name, count in receipt.suites.items()
        if count.passed and not count.failed and not count.skipped
    ]
    return {
        "result": receipt.result,
        "configuration": [source],
        "passedTests": sorted(passed),
        "warnedTests": sorted(set(receipt.suites) - set(passed) - set(failed)),
        "failedTests": sorted(failed),
        "receipt": receipt.document(),
    }


def write_receipt(project: Project, receipt: Receipt) -> Path:
    """Keep it in the cache; one of the same build and level is replaced."""
    path = _folder(project, receipt.build_id) / f"{receipt.level}.json"
    write_atomically(path, _text(receipt.document()))
    return path


def read_receipts(project: Project, build_id: str) -> list[Receipt]:
    """The cache's receipts of a build, in the order of LEVELS. Raises EvidenceError."""
    found = []
    for level in LEVELS:
        path = _folder(project, build_id) / f"{level}.json"
        if path.is_file():
            receipt = parse_receipt(_load(path), str(path))
            if (receipt.level, receipt.build_id) != (level, build_id):
                raise EvidenceError(f"{path}: it is of another build or level", "remove that file")
            found.append(receipt)
    return found


def receipts_of(
    project: Project, build_id: str, *, image_id: str = "", rootfs: str = "", digest: str = ""
) -> list[Receipt]:
    """Those of a build that are of that very image. Raises EvidenceError."""
    found = read_receipts(project, build_id)
    return [r for r in found if r.concerns(image_id=image_id, rootfs=rootfs, digest=digest)]


def receipts_of_export(
    project: Project, build_id: str, image_id: str, layout: ImageLayout
) -> list[Receipt]:
    """The same for an exported image, bound to its digest and files; says which are left out.

    Raises EvidenceError.
    """
    digest, rootfs = layout.manifest.digest, layout.rootfs
    found = receipts_of(project, build_id, image_id=image_id, rootfs=rootfs, digest=digest)
    for other in read_receipts(project, build_id):
        if other not in found:
            console.warn(f"the receipt {other.level} is of another image of this build: left out")
    return [receipt.bound(digest=digest, rootfs=rootfs) for receipt in found]


def committed_path(project: Project, target: str) -> Path:
    """Where the receipts that README's table shows are committed."""
    return project.images / "receipts" / f"{target}.json"


def read_committed(project: Project, target: str) -> dict[str, Receipt]:
    """The committed receipts of a target by level; empty if there are none.

    Raises EvidenceError: a file that is damaged, or that mixes targets or builds.
    """
    path = committed_path(project, target)
    if not path.is_file():
        return {}
    raw = _load(path)
    if not isinstance(raw, list) or not raw:
        raise EvidenceError(f"{path}: not a list of receipts", "write it anew: test --record")
    receipts = [parse_receipt(entry, str(path)) for entry in raw]
    if {r.target for r in receipts} != {target} or len({r.build_id for r in receipts}) != 1:
        raise EvidenceError(
            f"{path}: receipts of more than one build, or of another target",
            "write it anew: test --record",
        )
    return {receipt.level: receipt for receipt in receipts}


def record(project: Project, target: str, receipts: Iterable[Receipt]) -> Path:
    """Commit receipts of one image in place of what was there: levels of an older build go.

    Other levels of the same build stay, which another machine may have recorded: one with GPUs has
    only the self-test's. Raises EvidenceError for a damaged file.
    """
    path = committed_path(project, target)
    new = {receipt.level: receipt for receipt in receipts}
    builds = {receipt.build_id for receipt in new.values()}
    kept = {k: r for k, r in read_committed(project, target).items() if {r.build_id} == builds}
    both = {**kept, **new}
    write_atomically(path, _text([both[level].document() for level in LEVELS if level in both]))
    return path


def _folder(project: Project, build_id: str) -> Path:
    return project.cache / "receipts" / build_id


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as exc:
        raise EvidenceError(
            f"{path}: not JSON: {exc}", "remove it; the next test writes it"
        ) from None
