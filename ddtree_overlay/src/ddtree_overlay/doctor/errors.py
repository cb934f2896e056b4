"""Failures of the doctor itself, apart from what it finds."""

from __future__ import annotations

from ddtree_overlay.serve.errors import EntryError


class BundleError(EntryError):
    """The support bundle cannot be written where it should go."""

    exit_code = 75
