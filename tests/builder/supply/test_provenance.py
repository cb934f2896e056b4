"""The provenance predicate: everything that went in by hash, and no claim beyond that."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from builder.inside.inventory import encode
from builder.lock.entries import LockedFile, LockEntry, parse_lock
from builder.pins import Target
from builder.project import default_project
from builder.supply.provenance import installed_wheel, predicate
from tests.builder.supply.parts import MANIFEST_SHA256, distribution, inventory, subject, target

CP311 = "numpy-2.3.5-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
OTHER = "numpy-2.3.5-cp311-cp311-manylinux_2_17_x86_64.whl"


def entry(*names: str) -> LockEntry:
    files = tuple(LockedFile(name, hashlib.sha256(name.encode()).hexdigest(), 1) for name in names)
    return LockEntry("numpy", "2.3.5", tuple(f.sha256 for f in files), files)


def made(
    folder: Path,
    of: Target,
    *,
    revision: str = "9" * 40,
    **changes: Any,
) -> dict[str, Any]:
    about = subject(folder / "image", of)
    about = type(about)(
        **{**vars(about), "labels": {**about.labels, "org.opencontainers.image.revision": revision}}
    )
    return predicate(about, of, inventory(of, **changes), [entry(CP311, OTHER)])


def dependency(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document["buildDefinition"]["resolvedDependencies"]
    (one,) = [d for d in found if d["name"] == name]
    return dict(one)


def test_the_shape_is_slsas(tmp_path: Path) -> None:
    document = made(tmp_path, target())
    assert set(document) == {"buildDefinition", "runDetails"}
    definition, details = document["buildDefinition"], document["runDetails"]
    assert definition["buildType"] == "https://ddtree.dev/build/v1"
    assert definition["externalParameters"]["target"] == "cu130"
    assert details["builder"]["id"] == "https://ddtree.dev/builder/local"
    assert all(isinstance(v, str) for v in details["builder"]["version"].values())
    for descriptor in definition["resolvedDependencies"]:
        # in-toto: one of uri, digest, content at least; digests in lower-case hex.
        assert descriptor.get("digest"), descriptor
        for algorithm, value in descriptor["digest"].items():
            assert algorithm in ("sha256", "gitCommit")
            assert len(value) == (64 if algorithm == "sha256" else 40)
            assert set(value) <= set("0123456789abcdef")


def test_what_went_in_is_named_by_hash(tmp_path: Path) -> None:
    of = target()
    document = made(tmp_path, of)
    assert dependency(document, "source")["digest"] == {"gitCommit": "9" * 40}
    assert "annotations" not in dependency(document, "source")
    sglang = dependency(document, of.shared.sglang.wheel)
    assert sglang["digest"] == {"sha256": of.shared.sglang.sha256}
    patched = document["buildDefinition"]["internalParameters"]["sglangPatchedTree"]
    assert patched["sha256"] == of.shared.sglang.patched_tree
    base = dependency(document, "Debian 12.11, bootstrapped")
    assert base["digest"] == {"sha256": "4" * 64}
    assert base["annotations"]["packagesSha256"] == "7" * 64
    uv = dependency(document, f"uv {of.shared.tools.uv.version}")
    assert uv["digest"] == {"sha256": of.shared.tools.uv.sha256}
    lock = dependency(document, "requirements.lock")
    data = of.lock_file(default_project()).read_bytes()
    assert lock["digest"] == {"sha256": hashlib.sha256(data).hexdigest()}
    assert dependency(document, CP311)["uri"].startswith("pkg:pypi/numpy@2.3.5?file_name=numpy")


def test_a_pulled_base_is_named_by_its_digest(tmp_path: Path) -> None:
    of = target()
    pins = {
        **inventory(of)["pins"],
        "base": {"kind": "registry", "detail": f"debian:bookworm-slim@sha256:{'b' * 64}"},
    }
    base = dependency(made(tmp_path, of, pins=pins), "debian:bookworm-slim")
    assert base["digest"] == {"sha256": "b" * 64}
    assert base["uri"] == f"docker://debian:bookworm-slim@sha256:{'b' * 64}"


def test_a_changed_tree_is_no_commit_and_says_so(tmp_path: Path) -> None:
    dirty = made(tmp_path / "a", target(), revision="9" * 40 + "-dirty")
    assert dependency(dirty, "source")["annotations"] == {"modified": True}
    unknown = made(tmp_path / "b", target(), revision="unknown")
    names = {d["name"] for d in unknown["buildDefinition"]["resolvedDependencies"]}
    assert "source" not in names


@pytest.mark.parametrize(
    ("names", "tags", "expected"),
    [
        ((CP311,), ["py3-none-any"], CP311),  # one file only: no question
        (
            (CP311, OTHER),
            ["cp311-cp311-manylinux_2_27_x86_64", "cp311-cp311-manylinux_2_28_x86_64"],
            CP311,
        ),
        ((CP311, OTHER), ["cp311-cp311-manylinux_2_17_x86_64"], OTHER),
        ((CP311, OTHER), [], None),
        ((CP311, OTHER), ["cp311-cp311-manylinux_2_27_x86_64"], None),
    ],
)
def test_the_installed_file_is_told_by_its_tags(
    names: tuple[str, ...], tags: list[str], expected: str | None
) -> None:
    held = {"python": {"distributions": [distribution("numpy", "2.3.5", tags=tags)]}}
    found = installed_wheel(entry(*names), held)
    assert (found.filename if found else None) == expected


def test_a_distribution_that_is_not_installed_is_no_dependency(tmp_path: Path) -> None:
    held = {"python": {"distributions": [distribution("numpy", "2.3.6")]}}
    assert installed_wheel(entry(CP311), held) is None
    assert installed_wheel(entry(CP311), {"python": {"distributions": []}}) is None


def test_sources_by_url_are_named_once(tmp_path: Path) -> None:
    of = target("cu128")
    lock = parse_lock(of.lock_file(default_project()).read_text())
    held = inventory(of)
    held["python"]["distributions"] = [
        distribution(e.name, e.version, tags=["py3-none-any"]) for e in lock
    ]
    document = predicate(subject(tmp_path / "image", of), of, held, lock)
    found = document["buildDefinition"]["resolvedDependencies"]
    for source in of.sources:
        (one,) = [d for d in found if d["digest"].get("sha256") == source.sha256]
        assert one["uri"] == source.url


def test_byproducts_are_the_images_own_documents(tmp_path: Path) -> None:
    of = target()
    document = made(tmp_path, of)
    found = {b["name"]: b["digest"]["sha256"] for b in document["runDetails"]["byproducts"]}
    assert found["/opt/ddtree/manifest.json"] == MANIFEST_SHA256
    own = hashlib.sha256(encode(inventory(of))).hexdigest()
    assert found["/opt/ddtree/inventory.json"] == own


def test_one_image_has_one_provenance(tmp_path: Path) -> None:
    """So that a second push finds its statement there, and adds none."""
    document = made(tmp_path / "a", target())
    assert document == made(tmp_path / "b", target())
    assert "metadata" not in document["runDetails"]
