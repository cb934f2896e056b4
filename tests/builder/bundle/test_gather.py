from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import docker.errors
import pytest

from builder.bundle import gather as gathering
from builder.engine import Engine
from builder.errors import EvidenceError, ImageAbsentError, ImageReferenceError
from builder.local_image import find_image as find
from builder.oci.model import ImageLayout
from builder.pins import Target
from builder.project import Project
from builder.receipts import Count, ImageId, Receipt, receipts_of_export, write_receipt
from builder.supply.evidence import Evidence
from tests.builder.bundle.small import BUILD_ID, EPOCH, LABELS, NAME

ID = "sha256:" + "a" * 64


def receipt(level: str, image_id: str, rootfs: str | None = None) -> Receipt:
    return Receipt(
        level=level,
        image=ImageId(id=image_id, reference=NAME, size_bytes=1, rootfs=rootfs),
        target="cu130",
        build_id=BUILD_ID,
        revision="1" * 40,
        date="2026-11-30T00:00:00Z",
        machine={"cpu": "x"},
        suites={"image": Count(3, 0, 0)},
    )


def test_receipts_of_this_image_are_bound_to_its_digest(
    project: Project, layout: ImageLayout
) -> None:
    write_receipt(project, receipt("built", ID))
    write_receipt(project, receipt("cpu-verified", "sha256:" + "b" * 64, layout.rootfs))
    found = receipts_of_export(project, BUILD_ID, ID, layout)
    assert [r.level for r in found] == ["built", "cpu-verified"]
    assert {r.image.digest for r in found} == {layout.manifest.digest}
    assert {r.image.rootfs for r in found} == {layout.rootfs}


def test_receipts_of_another_image_are_left_out_aloud(
    project: Project, layout: ImageLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    write_receipt(project, receipt("built", "sha256:" + "b" * 64))
    assert receipts_of_export(project, BUILD_ID, ID, layout) == []
    assert "the receipt built is of another image" in capsys.readouterr().err


def test_a_receipt_with_this_id_and_other_files_is_an_error(
    project: Project, layout: ImageLayout
) -> None:
    write_receipt(project, receipt("built", ID, "sha256:" + "c" * 64))
    with pytest.raises(EvidenceError, match="of another image"):
        receipts_of_export(project, BUILD_ID, ID, layout)


class FakeImage:
    id = ID

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels


class FakeEngine:
    """An engine with one image."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.client = self
        self.images = self
        self._labels = labels

    def get(self, reference: str) -> FakeImage:
        if reference != NAME:
            raise docker.errors.ImageNotFound(reference)
        return FakeImage(self._labels)


def engine_with(**changes: str) -> Engine:
    return cast(Engine, FakeEngine({**LABELS, **changes}))


def test_images_that_are_not_bundled(target: Target) -> None:
    with pytest.raises(ImageAbsentError) as absent:
        find(target, engine_with(), "ddtree-appliance:none", allow_dirty=False)
    assert "python3 build.py --cuda cu130" in absent.value.remedy
    assert "`docker images` lists" in absent.value.remedy
    other = engine_with(**{"dev.ddtree.variant": "cu128"})
    with pytest.raises(ImageReferenceError, match="an image of cu128"):
        find(target, other, NAME, allow_dirty=False)
    dirty = engine_with(**{"org.opencontainers.image.revision": "abc-dirty"})
    with pytest.raises(ImageReferenceError, match="uncommitted changes"):
        find(target, dirty, NAME, allow_dirty=False)
    assert find(target, dirty, NAME, allow_dirty=True).id == ID
    assert find(target, engine_with(), NAME, allow_dirty=False).build_id == BUILD_ID


def test_what_is_gathered(
    project: Project,
    target: Target,
    layout: ImageLayout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The export and the documents themselves are other modules' matter."""
    exported: list[tuple[str, int]] = []

    def export(project: Project, engine: Engine, reference: str, *, epoch: int) -> ImageLayout:
        exported.append((reference, epoch))
        return layout

    def write(*args: Any) -> Evidence:
        folder: Path = args[-1]
        paths = [folder / name for name in ("sbom.spdx.json", "sbom.cdx.json", "provenance.json")]
        for path in paths:
            path.write_text("{}\n")
        return Evidence(*paths)

    monkeypatch.setattr(gathering, "export_image", export)
    monkeypatch.setattr(gathering, "write_evidence", write)
    monkeypatch.setattr(gathering, "read_inventory", lambda *args: {})
    write_receipt(project, receipt("built", ID))
    found, evidence = gathering.gather(
        project, target, engine_with(), NAME, tmp_path, allow_dirty=False
    )
    assert found == layout
    assert exported == [(ID, EPOCH)]  # by id: a name may move
    assert set(evidence) == {
        "sbom.spdx.json",
        "sbom.cdx.json",
        "provenance.json",
        "receipts/built.json",
    }
    predicate = json.loads(evidence["receipts/built.json"].read_text())
    assert predicate["result"] == "PASSED"
    assert predicate["receipt"]["image"]["digest"] == layout.manifest.digest
