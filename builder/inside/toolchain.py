"""Complete a CUDA toolkit folder with the names that whatever links at JIT time looks for.

NVIDIA's wheels bring neither `lib64` nor an unversioned name of any library nor a stub of the
driver's; its archives here bring no NVRTC and no cuBLAS, which the wheels beside torch do. Without
these torch's cpp_extension (-lcudart), FlashInfer (-lnvrtc, -lcublas, -lcublasLt, -lcuda) and nvcc
fail at the link step. Runs in a build stage, also as a plain script: standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

TOOLCHAIN_FAILED = 59
LINKED = ("cudart", "nvrtc", "cublas", "cublasLt")
_FUNCTION = re.compile(r"\bcu[A-Z]\w*")
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY in cuda.h


class ToolchainError(Exception):
    """The folder is no CUDA toolkit, or holds something else under a name that is needed."""


def complete(home: Path, site: Path | None = None) -> list[str]:
    """Create missing links (all relative) and the driver's stub; returns those created.

    What `home` lacks is linked from the wheels in `site` (site-packages). Again, it changes
    nothing. Everything is found before anything is created.
    """
    library = next((home / d for d in ("lib", "lib64") if (home / d).is_dir()), None)
    if library is None:
        raise ToolchainError(f"{home} has neither lib nor lib64")
    links = [(home / "lib64", Path("lib")), (home / "lib", Path("lib64"))]
    runtime = _versioned("cudart", [library])
    major = runtime.name.rpartition(".")[2]
    wheels = sorted(site.glob("nvidia/*/lib")) if site else []
    for name in LINKED:
        link = library / f"lib{name}.so"
        if not link.exists():
            goal = _versioned(name, [library], [p for p in wheels if not p.samefile(library)])
            if goal.name.rpartition(".")[2] != major:
                raise ToolchainError(f"{goal} is not of the CUDA of {runtime}")
            relative = os.path.relpath(goal.parent.resolve() / goal.name, library.resolve())
            links.append((link, Path(relative)))
    links = [(link, goal) for link, goal in links if not link.exists()]
    for link, _ in links:
        if link.is_symlink():
            raise ToolchainError(f"{link} is a broken link to {link.readlink()}")
    created = []
    stub = library / "stubs/libcuda.so"
    if not stub.exists():
        build_stub(home / "include/cuda.h", stub)
        created.append(f"{stub} built")
    for link, goal in links:
        link.symlink_to(goal)
        created.append(f"{link} -> {goal}")
    return created


def _versioned(name: str, *places: list[Path]) -> Path:
    """The one lib<name>.so.<major> of the first group of folders that has any."""
    pattern = re.compile(rf"lib{name}\.so\.\d+$")
    found: list[Path] = []
    for folders in places:
        found = sorted(p for d in folders for p in d.iterdir() if pattern.match(p.name))
        if found:
            break
    if len(found) != 1:
        seen = ", ".join(map(str, found)) or "none"
        where = ", ".join(str(d) for folders in places for d in folders)
        raise ToolchainError(f"{where}: exactly one lib{name}.so.<major> expected, found {seen}")
    return found[0]


def build_stub(header: Path, stub: Path) -> None:
    """A library to link `-lcuda` with where there is no driver, as CUDA's installers bring one.

    What is linked with it needs libcuda.so.1; no loader finds the stub, since its own name differs
    and its folder is on no path. A linker script would need the driver already at link time.
    """
    names = sorted(set(_FUNCTION.findall(header.read_text("utf-8", "replace"))))
    if "cuInit" not in names:
        raise ToolchainError(f"{header} does not declare the driver's functions")
    # Names in a comment or a type may be among them: a function too many harms nobody.
    code = "".join(f'extern "C" int {name}() {{ return {_STUB_LIBRARY}; }}\n' for name in names)
    stub.parent.mkdir(exist_ok=True)
    scratch = stub.with_name("libcuda.so.new")
    flags = ("-shared", "-fPIC", "-nostdlib", "-s", "-Wl,--build-id=none", "-Wl,-z,noexecstack")
    command = ["g++", *flags, "-Wl,-soname,libcuda.so.1", "-x", "c++", "-", "-o", str(scratch)]
    try:
        done = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ToolchainError(f"g++ cannot build {stub}: {last}")
        scratch.replace(stub)
    finally:
        scratch.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the toolkit's folder")
    parser.add_argument("--site", type=Path, help="site-packages, for what the toolkit lacks")
    args = parser.parse_args(argv)
    try:
        created = complete(args.home, args.site)
    except (OSError, ToolchainError) as exc:
        print(f"toolchain: {exc}", file=sys.stderr)
        return TOOLCHAIN_FAILED
    for line in created:
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
