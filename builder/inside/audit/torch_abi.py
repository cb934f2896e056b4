"""ABI: extensions fit the installed torch, and torch is the one of the variant."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builder.inside.audit.model import Context, Finding
from builder.inside.elf import ElfFile
from builder.inside.filesystem import FileSystem

_OLD_STRING = "Ss"
_NEW_STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
PACKAGE = "ddtree_overlay"


def extensions(context: Context) -> list[ElfFile]:
    """Libraries that link to torch, torch's own among them.

    Those too that only leave torch's symbols undefined: whoever imports torch first provides them.
    """
    files = context.files
    return [
        elf
        for elf in files.elves
        if files.below_site(elf.path)
        and (
            any(name.startswith(("libtorch", "libc10")) for name in elf.needed)
            or files.below_site(elf.path).startswith("torch/lib/")
            # A program brings its libraries by NEEDED.
            or (elf.symbols.undefined and ".so" in elf.path.rpartition("/")[2])
        )
    ]


def torch_exports(context: Context) -> frozenset[str]:
    """Every symbol that the libraries in torch/lib define."""
    prefix = f"{context.files.site}/torch/lib/"
    found: set[str] = set()
    for elf in context.files.elves:
        if elf.path.startswith(prefix):
            found |= elf.symbols.defined
    return frozenset(found)


def symbols(context: Context) -> Iterator[Finding]:
    """ABI001 and ABI002"""
    exports = torch_exports(context)
    if not exports:
        yield Finding("ABI001", "torch/lib", "torch's libraries are missing", "install torch")
        return
    for elf in extensions(context):
        table = elf.symbols  # scan() keeps no other symbols than those of torch
        wanted = table.undefined
        context.count("ABI001", len(wanted))
        context.count("ABI002")
        missing = sorted(wanted - exports - table.defined - _siblings(context, elf))
        if not missing:
            continue
        old = [name for name in missing if _with_new_string(name) in exports]
        if old:
            yield Finding(
                "ABI002",
                elf.path,
                f"{len(old)} symbols with the old std::string, such as {old[0]}",
                "build it with the _GLIBCXX_USE_CXX11_ABI of the installed torch",
            )
        rest = [name for name in missing if name not in old]
        if rest:
            yield Finding(
                "ABI001",
                elf.path,
                f"{len(rest)} torch symbols are not in the installed torch, such as {rest[0]}",
                "install the build of this library for the installed torch",
            )


def _with_new_string(name: str) -> str:
    return name.replace(_OLD_STRING, _NEW_STRING) if _OLD_STRING in name else ""


def _siblings(context: Context, elf: ElfFile) -> frozenset[str]:
    """What the libraries define that it names and that lie beside it."""
    folder = elf.path.rpartition("/")[0]
    found: set[str] = set()
    for other in context.files.elves:
        if other.path.rpartition("/")[0] == folder and other.path.rpartition("/")[2] in elf.needed:
            found |= other.symbols.defined
    return frozenset(found)


def stamp(context: Context) -> Iterator[Finding]:
    """ABI003"""
    files, target = context.files, context.target
    path = files.site_path / PACKAGE / "_build_info.json"
    name = f"{files.site}/{PACKAGE}/_build_info.json"
    remedy = "rebuild the overlay's wheel against the installed torch"
    context.count("ABI003")
    try:
        info = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as exc:
        yield Finding("ABI003", name, f"no stamp of the extension's build: {exc}", remedy)
        return
    observed = torch_version(files)
    wanted: dict[str, Any] = {
        "torch": observed.get("__version__"),
        "variant": target.variant,
        "nvrtc": target.nvrtc,
        "sass": list(target.sass),
        "ptx": target.ptx,
        "cxx11_abi": _torch_has_new_strings(context),
    }
    for key, value in wanted.items():
        if info.get(key) != value:
            yield Finding(
                "ABI003", name, f"{key}: built with {info.get(key)!r}, here is {value!r}", remedy
            )


def _torch_has_new_strings(context: Context) -> bool:
    prefix = f"{context.files.site}/torch/lib/libc10.so"
    return any(
        "__cxx11" in name
        for elf in context.files.elves
        if elf.path == prefix
        for name in elf.symbols.defined
    )


def torch_flavour(context: Context) -> Iterator[Finding]:
    """ABI004"""
    target = context.target
    observed = torch_version(context.files)
    name = f"{context.files.site}/torch/version.py"
    context.count("ABI004")
    context.notes["torch"] = {k: observed.get(k) for k in ("__version__", "cuda")}
    if observed.get("cuda") != target.cuda:
        yield Finding(
            "ABI004",
            name,
            f"torch.version.cuda is {observed.get('cuda')!r}, the variant is CUDA {target.cuda}",
            f"lock the build of torch for {target.variant}",
        )
    version = str(observed.get("__version__"))
    if version not in (target.torch, f"{target.torch}+{target.variant}"):
        yield Finding(
            "ABI004",
            name,
            f"torch is {version}, pinned is {target.torch}",
            "lock again: the lock and the pins disagree",
        )


def torch_version(files: FileSystem) -> dict[str, str | None]:
    """The assignments in torch/version.py, read without importing torch; empty without torch."""
    path: Path = files.site_path / "torch/version.py"
    found: dict[str, str | None] = {}
    if not path.is_file():
        return found
    for node in ast.parse(path.read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and (
            value.value is None or isinstance(value.value, str)
        ):
            for name in targets:
                if isinstance(name, ast.Name):
                    found[name.id] = value.value
    return found
