"""Signing, attesting and blobs with the real cosign, against a real registry."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.errors import (
    EvidenceError,
    ImageAbsentError,
    RegistryRefusedError,
    RegistryUnreachableError,
    SigningError,
    UnsignedError,
)
from builder.registry.layout import push_layout
from builder.registry.reference import Reference, parse_reference
from builder.supply.attach import RECEIPT, SPDX, attach
from builder.supply.cosign import Cosign
from builder.supply.keys import SigningKey
from tests.builder.local_registry import (
    LocalRegistry,
    password_auth,
    serve_registry,
    skip_or_fail,
)
from tests.builder.supply.made import make_image, receipt, spdx, write_evidence
from tests.builder.supply.real import key_pair, real_cosign

pytestmark = pytest.mark.docker
NAME = "team/appliance"


@dataclass(frozen=True)
class Setup:
    registry: LocalRegistry
    image: Reference
    cosign: Cosign
    key: SigningKey
    public: str


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    cosign = real_cosign()
    key, public = key_pair(cosign, tmp_path / "keys", "k")
    with serve_registry(tmp_path / "registry") as registry:
        layout = make_image(tmp_path / "layout")
        name = parse_reference(f"{registry.host}/{NAME}")
        push_layout(layout, name)
        yield Setup(registry, name.with_digest(layout.manifest.digest), cosign, key, public)


def test_a_second_run_adds_nothing_and_a_changed_receipt_adds_one(
    setup: Setup, tmp_path: Path
) -> None:
    evidence = write_evidence(tmp_path / "evidence")
    names = ("signature", "SBOM (SPDX)", "SBOM (CycloneDX)", "provenance", "receipt (built)")
    first = attach(setup.cosign, setup.image, evidence, [receipt("built")], setup.key)
    assert (first.added, first.present) == (names, ())
    tags = {
        tag: setup.registry.tag_link(NAME, tag).read_text() for tag in setup.registry.tags(NAME)
    }
    second = attach(setup.cosign, setup.image, evidence, [receipt("built")], setup.key)
    assert (second.added, second.present) == ((), names)
    assert tags == {tag: setup.registry.tag_link(NAME, tag).read_text() for tag in tags}
    third = attach(
        setup.cosign, setup.image, evidence, [receipt("built"), receipt("cpu-verified")], setup.key
    )
    assert third.added == ("receipt (cpu-verified)",)
    receipts = setup.cosign.attestations(setup.image, setup.public, RECEIPT)
    assert [r["predicate"]["receipt"]["level"] for r in receipts] == ["built", "cpu-verified"]
    assert {r["predicate"]["receipt"]["image"]["digest"] for r in receipts} == {setup.image.digest}


def test_another_key_signs_beside_the_first(setup: Setup, tmp_path: Path) -> None:
    evidence = write_evidence(tmp_path / "evidence")
    other, other_public = key_pair(setup.cosign, tmp_path / "keys", "other")
    attach(setup.cosign, setup.image, evidence, [], setup.key)
    with pytest.raises(UnsignedError):
        setup.cosign.verify(setup.image, other_public)
    assert not setup.cosign.attestations(setup.image, other_public, SPDX)
    assert len(attach(setup.cosign, setup.image, evidence, [], other).added) == 4
    for public in (setup.public, other_public):
        assert setup.cosign.verify(setup.image, public)
        (statement,) = setup.cosign.attestations(setup.image, public, SPDX)
        assert statement["predicate"] == spdx()


def test_numbers_survive_the_way_through_cosign(setup: Setup, tmp_path: Path) -> None:
    """Sizes beyond 2^31, fractions, characters that Go escapes: a second run finds them equal."""
    odd = {**spdx(), "comment": "<a> & ü \u2028", "x": [7140000000, 0.1, 1e21, -3, True, None]}
    evidence = write_evidence(tmp_path / "evidence", spdx=odd)
    attach(setup.cosign, setup.image, evidence, [], setup.key)
    assert not attach(setup.cosign, setup.image, evidence, [], setup.key).added


def test_an_image_that_is_not_there_is_not_signed(setup: Setup, tmp_path: Path) -> None:
    """cosign itself would sign any digest."""
    absent = setup.image.with_digest(f"sha256:{'0' * 64}")
    with pytest.raises(ImageAbsentError):
        attach(setup.cosign, absent, write_evidence(tmp_path / "e"), [], setup.key)
    assert setup.registry.tags(NAME) == []


def test_a_receipt_of_other_files_is_not_attached(setup: Setup, tmp_path: Path) -> None:
    other = receipt("built")
    other = receipt("built", image=type(other.image)("sha256:1", "r", 1, rootfs="sha256:2"))
    with pytest.raises(EvidenceError, match="another image"):
        attach(setup.cosign, setup.image, write_evidence(tmp_path / "e"), [other], setup.key)
    assert setup.registry.tags(NAME) == []


def test_a_wrong_password_and_a_dead_registry(setup: Setup) -> None:
    with pytest.raises(SigningError, match="password"):
        setup.cosign.sign(setup.image, SigningKey(setup.key.reference, "wrong"))
    setup.registry.stop()
    with pytest.raises(RegistryUnreachableError):
        setup.cosign.sign(setup.image, setup.key)
    with pytest.raises(RegistryUnreachableError):
        setup.cosign.verify(setup.image, setup.public)


def test_a_registry_that_wants_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    cosign = real_cosign()
    key, public = key_pair(cosign, tmp_path / "keys", "k")
    folder = tmp_path / "registry"
    with serve_registry(folder, config=password_auth(folder)) as registry:
        image = parse_reference(f"{registry.host}/{NAME}@sha256:{'1' * 64}")
        with pytest.raises(RegistryRefusedError):
            cosign.sign(image, key)
        with pytest.raises(RegistryRefusedError):
            cosign.verify(image, public)


def test_openssl_accepts_a_blobs_signature_and_no_other(setup: Setup, tmp_path: Path) -> None:
    """As a bundle's import.sh asks it."""
    if shutil.which("openssl") is None:
        skip_or_fail("no openssl here")
    blob, signature, raw = tmp_path / "sums", tmp_path / "sums.sig", tmp_path / "raw"
    blob.write_bytes(b"content\n")
    setup.cosign.sign_blob(blob, setup.key, signature)
    raw.write_bytes(base64.b64decode(signature.read_text(), validate=True))

    def accepted(public: str) -> bool:
        argv = ["openssl", "dgst", "-sha256", "-verify", public, "-signature", str(raw), str(blob)]
        return subprocess.run(argv, check=False, capture_output=True).returncode == 0

    _, other = key_pair(setup.cosign, tmp_path / "keys", "other")
    assert accepted(setup.public)
    assert not accepted(other)
    blob.write_bytes(b"Content\n")
    assert not accepted(setup.public)
