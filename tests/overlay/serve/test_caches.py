"""Cache folders: below one root, compiled things by build, the user's own kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_overlay.serve.caches import (
    BYTECODE,
    COMPILED,
    DOWNLOADED,
    NO_BYTECODE,
    cache_folders,
    cache_variables,
)


def test_compiled_things_are_kept_by_build_and_downloads_are_not() -> None:
    one, two = (cache_variables("/c", build, {}) for build in ("b1", "b2"))
    assert {one[name].value for name in COMPILED} & {two[name].value for name in COMPILED} == set()
    assert all(one[name].value.startswith("/c/b1/") for name in COMPILED)
    assert [one[name].value for name in DOWNLOADED] == [two[name].value for name in DOWNLOADED]
    assert len({one[name].value for name in [*COMPILED, *DOWNLOADED]}) == len(COMPILED) + 1


@pytest.mark.parametrize("build", ["", "unknown", "..", ".", "a/b", "../../etc", "a b"])
def test_a_build_id_that_is_no_folders_name_is_dev(build: str) -> None:
    assert cache_variables("/c", build, {})["TRITON_CACHE_DIR"].value == "/c/dev/triton"


@pytest.mark.parametrize("name", [*COMPILED, *DOWNLOADED])
def test_a_variable_that_the_user_set_is_kept(name: str) -> None:
    found = cache_variables("/c", "b", {name: "/mine"})
    assert (found[name].value, found[name].source) == ("/mine", f"environment {name}")


def test_the_images_own_xdg_folder_is_not_the_users() -> None:
    assert (
        cache_variables("/c", "b", {"XDG_CACHE_HOME": "/c"})["XDG_CACHE_HOME"].value == "/c/b/xdg"
    )


def test_the_folders_are_those_of_the_variables() -> None:
    found = cache_variables("/c", "b", {"HF_HOME": "/mine"})
    folders = cache_folders(found)
    assert Path("/mine") in folders and Path("/c/b/triton") in folders
    assert len(folders) == len(COMPILED) + len(DOWNLOADED)


def test_python_keeps_bytecode_by_build_though_the_image_says_it_writes_none() -> None:
    found = cache_variables("/c", "b", {NO_BYTECODE: "1"})
    assert (found[BYTECODE].value, found[NO_BYTECODE].value) == ("/c/b/bytecode", "")


@pytest.mark.parametrize("given", ["1", ""])
def test_who_set_a_folder_for_bytecode_also_says_whether_it_is_written(given: str) -> None:
    found = cache_variables("/c", "b", {BYTECODE: "/mine", NO_BYTECODE: given})
    assert found[BYTECODE].value == "/mine" and NO_BYTECODE not in found


def test_a_python_with_these_variables_writes_there_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "module_of_mine.py").write_text("x = 1")
    found = cache_variables(str(tmp_path / "cache"), "b", {NO_BYTECODE: "1"})
    variables = {name: str(found[name].value) for name in (BYTECODE, NO_BYTECODE)}
    subprocess.run(
        [sys.executable, "-c", "import module_of_mine"],
        env={**os.environ, NO_BYTECODE: "1", "PYTHONPATH": str(tmp_path / "src"), **variables},
        check=True,
        timeout=60,
    )
    written = list(tmp_path.rglob("module_of_mine*.pyc"))
    assert written and all((tmp_path / "cache" / "b" / "bytecode") in p.parents for p in written)
