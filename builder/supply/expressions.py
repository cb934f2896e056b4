"""Licence names as SPDX expressions (SPDX specification 2.3, annex D), and what kind each is.

Names and categories come from the licence list that license-expression ships; a name that is not on
SPDX's list becomes a LicenseRef, never a guess.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal

from license_expression import (  # type: ignore[import-untyped]
    ExpressionError,
    LicenseSymbol,
    LicenseWithExceptionSymbol,
    Licensing,
    get_license_index,
    get_spdx_licensing,
)

NOASSERTION = "NOASSERTION"
Kind = Literal["permissive", "limited-copyleft", "copyleft", "proprietary", "debian", "unknown"]
# From what asks least of who passes the image on to what asks most; `unknown` asks for a reader.
_ORDER: tuple[Kind, ...] = (
    *("permissive", "debian", "limited-copyleft", "copyleft", "proprietary", "unknown"),
)
_DEBIAN_REF = "LicenseRef-Debian-"
# The short names of Debian's copyright-format 1.0 (section 7.1) that SPDX calls otherwise.
_DEBIAN = {
    "expat": "MIT",
    "artistic": "Artistic-1.0",
    "apache-2": "Apache-2.0",
    "bsd-2": "BSD-2-Clause",
    "bsd-3": "BSD-3-Clause",
    "bsl-1": "BSL-1.0",
    "bsd-2-clause-netbsd": "BSD-2-Clause",
    "mpl-2": "MPL-2.0",
    "python": "PSF-2.0",
    "beerware": "Beerware",
}
_GNU = re.compile(r"(?P<name>A?GPL|LGPL|GFDL)(?:-NIV)?(?:-(?P<version>\d(?:\.\d)?))?(?P<later>\+)?")
_GNU_EXCEPTIONS = {
    "autoconf": {"2": "Autoconf-exception-2.0", "3": "Autoconf-exception-3.0"},
    "bison": {"3": "Bison-exception-2.2"},
    "bison-2.2": {"3": "Bison-exception-2.2"},
    "linux-syscall-note": {"2": "Linux-syscall-note"},
    "texinfo": {"2": "Texinfo-exception", "3": "Texinfo-exception"},
}


@lru_cache(maxsize=1)
def licensing() -> Licensing:
    """SPDX's list; parsing it takes a tenth of a second, so it is done once."""
    return get_spdx_licensing()


@lru_cache(maxsize=1)
def _categories() -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in get_license_index():
        for key in (entry.get("spdx_license_key"), *entry.get("other_spdx_license_keys", ())):
            if key:
                found[str(key).lower()] = str(entry.get("category") or "")
    return found


@lru_cache(maxsize=4096)
def normalise(text: str) -> str | None:
    """The expression with SPDX's spelling, or None when a part of it is not on SPDX's list.

    A LicenseRef is accepted as it is. Cargo's old `MIT/Apache-2.0` means a choice.
    """
    text = re.sub(r"(?<=[\w.])\s*/\s*(?=[\w.])", " OR ", text.strip())
    if not text or "," in text:
        return None
    try:
        parsed = licensing().parse(text)
        unknown = licensing().unknown_license_keys(text)
    except (ExpressionError, ValueError, TypeError, AttributeError):
        return None
    if parsed is None or any(not is_reference(key) for key in unknown):
        return None
    return str(parsed)


def is_reference(name: str) -> bool:
    """Whether a name is a well-formed LicenseRef."""
    return bool(re.fullmatch(r"LicenseRef-[A-Za-z0-9.-]+", name))


def references(expression: str) -> list[str]:
    """The LicenseRef names in an expression."""
    return sorted(set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", expression)))


def reference(prefix: str, text: str) -> str:
    """`LicenseRef-<prefix>-<text>` with what SPDX allows in a name."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")
    return f"LicenseRef-{prefix}-{slug or 'unnamed'}"


def join_and(expressions: list[str]) -> str:
    """One expression that holds all of them; NOASSERTION when there is none or one is unknown."""
    distinct = sorted({text for text in expressions if text})
    if not distinct or NOASSERTION in distinct:
        return NOASSERTION
    if len(distinct) == 1:
        return distinct[0]
    return " AND ".join(f"({text})" if " OR " in text else text for text in distinct)


def debian(short: str) -> str:
    """An expression for one License field of a machine-readable copyright file.

    `and`, `or` and `and/or` join names; with a comma the precedence is the reader's, so that such
    a field becomes one LicenseRef.
    """
    if "," in short:
        return reference("Debian", short)
    parts = re.split(r"\s+(and/or|and|or)\s+", short, flags=re.IGNORECASE)
    words = [
        _debian_name(part) if index % 2 == 0 else ("AND" if part.lower() == "and" else "OR")
        for index, part in enumerate(parts)
    ]
    return normalise(" ".join(words)) or reference("Debian", short)


def _debian_name(name: str) -> str:
    name = name.strip()
    known = _DEBIAN.get(name.lower())
    if known:
        return known
    base, _, exception = name.partition(" with ")
    gnu = _GNU.fullmatch(base.strip())
    if gnu:
        # No version means any (copyright-format 1.0, 7.1).
        version, later = gnu["version"] or "1", bool(gnu["later"]) or not gnu["version"]
        if gnu["name"] == "LGPL" and not gnu["version"]:
            version = "2.0"
        if gnu["name"] == "GFDL":
            version = gnu["version"] or "1.1"
        number = version if "." in version else f"{version}.0"
        spdx = f"{gnu['name']}-{number}-{'or-later' if later else 'only'}"
        if not exception:
            return spdx if normalise(spdx) else reference("Debian", name)
        key = re.sub(r"\s+exception$", "", exception.strip(), flags=re.IGNORECASE).lower()
        known = _GNU_EXCEPTIONS.get(key, {}).get(number.partition(".")[0], "")
        return f"{spdx} WITH {known}" if known else reference("Debian", name)
    if not exception and (spelled := normalise(name)) and " " not in spelled:
        return spelled
    return reference("Debian", name)


def kind_of(expression: str, known: dict[str, Kind] | None = None) -> Kind:
    """What an expression asks for: of AND the most, of OR the least.

    `known` tells the kind of LicenseRefs by prefix. `debian` is a licence that Debian names and
    SPDX does not: free by Debian's guidelines, in a text of its own.
    """
    if expression == NOASSERTION:
        return "unknown"
    try:
        return _kind(licensing().parse(expression), known or {})
    except (ExpressionError, ValueError, TypeError, AttributeError):
        return "unknown"


def _kind(node: Any, known: dict[str, Kind]) -> Kind:
    if isinstance(node, LicenseWithExceptionSymbol):
        # The exception is what limits the copyleft.
        return _symbol(node.exception_symbol, known)
    if isinstance(node, LicenseSymbol):
        return _symbol(node, known)
    kinds = [_kind(part, known) for part in node.args]
    chosen = max if "AND" in type(node).__name__ else min
    return chosen(kinds, key=_ORDER.index)


def _symbol(symbol: LicenseSymbol, known: dict[str, Kind]) -> Kind:
    key = str(symbol.key)
    for prefix, kind in known.items():
        if key.startswith(prefix):
            return kind
    if key.startswith(_DEBIAN_REF):
        return "debian"
    return {
        "Permissive": "permissive",
        "Public Domain": "permissive",
        "CLA": "permissive",
        "Copyleft": "copyleft",
        "Copyleft Limited": "limited-copyleft",
    }.get(_categories().get(key.lower(), ""), "unknown")  # type: ignore[return-value]
