"""Where a model's files are, and reading the small ones of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_overlay.doctor.model import Finding, Subject
from ddtree_overlay.doctor.model_checks import codes

LARGEST_JSON = 256 * 2**20
"""Of a JSON file that is read whole, in bytes: tokenizer.json has tens of MiB."""
_HUB_NAME_PARTS = 2
MODEL = "model"
"""The target's role."""
_TRUE = frozenset({"1", "true", "yes", "on"})


class Unusable(Exception):  # noqa: N818 - it carries a finding, it is not an error of ours
    """A model that cannot be looked at further, with the finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


@dataclass(frozen=True)
class Source:
    """A model's folder. `role` is "model" or "draft model", for messages."""

    name: str
    folder: Path
    role: str


def locate(name: str, role: str, subject: Subject) -> Source:
    """The folder of a path or of a Hub name in the local cache. Raises Unusable."""
    environment = subject.environment
    folder = Path(name).expanduser()
    try:
        if folder.is_dir():
            return Source(name, folder, role)
        exists = folder.exists()
    except OSError as error:  # also a network file system's: stale handle, input/output error
        raise Unusable(
            codes.UNREADABLE.found(
                f"the {role} {name} cannot be reached by {_who()} ({error.strerror})"
            )
        ) from None
    if exists:
        raise Unusable(codes.SINGLE_FILE.found(f"the {role} {name} is a file"))
    if not _is_hub_name(name):
        raise Unusable(codes.NO_FOLDER.found(f"the {role} {name} does not exist"))
    revision = subject.revision if role == MODEL else None
    cached = _cached(name, environment, revision or "main")
    if cached is not None:
        return Source(name, cached, role)
    if _offline(environment):
        raise Unusable(
            codes.NOT_CACHED.found(
                f"the {role} {name} is no folder, and not in the Hub cache {_hub(environment)}"
            )
        )
    raise Unusable(codes.NOT_LOCAL.found(f"the {role} {name} is not in {_hub(environment)}"))


def read_object(path: Path, role: str) -> dict[str, Any]:
    """A JSON object. Raises Unusable naming the file; FileNotFoundError where there is none."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_JSON + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unusable(
            codes.UNREADABLE.found(f"{path} cannot be read by {_who()} ({error.strerror})")
        ) from None
    if is_lfs_pointer(content):
        raise Unusable(codes.LFS_POINTER.found(f"{path} of the {role} is a git-lfs pointer"))
    if len(content) > LARGEST_JSON:
        raise Unusable(codes.BAD_CONFIG.found(f"{path} is above {LARGEST_JSON >> 20} MiB"))
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        why = "is empty" if not content.strip() else f"is not JSON ({error})"
        raise Unusable(codes.BAD_CONFIG.found(f"{path} {why}")) from None
    if not isinstance(parsed, dict):
        raise Unusable(codes.BAD_CONFIG.found(f"{path} holds no JSON object"))
    return parsed


def read_config(source: Source) -> dict[str, Any]:
    """config.json. Raises Unusable."""
    try:
        return read_object(source.folder / "config.json", source.role)
    except FileNotFoundError:
        raise Unusable(
            codes.NO_CONFIG.found(f"the {source.role} {source.name} has no config.json")
        ) from None


def is_lfs_pointer(beginning: bytes) -> bool:
    """Whether a file that begins so is a git-lfs pointer."""
    return beginning.startswith(b"version https://git-lfs")


def sources(subject: Subject) -> list[tuple[str, str]]:
    """(name, role) of what is configured."""
    found = [(subject.model, MODEL), (subject.draft_model, "draft model")]
    return [(name, role) for name, role in found if name]


def each(subject: Subject, check: Callable[[Source], Iterable[Finding]]) -> Iterable[Finding]:
    """`check` of every configured model that has a folder; the others are MOD findings already."""
    for name, role in sources(subject):
        try:
            source = locate(name, role, subject)
        except Unusable:
            continue
        yield from check(source)


def configured(subject: Subject) -> dict[str, tuple[Source, dict[str, Any]]]:
    """Source and configuration by role, of what can be read."""
    found = {}
    for name, role in sources(subject):
        try:
            source = locate(name, role, subject)
            found[role] = source, read_config(source)
        except Unusable:
            continue
    return found


def _is_hub_name(name: str) -> bool:
    parts = name.split("/")
    plain = not name.startswith(("/", ".", "~")) and "\\" not in name
    return plain and len(parts) <= _HUB_NAME_PARTS and all(parts)


def _hub(environment: Mapping[str, str]) -> Path:
    """As huggingface_hub finds it."""
    given = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    if given:
        return Path(given).expanduser()
    home = environment.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME') or '~'}/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def _cached(name: str, environment: Mapping[str, str], revision: str) -> Path | None:
    """The snapshot of a branch, a tag or a commit."""
    folder = _hub(environment) / ("models--" + name.replace("/", "--"))
    try:
        named = folder / "refs" / revision
        commit = named.read_text(encoding="utf-8").strip() if named.is_file() else revision
        snapshot = folder / "snapshots" / commit
        return snapshot if commit and snapshot.is_dir() else None
    except (OSError, ValueError):
        return None


def _offline(environment: Mapping[str, str]) -> bool:
    return any(
        environment.get(key, "").lower() in _TRUE
        for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def _who() -> str:
    return f"UID {os.getuid()}"
