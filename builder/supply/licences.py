"""The licence of everything the inventory lists: what is stated, normalised, and where its text is.

Nothing is concluded from a text by a program. Stated expressions are normalised to SPDX's; what
metadata leaves out is a correction with a reason (licences.toml); the rest is NOASSERTION, and
listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.supply.corrections import Corrections
from builder.supply.expressions import (
    NOASSERTION,
    Kind,
    debian,
    join_and,
    kind_of,
    normalise,
    reference,
)


@dataclass(frozen=True)
class Licence:
    """`expression`: SPDX's, or NOASSERTION. `texts`: paths in the image without a leading slash."""

    expression: str
    kind: Kind
    origin: str  # what says so: a metadata field, a copyright file, or a correction and its reason
    stated: str = ""  # the words that were normalised, where they differ
    texts: tuple[str, ...] = ()


def python_licence(entry: Mapping[str, Any], corrections: Corrections) -> Licence:
    """Of a distribution: License-Expression, else a correction, else License, else classifiers."""
    stated: Mapping[str, Any] = entry["licence"]
    texts = tuple(entry["licence_files"])
    if not texts and stated.get("text_begins"):
        texts = (f"{entry['folder']}/METADATA",)

    def found(expression: str, origin: str, words: str = "") -> Licence:
        kind = kind_of(expression, dict(corrections.kinds))
        return Licence(expression, kind, origin, "" if words == expression else words, texts)

    if words := stated.get("expression", ""):
        expression = normalise(words) or reference("Python", words)
        return found(expression, "License-Expression", words)
    if correction := corrections.python.get(entry["name"]):
        words = stated.get("name", "")
        return found(correction.licence, f"licences.toml: {correction.reason}", words)
    words = stated.get("name", "")
    if expression := corrections.names.get(words.lower()) or normalise(words) or "":
        return found(expression, "License", words)
    classifiers = stated.get("classifiers", [])
    if classifiers and all(name in corrections.classifiers for name in classifiers):
        expression = join_and([corrections.classifiers[name] for name in classifiers])
        # Of several classifiers it is not said whether all hold or one may be chosen.
        if len(classifiers) == 1:
            return found(expression, "Classifier", classifiers[0])
    said = "; ".join(part for part in (words, stated.get("text_begins", ""), *classifiers) if part)
    return found(NOASSERTION, "nothing that names one licence", said)


def debian_licence(entry: Mapping[str, Any], corrections: Corrections) -> Licence:
    """Of a Debian package: all that its copyright file names for its files, else a correction."""
    texts = (entry["copyright"],) if entry["copyright"] else ()
    kinds = dict(corrections.kinds)
    if entry["machine_readable"] and entry["licences"]:
        expression = join_and([debian(name) for name in entry["licences"]])
        return Licence(expression, kind_of(expression, kinds), "copyright", texts=texts)
    if correction := corrections.debian.get(entry["source"]):
        origin = f"licences.toml: {correction.reason}"
        return Licence(correction.licence, kind_of(correction.licence, kinds), origin, texts=texts)
    common = ", ".join(entry["common"])
    said = f"prose that refers to {common}" if common else "prose"
    return Licence(NOASSERTION, "unknown", "copyright", said, texts)


def library_licence(
    below_site: str, bundled: bool, owner: Licence | None, corrections: Corrections
) -> Licence:
    """Of a native file: a correction for its path, else its owner's unless it is bundled."""
    texts = owner.texts if owner else ()
    if correction := corrections.library(below_site):
        kind = kind_of(correction.licence, dict(corrections.kinds))
        origin = f"licences.toml: {correction.reason}"
        return Licence(correction.licence, kind, origin, texts=texts)
    if owner is not None and not bundled:
        return Licence(owner.expression, owner.kind, "of its distribution", texts=texts)
    return Licence(NOASSERTION, "unknown", "another project's library", texts=texts)


def embedded_licence(entry: Mapping[str, str], owner: Licence, corrections: Corrections) -> Licence:
    """Of a part that a wheel's own bill of materials names; its text, if any, is the wheel's."""
    words = entry.get("licence", "")
    expression = corrections.names.get(words.lower()) or normalise(words)
    if expression is None:
        return Licence(NOASSERTION, "unknown", entry["stated_in"], words, owner.texts)
    kind = kind_of(expression, dict(corrections.kinds))
    said = "" if words == expression else words
    return Licence(expression, kind, entry["stated_in"], said, owner.texts)
