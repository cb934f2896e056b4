"""Compiles the CUDA kernels ahead of time and describes them in kernels.json.

A kernel file is a csrc/*.cu; its entries are the `extern "C" __global__` functions that it defines,
and its headers those that it includes by name. So a new kernel needs no line here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .nvrtc import Image, Nvrtc, NvrtcError, Resources, find_library
from .settings import Settings

# --fmad=false: scores must be what the CPU computes, bit for bit.
OPTIONS = ("--std=c++17", "--fmad=false")
SCHEMA = 2

_ENTRY = re.compile(r'extern\s+"C"\s+__global__\s[^;{]*?\b(ddtree_\w+)\s*\(')
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_PTX_ENTRY = re.compile(rb"\.entry\s+(\w+)")


@dataclass(frozen=True)
class KernelFile:
    """A translation unit, the headers that it includes (also indirectly), and its entry points."""

    name: str
    source: str
    headers: Mapping[str, str]
    entries: tuple[str, ...]


def find_kernels(csrc: Path) -> list[KernelFile]:
    """The kernel files of `csrc` by name. Raises NvrtcError naming a file without an entry, an
    entry that two files define, or a header that is missing."""
    files = []
    owner: dict[str, str] = {}
    for path in sorted(csrc.glob("*.cu")):
        source = path.read_text(encoding="utf-8")
        entries = tuple(_ENTRY.findall(source))
        if not entries:
            raise NvrtcError(f'{path.name} defines no extern "C" __global__ ddtree_* function')
        for entry in entries:
            if entry in owner:
                raise NvrtcError(f"{entry} is defined in {owner[entry]} and in {path.name}")
            owner[entry] = path.name
        files.append(KernelFile(path.stem, source, _headers(csrc, path.name, source), entries))
    if not files:
        raise NvrtcError(f"{csrc} holds no kernel source (*.cu)")
    return files


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
    """Write `<kernel>.<arch>.cubin|.ptx` and kernels.json into `target`; returns the latter.

    Raises NvrtcError when a kernel does not compile, spills registers or needs a stack frame.
    """
    nvrtc = load_nvrtc(settings)
    kernels = find_kernels(csrc)
    target.mkdir(parents=True, exist_ok=True)
    files = []
    for kernel in kernels:
        for arch in (*settings.sass, settings.ptx):
            source = f"{kernel.name}.cu"
            image = nvrtc.compile(kernel.source, source, arch, kernel.headers, OPTIONS)
            kind = "cubin" if arch.startswith("sm_") else "ptx"
            name = f"{kernel.name}.{arch}.{kind}"
            entries = describe_entries(kernel, arch, image)
            (target / name).write_bytes(image.code)
            files.append(
                {
                    "file": name,
                    "kernel": kernel.name,
                    "arch": arch,
                    "kind": kind,
                    "sha256": hashlib.sha256(image.code).hexdigest(),
                    "entries": entries,
                }
            )
    description = {"schema": SCHEMA, "nvrtc": settings.nvrtc, "options": OPTIONS, "files": files}
    write_json(target / "kernels.json", description)
    return description


def describe_entries(
    kernel: KernelFile, arch: str, image: Image
) -> dict[str, dict[str, int] | None]:
    """Resources by entry, None for PTX. Raises NvrtcError unless the image holds exactly the
    entries that the source defines, without spills and stack frames: both are local memory, which
    no kernel here has a use for, so that one is a mistake that would only show as lost time."""
    where = f"{kernel.name}.cu for {arch}"
    if image.resources is None:
        found = {name.decode() for name in _PTX_ENTRY.findall(image.code)}
    else:
        for name, resources in image.resources.items():
            _refuse_local_memory(where, name, resources)
        # A function that ptxas reports without registers is one that is called.
        found = {name for name, resources in image.resources.items() if resources.registers}
    if found != set(kernel.entries):
        raise NvrtcError(
            f"{where} holds the entries {', '.join(sorted(found)) or 'none'}; "
            f"its source defines {', '.join(sorted(kernel.entries))}"
        )
    if image.resources is None:
        return dict.fromkeys(kernel.entries)
    return {entry: asdict(image.resources[entry]) for entry in kernel.entries}


def write_json(path: Path, value: Any) -> None:
    """Sorted and newline-terminated: the same value is the same bytes."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _headers(csrc: Path, name: str, source: str) -> dict[str, str]:
    """Texts of what `source` includes, by the name in the #include line."""
    texts: dict[str, str] = {}
    waiting = [(name, source)]
    while waiting:
        includer, text = waiting.pop()
        for header in _INCLUDE.findall(text):
            if header in texts:
                continue
            try:
                texts[header] = (csrc / header).read_text(encoding="utf-8")
            except OSError as error:
                raise NvrtcError(f"{includer} includes {header}: {error.strerror}") from error
            waiting.append((header, texts[header]))
    return dict(sorted(texts.items()))


def _refuse_local_memory(where: str, name: str, resources: Resources) -> None:
    numbers = {
        "bytes stack frame": resources.stack,
        "bytes spill stores": resources.spill_stores,
        "bytes spill loads": resources.spill_loads,
    }
    used = [f"{value} {unit}" for unit, value in numbers.items() if value]
    if used:
        raise NvrtcError(
            f"{where}: {name} uses local memory ({', '.join(used)}; "
            f"{resources.registers} registers); keep its values in registers or shared memory"
        )
