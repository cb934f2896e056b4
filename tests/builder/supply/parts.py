"""A small inventory and what goes with it, as a built image would have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.files import sha256_file
from builder.oci.model import ImageLayout
from builder.pins import Target, load_target
from builder.project import default_project
from builder.supply.subject import Subject, subject_of
from tests.builder.supply.made import make_image

SITE = "opt/ddtree/venv/lib/python3.11/site-packages"
BUILD_ID = "0123456789abcdef"
BASE = {
    "kind": "bootstrap",
    "detail": f"bookworm mmdebstrap=1.5.7 packages-sha256={'3' * 64} layer-sha256={'4' * 64}",
}
MANIFEST_SHA256 = "5" * 64


def target(name: str = "cu130") -> Target:
    """A target as the repository pins it."""
    variant, _, rest = name.partition("-")
    return load_target(default_project(), variant, stand_in=bool(rest))


def distribution(name: str, version: str, **changes: Any) -> dict[str, Any]:
    """An entry with a stated MIT licence and its text."""
    folder = f"{SITE}/{name.replace('-', '_')}-{version}.dist-info"
    return {
        "name": name,
        "version": version,
        "folder": folder,
        "licence": {"expression": "MIT"},
        "licence_files": [f"{folder}/licenses/LICENSE"],
        "licence_files_missing": [],
        "homepage": "https://example.org/" + name,
        "installer": "uv",
        "requires": [],
        "tags": ["py3-none-any"],
        "embedded": [],
        **changes,
    }


def package(name: str, version: str, **changes: Any) -> dict[str, Any]:
    """A Debian package with a machine-readable copyright file."""
    return {
        "name": name,
        "version": version,
        "architecture": "amd64",
        "source": name,
        "source_version": version,
        "depends": [],
        "homepage": "",
        "copyright": f"usr/share/doc/{name}/copyright",
        "copyright_sha256": "6" * 64,
        "machine_readable": True,
        "licences": ["Expat"],
        "common": [],
        **changes,
    }


def library(path: str, owner: str, **changes: Any) -> dict[str, Any]:
    """A shared library below site-packages; its hash follows from its path."""
    return {
        "path": f"{SITE}/{path}",
        "sha256": f"{sum(path.encode()):064x}",
        "size": 100,
        "kind": "library",
        "owner": owner,
        "bundled": False,
        **changes,
    }


def inventory(made_for: Target, **changes: Any) -> dict[str, Any]:
    """Two Debian packages, four distributions with native code, one kernel."""
    shared = made_for.shared
    sglang = f"{shared.sglang.version}+ddtree.{shared.sglang.patched_tree[:8]}"
    numpy = distribution(
        "numpy",
        "2.3.5",
        licence={"text_begins": "Copyright (c) 2005-2025", "classifiers": ["BSD License"]},
        tags=["cp311-cp311-manylinux_2_27_x86_64", "cp311-cp311-manylinux_2_28_x86_64"],
        embedded=[
            {
                "name": "libgomp",
                "version": "8.5.0-28.el8",
                "purl": "pkg:rpm/almalinux/libgomp@8.5.0-28.el8",
                "stated_in": "auditwheel.cdx.json",
            },
            {
                "name": "serde",
                "version": "1.2",
                "purl": "pkg:cargo/serde@1.2",
                "licence": "MIT/Apache-2.0",
                "stated_in": "rust.cdx.json",
            },
            {
                "name": "perhaps",
                "version": "1",
                "purl": "",
                "scope": "optional",
                "stated_in": "rust.cdx.json",
            },
        ],
    )
    return {
        "schema": 1,
        "name": made_for.name,
        "version": shared.project.version,
        "build_id": BUILD_ID,
        "source_date_epoch": shared.source_date_epoch,
        "label_prefix": shared.project.label_prefix,
        "debian": {
            "version": "12.11",
            "packages_sha256": "7" * 64,
            "packages": [
                package("libssl3", "3.0.17-1", source="openssl", depends=["libc6"]),
                package(
                    "libc6",
                    "2.36-9",
                    source="glibc",
                    machine_readable=False,
                    licences=[],
                    common=["GPL-2"],
                ),
            ],
        },
        "python": {
            "site": SITE,
            "distributions": [
                distribution("ddtree-overlay", "0.1.0", licence={"expression": "Apache-2.0"}),
                numpy,
                distribution("sglang", sglang, requires=["numpy", "torch"]),
                distribution("torch", "2.11.0", licence={"name": "BSD-3-Clause"}),
            ],
            "vendored": [],
        },
        "native": [
            library("numpy.libs/libgomp-e985bcbb.so.1.0.0", "python:numpy", bundled=True),
            library("numpy/_core.so", "python:numpy"),
            library("torch/lib/libc10.so", "python:torch", soname="libc10.so"),
            {**library("x", "debian:libssl3"), "path": "usr/lib/libssl.so.3"},
            library("nvidia/cu13/lib/stubs/libcuda.so", ""),
        ],
        "other": [],
        "kernels": [
            {
                "path": f"{SITE}/ddtree_overlay/kernels/build_tree.sm_120.cubin",
                "arch": "sm_120",
                "sha256": "8" * 64,
            }
        ],
        "documents": {"manifest.json": MANIFEST_SHA256},
        "pins": {
            "base": BASE,
            "lock_sha256": sha256_file(made_for.lock_file(default_project())),
            "sources": [
                {"name": s.name, "url": s.url, "sha256": s.sha256} for s in made_for.sources
            ],
        },
        **changes,
    }


def labels(made_for: Target, **changes: str) -> dict[str, str]:
    """What the image's labels say, with ours replaced by short names (`build_id`)."""
    prefix = made_for.shared.project.label_prefix
    shared = made_for.shared
    ours = {
        "variant": made_for.variant,
        "stand-in": "true" if made_for.stand_in else "false",
        "torch": f"2.11.0+{made_for.variant}",
        "sglang": f"{shared.sglang.version}+ddtree.{shared.sglang.patched_tree[:8]}",
        "build-id": BUILD_ID,
        "base": f"{BASE['kind']}: {BASE['detail']}",
        "lock": f"sha256:{sha256_file(made_for.lock_file(default_project()))}",
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }
    return {
        "org.opencontainers.image.version": shared.project.version,
        "org.opencontainers.image.revision": "9" * 40,
        **{f"{prefix}.{key}": value for key, value in ours.items()},
    }


def layout(folder: Path, made_for: Target, **changes: str) -> ImageLayout:
    """An exported image with those labels."""
    folder.mkdir(parents=True)
    return make_image(folder, labels=labels(made_for, **changes))


def subject(folder: Path, made_for: Target, **changes: str) -> Subject:
    """Of such an image."""
    return subject_of(made_for, layout(folder, made_for, **changes))


def by_name(entries: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The one of that name."""
    (found,) = [entry for entry in entries if entry["name"] == name]
    return found
