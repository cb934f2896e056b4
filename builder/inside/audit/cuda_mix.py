"""MIX: one CUDA major in the tree, by distribution and by library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from builder.inside.audit.linkage import cuda_major
from builder.inside.audit.model import Context, Finding
from builder.inside.distributions import Distribution

_SUFFIX = re.compile(r"(?:^|-)(?:cu|cuda)(1[0-9])[0-9x]?(?:$|-)")
_LOCAL = re.compile(r"\+cu(1[0-9])[0-9]?(?![0-9])")  # +cu129, +cu12torch2.8cxx11abi
_FOLDER = re.compile(r"(?:^|/)nvidia/cu(1[0-9])/")
# cuda/core/cu12 beside cu13: twins whose file names say nothing.
_TWIN = re.compile(r"(?:^|/)cu(1[0-9])/")
# Bindings whose own major is CUDA's.
_VERSIONED = ("cuda-bindings", "cuda-python", "cuda-toolkit")


def majors_of(distribution: Distribution) -> dict[int, str]:
    """CUDA majors that a distribution stands for, each with what says so.

    NVIDIA's packages lost their suffix with CUDA 13, so an unsuffixed one is known by the folder
    that it installs into.
    """
    found: dict[int, str] = {}
    for match, why in (
        (_SUFFIX.search(distribution.name), "its name"),
        (_LOCAL.search(distribution.version), f"its version {distribution.version}"),
    ):
        if match:
            found.setdefault(int(match.group(1)), why)
    if distribution.name in _VERSIONED:
        major = distribution.version.split(".")[0]
        if major.isdigit():
            found.setdefault(int(major), f"its version {distribution.version}")
    for row in distribution.files:
        match = _FOLDER.search(row.path)
        if match:
            found.setdefault(int(match.group(1)), f"its folder nvidia/cu{match.group(1)}")
    return found


def distributions(context: Context) -> Iterator[Finding]:
    """MIX001"""
    want = context.target.cuda_major
    for distribution in context.files.distributions:
        context.count("MIX001")
        for major, why in sorted(majors_of(distribution).items()):
            if major != want:
                yield Finding(
                    "MIX001",
                    distribution.name,
                    f"{distribution.version} is CUDA {major} by {why}, the image is CUDA {want}",
                    "override or exclude it in the variant's lock",
                )


def libraries(context: Context) -> Iterator[Finding]:
    """MIX002"""
    want = context.target.cuda_major
    names = [elf.path for elf in context.files.elves] + sorted(context.files.links)
    for path in names:
        major = cuda_major(PurePosixPath(path).name)
        twin = _TWIN.search(context.files.below_site(path))
        if major is None and twin:
            major = int(twin.group(1))
        if major is None:
            continue
        context.count("MIX002")
        if major != want:
            yield Finding(
                "MIX002",
                path,
                f"a library of CUDA {major} in a CUDA {want} image",
                "leave its distribution out, or prune the file",
            )
