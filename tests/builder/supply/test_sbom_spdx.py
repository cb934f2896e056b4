"""The SPDX document: valid to spdx-tools, whole, and the same for the same image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from builder.supply.evidence import image_components
from builder.supply.sbom_spdx import encode
from tests.builder.supply.parts import by_name, inventory, subject, target

Document = dict[str, Any]
PARSER: Any = JsonLikeDictParser  # untyped


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    made = target()
    folder = tmp_path_factory.mktemp("spdx") / "image"
    return encode(subject(folder, made), image_components(made, inventory(made)))


@pytest.fixture
def document(encoded: bytes) -> Document:
    return dict(json.loads(encoded))


def related(document: Document, kind: str) -> set[tuple[str, str]]:
    names = {p["SPDXID"]: p["name"] for p in document["packages"]}
    return {
        (names.get(r["spdxElementId"], r["spdxElementId"]), names[r["relatedSpdxElement"]])
        for r in document["relationships"]
        if r["relationshipType"] == kind
    }


def test_it_is_valid(document: Document) -> None:
    parsed = PARSER().parse(document)
    assert validate_full_spdx_document(parsed) == []
    # The validator does find what is wrong.
    document["packages"][1]["SPDXID"] = "no id"
    assert validate_full_spdx_document(PARSER().parse(document)) != []


def test_it_is_about_the_digest(document: Document, tmp_path: Path) -> None:
    made = target()
    about = subject(tmp_path / "image", made)
    assert related(document, "DESCRIBES") == {("SPDXRef-DOCUMENT", "ddtree-appliance")}
    image = by_name(document["packages"], "ddtree-appliance")
    assert image["checksums"] == [
        {"algorithm": "SHA256", "checksumValue": about.digest.removeprefix("sha256:")}
    ]
    assert about.digest.removeprefix("sha256:") in image["externalRefs"][0]["referenceLocator"]
    assert document["creationInfo"]["created"] == "2026-08-31T00:00:00Z"
    other = subject(tmp_path / "other", made, torch="2.11.1")
    assert other.digest != about.digest
    parts = image_components(made, inventory(made))
    assert json.loads(encode(other, parts))["documentNamespace"] != document["documentNamespace"]


def test_the_same_image_gives_the_same_bytes(encoded: bytes, tmp_path: Path) -> None:
    made = target()
    again = encode(subject(tmp_path / "image", made), image_components(made, inventory(made)))
    assert again == encoded


def test_every_part_lies_in_what_carries_it(document: Document) -> None:
    contains = related(document, "CONTAINS")
    assert {
        ("ddtree-appliance", "libssl3"),
        ("ddtree-appliance", "torch"),
        ("torch", "libc10.so"),
        ("numpy", "libgomp-e985bcbb.so.1.0.0"),
        ("numpy", "serde"),
        ("ddtree-overlay", "build_tree.sm_120.cubin"),
        ("ddtree-appliance", "libcuda.so"),  # made by the build
    } <= contains
    assert related(document, "DEPENDS_ON") == {
        ("libssl3", "libc6"),
        ("sglang", "numpy"),
        ("sglang", "torch"),
    }
    names = [p["name"] for p in document["packages"]]
    assert "libssl.so.3" not in names  # its Debian package stands for it
    assert "perhaps" not in names  # optional, and not seen
    assert "libgomp" not in names  # the library's file carries what is said of it


def test_purls_and_hashes(document: Document) -> None:
    def purl(name: str) -> str:
        (reference,) = by_name(document["packages"], name)["externalRefs"]
        return str(reference["referenceLocator"])

    assert purl("torch") == "pkg:pypi/torch@2.11.0"
    assert purl("libssl3") == (
        "pkg:deb/debian/libssl3@3.0.17-1?arch=amd64&distro=debian-12&upstream=openssl"
    )
    core = by_name(document["packages"], "_core.so")
    digest = core["checksums"][0]["checksumValue"]
    assert purl("_core.so") == f"pkg:generic/_core.so@2.3.5?checksum=sha256:{digest}"
    assert core["packageFileName"].endswith("site-packages/numpy/_core.so")
    gomp = by_name(document["packages"], "libgomp-e985bcbb.so.1.0.0")
    assert gomp["versionInfo"] == "8.5.0-28.el8"  # as the wheel's bill of materials says


def test_licences_are_declared_and_each_reference_says_where_its_text_is(
    tmp_path: Path,
) -> None:
    made = target()
    held = inventory(made)
    held["debian"]["packages"][0]["licences"] = ["Expat", "odd one"]
    held["python"]["distributions"][3]["licence"] = {"name": "who knows"}
    parts = image_components(made, held)
    document = json.loads(encode(subject(tmp_path / "image", made), parts))
    ssl = by_name(document["packages"], "libssl3")
    assert ssl["licenseDeclared"] == "LicenseRef-Debian-odd-one AND MIT"
    torch = by_name(document["packages"], "torch")
    assert torch["licenseDeclared"] == "NOASSERTION"
    assert "who knows" in torch["licenseComments"]
    assert "licenses/LICENSE" in torch["licenseComments"]
    (reference,) = document["hasExtractedLicensingInfos"]
    assert reference["licenseId"] == "LicenseRef-Debian-odd-one"
    assert "/usr/share/doc/libssl3/copyright" in reference["extractedText"]
    assert all(p["licenseConcluded"] == "NOASSERTION" for p in document["packages"])
