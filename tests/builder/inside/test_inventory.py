"""The inventory: what is on disk, whose it is, and nothing that is not."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.inside.elf import NotElfError
from builder.inside.filesystem import scan
from builder.inside.inventory import encode, inventory
from builder.inside.natives import read_header
from builder.inside.target import parse_target
from tests.builder.inside.tree import SITE, Tree, raw_target, shared_library

Take = Callable[..., None]
DEP5 = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: x

Files: *
Copyright: somebody
License: GPL-2+ or BSD-3-clause
 long text: with a colon

Files: debian/*
License: Expat

License: GPL-2+
 On Debian systems see /usr/share/common-licenses/GPL-2.
"""


@pytest.fixture
def take(tree: Tree, tmp_path: Path) -> Take:
    def run(root: Path | None = None) -> None:
        document = tmp_path / "manifest.json"
        document.write_text("{}")
        found = inventory(scan(root or tree.root), parse_target(raw_target()), [document])
        (tmp_path / "inventory.json").write_bytes(encode(found))

    return run


def read(tmp_path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((tmp_path / "inventory.json").read_text())
    return document


def package(tree: Tree, name: str, copyright_text: str, files: list[str], **fields: str) -> None:
    """Install a Debian package whose file list names `files` (absolute)."""
    more = "".join(f"{key}: {value}\n" for key, value in fields.items())
    status = tree.root / "var/lib/dpkg/status"
    status.write_text(
        status.read_text()
        + f"\nPackage: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2-1\n"
        + more
    )
    tree.write(f"usr/share/doc/{name}/copyright", copyright_text)
    tree.write(f"var/lib/dpkg/info/{name}:amd64.list", "/.\n" + "\n".join(files) + "\n")


def distribution(tmp_path: Path, name: str) -> dict[str, Any]:
    found = read(tmp_path)["python"]["distributions"]
    return next(dict(entry) for entry in found if entry["name"] == name)


def native(tmp_path: Path, end: str) -> dict[str, Any]:
    return next(dict(e) for e in read(tmp_path)["native"] if e["path"].endswith(end))


def test_what_the_tree_holds(take: Take, tree: Tree, tmp_path: Path) -> None:
    take()
    document = read(tmp_path)
    assert (document["name"], document["build_id"]) == ("cu130", "0123456789abcdef")
    assert document["pins"]["lock_sha256"] == "1" * 64
    assert document["documents"] == {"manifest.json": hashlib.sha256(b"{}").hexdigest()}
    names = {d["name"]: d["version"] for d in document["python"]["distributions"]}
    assert names["torch"] == "2.11.0"
    library = native(tmp_path, "torch/lib/libc10.so")
    data = (tree.site / "torch/lib/libc10.so").read_bytes()
    assert library["sha256"] == hashlib.sha256(data).hexdigest()
    assert library["size"] == len(data)
    assert (library["soname"], library["owner"]) == ("libc10.so", "python:torch")
    assert not library["bundled"]
    kernel = f"{SITE}/ddtree_overlay/kernels/build_tree.sm_120.cubin"
    assert {"path": kernel, "arch": "sm_120"}.items() <= next(
        k for k in document["kernels"] if k["path"] == kernel
    ).items()
    # A cubin is an ELF file too, but nothing that is linked.
    assert not any(e["path"] == kernel for e in (*document["native"], *document["other"]))


def test_the_same_tree_gives_the_same_bytes(take: Take, tree: Tree, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(tree.root, copy, symlinks=True)
    take()
    first = (tmp_path / "inventory.json").read_bytes()
    take(copy)
    assert (tmp_path / "inventory.json").read_bytes() == first
    tree.library("torch/lib/libc10.so", defined=["other"])
    take()
    assert (tmp_path / "inventory.json").read_bytes() != first


def test_a_machine_readable_copyright_names_the_licences_of_files(
    take: Take, tree: Tree, tmp_path: Path
) -> None:
    package(tree, "libx1", DEP5, [], Source="x (3-2)", Depends="g++ (>= 4) | clang, absent")
    take()
    found = next(p for p in read(tmp_path)["debian"]["packages"] if p["name"] == "libx1")
    assert found["machine_readable"]
    assert found["licences"] == ["Expat", "GPL-2+ or BSD-3-clause"]
    assert found["common"] == ["GPL-2"]
    assert (found["source"], found["source_version"]) == ("x", "3-2")
    assert found["depends"] == ["g++"]
    assert found["copyright"] == "usr/share/doc/libx1/copyright"
    assert found["copyright_sha256"] == hashlib.sha256(DEP5.encode()).hexdigest()


def test_prose_names_no_licence(take: Take, tree: Tree, tmp_path: Path) -> None:
    text = "It is free.\nLicense: see /usr/share/common-licenses/LGPL-2.1.\n"
    package(tree, "liby1", text, [])
    take()
    packages = {p["name"]: p for p in read(tmp_path)["debian"]["packages"]}
    assert not packages["liby1"]["machine_readable"]
    assert packages["liby1"]["licences"] == []
    assert packages["liby1"]["common"] == ["LGPL-2.1"]
    assert packages["g++"]["copyright"] == ""  # has none in this tree
    assert "gone" not in packages  # was removed


def test_a_merged_folder_is_resolved_to_its_owner(take: Take, tree: Tree, tmp_path: Path) -> None:
    folder = tree.root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True, exist_ok=True)
    (tree.root / "lib").symlink_to("usr/lib")
    shared_library(folder / "libz.so.1.2.13", soname="libz.so.1")
    package(tree, "zlib1g", DEP5, ["/lib", "/lib/x86_64-linux-gnu/libz.so.1.2.13"])
    take()
    found = native(tmp_path, "libz.so.1.2.13")
    assert found["path"] == "usr/lib/x86_64-linux-gnu/libz.so.1.2.13"
    assert found["owner"] == "debian:zlib1g"
    assert found["file_version"] == "1.2.13"


@pytest.mark.parametrize(
    ("path", "soname", "bundled"),
    [
        ("x.libs/libgomp.so.1", "libgomp.so.1", True),  # auditwheel's folder
        ("x/libfoo-e985bcbb.so.1.0.0", "libfoo-e985bcbb.so.1.0.0", True),  # its hash
        ("x.d/libpng16.60f56faa.so.16", "libpng16.so.16", True),  # torchvision's way
        ("x/lib/libgomp.so.1", "libgomp.so.1", True),  # Debian has it as well
        ("x/lib/libown.so.1", "libown.so.1", False),
        ("x/_deadbeef.so", "_deadbeef.so", False),
    ],
)
def test_a_copy_of_another_projects_library_is_bundled(
    take: Take, tree: Tree, tmp_path: Path, path: str, soname: str, bundled: bool
) -> None:
    folder = tree.root / "usr/lib"
    folder.mkdir(parents=True, exist_ok=True)
    shared_library(folder / "libgomp.so.1", soname="libgomp.so.1")
    package(tree, "libgomp1", DEP5, ["/usr/lib/libgomp.so.1"])
    tree.library(path, soname=soname)
    tree.install("x", "1.0", [path])
    take()
    assert native(tmp_path, path)["bundled"] is bundled
    assert native(tmp_path, path)["owner"] == "python:x"
    assert not native(tmp_path, "usr/lib/libgomp.so.1")["bundled"]


def test_metadata_is_told_as_it_is(take: Take, tree: Tree, tmp_path: Path) -> None:
    tree.install("lic", "1.0", requires=["torch>=2", "pip; extra == 'dev'", "absent"])
    info = f"{SITE}/lic-1.0.dist-info"
    tree.write(
        f"{info}/METADATA",
        "Metadata-Version: 2.4\nName: lic\nVersion: 1.0\nLicense-Expression: MIT\n"
        "License-File: LICENSE\nLicense-File: NOTICE\nHome-page: UNKNOWN\n"
        "Project-URL: Source, https://example.org/lic\n"
        "Requires-Dist: torch>=2\nRequires-Dist: pip; extra == 'dev'\n"
        "Classifier: License :: OSI Approved :: MIT License\n\nLicense-Expression: GPL-3.0-only\n",
    )
    tree.write(f"{info}/licenses/LICENSE", "text")
    tree.write(f"{info}/INSTALLER", "uv\n")
    tree.write(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    tree.write(f"{SITE}/lic/COPYING.txt", "text")
    tree.write(f"{SITE}/lic/license.py", "code")
    tree.write(
        f"{info}/RECORD",
        "lic-1.0.dist-info/licenses/LICENSE,,\nlic/COPYING.txt,,\nlic/license.py,,\n",
    )
    take()
    found = distribution(tmp_path, "lic")
    assert found["licence"] == {"expression": "MIT", "classifiers": ["MIT License"]}
    assert found["licence_files"] == [f"{info}/licenses/LICENSE", f"{SITE}/lic/COPYING.txt"]
    assert found["licence_files_missing"] == ["NOTICE"]
    assert found["homepage"] == "https://example.org/lic"
    assert found["requires"] == ["torch"]
    assert (found["installer"], found["tags"]) == ("uv", ["py3-none-any"])


def test_a_text_in_the_licence_field_is_no_name(take: Take, tree: Tree, tmp_path: Path) -> None:
    take()  # the trees' METADATA has a text of several lines
    assert distribution(tmp_path, "torch")["licence"] == {"text_begins": "one"}


def test_a_wheels_own_bill_of_materials_is_read(take: Take, tree: Tree, tmp_path: Path) -> None:
    parts = [
        {"name": "own", "version": "1.0", "purl": "pkg:pypi/own@1.0?file_name=own.whl"},
        {
            "name": "serde",
            "version": "1.2",
            "purl": "pkg:cargo/serde@1.2?download_url=file:///home/somebody/serde#src",
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
        },
        {"name": "built-with", "version": "2", "scope": "excluded"},
        {"name": "perhaps", "version": "3", "scope": "optional"},
        {"name": "serde", "version": "1.2", "purl": "pkg:cargo/serde@1.2"},
    ]
    tree.install("own", "1.0")
    tree.write(f"{SITE}/own-1.0.dist-info/sboms/x.cdx.json", json.dumps({"components": parts}))
    for number, text in enumerate(("no JSON", "[]", '{"components": null}', "7")):
        tree.write(f"{SITE}/own-1.0.dist-info/sboms/broken{number}.json", text)
    odd = [{"name": "odd", "version": "1", "licenses": [None, 7, {"expression": "MIT"}]}]
    tree.write(f"{SITE}/own-1.0.dist-info/sboms/y.cdx.json", json.dumps({"components": odd}))
    take()
    found = distribution(tmp_path, "own")["embedded"]
    assert [(e["name"], e.get("scope", "")) for e in found] == [
        ("odd", ""),
        ("perhaps", "optional"),
        ("serde", ""),
    ]
    assert found[0]["licence"] == "MIT"
    assert found[2]["purl"] == "pkg:cargo/serde@1.2#src"
    assert found[2]["licence"] == "MIT OR Apache-2.0"
    assert "/home/" not in (tmp_path / "inventory.json").read_text()


def test_distributions_inside_distributions_and_other_code(
    take: Take, tree: Tree, tmp_path: Path
) -> None:
    inner = "outer/_vendor/inner-2.0.dist-info/METADATA"
    tree.install(
        "outer",
        "1.0",
        extra={inner: "Name: Inner\nVersion: 2.0\nLicense: MIT\n", "outer/tool.exe": "MZ"},
    )
    take()
    document = read(tmp_path)
    (vendored,) = document["python"]["vendored"]
    assert (vendored["name"], vendored["version"]) == ("inner", "2.0")
    assert vendored["owner"] == "python:outer"
    (other,) = [e for e in document["other"] if e["path"].endswith(".exe")]
    assert (other["owner"], other["sha256"]) == ("python:outer", hashlib.sha256(b"MZ").hexdigest())


def test_a_damaged_library_is_named(take: Take, tree: Tree) -> None:
    path = tree.site / "torch/lib/libc10.so"
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 40, len(data) + 1000)  # the section table lies outside
    path.write_bytes(data)
    with pytest.raises(NotElfError, match="libc10"):
        read_header(path, "torch/lib/libc10.so")


def test_a_name_that_is_no_utf8_comes_back(tree: Tree, take: Take, tmp_path: Path) -> None:
    name = "ext/_\udcff.so"
    tree.library("ext/plain.so")
    (tree.site / "ext/plain.so").rename(tree.site / name)
    take()
    assert native(tmp_path, name)["kind"] == "library"


def test_a_package_that_is_half_installed_is_none(tree: Tree, take: Take, tmp_path: Path) -> None:
    status = tree.root / "var/lib/dpkg/status"
    more = (
        "\nPackage: half\nStatus: install reinstreq half-installed\nVersion: 1\nArchitecture: all\n"
        "\nPackage: whole\nStatus: hold ok installed\nVersion: 1\nArchitecture: all\n"
    )
    status.write_text(status.read_text() + more)
    take()
    names = {p["name"] for p in read(tmp_path)["debian"]["packages"]}
    assert "whole" in names and not names & {"half", "gone"}


def test_a_header_that_cannot_be_read_is_damage(tree: Tree) -> None:
    """An offset that no file has, which the system refuses."""
    tree.library("ext/_ext.so")
    path = tree.site / "ext/_ext.so"
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 40, 1 << 62)
    path.write_bytes(data)
    with pytest.raises(NotElfError, match="the file"):
        read_header(path, "the file")
