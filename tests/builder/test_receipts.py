"""Receipts: what is kept comes back, what is damaged or of another image is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.errors import EvidenceError
from builder.project import Project
from builder.receipts import (
    LEVELS,
    Count,
    ImageId,
    Receipt,
    committed_path,
    parse_receipt,
    read_committed,
    read_receipts,
    record,
    to_predicate,
    write_receipt,
)

ID, DIGEST, ROOTFS = ("sha256:" + letter * 64 for letter in "abc")
BUILD = "0123456789abcdef"


def a_receipt(level: str = "built", **changes: Any) -> Receipt:
    receipt = Receipt(
        level=level,
        image=ImageId(ID, "ddtree-appliance:cu130", 7 * 2**30),
        target="cu130",
        build_id=BUILD,
        revision="f" * 40,
        date="2026-11-30T05:50:00Z",
        machine={"cpu": "a processor", "cores": 2, "gpus": []},
        suites={"image/abi": Count(4, 0, 0), "image/files": Count(3, 0, 0)},
    )
    return replace(receipt, **changes)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))
    return Project(tmp_path / "repository")


def test_what_is_written_is_read_again_in_the_order_of_levels(project: Project) -> None:
    receipts = [a_receipt(level) for level in LEVELS]
    for receipt in reversed(receipts):
        path = write_receipt(project, receipt)
    assert path == project.cache / "receipts" / BUILD / "built.json"
    assert read_receipts(project, BUILD) == receipts
    assert read_receipts(project, "f" * 16) == []


def test_a_level_of_the_same_build_is_replaced(project: Project) -> None:
    write_receipt(project, a_receipt())
    later = a_receipt(date="2026-12-01T00:00:00Z")
    write_receipt(project, later)
    assert read_receipts(project, BUILD) == [later]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", 2),
        ("level", "perfect"),
        ("build_id", "../../etc"),
        ("date", "yesterday"),
        ("suites", {"image/abi": {"passed": -1, "failed": 0, "skipped": 0}}),
        ("suites", {"image/abi": {"passed": "4", "failed": 0, "skipped": 0}}),
        ("suites", {"image/abi": {"passed": 4}}),
        ("suites", ["image/abi"]),
        ("suites", {"image/abi": {"passed": True, "failed": 0, "skipped": 0}}),
        ("image", {"id": ID}),
        ("image", {"id": 7, "reference": "a:1", "size_bytes": 1}),
        ("image", {"id": ID, "reference": "a:1", "size_bytes": 1, "digest": [DIGEST]}),
        ("image", {"id": ID, "reference": "a:1", "size_bytes": 1, "of": "another"}),
        ("image", None),
        ("machine", 7),
    ],
)
def test_what_is_no_receipt_is_refused(key: str, value: Any) -> None:
    good = json.loads(json.dumps(a_receipt().document()))
    assert parse_receipt(good, "here") == a_receipt()
    with pytest.raises(EvidenceError, match="here"):
        parse_receipt({**good, key: value}, "here")
    with pytest.raises(EvidenceError, match="here"):
        parse_receipt({k: v for k, v in good.items() if k != key}, "here")


def test_what_it_says_besides_is_refused() -> None:
    """A field that nobody reads may be the one that says what it is not."""
    with pytest.raises(EvidenceError, match="here"):
        parse_receipt({**a_receipt().document(), "simulated": True}, "here")


@pytest.mark.parametrize("text", ["", "[]", "null", '{"schema": 1}', "{"])
def test_a_damaged_file_is_named(project: Project, text: str) -> None:
    path = write_receipt(project, a_receipt())
    path.write_text(text)
    with pytest.raises(EvidenceError, match=r"built\.json"):
        read_receipts(project, BUILD)


def test_a_receipt_in_the_place_of_another_is_refused(project: Project) -> None:
    path = write_receipt(project, a_receipt())
    path.rename(path.with_name("gpu-qualified.json"))
    with pytest.raises(EvidenceError, match="another build or level"):
        read_receipts(project, BUILD)


def test_it_concerns_the_image_of_its_id_its_files_or_its_digest() -> None:
    plain = a_receipt()
    assert plain.concerns(image_id=ID)
    assert not plain.concerns(image_id=DIGEST, rootfs=ROOTFS, digest=DIGEST)
    assert not plain.concerns()  # what is unknown on both sides is not equal
    bound = plain.bound(digest=DIGEST, rootfs=ROOTFS)
    assert bound.concerns(rootfs=ROOTFS) and bound.concerns(digest=DIGEST)
    assert bound.bound(digest=DIGEST, rootfs=ROOTFS) == bound


@pytest.mark.parametrize(("digest", "rootfs"), [(ID, ROOTFS), (DIGEST, ID)])
def test_it_cannot_be_bound_to_another_image(digest: str, rootfs: str) -> None:
    with pytest.raises(EvidenceError, match="another image"):
        a_receipt().bound(digest=DIGEST, rootfs=ROOTFS).bound(digest=digest, rootfs=rootfs)


@pytest.mark.parametrize(
    ("suites", "result", "passed", "warned", "failed"),
    [
        ({"a": (4, 0, 0), "b": (1, 0, 0)}, "PASSED", ["a", "b"], [], []),
        ({"a": (4, 0, 1), "b": (1, 0, 0)}, "WARNED", ["b"], ["a"], []),
        ({"a": (0, 0, 3)}, "WARNED", [], ["a"], []),
        ({"a": (4, 1, 1), "b": (1, 0, 0)}, "FAILED", ["b"], [], ["a"]),
        ({}, "WARNED", [], [], []),
    ],
)
def test_the_predicate_never_counts_a_skipped_test_as_passed(
    suites: dict[str, tuple[int, int, int]],
    result: str,
    passed: list[str],
    warned: list[str],
    failed: list[str],
) -> None:
    receipt = a_receipt(suites={name: Count(*numbers) for name, numbers in suites.items()})
    predicate = to_predicate(receipt)
    assert predicate["result"] == result
    assert predicate["passedTests"] == passed
    assert predicate["warnedTests"] == warned
    assert predicate["failedTests"] == failed
    assert predicate["receipt"] == receipt.document()


def test_the_predicate_names_the_commit_only_of_a_clean_tree() -> None:
    (clean,) = to_predicate(a_receipt())["configuration"]
    assert clean["digest"] == {"gitCommit": "f" * 40}
    for revision in ("f" * 40 + "-dirty", "unknown"):
        (other,) = to_predicate(a_receipt(revision=revision))["configuration"]
        assert "digest" not in other and revision in other["name"]


def test_committed_receipts_are_of_one_build(project: Project) -> None:
    assert read_committed(project, "cu130") == {}
    record(project, "cu130", [a_receipt(level) for level in LEVELS])
    assert list(read_committed(project, "cu130")) == list(LEVELS)
    record(project, "cu130", [a_receipt(build_id="f" * 16)])
    assert list(read_committed(project, "cu130")) == ["built"]
    path = record(project, "cu130", [a_receipt()])
    mixed = [a_receipt(), a_receipt("cpu-verified", build_id="f" * 16)]
    path.write_text(json.dumps([receipt.document() for receipt in mixed]))
    with pytest.raises(EvidenceError, match="more than one build"):
        read_committed(project, "cu130")
    path.write_text(json.dumps([a_receipt(target="cu128").document()]))
    with pytest.raises(EvidenceError, match="another target"):
        read_committed(project, "cu130")
    committed_path(project, "cu130").write_text("{}")
    with pytest.raises(EvidenceError, match="not a list"):
        read_committed(project, "cu130")


def test_another_machine_adds_its_level_to_the_same_build(project: Project) -> None:
    """The host with GPUs has the self-test's receipt alone in its cache."""
    record(project, "cu130", [a_receipt(level) for level in LEVELS[:2]])
    later = a_receipt("gpu-qualified", date="2026-12-01T00:00:00Z")
    record(project, "cu130", [later])
    assert list(read_committed(project, "cu130")) == list(LEVELS)
    record(project, "cu130", [a_receipt(revision="e" * 40)])
    found = read_committed(project, "cu130")
    assert found["built"].revision == "e" * 40 and found["gpu-qualified"] == later
