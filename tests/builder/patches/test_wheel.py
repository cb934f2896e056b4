from __future__ import annotations

import email
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename

from builder.errors import (
    BuilderError,
    HashMismatchError,
    PatchDriftError,
    TreeHashError,
    WheelhouseError,
)
from builder.files import sha256_file
from builder.patches import wheel as wheel_module
from builder.patches.archive import read_wheel
from builder.patches.wheel import (
    PATCH_LIST,
    VERSION_FILE,
    PatchedWheel,
    build_patched_wheel,
    patched_version,
)
from tests.builder.patches.conftest import (
    AFTER_SECOND,
    NEW_EXECUTABLE,
    PACKAGES,
    Lab,
    make_wheel,
    record_hash,
)


def build(lab: Lab, out: str = "out") -> PatchedWheel:
    return build_patched_wheel(lab.project, lab.shared, lab.wheel, lab.project.root.parent / out)


def test_the_wheel_holds_the_patched_packages_under_our_version(lab: Lab) -> None:
    made = build(lab)
    pins = lab.shared.sglang
    assert made.version == f"0.5.17+ddtree.{pins.patched_tree[:8]}"
    assert (made.base_tree, made.patched_tree) == (pins.base_tree, pins.patched_tree)
    assert [patch.name for patch in made.patches] == [
        "0001-first-change.patch",
        "0002-second-change-new-and-gone.patch",
    ]
    wheel = read_wheel(made.path)
    packages = {name: file.data for name, file in wheel.packages.items()}
    version_file = packages.pop(VERSION_FILE).decode()
    assert packages == {n: d for n, d in AFTER_SECOND.items() if n != VERSION_FILE}
    assert {n for n, f in wheel.packages.items() if f.executable} == NEW_EXECUTABLE
    assert f"__version__ = version = '{made.version}'" in version_file
    tail = made.version.partition("+")[2]
    assert f"version_tuple = (0, 5, 17, '{tail}')" in version_file


def test_metadata_names_version_and_patches(lab: Lab) -> None:
    made = build(lab)
    wheel = read_wheel(made.path)
    assert wheel.dist_info == f"sglang-{made.version}.dist-info"
    header = email.message_from_bytes(wheel.metadata["METADATA"].data)
    assert header.get_all("Version") == [made.version]
    assert header.get_payload() == "Version: 0.5.17\n", "only the header is ours"
    listing = json.loads(wheel.metadata[PATCH_LIST].data)
    assert [patch["name"] for patch in listing["patches"]] == [p.name for p in made.patches]
    assert all(patch["reason"] and patch["removal"] for patch in listing["patches"])
    assert listing["patched_tree"] == made.patched_tree


def test_the_name_is_valid_and_satisfies_the_upstream_requirement(lab: Lab) -> None:
    made = build(lab)
    name, version, _, tags = parse_wheel_filename(made.path.name)
    assert (name, str(version)) == ("sglang", made.version)
    assert len(tags) == 1
    for requirement in ("==0.5.17", ">=0.5.17,<0.5.18", f"=={made.version}"):
        assert version in SpecifierSet(requirement)


@pytest.mark.parametrize("tree8", ["00001234", "12345678", "1234e567", "be5369f3"])
def test_the_version_is_written_as_installers_normalize_it(tree8: str) -> None:
    version = patched_version("0.5.17", tree8 + "0" * 56)
    (_, parsed, _, _) = parse_wheel_filename(f"sglang-{version}-py3-none-any.whl")
    assert str(parsed) == version


def test_installed_it_reports_the_version_and_its_record_verifies(lab: Lab, tmp_path: Path) -> None:
    made = build(lab)
    site = tmp_path / "site"
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "--quiet", "--offline", "--no-cache", "pip", "install"),
            *("--no-deps", "--no-index", "--python", sys.executable),
            *("--target", str(site), str(made.path)),
        ],
        check=True,
    )
    code = "import sglang; print(sglang.__version__)"
    shown = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == made.version
    (found,) = importlib.metadata.distributions(path=[str(site)])
    assert found.version == made.version
    assert found.files
    for file in found.files:
        if file.hash:
            data = Path(str(file.locate())).read_bytes()
            assert f"{file.hash.mode}={file.hash.value}" == record_hash(data)
    assert {str(file) for file in found.files} >= {n for n in AFTER_SECOND if n}


def test_two_repacks_are_byte_identical(lab: Lab) -> None:
    assert build(lab, "one").path.read_bytes() == build(lab, "two").path.read_bytes()


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def repacked(*_args: object) -> None:
        raise AssertionError("repacked although nothing changed")

    monkeypatch.setattr(wheel_module, "patch_packages", repacked)


def test_the_same_inputs_are_not_repacked(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(lab)
    forbid(monkeypatch)
    assert build(lab) == first


def test_a_damaged_or_unfinished_result_is_made_anew(lab: Lab) -> None:
    first = build(lab)
    good = first.path.read_bytes()
    first.path.write_bytes(good[:-1] + b"x")
    assert build(lab).path.read_bytes() == good
    first.path.with_name(first.path.name + ".sha256").unlink()
    first.path.write_bytes(b"half")
    assert build(lab).path.read_bytes() == good


def test_another_reason_makes_another_wheel(lab: Lab) -> None:
    first = build(lab)
    patch = lab.project.patches / "0001-first-change.patch"
    patch.write_bytes(patch.read_bytes().replace(b"the first line", b"a better reason"))
    second = build(lab)
    assert second.version == first.version
    assert second.path.read_bytes() != first.path.read_bytes()


def refused(lab: Lab, error: type[BuilderError]) -> BuilderError:
    out = lab.project.root.parent / "out"
    with pytest.raises(error) as caught:
        build(lab)
    assert not out.exists(), "nothing is written before all checks have passed"
    assert "\n" not in caught.value.what + caught.value.remedy
    return caught.value


def test_another_wheel_is_refused(lab: Lab) -> None:
    make_wheel(lab.wheel, {**PACKAGES, "tools/tag.py": b"tag = 9\n"})
    what = refused(lab, HashMismatchError).what
    assert sha256_file(lab.wheel) in what and lab.shared.sglang.sha256 in what
    lab.wheel.unlink()
    assert lab.wheel.name in refused(lab, WheelhouseError).what


@pytest.mark.parametrize("key", ["base_tree", "patched_tree"])
def test_a_tree_that_is_not_the_pinned_one_is_refused(lab: Lab, key: str) -> None:
    real = getattr(lab.shared.sglang, key)
    lab.set_pin(key, "1" * 64)
    error = refused(lab, TreeHashError)
    assert f"sglang.{key}" in error.what
    assert real in error.what and "1" * 64 in error.what
    assert "--pin" in error.remedy


def test_drift_in_the_last_patch_writes_nothing(lab: Lab) -> None:
    make_wheel(lab.wheel, {**PACKAGES, "sglang/latin1.txt": b"tea\n"})
    lab.pin_base()
    assert "0002-second-change-new-and-gone.patch" in refused(lab, PatchDriftError).what


@pytest.mark.parametrize("spoil", ["__version__ = version", "version_tuple = ("])
def test_a_version_file_of_another_shape_is_drift(lab: Lab, spoil: str) -> None:
    data = PACKAGES[VERSION_FILE].decode().replace(spoil, re.sub("v", "w", spoil)).encode()
    make_wheel(lab.wheel, {**PACKAGES, VERSION_FILE: data})
    lab.pin_base()
    lab.pin_patched()
    assert VERSION_FILE in refused(lab, PatchDriftError).what
