"""Native code on the finished file system: every shared library and program, whose it is, its hash.

Whether a library was copied into a wheel from another project ("bundled") is told by how it lies
there: in a folder `*.libs` or with a hash in its name, as auditwheel leaves it, or under the soname
of a library that Debian has in the image as well. What was linked statically is not visible to any
such scan; a wheel's own bill of materials (builder.inside.wheels) may name it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from builder.inside.elf import NotElfError
from builder.inside.filesystem import FileSystem

_CHUNK = 1 << 20
_HASHED = re.compile(r"^lib.+?[-.](?:[0-9a-f]{8}[-.])+(?:so\b|[0-9a-f])")
_VERSIONED = re.compile(r"\.so\.(\d+(?:\.\d+)+)$|-(\d+(?:\.\d+)+)\.so$")
_SHARED = re.compile(r"\.so(\.|$)")
# Native or compiled content that is no ELF library or program.
_OTHER = (".a", ".bc", ".dll", ".exe", ".fatbin", ".cubin", ".jar", ".js", ".o", ".wasm")


@dataclass(frozen=True)
class Header:
    """What the inventory reads of one ELF file."""

    machine: str
    kind: str  # library, program, or empty: an object file or a cubin
    soname: str


def read_header(path: Path, name: str) -> Header:
    """Raises NotElfError for a damaged file."""
    soname = ""
    dynamic = False
    try:
        with path.open("rb") as handle:
            elf = ELFFile(handle)
            machine = str(elf["e_machine"])
            executable = elf["e_type"] == "ET_EXEC"
            linked = elf["e_type"] in ("ET_DYN", "ET_EXEC") and machine != "EM_CUDA"
            for section in elf.iter_sections() if linked else ():
                if isinstance(section, DynamicSection):
                    dynamic = True
                    tag: Any
                    for tag in section.iter_tags("DT_SONAME"):
                        soname = str(tag.soname)
    except (
        ELFError,
        ArithmeticError,
        AssertionError,
        LookupError,
        AttributeError,
        TypeError,
    ) as exc:
        raise NotElfError(f"{name}: {exc or type(exc).__name__}") from None
    except (ValueError, OSError, MemoryError) as exc:
        raise NotElfError(f"{name}: {exc or type(exc).__name__}") from None
    if not linked:
        return Header(machine, "", "")
    library = bool(soname) or (
        dynamic and not executable and bool(_SHARED.search(PurePosixPath(name).name))
    )
    return Header(machine, "library" if library else "program", soname)


def sha256_file(path: Path) -> str:
    """Hex digest, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


def file_version(name: str) -> str:
    """`5.0.0` of `libgfortran.so.5.0.0`: the interface's version, not always the release's."""
    match = _VERSIONED.search(name)
    return next((group for group in match.groups() if group), "") if match else ""


def natives(files: FileSystem, owner: dict[str, str]) -> list[dict[str, Any]]:
    """Every linked ELF file by path. `owner`: path to `python:NAME` or `debian:NAME`."""
    headers = {elf.path: read_header(files.root / elf.path, elf.path) for elf in files.elves}
    debian = {
        header.soname
        for path, header in headers.items()
        if header.soname and owner.get(path, "").startswith("debian:")
    }
    found: list[dict[str, Any]] = []
    for path, header in sorted(headers.items()):
        if not header.kind:
            continue
        whose = owner.get(path, "")
        entry: dict[str, Any] = {
            "path": path,
            "sha256": sha256_file(files.root / path),
            "size": files.sizes[path],
            "kind": header.kind,
            "owner": whose,
            "bundled": whose.startswith("python:") and is_bundled(path, header.soname, debian),
        }
        if header.soname:
            entry["soname"] = header.soname
        if version := file_version(PurePosixPath(path).name):
            entry["file_version"] = version
        if header.machine != "EM_X86_64":
            entry["machine"] = header.machine
        found.append(entry)
    return found


def is_bundled(path: str, soname: str, debian: set[str]) -> bool:
    """Whether a library of a wheel is a copy of another project's (see above)."""
    parent, name = PurePosixPath(path).parent.name, PurePosixPath(path).name
    return (
        parent.endswith((".libs", ".dylibs"))
        or bool(_HASHED.match(name))
        or (bool(soname) and soname in debian)
    )


def others(files: FileSystem, owner: dict[str, str]) -> list[dict[str, Any]]:
    """Compiled or scripted content besides, outside Debian's packages: archives, .exe, .js."""
    return [
        {
            "path": path,
            "sha256": sha256_file(files.root / path),
            "size": size,
            "owner": owner.get(path, ""),
        }
        for path, size in sorted(files.sizes.items())
        if path.endswith(_OTHER) and not owner.get(path, "").startswith("debian:")
    ]
