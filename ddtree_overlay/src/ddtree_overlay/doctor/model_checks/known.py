"""What the image's SGLang and Transformers know, read from their files: importing them takes ten
seconds and a working torch."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ENTRY = re.compile(r"^EntryClass\s*(?::[^=\n]*)?=\s*(\[[^\]]*\]|\(?\s*\w+)", re.MULTILINE)
_IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*\b")
_COMMENT = re.compile(r"#[^\n]*")
_CLASS_TYPE = re.compile(r"^\s+model_type(?:\s*:[^=\n]*)?\s*=\s*[\"']([^\"']+)[\"']", re.MULTILINE)
_REGISTERED = re.compile(r"_CONFIG_REGISTRY\[[\"']([^\"']+)[\"']\]")
_PAIR = re.compile(r"[(\s{][\"']([\w.\-]+)[\"']\s*[,:]\s*[\"']\w+Config[\"']")
_CLASS = re.compile(r"[\"'](\w+)[\"']")
_TOO_FEW = 20
"""Fewer names than this mean that the files are laid out otherwise, not that nothing is known."""


@dataclass(frozen=True)
class Known:
    """Names; an empty set means "could not be told" and refuses nothing."""

    architectures: frozenset[str]
    transformers_architectures: frozenset[str]
    model_types: frozenset[str]


@cache
def installed() -> Known:
    """Of the packages that this interpreter would import."""
    return read_known(_package("sglang"), _package("transformers"))


def read_known(sglang: Path | None, transformers: Path | None) -> Known:
    """From the two packages' folders; None where one is not installed."""
    architectures: set[str] = set()
    types: set[str] = set()
    if sglang is not None:
        for text in _texts((sglang / "srt" / "models").glob("*.py")):
            for entry in _ENTRY.findall(text):
                architectures.update(_IDENTIFIER.findall(_COMMENT.sub("", entry)))
        for text in _texts((sglang / "srt" / "configs").glob("*.py")):
            types.update(_CLASS_TYPE.findall(text))
        for text in _texts((sglang / "srt" / "utils").rglob("*.py")):
            types.update(_REGISTERED.findall(text))
    backend: set[str] = set()
    if transformers is not None:
        auto = transformers / "models" / "auto"
        found: set[str] = set()
        for text in _texts([auto / "auto_mappings.py", auto / "configuration_auto.py"]):
            found.update(_PAIR.findall(text))
        # Without Transformers' own list a model type would be refused for want of ours.
        types = types | found if len(found) > _TOO_FEW else set()
        for text in _texts([auto / "modeling_auto.py"]):
            backend.update(_CLASS.findall(text))
    else:
        types = set()
    return Known(*(_enough(names) for names in (architectures, backend, types)))


def _enough(names: set[str]) -> frozenset[str]:
    return frozenset(names if len(names) > _TOO_FEW else ())


def _package(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)  # of a top-level name: imports nothing
    except (ImportError, ValueError):
        return None
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def _texts(paths: Iterable[Path]) -> list[str]:
    texts = []
    for path in paths:
        try:
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return texts
