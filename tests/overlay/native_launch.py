"""csrc/launch.cpp and what it loads with, compiled against the installed torch's headers and run
on a stub of the CUDA driver that records its calls (native/launch_*.cpp).

Each program runs in a process of its own, since what is loaded stays loaded. torch itself is not
imported there: its libtorch_cuda would be found in place of the stub.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.overlay.conftest import OVERLAY

CSRC = OVERLAY / "csrc"
NATIVE = Path(__file__).resolve().parent / "native"
UNITS = ("launch.cpp", "loaded_kernels.cpp", "cuda_driver.cpp")

# What every program begins with. `fails` gives the message, None where the call succeeds.
PROLOGUE = """
import ctypes, os, threading
harness = ctypes.CDLL("harness.so")
if "torch" in os.environ["STUBS"]:
    torch_stub = ctypes.CDLL("libtorch_cuda.so")
if "driver" in os.environ["STUBS"]:
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.stub_calls.restype = ctypes.c_char_p
    cuda.stub_set_current.argtypes = [ctypes.c_void_p]
for name in ("use_kernels", "load_kernels", "launch", "multiprocessors"):
    getattr(harness, name).restype = ctypes.c_char_p

def text(message):
    return None if message is None else message.decode()

def use(device, *files):
    array = (ctypes.c_char_p * len(files))(*(file.encode() for file in files))
    return text(harness.use_kernels(device, array, len(files)))

def load(device):
    return text(harness.load_kernels(device))

def launch(entry="ddtree_a", device=0, grid=(3, 2), block=64, shared=0, argument=b"12345678",
           op="build_tree"):
    return text(harness.launch(op.encode(), entry.encode(), device, grid[0], grid[1], block,
                               shared, argument))

def calls(*names):
    lines = cuda.stub_calls().decode().splitlines()
    return [line for line in lines if not names or line.split()[0] in names]
"""


def missing() -> str:
    """What keeps this machine from compiling the launcher; empty if nothing does."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed here; the image has it"
    if shutil.which("g++") is None:
        return "no g++ on this machine: the launcher cannot be compiled"
    return "" if CSRC.is_dir() else f"{CSRC} is not here: there is no launcher to compile"


@dataclass(frozen=True)
class Launcher:
    """A folder with harness.so and both stubs, and broken/ with a driver that does not load."""

    folder: Path

    def run(
        self,
        program: str,
        environment: Mapping[str, str] | None = None,
        stubs: Sequence[str] = ("driver", "torch"),
    ) -> str:
        """Standard output of a Python program that begins with PROLOGUE. Raises AssertionError with
        its standard error when it fails."""
        driver = self.folder if "driver" in stubs else self.folder / "broken"
        libraries = f"{driver}:{self.folder}:{_torch_root() / 'lib'}"
        ran = subprocess.run(
            [sys.executable, "-c", PROLOGUE + program],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": libraries,
                "STUBS": " ".join(stubs),
                **(environment or {}),
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        return ran.stdout.strip()


def compile_stub_driver(folder: Path) -> None:
    """libcuda.so.1 into `folder`."""
    _gpp(
        *("-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"),
        *("-o", folder / "libcuda.so.1", NATIVE / "launch_driver_stub.cpp"),
    )


def compile_launcher(folder: Path) -> Launcher:
    """The launcher and its stubs into `folder`."""
    compile_stub_driver(folder)
    (folder / "broken").mkdir()
    (folder / "broken" / "libcuda.so.1").write_bytes(b"not a library" * 100)
    _gpp(
        *("-shared", "-fPIC", "-Wl,-soname,libtorch_cuda.so"),
        *("-o", folder / "libtorch_cuda.so", NATIVE / "launch_torch_stub.cpp"),
    )
    for unit in (*(CSRC / name for name in UNITS), NATIVE / "launch_harness.cpp"):
        _compile_unit(unit, folder)
    return _link(folder)


def recompile(launcher: Launcher, unit: Path, folder: Path) -> Launcher:
    """`launcher` with another text of one unit, in a `folder` that does not exist yet."""
    shutil.copytree(launcher.folder, folder)
    _compile_unit(unit, folder)
    return _link(folder)


def _torch_root() -> Path:
    """Found without importing it: the programs must not have torch's own libraries."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _compile_unit(source: Path, folder: Path) -> None:
    include = _torch_root() / "include"
    _gpp(
        *("-std=c++20", "-fPIC", "-Wno-unknown-pragmas", "-I", CSRC, "-isystem", include),
        *("-isystem", include / "torch" / "csrc" / "api" / "include"),
        *("-c", source, "-o", folder / f"{source.stem}.o"),
    )


def _link(folder: Path) -> Launcher:
    objects = sorted(folder.glob("*.o"))
    libraries = ("-lc10", "-Wl,-z,defs", "-Wl,--as-needed")
    _gpp(
        *("-shared", "-o", folder / "harness.so"),
        *objects,
        f"-L{_torch_root() / 'lib'}",
        *libraries,
    )
    return Launcher(folder)


def _gpp(*arguments: str | Path) -> None:
    subprocess.run(["g++", "-O0", "-Wall", "-Wextra", *map(str, arguments)], check=True)
