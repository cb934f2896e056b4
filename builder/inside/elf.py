"""What the audit reads of one ELF file: linkage, versions, symbols, a cubin's architecture.

pyelftools finds the sections; symbol tables are unpacked in bulk, since libtorch alone has
several hundred thousand entries and pyelftools builds an object for each.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection

from builder.inside.fatbin import Code

MAGIC = b"\x7fELF"
EM_CUDA = 190
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym: name, info, other, shndx, value, size
_SHN_UNDEF = 0
_STB_WEAK = 2
_STB_LOCAL = 0
_LEAST_VERSION = 16  # bytes of an Elf64_Verneed; an Elf64_Verdef has 20
_VER_FLG_WEAK = 2  # the loader only warns when it is missing (glibc, elf/dl-version.c)
# The CUDA ABI version sits in byte 8. From version 8 on the architecture is in the second byte of
# e_flags instead of the lowest: NVRTC 12.8 writes 7 up to sm_90 and 8 from sm_100 on, 13.0 always 8
# (seen in cubins of 12.8.93 and 13.0.88, compared with what cuobjdump prints).
_CUDA_ABI_SHIFTED = 8


class NotElfError(Exception):
    """The file is no ELF file, or a damaged one."""


@dataclass(frozen=True)
class Symbols:
    """Dynamic symbols: `undefined` must come from elsewhere (weak ones may stay unresolved)."""

    defined: frozenset[str] = frozenset()
    undefined: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ElfFile:
    """One dynamically linked (or static) ELF file. `path` is relative to the audited root.

    `symbols` and `code` are empty unless the file was read whole (filesystem.scan).
    """

    path: str
    needed: tuple[str, ...]
    search: tuple[str, ...]  # RPATH or RUNPATH entries, $ORIGIN not yet expanded
    soname: str = ""
    requires: tuple[tuple[str, str], ...] = ()  # (library, version) such as (libc.so.6, GLIBC_2.34)
    provides: tuple[str, ...] = ()  # versions that it defines itself
    symbols: Symbols = field(default_factory=Symbols)
    code: tuple[Code, ...] = ()  # in fat binaries


def is_elf(path: Path) -> bool:
    """Whether the file starts with the ELF magic number."""
    try:
        with path.open("rb") as handle:
            return handle.read(4) == MAGIC
    except OSError:
        return False


def read_elf(path: Path, name: str) -> ElfFile:
    """Linkage and versions of one file. Raises NotElfError for a damaged one."""
    with path.open("rb") as handle:
        return parse_elf(handle, name)


def parse_elf(handle: IO[bytes], name: str, keep: Callable[[str], bool] | None = None) -> ElfFile:
    """The same of an open file; with `keep` also those symbols whose name it accepts.

    Raises NotElfError.
    """
    needed: list[str] = []
    search: list[str] = []
    soname = ""
    requires: list[tuple[str, str]] = []
    provides: list[str] = []
    symbols = Symbols()
    linked = False
    with _refusing_damage(name):
        elf = ELFFile(handle)
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                linked = True
                tag: Any  # its attributes depend on d_tag
                for tag in section.iter_tags():
                    if tag.entry.d_tag == "DT_NEEDED":
                        needed.append(tag.needed)
                    elif tag.entry.d_tag == "DT_SONAME":
                        soname = tag.soname
                    elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                        text = tag.rpath if tag.entry.d_tag == "DT_RPATH" else tag.runpath
                        search.extend(part for part in text.split(":") if part)
            elif isinstance(section, GNUVerNeedSection):
                _check_number(section)
                for library, versions in section.iter_versions():
                    requires.extend(
                        (str(library.name), str(version.name))
                        for version in versions
                        if not version.entry.vna_flags & _VER_FLG_WEAK
                    )
            elif isinstance(section, GNUVerDefSection):
                _check_number(section)
                # The first name of a definition is its own, the others those it builds on.
                provides.extend(str(next(names).name) for _, names in section.iter_versions())
            elif keep is not None and section["sh_type"] == "SHT_DYNSYM":
                symbols = _symbols(elf, section, keep)
        # The loader reads segments: without its header a section is loaded and not seen here.
        if not linked and any(
            segment["p_type"] == "PT_DYNAMIC" and segment["p_filesz"]
            for segment in elf.iter_segments()
        ):
            raise ELFError("its dynamic section has no header, so its linkage cannot be read")
    return ElfFile(
        path=name,
        needed=tuple(needed),
        search=tuple(search),
        soname=soname,
        requires=tuple(requires),
        provides=tuple(provides),
        symbols=symbols,
    )


def _check_number(section: Any) -> None:
    """A damaged one claims billions, which would be read one by one."""
    if section["sh_info"] * _LEAST_VERSION > section["sh_size"]:
        raise ELFError(f"{section['sh_info']} versions do not fit their section")


def read_symbols(path: Path, name: str) -> Symbols:
    """Dynamic symbols without their versions. Raises NotElfError for a damaged file."""
    with path.open("rb") as handle:
        return parse_elf(handle, name, lambda _symbol: True).symbols


def _symbols(elf: ELFFile, section: Any, keep: Callable[[str], bool]) -> Symbols:
    defined: set[str] = set()
    undefined: set[str] = set()
    strings = elf.get_section(section["sh_link"]).data()
    for offset, info, _other, shndx, _value, _size in _SYMBOL.iter_unpack(section.data()):
        bind = info >> 4
        if bind == _STB_LOCAL or not offset:
            continue
        text = strings[offset : strings.index(b"\0", offset)].decode("utf-8", "replace")
        if not keep(text):
            continue
        if shndx != _SHN_UNDEF:
            defined.add(text)
        elif bind != _STB_WEAK:
            undefined.add(text)
    return Symbols(frozenset(defined), frozenset(undefined))


def cubin_architecture(code: bytes) -> str:
    """`sm_120`, `sm_120a` or `sm_120f` of a cubin. Raises NotElfError when it is not one.

    The number is in e_flags (at offset 48 of an ELF64 header). CUDA 13.0 keeps the suffix out of
    them: there the compiler's note of its own `-arch` tells sm_120a from sm_120.
    """
    if len(code) < 64 or code[:4] != MAGIC or struct.unpack_from("<H", code, 18)[0] != EM_CUDA:
        raise NotElfError("not a cubin")
    flags = struct.unpack_from("<I", code, 48)[0]
    if code[8] < _CUDA_ABI_SHIFTED:
        return f"sm_{flags & 0xFF}{'a' if flags & 0x800 else ''}"
    number = flags >> 8 & 0xFF
    noted = re.search(rb"-arch sm_%d([af]?)[ \0]" % number, code)
    suffix = noted.group(1).decode() if noted else "a" if flags & 0x8 else ""
    return f"sm_{number}{suffix}"


def cubin_compiler(code: bytes) -> str:
    """`13.0.88`, or only `12.8` where the cubin holds no more, or empty.

    Newer cubins carry the compiler's own note; older ones the release in e_version (128 for 12.8).
    """
    noted = re.search(rb"release \d+\.\d+, V(\d+\.\d+\.\d+)", code)
    if noted:
        return noted.group(1).decode()
    release = struct.unpack_from("<I", code, 20)[0] if len(code) >= 64 else 0
    return f"{release // 10}.{release % 10}" if release >= 100 else ""


@contextmanager
def _refusing_damage(name: str) -> Iterator[None]:
    """pyelftools meets a damaged file with whatever its parser stumbles over."""
    try:
        yield
    except (ELFError, ArithmeticError, AssertionError, LookupError, AttributeError) as exc:
        raise NotElfError(f"{name}: {exc or type(exc).__name__}") from None
    except (TypeError, ValueError, struct.error) as exc:
        raise NotElfError(f"{name}: {exc}") from None
    except (OSError, MemoryError, zlib.error) as exc:  # an offset or a size that cannot be
        raise NotElfError(f"{name}: {exc or type(exc).__name__}") from None
