"""Makes the overlay's source importable, unless its wheel is installed (as inside the image)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.overlay.native_tree import NativeTree

OVERLAY = Path(__file__).resolve().parents[2] / "ddtree_overlay"


def _installed() -> bool:
    # The folder ddtree_overlay/ of the repository looks like a namespace package: no origin.
    spec = importlib.util.find_spec("ddtree_overlay")
    return spec is not None and spec.origin is not None


if not _installed():
    sys.path.insert(0, str(OVERLAY / "src"))
sys.path.insert(1, str(OVERLAY))  # build_support


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeTree]:
    """tree_core.h and build_tree.cu compiled for this CPU; skips where there is no g++."""
    from tests.overlay.compiler import require_compiler
    from tests.overlay.native_tree import NativeTree

    require_compiler()
    yield NativeTree.compile(OVERLAY / "csrc", tmp_path_factory.mktemp("native"))
