"""Cache folders: below one root, compiled things by build, the user's own kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_overlay.serve.caches import COMPILED, DOWNLOADED, cache_folders, cache_variables


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
