"""Attaching evidence while somebody else does the same; a class stands for cosign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from builder.errors import EvidenceError
from builder.oci.model import MANIFEST
from builder.registry.client import Registry
from builder.registry.reference import Reference
from builder.supply.attach import PROVENANCE, attach
from builder.supply.cosign import Cosign
from builder.supply.keys import SigningKey
from tests.builder.supply.made import make_image, write_evidence


class Forgetful:
    """cosign, whose attestations of one kind get lost `losses` times."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.there: dict[str, list[Any]] = {}
        self.attested: list[str] = []

    def public_key(self, key: SigningKey, to: Path) -> str:
        return str(to)

    def verify(self, image: Reference, public: str) -> list[dict[str, Any]]:
        return [{"critical": {"identity": {"docker-reference": image.name}}}]

    def attestations(self, image: Reference, public: str, kind: str) -> list[dict[str, Any]]:
        return [{"predicate": predicate} for predicate in self.there.get(kind, [])]

    def attest(self, image: Reference, key: SigningKey, predicate: Path, kind: str) -> None:
        self.attested.append(kind)
        if kind == PROVENANCE and self.losses:
            self.losses -= 1
            return
        self.there.setdefault(kind, []).append(json.loads(predicate.read_text()))


class Holds:
    """A registry with one manifest."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def manifest(self, name: str) -> tuple[str, bytes]:
        return MANIFEST, self.content


@pytest.mark.parametrize("losses", [0, 1, 3])
def test_an_attestation_that_another_push_lost_is_made_again(tmp_path: Path, losses: int) -> None:
    layout = make_image(tmp_path / "layout")
    image = Reference("registry.example.com", "a", digest=layout.manifest.digest)
    holds = Holds(layout.blob(layout.manifest.digest).read_bytes())
    evidence = write_evidence(tmp_path / "evidence")
    cosign = Forgetful(losses)

    def run() -> Any:
        return attach(
            cast(Cosign, cosign),
            image,
            evidence,
            (),
            SigningKey("k"),
            registry=cast(Registry, holds),
        )

    if losses == 3:
        with pytest.raises(EvidenceError, match="provenance was attested and is not there"):
            run()
        return
    attached = run()
    assert attached.added == ("SBOM (SPDX)", "SBOM (CycloneDX)", "provenance")
    assert attached.present == ("signature",)
    assert cosign.attested.count(PROVENANCE) == 1 + losses
    assert len(cosign.attested) == 3 + losses
    assert run().added == ()
