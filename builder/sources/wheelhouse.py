"""A wheelhouse: one folder with everything a build of a target needs, filled where there is a
network, verified where there is none."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import console
from builder.errors import (
    DiskSpaceError,
    HashMismatchError,
    TruncatedDownloadError,
    WheelhouseError,
)
from builder.files import sha256_file
from builder.pins import SourcePin, Target
from builder.project import Project
from builder.sources.artifacts import artifact_path, link_or_copy, wanted_artifact
from builder.sources.download import download
from builder.sources.index import pip_download, requirement
from builder.sources.needed import Needed, needed, states

INDEX = "wheelhouse.json"
# A batch is what a Ctrl-C can lose: pip hands over its files at the end of a run.
_BATCH_BYTES = 400_000_000
_BATCH_FILES = 25
_SHOWN = 10


@dataclass(frozen=True)
class FillResult:
    """What a fetch ended with; `files` and `bytes` count all that the target needs of it."""

    target: str
    files: int
    bytes: int
    fetched: int


def fill(project: Project, target: Target, dest: Path, mirrors: Mapping[str, str]) -> FillResult:
    """Bring everything into `dest`; what is there and good is kept, so that it can be resumed.

    Raises the source errors, and DiskSpaceError before anything is fetched. The index file is
    written last: a folder without it is unfinished.
    """
    items = needed(project, target)
    try:
        dest.mkdir(parents=True, exist_ok=True)
        absent = _drop_bad(items, dest)
        _check_room(absent, dest)
        console.info(f"{target.name}: {len(items) - len(absent)} of {len(items)} files are there")
        for item in absent:
            if item.source is not None:
                _fetch_source(project, item.source, dest, mirrors)
        _fetch_wheels(target, [item for item in absent if item.source is None], dest)
        files = _write_index(target, items, dest)
    except PermissionError as exc:
        raise WheelhouseError(f"{exc.filename}: {exc.strerror}", "name a folder of yours") from None
    return FillResult(target.name, len(files), sum(f["size"] for f in files), len(absent))


def _drop_bad(items: list[Needed], dest: Path) -> list[Needed]:
    """Delete files that are not what is pinned; what is absent after that."""
    absent: list[Needed] = []
    for state in states(items, dest):
        for path in (*state.truncated, *state.tampered):
            console.info(f"{path.name}: not what is pinned, fetched again")
            path.unlink()
        if not state.good:
            absent.append(state.item)
    return absent


def _check_room(absent: list[Needed], dest: Path) -> None:
    need = sum(item.largest for item in absent) + min(_BATCH_BYTES, sum(i.largest for i in absent))
    free = shutil.disk_usage(dest).free
    if free < need:
        raise DiskSpaceError(
            f"{dest}: {free / 2**30:.1f} GiB free, the files need {need / 2**30:.1f} GiB",
            "free some room or name another folder",
        )


def _fetch_source(
    project: Project, source: SourcePin, dest: Path, mirrors: Mapping[str, str]
) -> None:
    cached = artifact_path(project, source)
    with console.step(f"fetching {source.filename}"):
        if cached.is_file() and sha256_file(cached) == source.sha256:
            link_or_copy(cached, dest / source.filename)
        else:
            download(wanted_artifact(source, mirrors), dest / source.filename)


def _batches(items: Iterable[Needed]) -> Iterator[list[Needed]]:
    batch: list[Needed] = []
    for item in items:
        heavy = sum(i.largest for i in batch) + item.largest > _BATCH_BYTES
        # A tool's version may differ from the lock's: pip refuses both in one run.
        twice = item.name in {i.name for i in batch}
        if batch and (heavy or twice or len(batch) == _BATCH_FILES):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _fetch_wheels(target: Target, items: list[Needed], dest: Path) -> None:
    done = 0
    for batch in _batches(items):
        title = f"fetching wheels {done + 1}-{done + len(batch)} of {len(items)}"
        weight = sum(item.largest for item in batch) / 1e6
        with (
            console.step(f"{title} ({weight:.0f} MB)"),
            tempfile.TemporaryDirectory(dir=dest, prefix=".part-") as scratch,
        ):
            lines = [requirement(item.name, item.version, item.hashes) for item in batch]
            pip_download(lines, Path(scratch), target.shared.python, what=title)
            for wheel in sorted(Path(scratch).iterdir()):
                wheel.replace(dest / wheel.name)
        done += len(batch)


def _write_index(target: Target, items: list[Needed], dest: Path) -> list[dict[str, Any]]:
    """Record what lies there; files of other targets in the same folder stay listed."""
    mine: list[dict[str, Any]] = []
    found = states(items, dest)
    if missing := [state.item.label for state in found if not state.good]:
        raise WheelhouseError(f"{dest}: still without {_some(missing)}", "run the command again")
    for path, digest in (pair for state in found for pair in state.good.items()):
        mine.append({"filename": path.name, "sha256": digest, "size": path.stat().st_size})
    before = _read_index(dest)
    files = {record["filename"]: record for record in (*before.get("files", []), *mine)}
    index = {
        "schema_version": 1,
        "targets": sorted({*before.get("targets", []), target.name}),
        "files": [files[name] for name in sorted(files) if (dest / name).is_file()],
    }
    scratch = dest / f".{INDEX}.new"
    scratch.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    scratch.replace(dest / INDEX)
    return mine


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(index, dict):
            return index
    except FileNotFoundError:
        return {}
    except ValueError:
        pass
    raise WheelhouseError(f"{path}: not an index", "delete it and run `build.py fetch` again")


def verify(project: Project, target: Target, folder: Path) -> None:
    """Raise unless `folder` holds all that a build of the target needs, each with a pinned hash.

    HashMismatchError and TruncatedDownloadError name bad files, WheelhouseError missing ones.
    """
    options = f"--cuda {target.variant}" + (" --stand-in" if target.stand_in else "")
    again = f"run `python3 build.py fetch {options} --to DIR` where there is a network"
    if not folder.is_dir():
        raise WheelhouseError(f"{folder}: no such folder", again)
    found = states(needed(project, target), folder)
    if tampered := [path.name for state in found for path in state.tampered]:
        raise HashMismatchError(f"{folder}: not the pinned files: {_some(tampered)}", again)
    if truncated := [path.name for state in found for path in state.truncated]:
        raise TruncatedDownloadError(f"{folder}: truncated: {_some(truncated)}", again)
    if missing := [state.item.label for state in found if not state.good]:
        raise WheelhouseError(f"{folder}: without {_some(missing)}", again)
    if target.name not in _read_index(folder).get("targets", []):
        raise WheelhouseError(f"{folder / INDEX}: does not list {target.name}", again)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
