"""KRN: the overlay's kernel files are what the pins say, read out of the files themselves."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from builder.inside.audit.model import Context, Finding
from builder.inside.audit.torch_abi import PACKAGE
from builder.inside.elf import NotElfError, cubin_architecture, cubin_compiler

_PTX_TARGET = re.compile(r"^\.target\s+(sm_[0-9]+[af]?)", re.MULTILINE)
_PTX_COMPILER = re.compile(r"Cuda compilation tools, release [0-9.]+, V([0-9.]+)")
_REMEDY = "rebuild the overlay's wheel with the pinned NVRTC and architectures"


_LOCAL_MEMORY = ("stack", "spill_stores", "spill_loads")


def kernel_files(context: Context) -> list[Path]:
    """`<kernel>.<architecture>.cubin|ptx` of the overlay."""
    folder = context.files.site_path / PACKAGE / "kernels"
    return sorted(p for p in folder.glob("*") if p.suffix in (".cubin", ".ptx"))


def architectures(context: Context) -> Iterator[Finding]:
    """KRN001: every kernel has SASS for each pinned architecture, and no other; PTX is there."""
    target = context.target
    by_kernel: dict[str, set[str]] = {}
    for path in kernel_files(context):
        context.count("KRN001")
        name = str(path.relative_to(context.files.root))
        parts = path.name.split(".")
        if len(parts) != 3:
            text = "is not named <kernel>.<architecture>.<cubin or ptx>"
            yield Finding("KRN001", name, text, _REMEDY)
            continue
        kernel, claimed, _ = parts
        try:
            real = _architecture(path)
        except (NotElfError, UnicodeDecodeError) as exc:
            yield Finding("KRN001", name, f"unreadable kernel file: {exc}", _REMEDY)
            continue
        by_kernel.setdefault(kernel, set()).add(real)
        if real != claimed:
            yield Finding("KRN001", name, f"holds code for {real}, named {claimed}", _REMEDY)
    folder = f"{context.files.site}/{PACKAGE}/kernels"
    if not by_kernel:
        yield Finding("KRN001", folder, "the overlay has no kernel file", _REMEDY)
    wanted = {*target.sass, target.ptx}
    for kernel, real_ones in sorted(by_kernel.items()):
        for missing in sorted(wanted - real_ones):
            yield Finding("KRN001", folder, f"{kernel} has no code for {missing}", _REMEDY)
        for extra in sorted(real_ones - wanted):
            yield Finding("KRN001", folder, f"{kernel} has code for {extra}, not pinned", _REMEDY)


def compiler(context: Context) -> Iterator[Finding]:
    """KRN002: compiled by the pinned NVRTC, by the note that it leaves in each file."""
    for path in kernel_files(context):
        context.count("KRN002")
        name = str(path.relative_to(context.files.root))
        if path.suffix == ".ptx":
            match = _PTX_COMPILER.search(path.read_text("utf-8", "replace"))
            release = match.group(1) if match else ""
        else:
            release = cubin_compiler(path.read_bytes())
        pinned = context.target.nvrtc
        if release not in (pinned, ".".join(pinned.split(".")[:2])):
            yield Finding(
                "KRN002",
                name,
                f"compiled by release {release or 'unknown'}, pinned is {pinned}",
                _REMEDY,
            )


def description(context: Context) -> Iterator[Finding]:
    """KRN003: kernels.json, by which the overlay chooses and checks what it loads, lists exactly
    the files that are there, with their hashes, and no kernel that uses local memory."""
    path = context.files.site_path / PACKAGE / "kernels" / "kernels.json"
    where = str(path.relative_to(context.files.root))
    try:
        listed = _read_description(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        yield Finding("KRN003", where, f"cannot be read: {exc!r}", _REMEDY)
        return
    found = {file.name: file for file in kernel_files(context)}
    for name in sorted(found.keys() - listed.keys()):
        yield Finding("KRN003", where, f"does not list {name}", _REMEDY)
    for name, (sha256, local_memory) in sorted(listed.items()):
        context.count("KRN003")
        if name not in found:
            yield Finding("KRN003", where, f"lists {name}, which is not there", _REMEDY)
        elif hashlib.sha256(found[name].read_bytes()).hexdigest() != sha256:
            yield Finding("KRN003", where, f"has another sha256 for {name}", _REMEDY)
        for kernel in local_memory:
            text = f"{kernel} in {name} uses local memory"
            yield Finding("KRN003", where, text, "keep its values in registers")


def _read_description(path: Path) -> dict[str, tuple[str, list[str]]]:
    """By file, its hash and the kernels in it that spill or have a stack frame."""
    return {
        file["file"]: (
            file["sha256"],
            [
                name
                for name, resources in file["entries"].items()
                # ptxas has not seen PTX.
                if resources and any(resources[key] for key in _LOCAL_MEMORY)
            ],
        )
        for file in json.loads(path.read_text("utf-8"))["files"]
    }


def _architecture(path: Path) -> str:
    if path.suffix == ".cubin":
        return cubin_architecture(path.read_bytes())
    match = _PTX_TARGET.search(path.read_text("utf-8"))
    if match is None:
        raise NotElfError("PTX without a .target line")
    return match.group(1).replace("sm_", "compute_")
