"""Checks of attestations: signed by the key, of this digest, and in agreement with the image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from builder.errors import BuilderError, EvidenceError, TamperedError
from builder.qualification import REQUIRED, why_not_verified
from builder.receipts import LEVELS, Receipt, parse_receipt
from builder.supply.attach import RECEIPT, concerns
from builder.supply.attached import Found
from builder.supply.image_checks import Image
from builder.supply.report import Row, absent, failed, one_line, passed
from builder.supply.sbom_checks import check_cyclonedx, check_spdx

__all__ = ["Attestations", "check_cyclonedx", "check_provenance", "check_receipts", "check_spdx"]
# A predicate and the image it must be of, to one line; raises EvidenceError.
Content = Callable[[dict[str, Any], Image], str]


@dataclass(frozen=True)
class Attestations:
    """What is attached, and what of it counts."""

    attached: Sequence[Found]
    """All, believed or not."""
    signed: dict[str, list[dict[str, Any]]]
    """By predicate type: statements that the key signed for this digest."""
    authentic: bool
    """False where no key was given: `signed` then holds what is of this digest, unchecked."""
    unsigned: type[BuilderError]
    """The error for what the key did not sign: the image's own signature decides."""

    def row(self, name: str, kind: str, image: Image, content: Content) -> Row:
        """One row for a kind of which the image must have at least one, all of them true."""
        statements = self.signed.get(kind, [])
        if not statements:
            return self.missing(name, kind, image, required=True)
        try:
            details = [content(_predicate(s), image) for s in statements]
        except EvidenceError as exc:
            return failed(name, one_line(exc.what), EvidenceError)
        return passed(name, details[-1] + self.note(kind))

    def missing(
        self, name: str, kind: str, image: Image, *, required: bool, level: str = ""
    ) -> Row:
        """The row where nothing counts: it may still be there, and be forged."""
        others = [f for f in self.attached if f.kind == kind and (not level or _level(f) == level)]
        for found in others:
            if found.problem:
                return failed(name, f"altered: {one_line(found.problem)}", TamperedError)
        for found in others:
            if not concerns(found.statement, image.manifest.digest):
                return failed(name, "the one attached is of another image", EvidenceError)
        if others:
            return failed(name, "the one attached was not signed by this key", self.unsigned)
        if required:
            return absent(name, "none is attached", EvidenceError)
        return absent(name, "none is attached")

    def note(self, kind: str) -> str:
        """Says what was left out: others may attach what they sign."""
        if not self.authentic:
            return " (signature not checked)"
        more = sum(f.kind == kind for f in self.attached) - len(self.signed.get(kind, []))
        return f" ({more} more, not by this key, not counted)" if more > 0 else ""


def _predicate(statement: dict[str, Any]) -> dict[str, Any]:
    found = statement.get("predicate")
    if not isinstance(found, dict):
        raise EvidenceError("it has no predicate", "")
    return found


def check_provenance(predicate: dict[str, Any], image: Image) -> str:
    """SLSA provenance v1 (slsa.dev/spec/v1.0/provenance) that agrees with the labels.

    Its parameters are those of builder/supply/provenance.py.
    """
    try:
        resolved = predicate["buildDefinition"]["resolvedDependencies"]
        digests = [dict(entry.get("digest", {})) for entry in resolved]
        builder = str(predicate["runDetails"]["builder"]["id"])
        build = str(predicate["buildDefinition"]["internalParameters"]["buildId"])
        target = str(predicate["buildDefinition"]["externalParameters"]["target"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise EvidenceError("it is not SLSA provenance v1 of this builder", "") from None
    commits = {str(d["gitCommit"]) for d in digests if "gitCommit" in d}
    hashes = {str(d["sha256"]) for d in digests if "sha256" in d}
    revision = image.revision.removesuffix("-dirty")
    if revision != "unknown" and commits != {revision}:
        said = ", ".join(sorted(commits)) or "no commit"
        raise EvidenceError(f"it is of {said}; the label says {image.revision}", "")
    lock = image.label("lock").removeprefix("sha256:")
    if lock not in hashes:
        raise EvidenceError(f"the label's lock {lock[:12]} is not among its dependencies", "")
    if (target, build) != (image.target, image.label("build-id")):
        raise EvidenceError(f"it is of {one_line(target, 40)}, build {one_line(build, 40)}", "")
    return f"revision {image.revision[:12]}, lock {lock[:12]}, by {one_line(builder, 60)}"


def check_receipts(attestations: Attestations, image: Image, required: Sequence[str]) -> list[Row]:
    """One row a level; the newest receipt of a level counts. Levels of `required` must be there."""
    receipts: dict[str, Receipt] = {}
    rows = []
    for statement in attestations.signed.get(RECEIPT, []):
        try:
            receipt = _receipt(_predicate(statement))
        except EvidenceError as exc:
            rows.append(failed("receipts", one_line(exc.what), EvidenceError))
            continue
        older = receipts.get(receipt.level)
        if older is None or older.date <= receipt.date:
            receipts[receipt.level] = receipt
    for level in LEVELS:
        name = f"receipt {level}"
        if level not in receipts:
            needed = level in required
            rows.append(attestations.missing(name, RECEIPT, image, required=needed, level=level))
            continue
        why = contradiction(receipts[level], image)
        if why:
            rows.append(failed(name, one_line(why), EvidenceError))
        else:
            unchecked = "" if attestations.authentic else " (signature not checked)"
            rows.append(passed(name, _summary(receipts[level]) + unchecked))
    return rows


def _receipt(predicate: dict[str, Any]) -> Receipt:
    receipt = parse_receipt(predicate.get("receipt"), "an attested receipt")
    if predicate.get("result") != receipt.result:
        raise EvidenceError(
            f"the {receipt.level} receipt says {predicate.get('result')}, its counts "
            f"{receipt.result}",
            "",
        )
    return receipt


def contradiction(receipt: Receipt, image: Image) -> str:
    """Why a receipt does not hold for an image; empty if it does."""
    own = receipt.image
    pairs = (
        ("digest", own.digest, image.manifest.digest),
        ("files' hash", own.rootfs, image.rootfs),
        ("build id", receipt.build_id, image.label("build-id")),
        ("target", receipt.target, image.target),
        ("revision", receipt.revision, image.revision),
    )
    for what, said, real in pairs:
        if said != real:
            return f"its {what} is {said}, the image's is {real}"
    if receipt.result == "FAILED":
        return f"{receipt.total.failed} tests failed"
    # Not the list of suites that this tree asks for: an older release had fewer.
    if not receipt.total.passed:
        return "no test of it passed"
    if receipt.level == "cpu-verified":
        silent = why_not_verified(receipt.suites, [n for n in REQUIRED if n in receipt.suites])
        if silent:
            return "; ".join(silent)
    if receipt.level == "gpu-qualified" and not receipt.machine.get("gpus"):
        return "it names no GPU"
    return ""


def _summary(receipt: Receipt) -> str:
    total = receipt.total
    counts = f"{total.passed} passed, {total.skipped} skipped" if receipt.suites else "no suites"
    return f"{receipt.date[:10]}, {counts}"


def _level(found: Found) -> str:
    try:
        return str(found.statement["predicate"]["receipt"]["level"])
    except (KeyError, TypeError):
        return ""
