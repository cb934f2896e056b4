"""The failure of the CPU proof path that ends a process."""

from __future__ import annotations

from typing import ClassVar

from ddtree_overlay.serve.errors import EntryError


class CpuProofError(EntryError):
    """The CPU proof path was asked for and cannot, or must not, be active."""

    exit_code: ClassVar[int] = 67
