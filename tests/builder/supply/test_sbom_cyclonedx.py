"""The CycloneDX document: valid to the strict schema, whole, and the same for the same image."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from builder.supply.evidence import image_components
from builder.supply.sbom_cyclonedx import encode
from tests.builder.supply.parts import by_name, distribution, inventory, subject, target

Document = dict[str, Any]


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    made = target()
    folder = tmp_path_factory.mktemp("cdx") / "image"
    return encode(subject(folder, made), image_components(made, inventory(made)))


@pytest.fixture
def document(encoded: bytes) -> Document:
    return dict(json.loads(encoded))


def every(components: list[Document]) -> Iterator[Document]:
    for component in components:
        yield component
        yield from every(component.get("components", []))


def properties(component: Document) -> dict[str, str]:
    return {p["name"]: p["value"] for p in component.get("properties", [])}


def test_it_is_valid(document: Document) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(document)) is None
    document["components"][0]["type"] = "thing"
    assert validator.validate_str(json.dumps(document)) is not None


def test_it_is_about_the_digest(document: Document, tmp_path: Path) -> None:
    made = target()
    about = subject(tmp_path / "image", made)
    image = document["metadata"]["component"]
    assert (image["type"], image["name"]) == ("container", "ddtree-appliance")
    assert image["hashes"] == [{"alg": "SHA-256", "content": about.digest.removeprefix("sha256:")}]
    assert document["metadata"]["timestamp"] == "2026-08-31T00:00:00+00:00"
    other = subject(tmp_path / "other", made, torch="2.11.1")
    parts = image_components(made, inventory(made))
    assert json.loads(encode(other, parts))["serialNumber"] != document["serialNumber"]


def test_the_same_image_gives_the_same_bytes(encoded: bytes, tmp_path: Path) -> None:
    made = target()
    again = encode(subject(tmp_path / "image", made), image_components(made, inventory(made)))
    assert again == encoded


def test_parts_lie_inside_what_carries_them(document: Document) -> None:
    numpy = by_name(document["components"], "numpy")
    inside = {c["name"] for c in numpy["components"]}
    assert inside == {"_core.so", "libgomp-e985bcbb.so.1.0.0", "serde"}
    outer = {c["name"] for c in document["components"]}
    assert outer == {
        *("libssl3", "libc6", "ddtree-overlay", "numpy", "sglang"),
        "torch",
        "libcuda.so",
    }
    references = [c["bom-ref"] for c in every(document["components"])]
    assert len(references) == len(set(references))


def test_what_depends_on_what(document: Document) -> None:
    depends = {d["ref"]: set(d.get("dependsOn", [])) for d in document["dependencies"]}
    assert depends["pypi:sglang"] == {"pypi:numpy", "pypi:torch"}
    assert depends["deb:libssl3:amd64"] == {"deb:libc6:amd64"}
    assert {c["bom-ref"] for c in document["components"]} == depends["image"]


def test_a_part_says_where_it_is_what_it_is_and_whose(document: Document) -> None:
    parts = list(every(document["components"]))
    gomp = by_name(parts, "libgomp-e985bcbb.so.1.0.0")
    assert gomp["type"] == "file"
    assert gomp["licenses"] == [
        {"expression": "GPL-3.0-or-later WITH GCC-exception-3.1", "acknowledgement": "declared"}
    ]
    told = properties(dict(gomp))
    assert told["dev.ddtree:bundled"] == "true"
    assert told["dev.ddtree:owner"] == "python:numpy"
    assert told["dev.ddtree:project"] == "gcc"
    assert told["dev.ddtree:path"].startswith("/opt/ddtree/")
    kernel = by_name(parts, "build_tree.sm_120.cubin")
    assert properties(dict(kernel))["dev.ddtree:architecture"] == "sm_120"
    assert kernel["hashes"][0]["content"] == "8" * 64
    stub = properties(dict(by_name(parts, "libcuda.so")))
    assert stub["dev.ddtree:owner"] == "made by the build"


def test_an_unknown_licence_is_left_out_and_its_words_kept(tmp_path: Path) -> None:
    made = target()
    held = inventory(made)
    held["python"]["distributions"].append(distribution("odd", "1", licence={"name": "free-ish"}))
    parts = image_components(made, held)
    document = json.loads(encode(subject(tmp_path / "image", made), parts))
    odd = dict(by_name(document["components"], "odd"))
    assert "licenses" not in odd
    assert properties(odd)["dev.ddtree:licence.stated"] == "free-ish"
    assert "LICENSE" in properties(odd)["dev.ddtree:licence.text"]


def test_cu128_names_nvidias_archives(tmp_path: Path) -> None:
    made = target("cu128")
    parts = image_components(made, inventory(made))
    document = json.loads(encode(subject(tmp_path / "image", made), parts))
    nvcc = by_name(document["components"], "cuda_nvcc")
    source = next(s for s in made.sources if s.name == "cuda_nvcc")
    assert nvcc["hashes"][0]["content"] == source.sha256
    assert nvcc["version"] == source.version
    assert nvcc["licenses"][0]["expression"] == "LicenseRef-NVIDIA-Proprietary"
    assert not any(
        c["name"] == "torch" and c["bom-ref"].startswith("archive") for c in document["components"]
    )
