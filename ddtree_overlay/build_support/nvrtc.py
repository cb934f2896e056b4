"""NVRTC through ctypes: CUDA C++ to cubin or PTX with no nvcc, no GPU and no CUDA headers.

The library comes from NVIDIA's wheels (`nvidia-cuda-nvrtc-cu12`, `nvidia-cuda-nvrtc`), which torch
requires anyway. NVRTC reports major.minor only, so the full version is the distribution's.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DISTRIBUTIONS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_LIBRARY = re.compile(r"libnvrtc\.so\.\d+$")


class NvrtcError(Exception):
    """NVRTC is absent, is not the wanted version, or refuses the source."""


_FUNCTION = re.compile(
    r"Function properties for (?P<name>\S+)\n"
    r"[^\n]*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
    r"(?:\n[^\n]*Used (?P<registers>\d+) registers(?P<memory>[^\n]*))?"
)


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of one function (bytes, except registers).

    `registers` and `static_shared` are 0 for a function that is called instead of inlined: ptxas
    counts them in the kernel that calls it.
    """

    registers: int
    static_shared: int
    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True)
class Image:
    """One compiled kernel file. `resources`, by function name, is None for PTX, which ptxas has not
    seen."""

    code: bytes
    log: str
    resources: dict[str, Resources] | None


def find_library(version: str, path: Sequence[str] | None = None) -> Path:
    """The libnvrtc of exactly `version` (such as "13.0.88") among the installed distributions.

    `path` overrides sys.path. Raises NvrtcError naming what is installed instead.
    """
    found = []
    where = sys.path if path is None else list(path)
    for name in DISTRIBUTIONS:
        for dist in importlib.metadata.distributions(name=name, path=where):
            found.append(f"{name} {dist.version}")
            if dist.version != version:
                continue
            for file in dist.files or []:
                if _LIBRARY.search(file.name):
                    return Path(str(dist.locate_file(file))).resolve()
            raise NvrtcError(f"{name} {version} is installed but holds no libnvrtc.so")
    raise NvrtcError(f"NVRTC {version} is not installed (found: {', '.join(found) or 'none'})")


class Nvrtc:
    """One loaded libnvrtc."""

    def __init__(self, library: Path) -> None:
        try:
            # CUDA 13's libnvrtc has no RUNPATH and dlopens its builtins by name: a library that is
            # already loaded under that name is found.
            for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            self._lib = ctypes.CDLL(str(library))
        except OSError as error:
            raise NvrtcError(f"cannot load {library}: {error}") from error
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> tuple[int, int]:
        """(major, minor) as the library itself reports it."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "")
        return major.value, minor.value

    def architectures(self) -> list[int]:
        """Compute capabilities that it compiles for, such as 90 and 120."""
        count = ctypes.c_int()
        self._check(self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "")
        values = (ctypes.c_int * count.value)()
        self._check(self._lib.nvrtcGetSupportedArchs(values), "")
        return list(values)

    def compile(
        self, source: str, name: str, arch: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> Image:
        """Compile for `arch`: "sm_120" gives a cubin, "compute_120" gives PTX.

        `headers` maps the names used in #include lines to their text; nothing is read from disk.
        """
        cubin = arch.startswith("sm_")
        flags = [f"--gpu-architecture={arch}", *options]
        if cubin:
            flags.append("--ptxas-options=-v")
        program = ctypes.c_void_p()
        names = (ctypes.c_char_p * len(headers))(*(key.encode() for key in headers))
        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        created = self._lib.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), name.encode(), len(headers), texts, names
        )
        self._check(created, name)
        try:
            argv = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            status = self._lib.nvrtcCompileProgram(program, len(flags), argv)
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            self._check(status, f"{name} for {arch}\n{log}")
            code = self._read(program, "CUBIN" if cubin else "PTX")
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))
        if not cubin:
            return Image(code.rstrip(b"\0"), log, None)
        return Image(code, log, parse_resources(log))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._lib, f"nvrtcGet{what}")(program, buffer), what)
        return buffer.raw

    def _check(self, status: int, context: str) -> None:
        if status != 0:
            text = self._lib.nvrtcGetErrorString(status).decode()
            raise NvrtcError(f"{text}: {context}" if context else text)


def parse_resources(log: str) -> dict[str, Resources]:
    """Registers, shared memory, stack and spills of each function in ptxas' verbose text."""
    found = {}
    for match in _FUNCTION.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["memory"] or "")
        found[match["name"]] = Resources(
            registers=int(match["registers"] or 0),
            static_shared=int(shared.group(1)) if shared else 0,
            stack=int(match["stack"]),
            spill_stores=int(match["stores"]),
            spill_loads=int(match["loads"]),
        )
    return found
