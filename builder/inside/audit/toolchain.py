"""JIT: what SGLang, FlashInfer and Triton compile with at run time is there and of one CUDA."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from builder.inside.audit.model import Context, Finding
from builder.inside.distributions import normalise
from builder.inside.links import follow

_RELEASE = re.compile(rb"Cuda compilation tools, release (\d+\.\d+), V([\d.]+\d)")
_SYSTEM = {
    "C++ compiler": "usr/bin/g++",
    "Python headers": "usr/include/python3.*/Python.h",
}
_TOOLKIT = (
    *("bin/nvcc", "bin/ptxas", "bin/cudafe++", "bin/fatbinary", "bin/nvlink", "nvvm/bin/cicc"),
    *("nvvm/libdevice/libdevice.10.bc", "include/cuda_runtime.h", "include/cuda.h"),
    "include/crt/host_config.h",
    # -lcudart by nvcc and torch, -lnvrtc, -lcublas, -lcublasLt and -lcuda by FlashInfer
    *(f"lib64/lib{name}.so" for name in ("cudart", "nvrtc", "cublas", "cublasLt")),
    "lib64/stubs/libcuda.so",
)
# CCCL 3 (CUDA 13) lies below include/cccl, CCCL 2 directly in include.
_CCCL = ("include/cccl/cuda/std/version", "include/cuda/std/version")
_PROGRAMS = (
    "bin/nvcc",
    "bin/ptxas",
    "bin/cudafe++",
    "bin/fatbinary",
    "bin/nvlink",
    "nvvm/bin/cicc",
)
_HEADERS = (
    ("include/cuda_runtime_api.h", "CUDART_VERSION"),
    ("include/cuda.h", "CUDA_VERSION"),
)
TRITON = ("triton/backends/nvidia/bin/ptxas", "triton/backends/nvidia/bin/ptxas-blackwell")
_SM120_SINCE = (12, 8)  # the first ptxas that assembles sm_120
_REMEDY = "pin the toolkit's components to the variant's CUDA minor and lock again"


def has_toolkit(context: Context) -> bool:
    """False for a stand-in whose pins say why it has none."""
    return context.target.toolchain_source != "absent"


def toolkit_home(context: Context) -> Path:
    """The toolkit's folder under the root."""
    home = context.target.toolchain_home
    if home.startswith("/"):
        return context.files.root / home.lstrip("/")
    return context.files.site_path / home


def present(context: Context) -> Iterator[Finding]:
    """JIT001"""
    files = context.files
    for what, pattern in _SYSTEM.items():
        context.count("JIT001")
        if not any(files.root.glob(pattern)):
            yield Finding(
                "JIT001", pattern, f"{what} is missing", "add it to base.runtime_packages"
            )
    context.count("JIT001")
    ninjas = (_venv(context) + "/bin/ninja", "usr/bin/ninja")
    if not any(follow(files.root, name) for name in ninjas):
        yield Finding("JIT001", "ninja", "ninja is missing", "lock the ninja distribution")
    if not has_toolkit(context):
        if not (context.target.stand_in and context.target.toolchain_reason):
            yield Finding("JIT001", "CUDA toolkit", "absent without a reason", "pin a toolchain")
        context.notes["toolkit"] = f"absent: {context.target.toolchain_reason}"
        return
    home = toolkit_home(context)
    where = str(home.relative_to(files.root))
    for name in _TOOLKIT:
        context.count("JIT001")
        if not follow(files.root, f"{where}/{name}"):
            yield Finding("JIT001", f"{where}/{name}", "missing from the CUDA toolkit", _REMEDY)
    context.count("JIT001")
    if not any(follow(files.root, f"{where}/{name}") for name in _CCCL):
        yield Finding("JIT001", f"{where}/{_CCCL[0]}", "no CCCL headers", _REMEDY)


def versions(context: Context) -> Iterator[Finding]:
    """JIT002: the programs and headers are asked themselves, then the metadata."""
    files, target = context.files, context.target
    home = toolkit_home(context)
    where = str(home.relative_to(files.root))
    seen: dict[str, str] = {}
    for name in _PROGRAMS:
        if not (home / name).exists():
            continue  # JIT001 says so
        context.count("JIT002")
        minor, full = ask_version(home / name)
        seen[name] = full or "unknown"
        if minor != target.cuda:
            yield Finding(
                "JIT002",
                f"{where}/{name}",
                f"is of release {full or 'unknown'}, the variant is CUDA {target.cuda}",
                _REMEDY,
            )
    for name, macro in _HEADERS:
        context.count("JIT002")
        minor = _header_minor(home / name, macro)
        seen[name] = minor or "unknown"
        if minor != target.cuda:
            yield Finding(
                "JIT002",
                f"{where}/{name}",
                f"{macro} is of CUDA {minor or 'unknown'}, the variant is CUDA {target.cuda}",
                _REMEDY,
            )
    context.notes["toolkit"] = seen
    yield from _components(context)


def _components(context: Context) -> Iterator[Finding]:
    target = context.target
    for name, version in sorted(target.components.items()):
        context.count("JIT002")
        if _minor(version) != target.cuda:
            yield Finding(
                "JIT002",
                name,
                f"pinned is {version}, the variant is CUDA {target.cuda}",
                _REMEDY,
            )
        if target.toolchain_source != "wheels":
            continue  # archives carry no metadata; their hashes were checked when unpacked
        found = context.files.distribution(normalise(name))
        if found is None or found.version != version:
            yield Finding(
                "JIT002",
                name,
                f"installed is {found.version if found else 'nothing'}, pinned is {version}",
                _REMEDY,
            )
        if found is not None and _minor(found.version) != target.cuda:
            yield Finding(
                "JIT002",
                name,
                f"installed is {found.version}, the variant is CUDA {target.cuda}",
                _REMEDY,
            )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def triton_assemblers(context: Context) -> Iterator[Finding]:
    """JIT003: Triton brings its own ptxas, of any CUDA, which must know sm_120."""
    seen: dict[str, str] = {}
    for name in TRITON:
        path = context.files.site_path / name
        if not path.exists():
            continue
        context.count("JIT003")
        minor, full = ask_version(path)
        seen[name] = full or "unknown"
        if not minor or tuple(map(int, minor.split("."))) < _SM120_SINCE:
            yield Finding(
                "JIT003",
                f"{context.files.site}/{name}",
                f"release {full or 'unknown'} does not assemble sm_120 (12.8 is the first)",
                "lock a newer triton",
            )
    context.notes["triton_ptxas"] = seen
    if not seen:
        yield Finding("JIT003", "triton", "Triton has no ptxas", "lock triton again")


def ask_version(program: Path) -> tuple[str, str]:
    """(`13.0`, `13.0.88`) as the program itself says, or empty strings.

    cicc has no --version; it carries the line that it writes into every PTX file.
    """
    try:
        done = subprocess.run(
            [str(program), "--version"], capture_output=True, timeout=60, check=False
        )
        match = _RELEASE.search(done.stdout + done.stderr) or _RELEASE.search(program.read_bytes())
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    return (match.group(1).decode(), match.group(2).decode()) if match else ("", "")


def _header_minor(path: Path, macro: str) -> str:
    """CUDA's headers write 13.0 as 13000 and 12.8 as 12080."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return ""
    match = re.search(rf"^#define\s+{macro}\s+(\d+)", text, re.MULTILINE)
    if match is None:
        return ""
    number = int(match.group(1))
    return f"{number // 1000}.{number % 1000 // 10}"


def _venv(context: Context) -> str:
    return str(context.files.site_path.parents[2].relative_to(context.files.root))
