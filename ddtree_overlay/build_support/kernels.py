"""Compiles the CUDA kernels ahead of time and describes them in kernels.json."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .nvrtc import Nvrtc, NvrtcError, find_library
from .settings import Settings

# --fmad=false: scores must be what the CPU computes, bit for bit.
OPTIONS = ("--std=c++17", "--fmad=false")


@dataclass(frozen=True)
class Kernel:
    """A translation unit, the header files that it includes, and its entry point."""

    name: str
    source: str
    headers: tuple[str, ...]
    entry: str


KERNELS = (Kernel("build_tree", "build_tree.cu", ("tree_core.h",), "ddtree_build_tree"),)


def load_nvrtc(settings: Settings) -> Nvrtc:
    """The variant's own NVRTC. Raises NvrtcError if it is another or lacks an architecture."""
    nvrtc = Nvrtc(find_library(settings.nvrtc))
    reported = nvrtc.version()
    wanted = tuple(int(part) for part in settings.nvrtc.split(".")[:2])
    if reported != wanted:
        raise NvrtcError(f"libnvrtc reports {reported[0]}.{reported[1]}, not {settings.nvrtc}")
    known = nvrtc.architectures()
    for arch in (*settings.sass, settings.ptx):
        if int("".join(filter(str.isdigit, arch))) not in known:
            raise NvrtcError(f"NVRTC {settings.nvrtc} does not know {arch} (it knows {known})")
    return nvrtc


def compile_kernels(csrc: Path, target: Path, settings: Settings) -> dict[str, Any]:
    """Write `<kernel>.<arch>.cubin|.ptx` and kernels.json into `target`; returns the latter."""
    nvrtc = load_nvrtc(settings)
    target.mkdir(parents=True, exist_ok=True)
    files = []
    for kernel in KERNELS:
        source = (csrc / kernel.source).read_text(encoding="utf-8")
        headers = {name: (csrc / name).read_text(encoding="utf-8") for name in kernel.headers}
        for arch in (*settings.sass, settings.ptx):
            image = nvrtc.compile(source, kernel.source, arch, headers, OPTIONS)
            kind = "cubin" if arch.startswith("sm_") else "ptx"
            name = f"{kernel.name}.{arch}.{kind}"
            (target / name).write_bytes(image.code)
            files.append(
                {
                    "file": name,
                    "kernel": kernel.name,
                    "entry": kernel.entry,
                    "arch": arch,
                    "kind": kind,
                    "sha256": hashlib.sha256(image.code).hexdigest(),
                    "resources": asdict(image.resources) if image.resources else None,
                }
            )
    description = {"schema": 1, "nvrtc": settings.nvrtc, "options": OPTIONS, "files": files}
    write_json(target / "kernels.json", description)
    return description


def write_json(path: Path, value: Any) -> None:
    """Sorted and newline-terminated: the same value is the same bytes."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
