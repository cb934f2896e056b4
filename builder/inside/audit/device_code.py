"""DEV: every file with code for a GPU has some that the appliance's GPU can run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from builder.inside.audit.model import Context, Finding
from builder.inside.elf import ElfFile

DEVICE = 120  # RTX PRO 6000 Blackwell: compute capability 12.0
# PTX ISA version that a CUDA release brings, and with it the driver of that release: the newest
# that it compiles (NVIDIA, "PTX ISA", release history).
PTX_ISA = {
    "12.0": (8, 0),
    "12.1": (8, 1),
    "12.2": (8, 2),
    "12.3": (8, 3),
    "12.4": (8, 4),
    "12.5": (8, 5),
    "12.6": (8, 5),
    "12.8": (8, 7),
    "12.9": (8, 8),
    "13.0": (9, 0),
    "13.1": (9, 1),
}


def runs(context: Context) -> Iterator[Finding]:
    """DEV001: a cubin for sm_120, or PTX that the driver can compile for it."""
    for elf in _with_code(context):
        context.count("DEV001")
        if not any(code.native(DEVICE) or code.jit(DEVICE) for code in elf.code):
            yield Finding(
                "DEV001",
                elf.path,
                f"holds nothing that sm_{DEVICE} runs, only {', '.join(_names(elf))}",
                f"install a build with sm_{DEVICE}, prune the file, or add a reasoned exception",
            )
    context.notes["device_code"] = _describe(context)


def ptx(context: Context) -> Iterator[Finding]:
    """DEV002: where PTX is all there is, the oldest driver of the variant must know its version."""
    floor = PTX_ISA.get(context.target.cuda)
    for elf in _with_code(context):
        context.count("DEV002")
        usable = [code for code in elf.code if code.jit(DEVICE)]
        if not usable or any(code.native(DEVICE) for code in elf.code):
            continue
        oldest = min(code.isa for code in usable)
        if floor is None or oldest > floor:
            limit = f"PTX ISA {_dotted(floor)}" if floor else "an unknown PTX ISA"
            yield Finding(
                "DEV002",
                elf.path,
                f"holds only PTX ISA {_dotted(oldest)} for sm_{DEVICE}; driver "
                f"{context.target.driver_floor} of CUDA {context.target.cuda} knows {limit}",
                "install a build of the variant's CUDA or with a cubin, or raise the driver floor",
            )


def _with_code(context: Context) -> Iterator[ElfFile]:
    return (elf for elf in context.files.elves if elf.code)


def _names(elf: ElfFile) -> list[str]:
    ordered = sorted(elf.code, key=lambda code: (code.kind, code.number, code.suffix))
    return list(dict.fromkeys(code.name for code in ordered))


def _describe(context: Context) -> dict[str, Any]:
    """Per-file architectures, and how much of the device code is native to sm_120.

    `bytes` are those of the entries as they lie in the files (mostly compressed); a fat binary
    holds each kernel once for each architecture, so the share in bytes can never be whole.
    """
    files = list(_with_code(context))
    native = [elf for elf in files if any(code.native(DEVICE) for code in elf.code)]
    everything = [code for elf in files for code in elf.code]
    return {
        "files": len(files),
        "files_native": len(native),
        "bytes": sum(code.size for code in everything),
        "bytes_native": sum(code.size for code in everything if code.native(DEVICE)),
        "architectures": {
            context.files.below_site(elf.path) or elf.path: _names(elf) for elf in files
        },
        "ptx_only": sorted(
            context.files.below_site(elf.path) or elf.path for elf in files if elf not in native
        ),
    }


def _dotted(isa: tuple[int, int]) -> str:
    return f"{isa[0]}.{isa[1]}"
