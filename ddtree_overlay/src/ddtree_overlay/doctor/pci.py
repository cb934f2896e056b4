"""PCIe devices in sysfs: the bridges above a device, ACS redirection, link width.

The ACS control register is in extended configuration space, which the kernel shows to root only
(others get the first 64 bytes): then the state is unknown, never taken for "off".
"""

from __future__ import annotations

import re
import struct
from enum import Enum
from pathlib import Path

_EXTENDED = 0x100  # offset of the first extended capability (PCIe Base Specification, 7.6)
_ACS_ID = 0x000D
_ACS_CONTROL = 6  # offset within the capability
_REQUEST_REDIRECT, _COMPLETION_REDIRECT = 0x04, 0x08
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class AcsState(str, Enum):
    """Of one bridge: whether it sends peer-to-peer requests up to the root complex."""

    DIRECT = "direct"
    REDIRECTS = "redirects"
    UNKNOWN = "unknown"


def device_folder(root: Path, pci: str) -> Path:
    """A device's entry in sysfs."""
    return root / "sys/bus/pci/devices" / pci


def bridges_above(root: Path, pci: str) -> list[str]:
    """Addresses of the bridges above a device, the nearest first; none when sysfs lacks it.

    sysfs nests a device's real folder in those of its bridges.
    """
    folder = device_folder(root, pci)
    try:
        parts = folder.resolve(strict=True).parts
    except OSError:
        return []
    addresses = [part for part in parts if _ADDRESS.fullmatch(part)]
    return [address for address in reversed(addresses) if address != pci]


def acs_of_path(root: Path, pci: str) -> list[tuple[str, AcsState]]:
    """Each bridge above a device with its state."""
    return [(bridge, acs_state(root, bridge)) for bridge in bridges_above(root, pci)]


def acs_state(root: Path, pci: str) -> AcsState:
    """From the ACS capability; a bridge that has none redirects nothing."""
    try:
        space = (device_folder(root, pci) / "config").read_bytes()
    except OSError:
        return AcsState.UNKNOWN
    if len(space) <= _EXTENDED + 4:
        return AcsState.UNKNOWN
    offset, seen = _EXTENDED, set[int]()
    while offset >= _EXTENDED and offset + 8 <= len(space) and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", space, offset)
        if header in {0, 0xFFFFFFFF}:
            break
        if header & 0xFFFF == _ACS_ID:
            (control,) = struct.unpack_from("<H", space, offset + _ACS_CONTROL)
            redirect = _REQUEST_REDIRECT | _COMPLETION_REDIRECT
            return AcsState.REDIRECTS if control & redirect else AcsState.DIRECT
        offset = header >> 20
    return AcsState.DIRECT


def link_width(root: Path, pci: str) -> tuple[int, int] | None:
    """(current, possible) lanes; None when sysfs does not say."""
    values = []
    for name in ("current_link_width", "max_link_width"):
        try:
            values.append(int((device_folder(root, pci) / name).read_text()))
        except (OSError, ValueError):
            return None
    return values[0], values[1]


def numa_node(root: Path, pci: str) -> int | None:
    """The device's node; None where the firmware names none."""
    try:
        node = int((device_folder(root, pci) / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def nvidia_gpus(root: Path) -> list[str]:
    """Addresses of all NVIDIA display controllers on the bus, driver or not."""
    found = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            vendor = (folder / "vendor").read_text().strip()
            kind = (folder / "class").read_text().strip()
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith(("0x0300", "0x0302")):
            found.append(folder.name)
    return found
