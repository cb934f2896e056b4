"""LNK: the loader finds the host's driver, never one that the image brought along.

A libcuda of CUDA's forward-compatibility package (`cuda/compat`) in the loader's path shadows the
one that the container runtime mounts; on a host with a newer driver every call then fails with
error 803.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from builder.inside.audit.linkage import configured_folders, loader_folders
from builder.inside.audit.model import Context, Finding

_DRIVER = re.compile(
    r"lib(?:cuda|cudadebugger|nvidia-ml|nvidia-ptxjitcompiler|nvidia-nvvm|nvidia-gpucomp)\.so"
)
_COMPAT = re.compile(r"(?:^|/)cuda[^/]*/compat(?:/|$)")
_REMEDY = "leave the driver to the container runtime: remove the file, folder or entry"


def no_driver(context: Context) -> Iterator[Finding]:
    """LNK006"""
    files = context.files
    folders = set(loader_folders(files))
    for path in (*sorted(files.sizes), *sorted(files.links)):
        name = PurePosixPath(path)
        if not _DRIVER.match(name.name):
            continue
        context.count("LNK006")
        # What one links against where there is no driver; its name differs from what is loaded.
        stub = name.parent.name == "stubs" and name.name.endswith(".so")
        if not stub or str(name.parent) in folders:
            yield Finding("LNK006", path, "a library of the driver inside the image", _REMEDY)
    for path in sorted({str(PurePosixPath(p).parent) for p in files.sizes if _COMPAT.search(p)}):
        yield Finding("LNK006", path, "a folder of CUDA's forward compatibility", _REMEDY)
    for source, folder in _entries(context):
        context.count("LNK006")
        if {"compat", "stubs"} & set(PurePosixPath(folder).parts):
            yield Finding("LNK006", source, f"puts {folder} into the loader's path", _REMEDY)
    if (files.root / "etc/ld.so.preload").exists():
        yield Finding("LNK006", "etc/ld.so.preload", "preloads libraries everywhere", _REMEDY)
    cache = files.root / "etc/ld.so.cache"
    if cache.is_file():
        context.count("LNK006")
        if b"libcuda.so" in cache.read_bytes():
            yield Finding("LNK006", "etc/ld.so.cache", "lists a libcuda.so", _REMEDY)


def _entries(context: Context) -> Iterator[tuple[str, str]]:
    """(where it says so, folder) of all that widens the loader's path."""
    yield from configured_folders(context.files)
    for elf in context.files.elves:
        for entry in elf.search:
            yield elf.path, entry
    if context.import_checks:  # inside the image: the environment is the one it sets
        for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
            if entry:
                yield "LD_LIBRARY_PATH", entry
