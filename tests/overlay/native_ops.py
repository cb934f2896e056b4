"""The extension as on a GPU, but on the emulator: the ops' own CUDA path (checks, allocations,
launch shapes, arguments) and the kernels' own source, with CPU tensors.

The result is a package folder that `import ddtree_overlay` finds before the installed one, so that
any test of the ops can run on it.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.overlay.conftest import OVERLAY

CSRC = OVERLAY / "csrc"
NATIVE = Path(__file__).resolve().parent / "native"
REPLACED = ("launch.cpp", "loaded_kernels.cpp", "cuda_driver.cpp")
_KERNEL = re.compile(
    r'extern "C" __global__ void\s+__launch_bounds__\((?P<threads>[^,)]*)[^)]*\)\s+'
    r"(?P<entry>\w+)\((?P<arguments>[\w:]+) \w+\)"
)


def missing() -> str:
    """What keeps this machine from compiling it; empty if nothing does."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed here; the image has it"
    spec = importlib.util.find_spec("ddtree_overlay")
    if spec is None or not Path(spec.origin or "").with_name("_build_info.json").is_file():
        return "the ddtree-overlay wheel is not installed here"
    if shutil.which("g++") is None:
        return "no g++ on this machine: the ops cannot be compiled"
    return "" if CSRC.is_dir() else f"{CSRC} is not here: there are no ops to compile"


def kernel_entries() -> list[str]:
    """Names of all kernels."""
    return [
        match["entry"]
        for path in sorted(CSRC.glob("*.cu"))
        for match in _KERNEL.finditer(path.read_text())
    ]


def build_package(folder: Path) -> Path:
    """A folder for PYTHONPATH, with the installed package and the emulated extension in it."""
    spec = importlib.util.find_spec("ddtree_overlay")
    assert spec is not None
    assert spec.origin is not None
    package = folder / "site" / "ddtree_overlay"
    package.mkdir(parents=True)
    for path in Path(spec.origin).parent.iterdir():
        if path.is_dir():
            (package / path.name).symlink_to(path.resolve())
        elif not path.name.startswith("_C"):
            # No link: the extension is looked for beside the real path of the module that does it.
            shutil.copy(path, package)
    objects = folder / "objects"
    objects.mkdir()
    with ThreadPoolExecutor(2) as pool:
        names = list(pool.map(lambda unit: _compile(unit[0], unit[1], objects), _units(objects)))
    _gpp(
        *("-shared", "-o", str(package / "_C.emulated.so"), *names, f"-L{_torch() / 'lib'}"),
        *("-lc10", "-ltorch_cpu", "-Wl,-z,defs", "-Wl,--as-needed"),
    )
    return package.parent


def _units(folder: Path) -> list[tuple[Path, bool]]:
    """Sources, and whether tensors are to be taken for CUDA ones in them."""
    units = [
        (path, path.name != "ops.cpp")
        for path in sorted(CSRC.glob("*.cpp"))
        if path.name not in REPLACED
    ]
    for path in sorted(CSRC.glob("*.cu")):
        kernels = list(_KERNEL.finditer(path.read_text()))
        assert kernels, f"{path.name} has no kernel in the form that is launched"
        lines = [f'#include "{name}"' for name in ("cuda_on_host.h", "reduce_on_host.h", path.name)]
        lines.append('#include "ops_on_emulator.h"')
        lines += [
            f'static emulator::Kernel register_{match["entry"]}("{match["entry"]}", '
            f"{match['threads']}, [](const void* arguments) {{ "
            f"{match['entry']}(*static_cast<const {match['arguments']}*>(arguments)); }});"
            for match in kernels
        ]
        unit = folder / f"{path.stem}_kernels.cpp"
        unit.write_text("\n".join(lines) + "\n")
        units.append((unit, False))
    return [*units, (NATIVE / "ops_on_emulator.cpp", False)]


def _compile(source: Path, as_cuda: bool, folder: Path) -> str:
    include = _torch() / "include"
    target = folder / f"{source.stem}.o"
    _gpp(
        *("-std=c++20", "-O1", "-fPIC", "-ffp-contract=off", "-Wno-unknown-pragmas"),
        *("-I", str(CSRC), "-I", str(NATIVE), "-isystem", str(include)),
        *("-isystem", str(include / "torch" / "csrc" / "api" / "include")),
        *(("-include", str(NATIVE / "as_cuda.h")) if as_cuda else ()),
        *("-c", str(source), "-o", str(target)),
    )
    return str(target)


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _gpp(*arguments: str) -> None:
    subprocess.run(["g++", *arguments], check=True)
