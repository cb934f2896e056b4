"""Installed Debian packages as dpkg's own files describe them, and what their copyright files say.

A copyright file in the machine-readable format ("DEP-5", Debian's copyright-format 1.0) names a
licence for each set of files; any other is prose, of which only the references to
/usr/share/common-licenses can be told.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

_STATUS = "var/lib/dpkg/status"
_INFO = "var/lib/dpkg/info"
_DOC = "usr/share/doc"
_COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z][A-Za-z0-9.-]*[A-Za-z0-9])")
_RELATION = re.compile(r"[a-z0-9][a-z0-9+.-]+")


@dataclass(frozen=True)
class Package:
    """One installed package. Paths are relative to the root."""

    name: str
    version: str
    architecture: str
    source: str
    source_version: str
    depends: tuple[str, ...]  # installed packages that Depends or Pre-Depends name
    homepage: str
    copyright: str  # empty when there is no such file
    copyright_sha256: str
    machine_readable: bool
    licences: tuple[str, ...]  # short names as written, for the files of the package
    common: tuple[str, ...]  # names below /usr/share/common-licenses that the text refers to


def paragraphs(text: str) -> list[dict[str, str]]:
    """Paragraphs of deb822 fields; keys in lower case, continuation lines joined by a newline."""
    found: list[dict[str, str]] = []
    for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        fields: dict[str, str] = {}
        key = ""
        for line in block.splitlines():
            if line[:1] in (" ", "\t") and key:
                fields[key] += "\n" + line.strip()
            elif ":" in line and not line.startswith("#"):
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if fields:
            found.append(fields)
    return found


def packages(root: Path) -> list[Package]:
    """All installed packages, by name and architecture; images without dpkg use status.d."""
    folder = (root / _STATUS).parent
    stanzas: list[dict[str, str]] = []
    for source in [root / _STATUS, *sorted((folder / "status.d").glob("*"))]:
        if source.is_file() and not source.name.endswith(".md5sums"):
            stanzas += paragraphs(source.read_text("utf-8", "replace"))
    installed = [
        s
        for s in stanzas
        # The third word: `half-installed` and `not-installed` end alike (dpkg-query(1)).
        if "package" in s and s.get("status", "installed").split()[-1:] == ["installed"]
    ]
    names = {stanza["package"] for stanza in installed}
    found = [_package(root, stanza, names) for stanza in installed]
    return sorted(found, key=lambda p: (p.name, p.architecture))


def _package(root: Path, fields: dict[str, str], installed: set[str]) -> Package:
    name, version = fields["package"], fields.get("version", "")
    source, _, rest = fields.get("source", name).partition(" ")
    wanted = ",".join(fields.get(key, "") for key in ("pre-depends", "depends"))
    depends = {
        match[0]
        for relation in re.split(r"[,|]", wanted)
        if (match := _RELATION.match(relation.strip()))
    }
    path = root / _DOC / name / "copyright"
    text = path.read_bytes() if path.is_file() else b""
    machine, licences, common = describe_copyright(text.decode("utf-8", "replace"))
    return Package(
        name=name,
        version=version,
        architecture=fields.get("architecture", ""),
        source=source,
        source_version=rest.strip("() ") or version,
        depends=tuple(sorted(depends & installed - {name})),
        homepage=fields.get("homepage", ""),
        copyright=f"{_DOC}/{name}/copyright" if text else "",
        copyright_sha256=hashlib.sha256(text).hexdigest() if text else "",
        machine_readable=machine,
        licences=licences,
        common=common,
    )


def describe_copyright(text: str) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
    """(machine-readable, licence names of the files, common licences referred to).

    Of a machine-readable file the names are those of its Files paragraphs; the paragraphs that
    only spell a licence out add nothing. Without any, the header's own License counts.
    """
    common = tuple(sorted(set(_COMMON.findall(text))))
    stanzas = paragraphs(text)
    if not stanzas or "format" not in stanzas[0]:
        return False, (), common
    named = [s["license"] for s in stanzas[1:] if "files" in s and s.get("license")]
    named = named or [stanzas[0].get("license", "")]
    short = {" ".join(text.split("\n", 1)[0].split()) for text in named}
    return True, tuple(sorted(short - {""})), common


def owners(root: Path) -> dict[str, str]:
    """Path to package name, from dpkg's file lists, with merged folders (/lib) resolved."""
    found: dict[str, str] = {}
    resolved: dict[str, str] = {}
    for listing in sorted((root / _INFO).glob("*.list")):
        name = listing.name.removesuffix(".list").partition(":")[0]
        for line in listing.read_text("utf-8", "replace").splitlines():
            folder, _, base = line.strip().lstrip("/").rpartition("/")
            if folder not in resolved:
                resolved[folder] = _resolve(root, folder)
            found.setdefault(f"{resolved[folder]}/{base}".lstrip("/"), name)
    return found


def _resolve(root: Path, folder: str) -> str:
    """Where `folder` really lies below root; itself when a link leads out of it."""
    real = os.path.relpath(os.path.realpath(root / folder), os.path.realpath(root))
    if real.startswith(".."):
        return folder
    return "" if real == "." else real
