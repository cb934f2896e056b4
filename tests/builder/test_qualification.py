"""Levels are earned: what is missing, skipped or of another image earns nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.errors import EvidenceError, HostFileError
from builder.project import default_project
from builder.qualification import (
    REQUIRED,
    build_id,
    built,
    cpu_verified,
    gpu_qualified,
    read_selftest,
    target_name,
    this_machine,
    why_not_verified,
)
from builder.receipts import Count, ImageId, parse_receipt
from builder.suites import known_suites
from ddtree_overlay.selftest.device import describe
from ddtree_overlay.selftest.receipt import Receipt as SelftestReceipt
from ddtree_overlay.selftest.verdict import Check

IMAGE = ImageId("sha256:" + "a" * 64, "ddtree-appliance:cu130", 7 * 2**30)
LABELS = {
    "dev.ddtree.build-id": "0123456789abcdef",
    "dev.ddtree.variant": "cu130",
    "dev.ddtree.stand-in": "false",
    "dev.ddtree.sass": "sm_90,sm_120",
    "dev.ddtree.sglang.patched-tree": "44",
    "org.opencontainers.image.revision": "f" * 40,
}
ENGINE = {"engine": "26.1.5"}
ALL = {name: Count(2, 0, 0) for name in REQUIRED}


def test_the_labels_name_target_and_build() -> None:
    assert (target_name(LABELS), build_id(LABELS)) == ("cu130", "0123456789abcdef")
    stand_in = {**LABELS, "dev.ddtree.variant": "cu128", "dev.ddtree.stand-in": "true"}
    assert target_name(stand_in) == "cu128-stand-in"
    with pytest.raises(KeyError):
        target_name({"maintainer": "somebody"})


def test_required_suites_are_those_that_look_at_an_image() -> None:
    """All but the one that proves the tests; a new file must be thought of here."""
    assert set(REQUIRED) == set(known_suites(default_project())) - {"e2e/mutations"}


def test_built_counts_the_rules_that_ran_and_what_was_proven() -> None:
    rules = [{"code": "A", "ran": True}, {"code": "B", "ran": True}, {"code": "C", "ran": False}]
    receipt = built(
        IMAGE, LABELS, {"passed": True, "rules": rules}, {"version": 1, "op": 2}, ENGINE
    )
    assert receipt.suites == {"audit": Count(2, 0, 1), "proof": Count(2, 0, 0)}
    assert (receipt.level, receipt.revision) == ("built", "f" * 40)
    assert parse_receipt(json.loads(json.dumps(receipt.document())), "here") == receipt


@pytest.mark.parametrize(
    "audit", [{}, {"passed": False, "rules": [{"ran": True}]}, {"passed": True}]
)
def test_without_an_audit_that_passed_nothing_is_built(audit: dict[str, Any]) -> None:
    with pytest.raises(EvidenceError, match="audit"):
        built(IMAGE, LABELS, audit, {"op": 1}, ENGINE)


def test_all_suites_passed_is_cpu_verified() -> None:
    receipt = cpu_verified(IMAGE, LABELS, {**ALL, "e2e/mutations": Count(0, 0, 1)}, ENGINE)
    assert receipt.total == Count(2 * len(REQUIRED), 0, 1)
    assert receipt.machine["engine"] == "26.1.5"


@pytest.mark.parametrize(
    ("name", "count", "why"),
    [
        ("e2e/tree", Count(5, 1, 0), "e2e/tree failed"),
        ("e2e/mutations", Count(0, 1, 0), "e2e/mutations failed"),
        ("image/abi", Count(0, 0, 4), "image/abi: every test was skipped"),
        ("image/abi", None, "image/abi did not run"),
    ],
)
def test_what_keeps_an_image_from_being_verified(name: str, count: Count | None, why: str) -> None:
    suites = {k: v for k, v in {**ALL, name: count}.items() if v is not None}
    assert why_not_verified(suites) == [why]
    with pytest.raises(EvidenceError, match=why):
        cpu_verified(IMAGE, LABELS, suites, ENGINE)


def test_no_suite_at_all_verifies_nothing() -> None:
    assert why_not_verified({})


def a_selftest(**device: Any) -> dict[str, Any]:
    """As the overlay's own code writes it; only the GPUs are made up."""
    gpu = {"name": "RTX PRO 6000", "uuid": "GPU-1", "capability": "12.0", "memory_bytes": 1}
    found = {**describe("cpu", 1, {}), "kind": "cuda", "driver": "580.95.05", "gpus": [gpu] * 2}
    image = {"build_id": "0123456789abcdef", "stand_in": False, "sglang_patched_tree": "44"}
    receipt = SelftestReceipt(image=image, device={**found, "tp": 2, **device}, result="pass")
    receipt.checks = [Check("tokens", "tokens are equal", True, "equal")]
    document: dict[str, Any] = json.loads(json.dumps(receipt.document()))
    return document


def test_a_selftest_on_the_images_gpus_qualifies_it() -> None:
    receipt = gpu_qualified(a_selftest(), IMAGE, LABELS)
    assert (receipt.level, receipt.suites) == ("gpu-qualified", {"selftest": Count(1, 0, 0)})
    assert receipt.machine["gpus"][0] == {"name": "RTX PRO 6000", "architecture": "sm_120"}
    assert "GPU-1" not in json.dumps(receipt.document())  # whose card it is, is nobody's business


def changed(path: str, value: Any) -> dict[str, Any]:
    document = a_selftest()
    place = document
    *above, last = path.split(".")
    for key in above:
        place = place[key]
    place[last] = value
    return document


@pytest.mark.parametrize(
    ("selftest", "why"),
    [
        (a_selftest(kind="cpu"), "ran on cpu"),
        (a_selftest(gpus=[]), "names no GPU"),
        (a_selftest(tp=4), "4 ranks on 2 GPUs"),
        (a_selftest(gpus=[{"name": "L40S", "capability": "8.9"}], tp=1), "no kernels for sm_89"),
        (changed("result", "fail"), "result is fail"),
        (changed("checks", []), "a check of it failed"),
        (changed("checks", [{"passed": False}]), "a check of it failed"),
        (changed("checks", [{"passed": "false"}]), "a check of it failed"),
        (changed("kind", "something"), "no self-test's receipt"),
        (changed("schema", 2), "no self-test's receipt"),
        (changed("image.build_id", "f" * 16), "of build ffff"),
        (changed("image.sglang_patched_tree", "45"), "another SGLang"),
        (changed("image.stand_in", True), "stand-in"),
        (changed("finished", "today"), "not the receipt"),
        ({}, "not the receipt"),
        ([], "not the receipt"),
    ],
)
def test_anything_less_does_not(selftest: Any, why: str) -> None:
    with pytest.raises(EvidenceError, match=why):
        gpu_qualified(selftest, IMAGE, LABELS)


def test_a_stand_in_is_never_qualified() -> None:
    with pytest.raises(EvidenceError, match="stand-in"):
        gpu_qualified(a_selftest(), IMAGE, {**LABELS, "dev.ddtree.stand-in": "true"})


def test_a_genuine_receipt_of_a_cpu_is_judged_by_what_it_is() -> None:
    """It holds no driver and no GPUs: it is a receipt, and of the wrong device."""
    document = {**a_selftest(), "device": describe("cpu", 1, {})}
    with pytest.raises(EvidenceError, match="does not qualify this image: it ran on cpu"):
        gpu_qualified(document, IMAGE, LABELS)


@pytest.mark.parametrize("text", ["", "{"])
def test_a_file_that_is_no_json_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "receipt.json"
    file.write_text(text)
    with pytest.raises(EvidenceError, match=r"receipt\.json is not JSON"):
        read_selftest(file)


def test_a_file_that_cannot_be_read_is_the_hosts(tmp_path: Path) -> None:
    with pytest.raises(HostFileError, match=r"receipt\.json: No such file or directory$"):
        read_selftest(tmp_path / "receipt.json")


def test_the_machine_is_described_and_not_named() -> None:
    import socket

    found = this_machine(ENGINE)
    assert found["cores"] > 0 and found["memory_gib"] > 0 and found["cpu"]
    assert socket.gethostname() not in json.dumps(found)
