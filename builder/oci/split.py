"""Cutting a large layer into several, always along the same lines.

Where a path goes depends on its name alone, so a new release of one distribution changes the layer
that it is in and no other. A group that is too large for one layer is dealt out to several by
rendezvous hashing: another number of parts moves as few files as can be.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable
from functools import cache

GIB = 2**30
# A layer below this stays whole.
SPLIT_BYTES = GIB
# A group above this is dealt out; a single larger file stays one file.
PART_BYTES = GIB + GIB // 8

# Name of the group, globs below site-packages; the first that fits. What changes together (a bump
# of torch brings its CUDA libraries) still travels in several layers, pulled side by side.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("cublas", ("nvidia/*/lib/libcublas*", "nvidia/cublas/*", "nvidia_cublas*")),
    ("cudnn", ("nvidia/cudnn/*", "nvidia_cudnn*")),
    (
        "cuda-math",
        (
            *(f"nvidia/*/lib/lib{name}*" for name in ("cufft", "curand", "cusolver", "cusparse")),
            *(f"nvidia/cu{name}/*" for name in ("fft", "rand", "solver", "sparse", "sparselt")),
            *(f"nvidia_cu{name}*" for name in ("fft", "rand", "solver", "sparse")),
        ),
    ),
    ("nccl", ("nvidia/nccl/*", "nvidia/nvshmem/*", "nvidia_nccl*", "nvidia_nvshmem*")),
    (
        "kernels",
        (
            *("nvidia_cutlass*", "nvidia/mathdx/*", "nvidia_mathdx*", "cuda/*", "cutlass/*"),
            *("sgl_kernel*", "sglang_kernel*", "flashinfer*", "deep_gemm*", "tilelang*"),
            *("tvm_ffi*", "apache_tvm*", "torch_c_dlpack*", "quack*", "z3*"),
        ),
    ),
    ("cuda", ("nvidia/*", "nvidia_*")),
    ("torch", ("torch/*", "torch-*", "torchgen/*", "functorch/*")),
    ("triton", ("triton/*", "triton-*")),
    (
        "numeric",
        (
            *("numpy*", "scipy*", "pandas*", "pyarrow*", "sklearn*", "scikit_learn*"),
            *("llvmlite*", "numba*", "sympy*", "networkx*"),
        ),
    ),
)
REST = "rest"
_SITE = re.compile(r"(?:^|/)site-packages/(.+)$")


@cache
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs))


def group_of(path: str) -> str:
    """Name of the group that a path belongs to."""
    match = _SITE.search(path)
    if match:
        for name, globs in GROUPS:
            if _pattern(globs).match(match.group(1)):
                return name
    return REST


def unit_of(path: str) -> str:
    """What stays together when a group is dealt out: a library, or a folder of a package."""
    match = _SITE.search(path)
    parts = (match.group(1) if match else path).split("/")
    return "/".join(parts[:3] if parts[0] in ("nvidia", "torch") else parts[:1])


def deal(unit: str, parts: int) -> int:
    """Which of `parts` a unit goes to (highest random weight)."""
    name = unit.encode("utf-8", "surrogateescape")
    return max(range(parts), key=lambda part: hashlib.sha256(b"%d\0%b" % (part, name)).digest())


def assign(sizes: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Path to the name of its part, for one layer's paths and their sizes in bytes."""
    files = list(sizes)
    if sum(size for _, size in files) <= SPLIT_BYTES:
        return {path: "" for path, _ in files}
    total: dict[str, int] = {}
    groups = {path: group_of(path) for path, _ in files}
    for path, size in files:
        total[groups[path]] = total.get(groups[path], 0) + size
    found = {}
    for path, group in groups.items():
        parts = -(-total[group] // PART_BYTES)
        number = deal(unit_of(path), parts) + 1 if parts > 1 else 0
        found[path] = f"{group}-{number}" if number else group
    return found


def part_order(name: str) -> tuple[int, str]:
    """Where a part stands in the stack: as in GROUPS, the rest last."""
    names = [group for group, _ in GROUPS]
    base = re.sub(r"-\d+$", "", name)
    return (names.index(base) if base in names else len(names), name)
