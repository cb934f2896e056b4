"""Whether an IOMMU translates the traffic of GPUs, from sysfs.

A translating IOMMU sends peer-to-peer traffic through the root complex or blocks it; with
`iommu=pt` (group type "identity") it does not. Kernel documentation: sysfs-kernel-iommu_groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_PASS_THROUGH = re.compile(
    r"(?:^|\s)(?:iommu=pt|iommu\.passthrough=1|iommu=off|intel_iommu=off|amd_iommu=off)(?:\s|$)"
)


def translating(root: Path, pci_ids: Iterable[str]) -> str | None:
    """How it shows (one phrase), or None when no IOMMU translates for these devices.

    The group's type is the kernel's own word; kernels before 5.11 have no such file, and then the
    kernel's command line is asked.
    """
    pci_ids = list(pci_ids)
    types = {pci: group_type(root, pci) for pci in pci_ids}
    for pci, kind in types.items():
        if kind is not None and kind != "identity":
            return f"IOMMU group of {pci} has type {kind}"
    if all(types.get(pci) == "identity" for pci in pci_ids):
        return None
    active = sorted(path.name for path in _entries(root / "sys/class/iommu"))
    if not active:
        return None
    command_line = _read(root / "proc/cmdline") or ""
    if _PASS_THROUGH.search(command_line):
        return None
    in_groups = [pci for pci in pci_ids if _group(root, pci) is not None]
    if not in_groups:
        return None
    return f"{active[0]} is active without iommu=pt"


def group_type(root: Path, pci: str) -> str | None:
    """Such as "identity", "DMA", "DMA-FQ"; None when the kernel does not say."""
    group = _group(root, pci)
    if group is None:
        return None
    text = _read(root / "sys/kernel/iommu_groups" / group / "type")
    return text.strip() if text else None


def _group(root: Path, pci: str) -> str | None:
    for group in _entries(root / "sys/kernel/iommu_groups"):
        if (group / "devices" / pci).is_symlink() or (group / "devices" / pci).exists():
            return group.name
    return None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
