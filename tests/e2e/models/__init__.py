"""Tiny trained models. Makes the overlay's source importable, unless its wheel is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# The folder ddtree_overlay/ of the repository looks like a namespace package: no origin.
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or _SPEC.origin is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "ddtree_overlay" / "src"))
