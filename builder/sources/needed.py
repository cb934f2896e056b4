"""What a build of a target takes from outside, and how much of it a folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from builder.files import sha256_file
from builder.lock.entries import LockEntry
from builder.lock.files import read_lock
from builder.pins import SourcePin, Target
from builder.project import Project
from builder.sources.index import tool_pins


@dataclass(frozen=True)
class Needed:
    """A distribution or file that a build needs: any one of `hashes` under its file name."""

    name: str
    version: str
    hashes: tuple[str, ...]
    sizes: Mapping[str, int]  # hash -> bytes, where known
    filenames: Mapping[str, str]  # hash -> file name, where known
    source: SourcePin | None = None  # fetched by URL; otherwise through pip

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def largest(self) -> int:
        return max(self.sizes.values(), default=0)

    def candidates(self, folder: Path) -> list[Path]:
        """Files in `folder` that claim to be this."""
        if self.filenames:
            paths = (folder / name for name in sorted(set(self.filenames.values())))
            return [path for path in paths if path.is_file()]
        return sorted(folder.glob(f"{self.name.replace('-', '_')}-{self.version}-*.whl"))


def needed(project: Project, target: Target) -> list[Needed]:
    """Everything a build of the target takes from outside, base image and engine apart."""
    shared = target.shared
    sources = {source.name: source for source in target.sources if source.kind == "wheel"}
    found = [_locked(entry, sources.get(entry.name)) for entry in read_lock(project, target)]
    sglang = shared.sglang
    found.append(
        Needed("sglang", sglang.version, (sglang.sha256,), {}, {sglang.sha256: sglang.wheel})
    )
    for name, version, sha256 in tool_pins(shared):
        found.append(Needed(name, version, (sha256,), {}, {}))
    for source in target.sources:
        if source.kind == "archive":
            found.append(_file(source))
    return found


def _locked(entry: LockEntry, source: SourcePin | None) -> Needed:
    if source is not None:
        return _file(source)
    sizes = {file.sha256: file.size for file in entry.files if file.size is not None}
    names = {file.sha256: file.filename for file in entry.files}
    return Needed(entry.name, entry.version, entry.hashes, sizes, names)


def _file(source: SourcePin) -> Needed:
    sizes = {} if source.size is None else {source.sha256: source.size}
    names = {source.sha256: source.filename}
    return Needed(source.name, source.version, (source.sha256,), sizes, names, source)


@dataclass(frozen=True)
class State:
    """What a folder holds of one item: files with their pinned hash, and others under its name."""

    item: Needed
    good: Mapping[Path, str]
    truncated: tuple[Path, ...]
    tampered: tuple[Path, ...]


def _state(item: Needed, folder: Path) -> State:
    good: dict[Path, str] = {}
    truncated: list[Path] = []
    tampered: list[Path] = []
    for path in item.candidates(folder):
        due = [s for h, s in item.sizes.items() if item.filenames.get(h) == path.name]
        if due and path.stat().st_size < min(due):
            truncated.append(path)
        elif (digest := sha256_file(path)) in item.hashes:
            good[path] = digest
        else:
            tampered.append(path)
    return State(item, good, tuple(truncated), tuple(tampered))


def states(items: list[Needed], folder: Path) -> list[State]:
    """The state of every item in `folder`, in the order of the items."""
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter lock
        return list(pool.map(lambda item: _state(item, folder), items))
