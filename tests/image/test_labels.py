"""Labels = manifest = reality: each label is what the manifest says and what is there."""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

import pytest

from builder.explain import TRAILS
from builder.files import sha256_file
from builder.pins import Target
from builder.project import default_project

pytestmark = pytest.mark.docker

OCI = "org.opencontainers.image."


def test_the_variant_is_what_torch_was_compiled_for(
    ours: dict[str, str], manifest: dict[str, Any], observed: dict[str, Any]
) -> None:
    """The three that decide what an image may be used for, by importing torch."""
    assert ours["torch"] == manifest["observed"]["torch"] == observed["torch"]
    assert ours["cuda"] == manifest["observed"]["torch_cuda"] == observed["cuda"]
    assert ours["variant"] == manifest["variant"] == "cu" + observed["cuda"].replace(".", "")


def test_sglang_is_the_patched_tree(
    ours: dict[str, str], manifest: dict[str, Any], recount: dict[str, Any]
) -> None:
    """Hashed anew from the installed files, with the version stamp taken out."""
    assert ours["sglang"] == manifest["sglang"]["version"] == recount["distributions"]["sglang"]
    pinned = manifest["sglang"]["patched_tree"]
    assert ours["sglang.patched-tree"] == pinned == recount["sglang"]["tree"]
    assert recount["sglang"]["listed_patched_tree"] == pinned
    assert recount["sglang"]["listed_base_tree"] == manifest["sglang"]["base_tree"]


def test_sass_is_what_the_kernel_files_hold(
    ours: dict[str, str], manifest: dict[str, Any], recount: dict[str, Any]
) -> None:
    there = {entry["arch"] for entry in recount["kernels"].values()}
    labelled = ours["sass"].split(",")
    assert {arch for arch in there if arch.startswith("sm_")} == set(labelled)
    assert labelled == manifest["pins"]["cubin"]["sass"]
    assert there - set(labelled) == {manifest["pins"]["cubin"]["ptx"]}


def test_build_lock_base_and_floor_are_the_manifests(
    ours: dict[str, str], manifest: dict[str, Any]
) -> None:
    base = manifest["base"]
    assert re.fullmatch(r"[0-9a-f]{16}", ours["build-id"])
    assert ours["build-id"] == manifest["build_id"]
    assert ours["lock"] == "sha256:" + manifest["pins"]["lock_sha256"]
    assert ours["base"] == f"{base['kind']}: {base['detail']}"
    assert base["kind"] in ("registry", "bootstrap")
    assert ours["driver-floor"] == manifest["pins"]["cuda"]["driver_floor"]
    assert ours["stand-in"] == str(manifest["stand_in"]).lower()
    assert ours.get("stand-in.reason", "") == manifest["stand_in_reason"]


def test_the_base_is_the_first_layer(
    engine: Any, image: str, ours: dict[str, str], labels: dict[str, str]
) -> None:
    found = re.search(r"layer-sha256=([0-9a-f]{64})", ours["base"])
    if found is None:
        assert labels[f"{OCI}base.digest"] in ours["base"]
        return
    here = engine.images.get(image)
    if here.attrs["RootFS"]["Layers"][0] != f"sha256:{found[1]}" and is_export(here.history()):
        pytest.skip("pulled or imported: an export's layers have other hashes than the build's")
    assert here.attrs["RootFS"]["Layers"][0] == f"sha256:{found[1]}"


def is_export(history: list[dict[str, Any]]) -> bool:
    """Whether builder/oci/ wrote these layers: it splits large ones, a build never does.

    `history`: newest first, as engines tell it.
    """
    made = [entry["CreatedBy"] for entry in history if entry["Size"]]
    return any(one == other for one, other in pairwise(made))


def test_open_containers_labels(labels: dict[str, str], manifest: dict[str, Any]) -> None:
    created = datetime.fromtimestamp(manifest["source_date_epoch"], tz=timezone.utc)
    assert labels[f"{OCI}created"] == created.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert labels[f"{OCI}version"] == manifest["version"]
    assert labels[f"{OCI}title"] and labels[f"{OCI}licenses"]
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", labels[f"{OCI}revision"])
    for word in (manifest["observed"]["torch"], manifest["pins"]["cuda"]["driver_floor"]):
        assert word in labels[f"{OCI}description"]
    assert labels[f"{OCI}description"].startswith("Stand-in") is manifest["stand_in"]


def test_no_label_is_unaccounted_for(labels: dict[str, str], ours: dict[str, str]) -> None:
    """A label that no test here knows is one that nothing holds to the truth."""
    known = {"variant", "torch", "cuda", "sglang", "sglang.patched-tree", "sass", "build-id"}
    known |= {"lock", "base", "driver-floor", "stand-in"}
    assert set(ours) - {"stand-in.reason"} == known
    oci = {k.removeprefix(OCI) for k in labels if k.startswith(OCI)}
    assert oci - {"base.name", "base.digest"} == {
        *("created", "description", "licenses", "revision", "title", "version"),
    }
    assert len(labels) == len(ours) + len(oci)


def test_it_is_this_trees_target(
    name: str, ours: dict[str, str], labels: dict[str, str], target: Target
) -> None:
    assert name == target.name == (os.environ.get("DDTREE_TARGET") or target.name)
    assert f"{target.shared.project.label_prefix}.variant" in labels
    assert ours["lock"] == "sha256:" + sha256_file(target.lock_file(default_project()))
    assert ours["driver-floor"] == target.cuda.driver_floor
    assert set(ours["sass"].split(",")) == set(target.cubin.sass)


@pytest.mark.usefixtures("this_tree")
def test_explain_names_real_places(manifest: dict[str, Any], ours: dict[str, str]) -> None:
    """Every manifest key and label that `explain` speaks of is in the image."""
    for _distribution, key, label in TRAILS.values():
        place: Any = manifest
        for part in key.split("."):
            assert part in place, key
            place = place[part]
        if label:
            assert label in ours
