"""Versions as observed in the container, against what the manifest, `version` and the pins say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from builder.files import sha256_file
from builder.pins import Target
from builder.project import default_project
from tests.image.conftest import Ran

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def said(run_in: Callable[..., Ran]) -> dict[str, Any]:
    """`ddtree version --json`."""
    ran = run_in("ddtree", "version", "--json")
    assert ran.returncode == 0, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def test_what_is_imported_is_what_the_manifest_observed(
    observed: dict[str, Any], manifest: dict[str, Any]
) -> None:
    found = manifest["observed"]
    assert observed["torch"] == found["torch"]
    assert observed["cuda"] == found["torch_cuda"]
    assert observed["sglang"] == found["sglang"]
    assert observed["kernels"] == found["sglang_kernel"]
    assert observed["overlay"] == found["overlay"]
    assert observed["triton"] == found["distributions"]["triton"]
    assert observed["python"].rpartition(".")[0] == found["python"]


def test_what_is_imported_is_what_was_pinned(
    observed: dict[str, Any], manifest: dict[str, Any]
) -> None:
    pins = manifest["pins"]
    assert observed["torch"].split("+")[0] == pins["torch"]["version"].split("+")[0]
    assert observed["cuda"] == pins["cuda"]["version"]
    assert observed["kernels"] == pins["kernels"]["version"]
    assert observed["nvrtc"] == pins["cubin"]["nvrtc"].rpartition(".")[0]
    assert observed["python"].startswith(pins["python"]["version"] + ".")
    tree8 = manifest["sglang"]["patched_tree"][:8]
    assert observed["sglang"].partition("+ddtree.")[2] in (tree8, tree8.lstrip("0"))


def test_version_says_what_is_imported(
    observed: dict[str, Any], said: dict[str, Any], manifest: dict[str, Any]
) -> None:
    pairs = {"sglang_kernel": "kernels", "torch": "torch", "cuda": "cuda", "triton": "triton"}
    pairs |= {"sglang": "sglang", "overlay": "overlay", "python": "python"}
    assert {key: said[key] for key in pairs} == {k: observed[v] for k, v in pairs.items()}
    assert said["built_for_torch"] == observed["torch"]
    assert said["nvrtc"] == manifest["pins"]["cubin"]["nvrtc"]
    for key in ("build_id", "variant", "version", "stand_in"):
        assert said[key] == manifest[key]


def test_installed_distributions_are_those_of_the_manifest(
    recount: dict[str, Any], manifest: dict[str, Any]
) -> None:
    assert recount["distributions"] == manifest["observed"]["distributions"]


def test_debian_is_that_of_the_manifest(
    recount: dict[str, Any], manifest: dict[str, Any], host: Any
) -> None:
    assert recount["debian"] == manifest["observed"]["debian"]
    # glibc as dpkg knows it, and as the loader says it.
    package = host.package("libc6").version
    assert package.split("-")[0] in host.check_output("ldd --version").splitlines()[0]


def test_the_image_holds_this_trees_pins(
    observed: dict[str, Any], manifest: dict[str, Any], target: Target
) -> None:
    assert observed["torch"].split("+")[0] == target.torch.version.split("+")[0]
    assert observed["cuda"] == target.cuda.version
    assert observed["triton"] == target.torch.triton
    assert observed["kernels"] == target.kernels.version
    assert manifest["pins"]["torch"]["version"] == target.torch.version
    assert manifest["pins"]["lock_sha256"] == sha256_file(target.lock_file(default_project()))
    assert manifest["pins"]["cuda"]["driver_floor"] == target.cuda.driver_floor
    assert manifest["sglang"]["patched_tree"] == target.shared.sglang.patched_tree
    assert manifest["sglang"]["base_tree"] == target.shared.sglang.base_tree
    assert manifest["version"] == target.shared.project.version
    assert manifest["stand_in"] is target.stand_in
