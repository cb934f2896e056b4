"""What an attestation may say of an image, and what contradicts it; no registry, no cosign."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from builder.errors import EvidenceError, TamperedError, UnsignedError
from builder.receipts import Count, Receipt, to_predicate
from builder.supply.attach import PROVENANCE, RECEIPT, attestations
from builder.supply.attached import Found
from builder.supply.evidence_checks import (
    Attestations,
    check_provenance,
    check_receipts,
    contradiction,
)
from builder.supply.image_checks import Image, check_labels, check_tag, diff_id
from builder.supply.report import Report, Row, one_line
from builder.supply.sbom_checks import check_cyclonedx, check_spdx
from tests.builder.supply.made import (
    LABELS,
    PREFIX,
    REVISION,
    TAG,
    cyclonedx,
    make_image,
    provenance,
    receipt,
    spdx,
    write_evidence,
)


def image_of(folder: Path, **labels: str) -> Image:
    layout = make_image(folder)
    content = layout.blob(layout.manifest.digest).read_bytes()
    image = Image(layout.manifest, content, PREFIX)
    image.labels = {**LABELS, **labels}
    return image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return image_of(tmp_path / "layout")


def bound(image: Image, level: str = "cpu-verified", **changes: Any) -> Receipt:
    made = receipt(level, **changes)
    return made.bound(digest=image.manifest.digest, rootfs=image.rootfs)


def of(image: Image, predicate: Any, kind: str = RECEIPT) -> dict[str, Any]:
    """An in-toto statement of that image."""
    digest = {"sha256": image.manifest.digest.removeprefix("sha256:")}
    return {"predicateType": kind, "subject": [{"digest": digest}], "predicate": predicate}


def believed(*statements: dict[str, Any], forged: tuple[Found, ...] = ()) -> Attestations:
    """These are signed by the key; `forged` are not, and the image's own signature is good."""
    found = [Found(str(s["predicateType"]), s) for s in statements]
    signed: dict[str, list[dict[str, Any]]] = {}
    for statement in statements:
        signed.setdefault(statement["predicateType"], []).append(statement)
    return Attestations([*found, *forged], signed, authentic=True, unsigned=TamperedError)


def test_provenance_names_the_labels_commit_and_lock(image: Image) -> None:
    assert REVISION[:12] in check_provenance(provenance(), image)


@pytest.mark.parametrize(
    "wrong",
    [
        provenance(revision="f" * 40),
        provenance(lock="0" * 64),
        provenance(build="f" * 16),
        provenance(target="cu128"),
        {},
        {"buildDefinition": {"resolvedDependencies": []}, "runDetails": {"builder": {"id": "b"}}},
        {"buildDefinition": {"resolvedDependencies": "x"}, "runDetails": {"builder": {"id": "b"}}},
        {**provenance(), "runDetails": {}},
    ],
)
def test_provenance_that_does_not(image: Image, wrong: dict[str, Any]) -> None:
    with pytest.raises(EvidenceError):
        check_provenance(wrong, image)


def test_a_dirty_tree_is_of_its_commit_and_an_unknown_one_of_none(tmp_path: Path) -> None:
    label = "org.opencontainers.image.revision"
    check_provenance(provenance(), image_of(tmp_path / "1", **{label: f"{REVISION}-dirty"}))
    check_provenance(provenance(), image_of(tmp_path / "2", **{label: "unknown"}))


def test_sboms_that_are_lists_of_something(image: Image) -> None:
    assert "1 components" in check_spdx(spdx(), image)
    assert "1 components" in check_cyclonedx(cyclonedx(), image)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"spdxVersion": "SPDX-2.3"},
        {**spdx(), "packages": []},
        {**spdx(), "spdxVersion": "SPDX-2.2"},
        {**spdx(), "packages": [{"name": "torch"}]},
        {**spdx(), "packages": "torch"},
    ],
)
def test_what_is_no_spdx(image: Image, wrong: dict[str, Any]) -> None:
    with pytest.raises(EvidenceError):
        check_spdx(wrong, image)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"bomFormat": "CycloneDX", "specVersion": "1.6"},
        {**cyclonedx(), "components": []},
        {**cyclonedx(), "components": [{"type": "nonesuch", "name": "a"}]},
        {**cyclonedx(), "components": ["torch"]},
    ],
)
def test_what_is_no_cyclonedx(image: Image, wrong: dict[str, Any]) -> None:
    with pytest.raises(EvidenceError):
        check_cyclonedx(wrong, image)


def test_a_receipt_of_this_image(image: Image) -> None:
    assert contradiction(bound(image), image) == ""
    qualified = bound(image, "gpu-qualified", machine={"gpus": ["NVIDIA RTX PRO 6000"]})
    assert contradiction(qualified, image) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"build_id": "f" * 16}, "build id"),
        ({"revision": "f" * 40}, "revision"),
        ({"target": "cu128"}, "target"),
        ({"suites": {"image/abi": Count(3, 1, 0)}}, "1 tests failed"),
        ({"level": "gpu-qualified"}, "no GPU"),
    ],
)
def test_a_receipt_of_something_else(image: Image, changes: dict[str, Any], why: str) -> None:
    level = changes.pop("level", "cpu-verified")
    assert why in contradiction(bound(image, level, **changes), image)


def test_a_receipt_that_names_another_digest_or_other_files(image: Image) -> None:
    made = receipt()
    digest = made.bound(digest=f"sha256:{'0' * 64}", rootfs=image.rootfs)
    assert "digest" in contradiction(digest, image)
    files = made.bound(digest=image.manifest.digest, rootfs=image.rootfs)
    image.rootfs = f"sha256:{'0' * 64}"
    assert "files' hash" in contradiction(files, image)


def test_a_receipt_whose_counts_say_something_else(image: Image) -> None:
    predicate = {**to_predicate(bound(image)), "result": "PASSED"}  # one test was skipped
    rows = check_receipts(believed(of(image, predicate)), image, ())
    assert [row.name for row in rows if row.error is EvidenceError] == ["receipts"]


def test_the_newest_receipt_counts(image: Image) -> None:
    good = of(image, to_predicate(bound(image)))
    failed_one = bound(image, date="2026-11-05T00:00:00Z", suites={"image/abi": Count(0, 1, 0)})
    bad = of(image, to_predicate(failed_one))
    for statements in ((good, bad), (bad, good)):
        rows = {r.name: r for r in check_receipts(believed(*statements), image, ())}
        assert rows["receipt cpu-verified"].state == "FAILED"


@pytest.mark.parametrize(("required", "error"), [((), None), (("built",), EvidenceError)])
def test_an_absent_level_fails_only_if_it_is_required(
    image: Image, required: tuple[str, ...], error: type | None
) -> None:
    rows = {r.name: r for r in check_receipts(believed(), image, required)}
    assert (rows["receipt built"].state, rows["receipt built"].error) == ("absent", error)


def test_a_forged_receipt_fails_its_level_alone(image: Image) -> None:
    forged = of(image, to_predicate(bound(image, "gpu-qualified", machine={"gpus": ["x"]})))
    attached = believed(of(image, to_predicate(bound(image))), forged=(Found(RECEIPT, forged),))
    rows = {r.name: r for r in check_receipts(attached, image, ())}
    assert rows["receipt gpu-qualified"].error is TamperedError
    assert rows["receipt cpu-verified"].state == "ok"
    assert rows["receipt built"].state == "absent"


def test_an_attestation_of_another_digest_is_named_so(image: Image, tmp_path: Path) -> None:
    other = image_of(tmp_path / "other")
    other.manifest = type(image.manifest)("", f"sha256:{'9' * 64}", 1)
    attached = believed(forged=(Found(PROVENANCE, of(other, provenance(), PROVENANCE)),))
    row = attached.row("provenance", PROVENANCE, image, check_provenance)
    assert (row.error, "another image" in row.detail) == (EvidenceError, True)


def test_the_tag_and_the_labels(image: Image, tmp_path: Path) -> None:
    assert check_labels(image).state == "ok"
    assert check_tag(image, TAG).state == "ok"
    for tag in ("latest", TAG + "0", "0.1.0-cu128-0123456789abcdef"):
        assert check_tag(image, tag).error is not None
    stand_in = image_of(
        tmp_path / "s", **{f"{PREFIX}.stand-in": "true", f"{PREFIX}.variant": "cu128"}
    )
    assert check_tag(stand_in, "0.1.0-cu128-stand-in-0123456789abcdef").state == "ok"


@pytest.mark.parametrize("lacks", ["variant", "stand-in", "build-id", "all"])
def test_a_tag_is_not_judged_without_the_labels_that_give_it(image: Image, lacks: str) -> None:
    """It was not moved: the image is another's. That the labels lack is its own finding."""
    image.labels = {
        name: value
        for name, value in image.labels.items()
        if lacks != "all" and name != f"{PREFIX}.{lacks}"
    }
    row = check_tag(image, "t1")
    assert row.error is None
    assert row.state != "ok"
    assert check_labels(image).error is EvidenceError


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"config": {}, "layers": []},
        {"config": {"mediaType": "m", "digest": "sha256:../../x", "size": 1}, "layers": []},
        {"config": {"mediaType": "m", "digest": f"sha256:{'0' * 64}", "size": -1}, "layers": []},
        {"config": {"mediaType": "m", "digest": f"sha256:{'0' * 64}", "size": 1}, "layers": 3},
    ],
)
def test_what_is_no_manifest(image: Image, document: Any) -> None:
    with pytest.raises(TamperedError):
        Image(image.manifest, json.dumps(document).encode(), PREFIX)


@pytest.mark.parametrize(
    "statement",
    [
        {"predicateType": "https://slsa.dev/provenance/v1", "subject": []},
        {
            "predicateType": "https://spdx.dev/Document",
            "subject": [{"digest": {"sha256": "1" * 64}}],
        },
    ],
)
def test_evidence_of_another_image_is_not_attached(
    tmp_path: Path, statement: dict[str, Any]
) -> None:
    whole = {"_type": "https://in-toto.io/Statement/v1", **statement, "predicate": provenance()}
    evidence = write_evidence(tmp_path, provenance=whole)
    with pytest.raises(EvidenceError):
        attestations(evidence, [], f"sha256:{'1' * 64}", "sha256:2")


def test_the_worst_failure_decides_and_is_named() -> None:
    rows = (
        Row("a", "ok", "fine"),
        Row("b", "absent", "none", EvidenceError),
        Row("c", "FAILED", "another key", UnsignedError),
    )
    report = Report("r", "sha256:1", True, rows)
    error = report.error()
    assert isinstance(error, UnsignedError)
    assert "c: another key" in error.what
    worse = Report("r", "sha256:1", True, (*rows, Row("d", "FAILED", "bytes", TamperedError)))
    assert isinstance(worse.error(), TamperedError)
    assert worse.document()["exit_code"] == TamperedError.exit_code
    assert worse.table().count("\n") == 3
    assert Report("r", "sha256:1", True, rows[:1]).error() is None


def test_what_a_registry_sends_cannot_move_the_cursor() -> None:
    assert one_line("a\x1b[2J\nb\r\tc") == "a [2J b c"
    assert len(one_line("x" * 1000)) == 160


@pytest.mark.parametrize(
    ("media_type", "pack"),
    [
        ("application/vnd.oci.image.layer.v1.tar", lambda content: content),
        ("application/vnd.oci.image.layer.v1.tar+gzip", gzip.compress),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", gzip.compress),
        ("application/vnd.oci.image.layer.v1.tar+zstd", zstandard.compress),
        # Two frames: what a parallel packer writes.
        (
            "application/vnd.oci.image.layer.v1.tar+zstd",
            lambda content: zstandard.compress(content[:9]) + zstandard.compress(content[9:]),
        ),
    ],
)
def test_a_diff_id_is_of_the_unpacked_bytes(
    tmp_path: Path, media_type: str, pack: Callable[[bytes], bytes]
) -> None:
    content = b"content of a layer" * 1000
    path = tmp_path / "layer"
    path.write_bytes(pack(content))
    assert diff_id(path, media_type) == f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.mark.parametrize("suites", [{}, {"image/abi": Count(0, 0, 9)}])
def test_a_receipt_of_nothing_shows_nothing(image: Image, suites: dict[str, Count]) -> None:
    """Signed or not: every test skipped, or none run, is no level."""
    made = bound(image, suites=suites)
    assert "no test of it passed" in contradiction(made, image)
    rows = check_receipts(believed(of(image, to_predicate(made))), image, ["cpu-verified"])
    assert any("no test of it passed" in str(row) for row in rows)


def test_a_suite_that_was_skipped_whole_verifies_nothing(image: Image) -> None:
    suites = {"image/abi": Count(3, 0, 1), "e2e/lossless": Count(0, 0, 9)}
    made = bound(image, level="cpu-verified", suites=suites)
    assert contradiction(made, image) == "e2e/lossless: every test was skipped"
    some = bound(image, level="cpu-verified", suites={"image/abi": Count(3, 0, 1)})
    assert contradiction(some, image) == ""
