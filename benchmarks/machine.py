"""The machine that a benchmark runs on, in words. Standard library only."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    """What the numbers were measured on."""
    name = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    release = platform.freedesktop_os_release().get("PRETTY_NAME", "unknown system")
    return f"{os.cpu_count()} x {name}, {pages:.0f} GiB, {release}"
