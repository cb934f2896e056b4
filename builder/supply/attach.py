"""Sign an image in a registry and attach its evidence: SBOMs, provenance, receipts.

Nothing that is there already is made again, and nothing is ever taken away: a run that broke off is
ended by the next one, and what other people attached stays.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from builder import console
from builder.errors import EvidenceError, ImageAbsentError, ImageReferenceError, UnsignedError
from builder.oci.model import ROOTFS_ANNOTATION
from builder.receipts import PREDICATE_TYPE, Receipt, to_predicate
from builder.registry.client import Registry
from builder.registry.documents import parse_json
from builder.registry.reference import Reference
from builder.supply.cosign import Cosign
from builder.supply.keys import SigningKey

SPDX = "https://spdx.dev/Document"
CYCLONEDX = "https://cyclonedx.org/bom"
PROVENANCE = "https://slsa.dev/provenance/v1"
RECEIPT = PREDICATE_TYPE
_ROUNDS = 3


class EvidenceFiles(Protocol):
    """Three JSON files, each a predicate."""

    @property
    def spdx(self) -> Path: ...
    @property
    def cyclonedx(self) -> Path: ...
    @property
    def provenance(self) -> Path: ...


@dataclass(frozen=True)
class Attestation:
    """A name for people, a predicate type (URI) and a predicate."""

    name: str
    kind: str
    predicate: dict[str, Any]


@dataclass(frozen=True)
class Attached:
    """What a run added, and what was there before it, by name."""

    added: tuple[str, ...]
    present: tuple[str, ...]

    def __str__(self) -> str:
        added = f"added {', '.join(self.added)}" if self.added else "added nothing"
        return f"{added}; there already: {', '.join(self.present) or 'nothing'}"


def attach(
    cosign: Cosign,
    image: Reference,
    evidence: EvidenceFiles,
    receipts: Sequence[Receipt],
    key: SigningKey,
    *,
    registry: Registry | None = None,
) -> Attached:
    """Sign the manifest that `image` names by digest, then attest what is known of it.

    Raises ImageAbsentError, EvidenceError (evidence of another image, or no evidence), SigningError
    and the registry errors. Two runs for one image at one time may lose each other's attestations
    (cosign keeps them in one manifest, which it reads and writes back), so they are read again
    afterwards, and made again where they are gone.
    """
    if not image.digest:
        raise ImageReferenceError(f"{image} names no digest", "sign a digest, never a tag")
    found = (registry or Registry(image)).manifest(image.digest)
    if found is None:
        raise ImageAbsentError(f"{image} does not exist", "push the image first")
    image = image.with_digest(image.digest)  # cosign takes a tag beside it for the name
    wanted = attestations(evidence, receipts, image.digest, rootfs_of(image, found[1]))
    added, present = [], []
    with tempfile.TemporaryDirectory(prefix="ddtree-sign-") as folder:
        public = cosign.public_key(key, Path(folder) / "cosign.pub")
        if _is_signed(cosign, image, public):
            present.append("signature")
        else:
            with console.step("signing the manifest's digest"):
                cosign.sign(image, key)
            added.append("signature")
        missing = _missing(cosign, image, public, wanted)
        present += [a.name for a in wanted if a not in missing]
        added += [a.name for a in missing]
        for _ in range(_ROUNDS):
            for attestation in missing:
                file = Path(folder) / "predicate.json"
                file.write_text(json.dumps(attestation.predicate), encoding="utf-8")
                with console.step(f"attesting {attestation.name}"):
                    cosign.attest(image, key, file, attestation.kind)
            missing = _missing(cosign, image, public, missing)
            if not missing:
                return Attached(tuple(added), tuple(present))
    raise EvidenceError(
        f"{image}: {', '.join(a.name for a in missing)} was attested and is not there",
        "another push of the same image may be writing: wait for it, then push again",
    )


def _missing(
    cosign: Cosign, image: Reference, public: str, wanted: Sequence[Attestation]
) -> list[Attestation]:
    """Those of which the key has not signed the same."""
    there = {
        kind: [s.get("predicate") for s in cosign.attestations(image, public, kind)]
        for kind in dict.fromkeys(a.kind for a in wanted)
    }
    return [a for a in wanted if not any(same(a.predicate, other) for other in there[a.kind])]


def attestations(
    evidence: EvidenceFiles, receipts: Sequence[Receipt], digest: str, rootfs: str
) -> list[Attestation]:
    """All that is to be attached. Raises EvidenceError."""
    files = (
        ("SBOM (SPDX)", SPDX, evidence.spdx),
        ("SBOM (CycloneDX)", CYCLONEDX, evidence.cyclonedx),
        ("provenance", PROVENANCE, evidence.provenance),
    )
    found = [Attestation(name, kind, _predicate(path, kind, digest)) for name, kind, path in files]
    for receipt in receipts:
        bound = receipt.bound(digest=digest, rootfs=rootfs)
        found.append(Attestation(f"receipt ({bound.level})", RECEIPT, to_predicate(bound)))
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two predicates say the same: cosign reads every number as a double."""
    return bool(_plain(one) == _plain(other))


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value), parse_int=float)


def _predicate(path: Path, kind: str, digest: str) -> dict[str, Any]:
    """The predicate in a file; of a whole in-toto statement, its predicate."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise EvidenceError(f"{path}: {exc}", "write the evidence anew") from None
    if isinstance(document, dict) and str(document.get("_type")).startswith("https://in-toto.io/"):
        if document.get("predicateType") != kind or not concerns(document, digest):
            raise EvidenceError(f"{path} is not {kind} of {digest}", "write the evidence anew")
        document = document.get("predicate")
    if not isinstance(document, dict) or not document:
        raise EvidenceError(f"{path} is no JSON object", "write the evidence anew")
    return document


def concerns(statement: dict[str, Any], digest: str) -> bool:
    """Whether an in-toto statement is of that digest (and of nothing else)."""
    try:
        values = [subject["digest"]["sha256"] for subject in statement["subject"]]
    except (KeyError, TypeError):
        return False
    return bool(values) and set(values) == {digest.removeprefix("sha256:")}


def _is_signed(cosign: Cosign, image: Reference, public: str) -> bool:
    try:
        claims = cosign.verify(image, public)
    except UnsignedError:
        return False
    # One that was copied here with the image names the repository that it came from.
    return any(signed_name(claim) == image.name for claim in claims)


def signed_name(claim: dict[str, Any]) -> str:
    """The repository that a signature was made for; cosign 3 may add the digest."""
    identity = claim.get("critical", {}).get("identity", {})
    return str(identity.get("docker-reference", "")).partition("@")[0]


def rootfs_of(image: Reference, manifest: bytes) -> str:
    """The hash of the files, as the manifest says it. Raises EvidenceError."""
    try:
        return str(parse_json(manifest)["annotations"][ROOTFS_ANNOTATION])
    except (KeyError, TypeError, ValueError):
        raise EvidenceError(
            f"{image} has no annotation {ROOTFS_ANNOTATION}: build.py push did not make it",
            "push the image with `build.py push`",
        ) from None
