"""A clean tree, compiled once and copied for each test that breaks it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.builder.inside.tree import Tree, clean_tree


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc: the trees hold real ELF files")
    root = tmp_path_factory.mktemp("pristine")
    clean_tree(root)
    return root


@pytest.fixture
def tree(pristine: Path, tmp_path: Path) -> Tree:
    root = tmp_path / "root"
    shutil.copytree(pristine, root, symlinks=True)
    return Tree(root)
