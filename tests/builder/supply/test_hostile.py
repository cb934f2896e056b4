"""Images and evidence that mean harm, in a registry that gives them out as they are; no key."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder import cli
from builder.errors import EvidenceError, ImageReferenceError, TamperedError
from builder.oci.model import CONFIG, MANIFEST, ROOTFS_ANNOTATION
from builder.registry.reference import Reference
from builder.supply.attach import rootfs_of
from builder.supply.cosign import statement
from builder.supply.report import Report
from builder.supply.verify import Demand, verify
from tests.builder.registry.fake import FakeRegistry, fake_registry
from tests.builder.registry.layouts import digest_of
from tests.builder.supply.made import LABELS, PREFIX

DEEP = "[" * 200_000
TAR = b"a tar, nearly" * 100
ENVELOPE = "application/vnd.dsse.envelope.v1+json"


class Served:
    """One image; a test changes a part of it before it is asked for."""

    def __init__(self, registry: FakeRegistry, scratch: Path) -> None:
        self.registry = registry
        self.scratch = scratch
        self.layer = gzip.compress(TAR)
        self.layer_type = "application/vnd.oci.image.layer.v1.tar+gzip"
        self.config: dict[str, Any] = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": LABELS},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(TAR)]},
        }
        self.manifest: dict[str, Any] = {"schemaVersion": 2, "mediaType": MANIFEST}

    def descriptor(self, content: bytes, media_type: str) -> dict[str, Any]:
        digest = self.registry.add(content)
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def reference(self, text: str = "") -> Reference:
        """Store it. `text` in place of the manifest made here."""
        made = {
            "config": self.descriptor(json.dumps(self.config).encode(), CONFIG),
            "layers": [self.descriptor(self.layer, self.layer_type)],
            "annotations": {ROOTFS_ANNOTATION: f"sha256:{'5a' * 32}"},
            **self.manifest,
        }
        content = (text or json.dumps(made)).encode()
        self.registry.manifests[digest_of(content)] = (MANIFEST, content)
        return self.registry.reference.with_digest(digest_of(content))

    def attest(self, image: Reference, layers: Any) -> None:
        """cosign's tag of attestations."""
        content = json.dumps({"mediaType": MANIFEST, "layers": layers}).encode()
        tag = image.digest.replace(":", "-") + ".att"
        self.registry.manifests[tag] = self.registry.manifests[digest_of(content)] = (
            MANIFEST,
            content,
        )

    def verify(self, image: Reference, *, layers: bool = False) -> Report:
        return verify(image, None, Demand(self.scratch, layers), label_prefix=PREFIX)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with fake_registry() as registry:
        yield Served(registry, tmp_path / "scratch")


def failures(report: Report) -> dict[str, str]:
    return {row.name: row.detail for row in report.rows if row.error is TamperedError}


def test_it_is_good_as_it_is(served: Served) -> None:
    report = served.verify(served.reference(), layers=True)
    assert {r.name for r in report.rows if r.state == "ok"} >= {"manifest", "config", "layers"}
    assert not failures(report)


@pytest.mark.parametrize(
    "part",
    [
        {"manifests": []},
        {"layers": [{"mediaType": "x", "digest": f"sha256:{'a' * 64}", "size": 10**400}]},
        {"layers": [{"mediaType": "x", "digest": f"sha256:{'a' * 64}", "size": -1}]},
        {"layers": [{"mediaType": "x", "digest": "sha256:../../../etc/passwd", "size": 1}]},
        {"layers": 7},
        {"config": None},
        {"annotations": None},
    ],
    ids=["image and index", "huge", "negative", "path", "number", "no config", "no annotations"],
)
def test_what_is_no_image_manifest(served: Served, part: dict[str, Any]) -> None:
    served.manifest.update(part)
    with pytest.raises(TamperedError, match="not an image manifest"):
        served.verify(served.reference())


@pytest.mark.parametrize("text", [DEEP, '{"config": {"size": 1e999}}', "null", '"x"'])
def test_a_manifest_that_breaks_readers(served: Served, text: str) -> None:
    report: Report | None = None
    try:
        report = served.verify(served.reference(text))
    except TamperedError:
        return
    assert failures(report), report.table()


def test_another_media_type_is_shown_plainly(served: Served) -> None:
    served.manifest["mediaType"] = "\x1b[2Jindex\ud800"
    with pytest.raises(ImageReferenceError, match="not one image") as caught:
        served.verify(served.reference())
    assert caught.value.what.isprintable()


@pytest.mark.parametrize("text", [DEEP, "[]", '{"rootfs": {"diff_ids": 7}}', "NaN"])
def test_what_is_no_configuration(served: Served, text: str) -> None:
    served.manifest["config"] = served.descriptor(text.encode(), CONFIG)
    assert "config" in failures(served.verify(served.reference()))


def test_nothing_of_an_image_drives_the_terminal(served: Served) -> None:
    evil = "\x1b]0;owned\x07\ud800\u202e"
    served.config.update(os=evil, architecture=evil)
    served.config["config"] = {"Labels": {**LABELS, f"{PREFIX}.cuda": evil}}
    report = served.verify(served.reference(), layers=True)
    assert all(line.isprintable() for line in report.table().splitlines())
    report.table().encode()
    error = report.error()
    assert error is not None
    assert error.what.isprintable()


def test_a_layer_whose_packing_is_broken(served: Served) -> None:
    packed = bytearray(served.layer)
    packed[10] = 0xFF  # of a kind of block that deflate does not have: zlib.error, no OSError
    served.layer = bytes(packed)
    assert (
        "cannot be unpacked" in failures(served.verify(served.reference(), layers=True))["layers"]
    )


def test_a_size_that_is_a_lie(served: Served) -> None:
    digest = served.registry.add(b"{}")
    served.manifest["config"] = {"mediaType": CONFIG, "digest": digest, "size": 4000}
    assert "descriptor says 4000" in failures(served.verify(served.reference()))["config"]


@pytest.mark.parametrize(
    "layers",
    [
        7,
        [None],
        [{"mediaType": ENVELOPE, "digest": f"sha256:{'a' * 64}", "size": 1}] * 501,
        [{"mediaType": ENVELOPE, "digest": f"sha256:{'a' * 64}", "size": 1 << 26}] * 5,
        [{"mediaType": ENVELOPE, "digest": f"sha256:{'a' * 64}", "size": 10**4000}],
    ],
    ids=["number", "null", "many", "large", "larger"],
)
def test_attestations_without_end(served: Served, layers: Any) -> None:
    image = served.reference()
    served.attest(image, layers)
    before = served.registry.count("GET", "/blobs/")
    assert "attestations" in failures(served.verify(image))
    assert served.registry.count("GET", "/blobs/") == before + 1  # of the configuration


@pytest.mark.parametrize("text", [DEEP, "7", '{"payload": 7}', "{}"])
def test_an_attestation_that_is_none(served: Served, text: str) -> None:
    image = served.reference()
    layer = served.descriptor(text.encode(), ENVELOPE)
    served.attest(image, [{**layer, "annotations": {"predicateType": "https://spdx.dev/Document"}}])
    assert "SBOM SPDX" in failures(served.verify(image))


def test_a_statement_that_breaks_readers() -> None:
    for payload in (DEEP.encode(), b'{"predicateType": "x", "subject": 1e999}', b"\xff"):
        with pytest.raises(TamperedError):
            statement(
                {
                    "payloadType": "application/vnd.in-toto+json",
                    "payload": base64.b64encode(payload).decode(),
                }
            )


@pytest.mark.parametrize("text", [DEEP, '{"annotations": null}', "[]", "{"])
def test_a_manifest_that_names_no_files(text: str) -> None:
    with pytest.raises(EvidenceError):
        rootfs_of(Reference("a.example", "b"), text.encode())


def test_the_command_has_no_traceback(
    served: Served, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))
    for text in (DEEP, '{"config": {"size": 1e999}}'):
        image = served.reference(text)
        assert cli.main(["verify", str(image), "--unsigned", "--quiet"]) == TamperedError.exit_code
    assert "Traceback" not in capsys.readouterr().err
