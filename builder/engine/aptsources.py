"""Where this host gets Debian from: apt's source entries, parsed and judged.

The builder names no mirror of its own: it uses the one that the host was set up with, or the one
in `$DDTREE_DEBIAN_MIRROR`. Formats: sources.list(5), one-line and deb822.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MIRROR_VARIABLE = "DDTREE_DEBIAN_MIRROR"
_KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
)
_CODENAMES = ("bullseye", "bookworm", "trixie", "forky", "duke", "sid")
_ALIASES = ("oldoldstable", "oldstable", "stable", "testing", "unstable")
_OPTION = re.compile(r"([A-Za-z-]+)[+-]?=(\S+)")


class AptUnavailableError(Exception):
    """Debian's packages cannot be had here. Callers turn it into the failure of their own job."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


@dataclass(frozen=True)
class Entry:
    """One `deb` entry: all of its URIs carry all of its suites."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


@dataclass(frozen=True)
class Mirror:
    """A Debian archive: `main` and, where the host names one, `security`."""

    main: str
    security: str | None
    signed_by: str
    """Value of a deb822 Signed-By field: keyring path, fingerprint or an inline key block."""

    def sources(self, suite: str, architecture: str, *, updates: bool = True) -> str:
        """deb822 text for a suite with its updates and security fixes."""
        parts = [(self.main, f"{suite} {suite}-updates" if updates else suite)]
        if updates and self.security:
            parts.append((self.security, f"{suite}-security"))
        return "\n".join(
            f"Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\n"
            f"Architectures: {architecture}\nSigned-By:{_field(self.signed_by)}\n"
            for uri, suites in parts
        )


def _field(value: str) -> str:
    return value if value.startswith("\n") else f" {value}"


def parse_one_line(text: str) -> list[Entry]:
    """Entries of a sources.list; comments, deb-src and CD-ROMs are left out."""
    entries = []
    for raw in text.splitlines():
        line = raw.split("#", 1)[0].strip()
        match = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)$", line)
        if match is None or match[2].startswith("cdrom:"):
            continue
        options = {name.lower(): value for name, value in _OPTION.findall(match[1] or "")}
        entries.append(
            Entry((match[2],), (match[3],), tuple(match[4].split()), options.get("signed-by", ""))
        )
    return entries


def parse_deb822(text: str) -> list[Entry]:
    """Entries of a *.sources file; disabled and deb-src stanzas are left out."""
    entries = []
    for stanza in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.split("\n"):
            if line.startswith("#") or not line.strip():
                continue
            if line[0] in " \t":  # a continuation; an inline key keeps its line structure
                fields[name] = f"{fields.get(name, '')}\n{line}"
                continue
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
        enabled = fields.get("enabled", "yes").lower() not in {"no", "false", "0", "off"}
        if enabled and "deb" in fields.get("types", "").split():
            entries.append(
                Entry(
                    tuple(fields.get("uris", "").split()),
                    tuple(fields.get("suites", "").split()),
                    tuple(fields.get("components", "").split()),
                    fields.get("signed-by", ""),
                )
            )
    return entries


def host_entries(etc: Path = Path("/etc/apt")) -> list[Entry]:
    """Every `deb` entry that apt would read below `etc`."""
    entries: list[Entry] = []
    listed = etc / "sources.list"
    if listed.is_file():
        entries += parse_one_line(listed.read_text(errors="replace"))
    folder = etc / "sources.list.d"
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix == ".list":
            entries += parse_one_line(path.read_text(errors="replace"))
        elif path.suffix == ".sources":
            entries += parse_deb822(path.read_text(errors="replace"))
    return entries


def _is_archive(entry: Entry, suffixes: Iterable[str]) -> bool:
    names = {f"{code}{suffix}" for code in (*_CODENAMES, *_ALIASES) for suffix in suffixes}
    return "main" in entry.components and not names.isdisjoint(entry.suites)


def _likeness(entry: Entry) -> tuple[bool, bool]:
    """Third parties reuse Debian's code names; Debian's own archive signs and is laid out so."""
    return (
        "debian-archive" in entry.signed_by,
        any(re.search(r"/debian(-security)?/?$", uri) for uri in entry.uris),
    )


def find_mirror(entries: Iterable[Entry]) -> Mirror | None:
    """The Debian archive among a host's entries, or None (Ubuntu, an empty configuration)."""
    ranked = sorted((e for e in entries if e.uris), key=_likeness, reverse=True)
    main = next((e for e in ranked if _is_archive(e, [""])), None)
    if main is None:
        return None
    security = next((e for e in ranked if _is_archive(e, ["-security", "/updates"])), None)
    return Mirror(main.uris[0], security.uris[0] if security else None, main.signed_by)


def debian_keyring(candidates: Iterable[Path] = _KEYRINGS) -> Path | None:
    """The keyring of Debian's package debian-archive-keyring, if the host has it."""
    return next((path for path in candidates if path.is_file()), None)


def host_mirror(etc: Path = Path("/etc/apt"), env: Mapping[str, str] | None = None) -> Mirror:
    """The mirror to use: `$DDTREE_DEBIAN_MIRROR` ("MAIN [SECURITY]"), else the host's own.

    Raises AptUnavailableError when there is none, or nothing to check its signature with.
    """
    given = (os.environ if env is None else env).get(MIRROR_VARIABLE, "").split()
    if len(given) > 2 or any("://" not in uri for uri in given):
        raise AptUnavailableError(
            f"{MIRROR_VARIABLE} is not one or two URIs: {' '.join(given)!r}",
            f"set {MIRROR_VARIABLE}='URI-of-debian [URI-of-debian-security]'",
        )
    found = find_mirror(host_entries(etc))
    if given:
        found = Mirror(given[0], given[1] if len(given) > 1 else None, "")
    if found is None:
        raise AptUnavailableError(
            f"apt on this host names no Debian archive, and {MIRROR_VARIABLE} is not set",
            f"set {MIRROR_VARIABLE} to the URI of a Debian mirror",
        )
    if found.signed_by:
        return found
    keyring = debian_keyring()
    if keyring is None:
        raise AptUnavailableError(
            "the keyring that Debian's packages are checked with is not installed",
            "install the package debian-archive-keyring",
        )
    return Mirror(found.main, found.security, str(keyring))
