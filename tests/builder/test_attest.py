"""Receipts of a later test, attached to an image that a real registry has, with the real cosign."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.attest import attest_receipts, digest_reference
from builder.errors import EvidenceError, ImageAbsentError, ImageReferenceError
from builder.receipts import PREDICATE_TYPE
from builder.registry.layout import push_layout
from builder.registry.reference import parse_reference
from tests.builder.local_registry import serve_registry
from tests.builder.supply.made import make_image
from tests.builder.supply.real import key_pair, real_cosign
from tests.builder.test_receipts import a_receipt

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "text", ["registry.example/a:1", "registry.example/a", "a:1", f"a@{DIGEST}"]
)
def test_only_a_digest_of_a_registry_can_be_attested(text: str) -> None:
    with pytest.raises(ImageReferenceError):
        digest_reference(text)
    assert digest_reference(f"registry.example/a@{DIGEST}").digest == DIGEST


@pytest.mark.docker
def test_a_receipt_is_attested_once_and_only_to_its_own_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    cosign = real_cosign()
    key, public = key_pair(cosign, tmp_path / "keys", "k")
    with serve_registry(tmp_path / "registry") as registry:
        layout = make_image(tmp_path / "layout")
        name = parse_reference(f"{registry.host}/team/appliance")
        push_layout(layout, name)
        image = name.with_digest(layout.manifest.digest)
        receipts = [a_receipt("built"), a_receipt("cpu-verified")]
        assert attest_receipts(cosign, image, receipts[:1], key) == ["built"]
        assert attest_receipts(cosign, image, receipts, key) == ["cpu-verified"]
        assert attest_receipts(cosign, image, receipts, key) == []
        there = [s["predicate"] for s in cosign.attestations(image, public, PREDICATE_TYPE)]
        assert [p["receipt"]["level"] for p in there] == ["built", "cpu-verified"]
        assert {p["receipt"]["image"]["digest"] for p in there} == {image.digest}
        assert {p["receipt"]["image"]["rootfs"] for p in there} == {layout.rootfs}

        other = a_receipt("gpu-qualified").bound(digest=DIGEST, rootfs=layout.rootfs)
        with pytest.raises(EvidenceError, match="another image"):
            attest_receipts(cosign, image, [other], key)
        with pytest.raises(ImageAbsentError):
            attest_receipts(cosign, image.with_digest(DIGEST), receipts, key)
