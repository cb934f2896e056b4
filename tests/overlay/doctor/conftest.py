"""Shared by the tests of the doctor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.overlay.compiler import require_compiler
from tests.overlay.doctor.nvml import compile_stub


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub library."""
    require_compiler()
    return compile_stub(tmp_path_factory.mktemp("nvml"))
