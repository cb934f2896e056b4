"""LNK: the image's own glibc and libstdc++ are as new as every ELF file in it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from builder.inside.audit.linkage import loader_folders
from builder.inside.audit.model import Context, Finding
from builder.inside.elf import ElfFile

# The libraries of each package, as the names in version requirements (.gnu.version_r) say them.
_GLIBC = {
    *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1"),
    *("libresolv.so.2", "ld-linux-x86-64.so.2", "libanl.so.1", "libmvec.so.1"),
}
_RUNTIME = {"libstdc++.so.6", "libgcc_s.so.1"}


def glibc(context: Context) -> Iterator[Finding]:
    """LNK004"""
    remedy = (
        "install a build for an older glibc (manylinux tag), or move the base to a newer Debian"
    )
    yield from _floor(context, "LNK004", _GLIBC, "libc.so.6", remedy)


def runtime(context: Context) -> Iterator[Finding]:
    """LNK005: GLIBCXX_ and CXXABI_ of libstdc++, GCC_ of libgcc."""
    remedy = "install a build by an older GCC, or move the base to a newer Debian"
    yield from _floor(context, "LNK005", _RUNTIME, "libstdc++.so.6", remedy)


def _floor(
    context: Context, code: str, libraries: set[str], main: str, remedy: str
) -> Iterator[Finding]:
    provided = _provided(context, libraries)
    if main not in provided:
        context.count(code)
        yield Finding(code, main, "is not in the loader's path", "install it in the base")
        return
    newest: dict[str, str] = {}
    for elf in context.files.elves:
        missing = []
        for library, version in elf.requires:
            if library not in libraries:
                continue
            context.count(code)
            if version not in provided.get(library, frozenset()):
                missing.append(f"{version} of {library}")
            elif not version.endswith("PRIVATE"):
                prefix = version.partition("_")[0]
                newest[prefix] = max(newest.get(prefix, version), version, key=_order)
        if missing:
            text = f"needs {', '.join(sorted(missing))}, which the image's own has not"
            yield Finding(code, elf.path, text, remedy)
    context.notes.setdefault("version_floors", {}).update(newest)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("_")[2].split(".") if part.isdigit())


def _provided(context: Context, libraries: set[str]) -> dict[str, frozenset[str]]:
    """Version definitions of those of the libraries that the loader finds."""
    folders = set(loader_folders(context.files))
    found: dict[str, frozenset[str]] = {}
    for elf in context.files.elves:
        name = _name(elf)
        if name in libraries and str(PurePosixPath(elf.path).parent) in folders:
            found[name] = frozenset(elf.provides)
    return found


def _name(elf: ElfFile) -> str:
    """The file may be called libstdc++.so.6.0.30: what it is known by is its soname."""
    return elf.soname or PurePosixPath(elf.path).name
