"""The C++ compiler that the native tests need."""

from __future__ import annotations

import os
import shutil

import pytest


def require_compiler() -> None:
    """Skips where there is no g++; in CI, which installs one, that is a failure."""
    if shutil.which("g++") is not None:
        return
    reason = "no g++ on this machine: the kernels cannot be compiled for it"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
