"""`verify` against a real registry whose disk is tampered with; signatures by the real cosign.

One signed image is made once; each test spoils the registry's storage, which is then restored.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder import cli, console, verify_cli
from builder.errors import (
    BuilderError,
    EvidenceError,
    ImageAbsentError,
    ImageReferenceError,
    SigningError,
    TamperedError,
    UnsignedError,
)
from builder.oci.model import Descriptor, ImageLayout
from builder.registry.client import Registry
from builder.registry.layout import push_layout
from builder.registry.reference import Reference, parse_reference
from builder.supply.attach import PROVENANCE, attach
from builder.supply.cosign import Cosign
from builder.supply.keys import SigningKey
from builder.supply.report import Report
from builder.supply.verify import Demand, Signer, verify
from tests.builder.local_registry import LocalRegistry, serve_registry
from tests.builder.supply.made import (
    LABELS,
    PREFIX,
    TAG,
    make_image,
    provenance,
    receipt,
    spdx,
    write_evidence,
)
from tests.builder.supply.real import key_pair, real_cosign

pytestmark = pytest.mark.docker
NAME = "team/appliance"
OTHER_BUILD = "fedcba9876543210"


@dataclass(frozen=True)
class World:
    """A registry with a good image, another good one of another build, and one without anything."""

    registry: LocalRegistry
    cosign: Cosign
    key: SigningKey
    public: str
    other_key: SigningKey
    other_public: str
    good: ImageLayout
    other: ImageLayout
    plain: ImageLayout
    scratch: Path

    @property
    def name(self) -> Reference:
        return parse_reference(f"{self.registry.host}/{NAME}")

    @property
    def image(self) -> Reference:
        return self.name.with_digest(self.good.manifest.digest)

    def verify(self, reference: Reference | None = None, **demand: Any) -> Report:
        signer = Signer(self.cosign, demand.pop("public", self.public))
        return verify(
            reference or self.image, signer, Demand(self.scratch, **demand), label_prefix=PREFIX
        )

    def attach(self, layout: ImageLayout, key: SigningKey, *levels: str, **files: Any) -> None:
        build = layout.config()["config"]["Labels"][f"{PREFIX}.build-id"]
        documents = {"provenance": provenance(build=build), **files}
        evidence = write_evidence(self.scratch / "evidence", **documents)
        receipts = [receipt(level, build_id=build) for level in levels]
        image = self.name.with_digest(layout.manifest.digest)
        attach(self.cosign, image, evidence, receipts, key)

    def cosign_tag(self, layout: ImageLayout, kind: str) -> Path:
        tag = layout.manifest.digest.replace(":", "-")
        return self.registry.tag_link(NAME, f"{tag}.{kind}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("verify")
    cosign = real_cosign()
    key, public = key_pair(cosign, folder / "keys", "k")
    other_key, other_public = key_pair(cosign, folder / "keys", "other")
    with serve_registry(folder / "registry") as registry:
        good = make_image(folder / "good")
        other = make_image(folder / "other", labels={f"{PREFIX}.build-id": OTHER_BUILD})
        plain = make_image(folder / "plain", labels={f"{PREFIX}.build-id": "0" * 16})
        world = World(
            registry,
            cosign,
            key,
            public,
            other_key,
            other_public,
            good,
            other,
            plain,
            folder / "scratch",
        )
        client = Registry(world.name)
        for layout, tag in ((good, TAG), (other, f"0.1.0-cu130-{OTHER_BUILD}"), (plain, "")):
            push_layout(layout, client)
            if tag:
                world.attach(layout, key, "built", "cpu-verified")
                client.tag(tag, layout.manifest)
        yield world


@pytest.fixture
def world(made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    shutil.copytree(made.registry.storage, tmp_path / "storage")
    yield made
    shutil.rmtree(made.registry.storage)
    shutil.copytree(tmp_path / "storage", made.registry.storage)


def states(report: Report) -> dict[str, str]:
    return {row.name: row.state for row in report.rows}


def verdict(report: Report, error: type[BuilderError], *rows: str) -> str:
    """The report fails with that error for these rows, and no other row failed for that reason."""
    found = report.error()
    assert found is not None, report.table()
    assert type(found) is error, report.table()
    assert {row.name for row in report.rows if row.error is error} == set(rows), report.table()
    for row in rows:
        assert row in found.what
    return found.what


def flip(path: Path, offset: int = -5) -> None:
    """Change one byte."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_good_image(world: World) -> None:
    report = world.verify(world.name.with_tag(TAG), layers=True, receipts=("built", "cpu-verified"))
    assert report.error() is None, report.table()
    assert report.digest == world.good.manifest.digest
    assert states(report) == {
        "manifest": "ok",
        "config": "ok",
        "labels": "ok",
        "tag": "ok",
        "layers": "ok",
        "signature": "ok",
        "SBOM SPDX": "ok",
        "SBOM CycloneDX": "ok",
        "provenance": "ok",
        "receipt built": "ok",
        "receipt cpu-verified": "ok",
        "receipt gpu-qualified": "absent",
    }
    assert report.document()["verified"] is True
    assert not list(world.scratch.glob("tmp*")), "what was downloaded is removed"


def test_an_unsigned_image(world: World) -> None:
    report = world.verify(world.name.with_digest(world.plain.manifest.digest))
    verdict(report, UnsignedError, "signature")
    assert states(report)["labels"] == "ok"
    assert states(report)["SBOM SPDX"] == "absent"


def test_signed_and_attested_by_another_key(world: World) -> None:
    world.attach(world.plain, world.other_key, "built")
    report = world.verify(world.name.with_digest(world.plain.manifest.digest))
    said = verdict(
        report,
        UnsignedError,
        "signature",
        "SBOM SPDX",
        "SBOM CycloneDX",
        "provenance",
        "receipt built",
    )
    assert "by this key" in said


def test_a_second_signer_does_no_harm(world: World) -> None:
    world.attach(world.good, world.other_key, "built", "cpu-verified")
    report = world.verify()
    assert report.error() is None, report.table()
    assert "1 more, not by this key" in report.table()
    assert world.verify(public=world.other_public).error() is None


@pytest.mark.parametrize("by_tag", [True, False])
def test_the_manifest_was_altered(world: World, by_tag: bool) -> None:
    path = world.registry.blob(world.good.manifest.digest)
    path.write_text(path.read_text().replace("amd64", "amd65").replace("5a5a", "5b5b"))
    reference = world.name.with_tag(TAG) if by_tag else world.image
    report = world.verify(reference)
    verdict(report, TamperedError, "manifest")
    assert states(report)["the rest"] == "skipped"


def test_the_configuration_was_altered(world: World) -> None:
    path = world.registry.blob(world.good.document()["config"]["digest"])
    path.write_text(path.read_text().replace("580.65.06", "570.65.06"))
    verdict(world.verify(), TamperedError, "config")


def test_a_layer_was_altered_and_only_layers_sees_it(world: World) -> None:
    flip(world.registry.blob(world.good.layers()[1].digest))
    assert world.verify().error() is None
    said = verdict(world.verify(layers=True), TamperedError, "layers")
    assert "layer 2 of 2" in said


def test_a_layer_is_cut_or_gone(world: World) -> None:
    path = world.registry.blob(world.good.layers()[0].digest)
    path.write_bytes(path.read_bytes()[:-1])
    verdict(world.verify(), ImageAbsentError, "layers")
    path.unlink()
    verdict(world.verify(), ImageAbsentError, "layers")
    verdict(world.verify(layers=True), ImageAbsentError, "layers")


def test_layers_that_unpack_to_something_else(world: World, tmp_path: Path) -> None:
    """Every blob is what its digest says, and the configuration speaks of other content."""
    wrong = make_image(tmp_path / "wrong", diff_ids=[f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"])
    push_layout(wrong, world.name)
    report = world.verify(world.name.with_digest(wrong.manifest.digest), layers=True)
    verdict(report, TamperedError, "layers")


def test_the_tag_was_moved_to_another_signed_image(world: World) -> None:
    world.registry.tag_link(NAME, TAG).write_text(world.other.manifest.digest)
    report = world.verify(world.name.with_tag(TAG))
    said = verdict(report, ImageReferenceError, "tag")
    assert OTHER_BUILD in said
    assert report.digest == world.other.manifest.digest
    assert states(report)["signature"] == "ok"
    both = Reference(world.name.registry, NAME, TAG, world.good.manifest.digest)
    assert world.verify(both).error() is None, "the digest decides, not the tag beside it"


def test_a_signature_copied_from_another_image(world: World) -> None:
    link = world.cosign_tag(world.plain, "sig")
    link.parent.mkdir(parents=True)
    link.write_text(world.cosign_tag(world.good, "sig").read_text())
    report = world.verify(world.name.with_digest(world.plain.manifest.digest))
    verdict(report, UnsignedError, "signature")


def test_attestations_of_another_image(world: World) -> None:
    link = world.cosign_tag(world.good, "att")
    link.write_text(world.cosign_tag(world.other, "att").read_text())
    report = world.verify()
    said = verdict(
        report,
        EvidenceError,
        "SBOM SPDX",
        "SBOM CycloneDX",
        "provenance",
        "receipt built",
        "receipt cpu-verified",
    )
    assert "of another image" in said
    assert states(report)["signature"] == "ok"


def _edit_attestations(world: World, change: Any) -> None:
    """Write another manifest of attestations in place of the good image's."""
    link = world.cosign_tag(world.good, "att")
    document = json.loads(world.registry.blob(link.read_text()).read_text())
    change(document)
    content = json.dumps(document).encode()
    tag = world.good.manifest.digest.replace(":", "-") + ".att"
    Registry(world.name).put_manifest(tag, content, document["mediaType"])


def test_one_sbom_is_missing(world: World) -> None:
    def drop(document: dict[str, Any]) -> None:
        document["layers"] = [
            blob
            for blob in document["layers"]
            if blob["annotations"]["predicateType"] != "https://cyclonedx.org/bom"
        ]

    _edit_attestations(world, drop)
    report = world.verify()
    verdict(report, EvidenceError, "SBOM CycloneDX")
    assert states(report)["SBOM CycloneDX"] == "absent"


def test_an_attestation_was_altered(world: World) -> None:
    """On the disk: its hash is wrong. With a new hash: its signature is."""
    link = world.cosign_tag(world.good, "att")
    document = json.loads(world.registry.blob(link.read_text()).read_text())
    (blob,) = (
        blob for blob in document["layers"] if blob["annotations"]["predicateType"] == PROVENANCE
    )
    path = world.registry.blob(blob["digest"])
    original = path.read_bytes()
    flip(path)
    assert "altered" in verdict(world.verify(), TamperedError, "provenance")
    path.write_bytes(original)

    envelope = json.loads(original)
    signature = envelope["signatures"][0]["sig"]
    envelope["signatures"][0]["sig"] = signature[:20] + signature[20:30].swapcase() + signature[30:]
    forged = world.scratch / "forged"
    forged.write_text(json.dumps(envelope))
    _replace(world, blob["digest"], forged)
    assert "not signed by this key" in verdict(world.verify(), TamperedError, "provenance")


def _replace(world: World, digest: str, file: Path) -> None:
    """Upload a blob and let the manifest of attestations name it instead of `digest`."""
    content = file.read_bytes()
    new = f"sha256:{hashlib.sha256(content).hexdigest()}"
    Registry(world.name).upload_blob(file, Descriptor("", new, len(content)))

    def swap(document: dict[str, Any]) -> None:
        for blob in document["layers"]:
            if blob["digest"] == digest:
                blob.update(digest=new, size=len(content))

    _edit_attestations(world, swap)


def test_evidence_that_contradicts_the_image(world: World) -> None:
    """Signed by the key, beside true evidence: test_evidence_checks.py has each contradiction."""
    world.attach(
        world.good, world.key, spdx={**spdx(), "packages": []}, provenance=provenance("f" * 40)
    )
    said = verdict(world.verify(), EvidenceError, "SBOM SPDX", "provenance")
    assert "f" * 40 in said


def test_a_forged_receipt(world: World) -> None:
    """Signed, but by who may not: the level it claims fails, the genuine ones stand."""
    evidence = write_evidence(world.scratch / "evidence")
    bought = receipt("gpu-qualified", machine={"gpus": ["NVIDIA RTX PRO 6000"]})
    attach(world.cosign, world.image, evidence, [bought], world.other_key)
    report = world.verify()
    verdict(report, TamperedError, "receipt gpu-qualified")
    assert states(report)["receipt cpu-verified"] == "ok"


def test_a_newer_receipt_that_contradicts_the_image(world: World) -> None:
    evidence = write_evidence(world.scratch / "evidence")
    signed = receipt("cpu-verified", date="2026-11-03T00:00:00Z", revision="f" * 40)
    attach(world.cosign, world.image, evidence, [signed], world.key)
    verdict(world.verify(), EvidenceError, "receipt cpu-verified")


def test_a_required_receipt_is_missing(world: World) -> None:
    report = world.verify(receipts=("cpu-verified", "gpu-qualified"))
    verdict(report, EvidenceError, "receipt gpu-qualified")


@pytest.mark.parametrize(
    "labels",
    [
        {f"{PREFIX}.sass": ""},
        {f"{PREFIX}.lock": "sha256:1"},
        {"org.opencontainers.image.revision": "main"},
    ],
)
def test_labels_that_are_not_whole(world: World, tmp_path: Path, labels: dict[str, str]) -> None:
    layout = make_image(tmp_path / "layout", labels=labels)
    push_layout(layout, world.name)
    report = world.verify(world.name.with_digest(layout.manifest.digest))
    assert next(iter(labels)) in {r.name: r.detail for r in report.rows}["labels"]
    assert states(report)["labels"] == "FAILED"


def test_a_copied_image_says_where_it_was_signed(world: World) -> None:
    """The whole repository under another name, signatures included, as `cosign copy` does."""
    shutil.copytree(world.registry.repository(NAME), world.registry.repository("mirror/appliance"))
    there = parse_reference(f"{world.registry.host}/mirror/appliance@{world.good.manifest.digest}")
    said = verdict(world.verify(there), UnsignedError, "signature")
    assert NAME in said
    assert world.verify(there, signed_as=world.name.name).error() is None


def test_what_is_not_there(world: World) -> None:
    for reference in (
        world.name.with_tag("0.1.0-cu130-absent"),
        world.name.with_digest(f"sha256:{'0' * 64}"),
        parse_reference(f"{world.registry.host}/no/such:1"),
    ):
        with pytest.raises(ImageAbsentError):
            world.verify(reference)
    with pytest.raises(ImageReferenceError):
        world.verify(world.name)


def test_another_projects_image_has_no_tag_to_judge(world: World, tmp_path: Path) -> None:
    layout = make_image(tmp_path / "layout", labels=dict.fromkeys(LABELS, ""))
    push_layout(layout, world.name)
    Registry(world.name).tag("t1", layout.manifest)
    report = verify(
        world.name.with_tag("t1"), None, Demand(scratch=world.scratch), label_prefix=PREFIX
    )
    assert {row.name: row for row in report.rows}["tag"].error is None
    assert isinstance(report.error(), EvidenceError)


def _main(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    verify_cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["verify", *argv, "--quiet"])
    try:
        return cli.run_verb(args)
    except BuilderError as exc:
        return exc.exit_code
    finally:
        console.set_quiet(False)


def test_the_command(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    tagged = str(world.name.with_tag(TAG))
    assert _main(tagged, "--key", world.public) == 0
    shown = capsys.readouterr()
    assert f"verified: {world.image}" in shown.out
    assert "AUTHENTICITY" not in shown.err

    assert _main(tagged, "--key", world.public, "--json") == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True

    flip(world.registry.blob(world.good.document()["config"]["digest"]))
    assert _main(tagged, "--key", world.public, "--json") == TamperedError.exit_code
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["verified"], document["exit_code"]) == (False, TamperedError.exit_code)
    assert "error: " in shown.err


def test_without_a_key_it_says_so_and_checks_the_rest(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(str(world.image), "--unsigned") == 0
    shown = capsys.readouterr()
    assert "AUTHENTICITY WAS NOT CHECKED" in shown.err
    assert "verified" not in shown.out.replace("cpu-verified", "")
    assert "NOT authenticated" in shown.out
    assert _main(str(world.image), "--unsigned", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verified"] is False
    plain = str(world.name.with_digest(world.plain.manifest.digest))
    assert _main(plain, "--unsigned") == EvidenceError.exit_code


def test_wrong_arguments_are_refused(world: World) -> None:
    image = str(world.image)
    for argv in (
        (image,),
        (image, "--unsigned", "--key", "k"),
        (image, "--unsigned", "--require", "x"),
    ):
        with pytest.raises(SystemExit) as caught:
            _main(*argv)
        assert caught.value.code == 2
    assert _main(image, "--key", world.key.reference) == SigningError.exit_code
    assert _main("no-registry:1", "--unsigned") == ImageReferenceError.exit_code
