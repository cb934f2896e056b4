"""LNK: every NEEDED is of the variant's CUDA and found by the loader."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from builder.inside.audit.model import Context, Finding
from builder.inside.elf import ElfFile
from builder.inside.filesystem import FileSystem
from builder.inside.links import follow

# Sonames whose number is the CUDA major.
_PLAIN = re.compile(
    r"lib(?:cudart|cublas|cublasLt|nvblas|nvrtc|nvrtc-builtins|nvJitLink|cupti|nvfatbin|nvjpeg"
    r"|npp[a-z]*)(?:[.-][0-9a-f]{8})?\.so\.(\d+)"  # auditwheel puts a hash into the name
)
# Sonames that count on their own (cuFFT 11 belongs to CUDA 12). cuSPARSE 12 and cuRAND 10 belong
# to both and say nothing.
_SHIFTED = {
    "libcufft.so.11": 12,
    "libcufft.so.12": 13,
    "libcufftw.so.11": 12,
    "libcufftw.so.12": 13,
    "libcusolver.so.11": 12,
    "libcusolver.so.12": 13,
    "libcusolverMg.so.11": 12,
    "libcusolverMg.so.12": 13,
}
# The driver's libraries come from the host, through the container runtime.
_DRIVER = re.compile(r"libcuda\.so\.1$|libnvidia-[a-z0-9-]+\.so\.\d+$|libnvcuvid\.so\.1$")
_SYSTEM = ("lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib")


def cuda_major(soname: str) -> int | None:
    """The CUDA major that a library's name stands for, or None when it says nothing."""
    match = _PLAIN.match(soname)
    if match:
        return int(match.group(1))
    return _SHIFTED.get(".".join(soname.split(".")[:3]))


def needed_major(context: Context) -> Iterator[Finding]:
    """LNK001"""
    want = context.target.cuda_major
    for elf in context.files.elves:
        for name in elf.needed:
            major = cuda_major(name)
            if major is None:
                continue
            context.count("LNK001")
            if major != want:
                yield Finding(
                    "LNK001",
                    elf.path,
                    f"NEEDED {name} (CUDA {major}) in a CUDA {want} image",
                    f"install the build of this library for CUDA {want}, or prune the file",
                )


def needed_resolvable(context: Context) -> Iterator[Finding]:
    """LNK002"""
    files = context.files
    system = system_libraries(files)
    with_torch = loaded_with_torch(files)
    for elf in files.elves:
        folder = str(PurePosixPath(elf.path).parent)
        own = [expand(entry, folder) for entry in elf.search]
        for name in elf.needed:
            context.count("LNK002")
            if _DRIVER.match(name) or name in system or name in with_torch:
                continue
            # The same folder counts: packages load such siblings themselves before this one.
            if any(_exists(files, f"{place}/{name}") for place in (*own, folder)):
                continue
            yield Finding(
                "LNK002",
                elf.path,
                f"NEEDED {name} is nowhere in the loader's path",
                "install what provides it, prune the file, or add a reasoned exception",
            )


def damaged(context: Context) -> Iterator[Finding]:
    """LNK003"""
    context.count("LNK003", len(context.files.elves) + len(context.files.damaged))
    for text in context.files.damaged:
        name, _, reason = text.partition(": ")
        yield Finding("LNK003", name, f"damaged ELF file: {reason}", "reinstall its distribution")


def expand(entry: str, folder: str) -> str:
    """An RPATH entry as a path relative to the root."""
    text = entry.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", "/" + folder)
    return os.path.normpath(text).lstrip("/")


def _exists(files: FileSystem, path: str) -> bool:
    return path in files.sizes or follow(files.root, path) in files.sizes


def system_libraries(files: FileSystem) -> frozenset[str]:
    """Names in the folders of the dynamic loader, but for links that lead nowhere."""
    return frozenset(
        entry.name
        for place in loader_folders(files)
        for entry in (files.root / place).iterdir()
        if _exists(files, f"{place}/{entry.name}")
    )


def loader_folders(files: FileSystem) -> list[str]:
    """Folders that the dynamic loader looks into, relative to the root, links followed."""
    places = [*_SYSTEM, *(f"{place}/x86_64-linux-gnu" for place in ("lib", "usr/lib"))]
    places += [folder.lstrip("/") for _, folder in configured_folders(files)]
    real = dict.fromkeys(follow(files.root, place) for place in places)
    return [place for place in real if place is not None and (files.root / place).is_dir()]


def configured_folders(files: FileSystem) -> list[tuple[str, str]]:
    """(file, folder) of ld.so.conf and ld.so.conf.d."""
    folder = files.root / "etc"
    found = []
    for conf in (folder / "ld.so.conf", *sorted((folder / "ld.so.conf.d").glob("*.conf"))):
        if conf.is_file():
            lines = conf.read_text("utf-8", "replace").splitlines()
            where = str(conf.relative_to(files.root))
            # As ldconfig reads it: blanks before, a comment or `=TYPE` behind (ldconfig(8)).
            entries = [re.split("[#=]", line)[0].strip() for line in lines]
            found += [(where, entry) for entry in entries if entry.startswith("/")]
    return found


def loaded_with_torch(files: FileSystem) -> frozenset[str]:
    """Sonames that are in the process once torch is imported: the closure of torch/lib's NEEDED."""
    by_path = {elf.path: elf for elf in files.elves}
    prefix = f"{files.site}/torch/lib/"
    pending = [elf for elf in files.elves if elf.path.startswith(prefix)]
    names = {PurePosixPath(elf.path).name for elf in pending}
    while pending:
        elf = pending.pop()
        for name in elf.needed:
            if name in names:
                continue
            provider = _provider(by_path, elf, name)
            if provider is not None:
                names.add(name)
                pending.append(provider)
    return frozenset(names)


def _provider(by_path: dict[str, ElfFile], elf: ElfFile, name: str) -> ElfFile | None:
    folder = str(PurePosixPath(elf.path).parent)
    for place in (folder, *(expand(entry, folder) for entry in elf.search)):
        found = by_path.get(os.path.normpath(f"{place}/{name}"))
        if found is not None:
            return found
    return None
