"""Attach receipts to an image that is in a registry: what a later test showed of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from builder import console
from builder.errors import ImageAbsentError, ImageReferenceError
from builder.receipts import PREDICATE_TYPE, Receipt, to_predicate
from builder.registry.client import Registry
from builder.registry.reference import Reference, parse_reference
from builder.supply.attach import rootfs_of, same
from builder.supply.cosign import Cosign
from builder.supply.keys import SigningKey


def digest_reference(text: str) -> Reference:
    """What receipts can be attached to. Raises ImageReferenceError for all but a digest."""
    reference = parse_reference(text)
    if not reference.digest:
        raise ImageReferenceError(
            f"{text} names no digest: a receipt is attached to a digest, never to a tag",
            "name the image as REGISTRY/NAME@sha256:DIGEST",
        )
    return reference


def attest_receipts(
    cosign: Cosign, image: Reference, receipts: Sequence[Receipt], key: SigningKey
) -> list[str]:
    """Attest those receipts that are not there yet; the levels that were added.

    Raises ImageAbsentError, EvidenceError (a receipt of another image), SigningError and the
    registry errors.
    """
    found = Registry(image).manifest(str(image.digest))
    if found is None:
        raise ImageAbsentError(f"{image} does not exist", "push the image first")
    rootfs = rootfs_of(image, found[1])
    added = []
    with tempfile.TemporaryDirectory(prefix="ddtree-attest-") as folder:
        public = cosign.public_key(key, Path(folder) / "cosign.pub")
        there = [s.get("predicate") for s in cosign.attestations(image, public, PREDICATE_TYPE)]
        for receipt in receipts:
            predicate = to_predicate(receipt.bound(digest=str(image.digest), rootfs=rootfs))
            if any(same(predicate, other) for other in there):
                continue
            file = Path(folder) / "predicate.json"
            file.write_text(json.dumps(predicate), encoding="utf-8")
            with console.step(f"attesting the receipt {receipt.level}"):
                cosign.attest(image, key, file, PREDICATE_TYPE)
            added.append(receipt.level)
    return added
