"""The extension is refused for another torch before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay import _extension as loader

STAMP = {
    "torch": "2.11.0+cu130",
    "variant": "cu130",
    "cxx11_abi": True,
    "nvrtc": "13.0.88",
    "sass": ["sm_90", "sm_120"],
    "ptx": "compute_120",
}


def stamped(folder: Path, **changes: Any) -> Any:
    (folder / "_build_info.json").write_text(json.dumps({**STAMP, **changes}))
    return loader.read_build_info(folder)


def test_the_torch_it_was_built_for_is_accepted(tmp_path: Path) -> None:
    info = stamped(tmp_path)
    loader.check_build(info, "2.11.0+cu130", True)
    assert info.sass == ("sm_90", "sm_120")


@pytest.mark.parametrize("running", ["2.11.0+cu128", "2.11.0", "2.11.1+cu130", "2.9.1+cu130"])
def test_a_neighbouring_torch_is_refused(tmp_path: Path, running: str) -> None:
    with pytest.raises(loader.ExtensionMismatchError) as caught:
        loader.check_build(stamped(tmp_path), running, True)
    text = str(caught.value)
    assert "built for torch 2.11.0+cu130 (cu130)" in text
    assert f"torch {running} is running" in text
    assert "install the ddtree-overlay wheel built for this torch" in text
    assert isinstance(caught.value, ImportError)


def test_another_string_abi_is_refused(tmp_path: Path) -> None:
    with pytest.raises(loader.ExtensionMismatchError, match=r"CXX11_ABI=1.*runs with 0"):
        loader.check_build(stamped(tmp_path), "2.11.0+cu130", False)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}"])
def test_an_unusable_stamp_is_an_import_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "_build_info.json").write_text(content)
    with pytest.raises(loader.ExtensionLoadError, match="not an installed ddtree-overlay wheel"):
        loader.read_build_info(tmp_path)


@pytest.mark.parametrize("names", [[], ["_C.so", "_C.cpython-311-x86_64-linux-gnu.so"]])
def test_exactly_one_extension_is_expected(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(loader.ExtensionLoadError, match=names[0] if names else "found: none"):
        loader.find_extension(tmp_path)


def test_the_extension_is_found_by_pattern(tmp_path: Path) -> None:
    library = tmp_path / "_C.cpython-311-x86_64-linux-gnu.so"
    library.touch()
    assert loader.find_extension(tmp_path) == library
